"""Which build of the gateway runs: the compiled one or the pure one (``hatch_build.py`` makes both)."""

from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from typing import Literal


def build() -> Literal["compiled", "pure"]:
    """Whether the hot modules of the data path are compiled. Loads none of them."""
    found = find_spec("bridge.produce.accumulator")
    return "compiled" if found is not None and isinstance(found.loader, ExtensionFileLoader) else "pure"
