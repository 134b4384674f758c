"""The service: MQTT side, worker, HTTP, command line, embedded brokers. Everything is wired together here."""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    # structlog loads rich wherever that is installed, for tracebacks in a style that is not used here: 0.3 s of a start
    # and 4 MiB of a worker. The demo, which draws with rich, imports it later as usual.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog as structlog

    del sys.modules["rich"]
