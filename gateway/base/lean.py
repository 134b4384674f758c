"""Import this before anything that imports structlog, to have that without rich.

structlog loads rich wherever it is installed, for tracebacks in a style that is not used here: 0.3 s of a start and
4 MiB of a worker. The demo, which draws with rich, imports it later as usual.
"""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401 - loaded for whoever asks next

    del sys.modules["rich"]
