"""JSON objects in which no name stands twice: the first of two would be lost, perhaps a denial's topic."""

from typing import Any


class TwiceError(ValueError):
    """An object has two members of one ``name``."""

    def __init__(self, name: str) -> None:
        super().__init__("it holds a member twice")
        self.name = name[:64]


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An ``object_pairs_hook``: the members of an object. Raises TwiceError."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise TwiceError(name)
        made[name] = value
    return made
