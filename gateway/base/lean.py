"""Imports libraries without what they load in vain. Import this first.

- structlog loads an installed rich for tracebacks in a style that is not used here: 0.3 s of a start, 4 MiB.
- prometheus_client loads HTTP servers, and through them the names of all HTML characters: 1.7 MiB.
- pydantic looks for plug-ins in the metadata of every installed package: 1.6 MiB. The gateway uses none.

Whoever needs one of these modules imports it later as usual.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


class _Empty(ModuleType):
    """Has whatever is imported from it: a class to inherit from, whose call gives an empty tuple."""

    def __getattr__(self, name: str) -> type:
        return type(name, (), {"__new__": lambda *_, **__: ()})


@contextmanager
def _instead(modules: dict[str, ModuleType | None]) -> Iterator[None]:
    """Inside, an import finds these in place of modules that are not loaded yet; None is a missing one."""
    absent = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def _empty(*names: str) -> dict[str, ModuleType | None]:
    return {name: _Empty(name) for name in names}


if "structlog" not in sys.modules:
    with _instead({"rich": None}):
        import structlog  # noqa: F401 - loaded for whoever asks next
if "prometheus_client" not in sys.modules:
    with _instead(_empty("http.server", "socketserver", "urllib.request", "wsgiref.simple_server")):
        import prometheus_client.exposition  # noqa: F401
if "pydantic" not in sys.modules:
    with _instead(_empty("importlib.metadata")):
        import config.settings  # noqa: F401
