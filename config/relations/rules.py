"""Checks of settings against each other, before anything starts.

A rule names the settings that it compares, so that it is skipped while one of them is itself in question. What it
yields is a sentence with both settings, both values, where they were written, and the consequence; a user should not
have to look it up.
"""

from __future__ import annotations

__all__ = ["Rule", "View", "check"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from config.schema import Path, dotted, find
from config.wording import origin_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from config.origins import Origin
    from config.settings import Settings


@dataclass(frozen=True, slots=True)
class View:
    """The settings under check, and how to speak of them."""

    settings: Settings
    origins: Mapping[Path, Origin]

    def say(self, *path: str | int) -> str:
        """``mqtt.sessions = 4 (default)``; without the value where that may be a secret."""
        origin = self.origin(*path)
        field = find(type(self.settings), path)
        if field is None or field.sensitive or field.kind in {"table", "tables"}:
            return f"{dotted(path)} ({origin})"
        return f"{dotted(path)} = {shown(self.value(*path), field)} ({origin})"

    def origin(self, *path: str | int) -> Origin:
        """Where the value at ``path`` was written."""
        return origin_of(path, self.origins)

    def value(self, *path: str | int) -> Any:
        """The value at ``path``; what a list holds is reached by its number."""
        value: Any = self.settings
        for step in path:
            value = value[step] if isinstance(step, int) else getattr(value, step)
        return value

    def changed(self, *path: str) -> bool:
        """Whether the value, or something in the table, is not the default: somebody wanted it so."""
        default: Any = type(self.settings).model_fields[path[0]].default
        for step in path[1:]:
            default = getattr(default, step)
        return bool(self.value(*path) != default)


@dataclass(frozen=True, slots=True)
class Rule:
    """``find`` yields a sentence for each thing wrong; ``paths`` are the settings it looks at, dotted."""

    paths: tuple[str, ...]
    find: Callable[[View], Iterator[str]]


def check(rules: Sequence[Rule], view: View, doubtful: Collection[Path]) -> list[str]:
    """What the rules find, leaving out those that look at a setting in doubt, or at part of one."""
    found: list[str] = []
    for rule in rules:
        paths = [tuple(path.split(".")) for path in rule.paths]
        if any(_meet(path, other) for path in paths for other in doubtful):
            continue
        found += rule.find(view)
    return found


def _meet(one: Path, other: Path) -> bool:
    size = min(len(one), len(other))
    return one[:size] == other[:size]
