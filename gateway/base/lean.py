"""Imports structlog without rich. Import this first.

structlog loads an installed rich for tracebacks in a style that is not used here: 0.3 s of a start and
4 MiB of a worker. The demo, which draws with rich, imports it later as usual.
"""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401 - loaded for whoever asks next

    del sys.modules["rich"]
