"""Checks of settings against each other, before anything starts.

A rule is skipped while one of its settings has a problem of its own. A sentence names all settings with their values
and origins, and the consequence: ``<mqtt.sessions>`` in it becomes ``mqtt.sessions = 4 (default)``.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from config.origins import Origin
from config.schema import Path, dotted, find
from config.settings import Settings
from config.wording import origin_of, shown

_NAMED = re.compile(r"<([a-z][a-z0-9_.]*)>")


@dataclass(frozen=True, slots=True)
class Rule:
    """``find`` gives a sentence for each problem; ``paths`` are the settings that it reads, dotted."""

    paths: tuple[str, ...]
    find: Callable[[Settings], Iterable[str]]


def when(is_wrong: Callable[[Settings], object], sentence: str, *also: str) -> Rule:
    """A rule with one sentence. It reads the settings that the sentence names, and ``also``."""
    return Rule((*_NAMED.findall(sentence), *also), lambda settings: (sentence,) if is_wrong(settings) else ())


def value(settings: Settings, path: str) -> Any:
    """The value at a dotted path, None below a table that is not given. ``routes.0.name`` is of the first route."""
    found: Any = settings
    for step in steps(path):
        found = found[step] if isinstance(step, int) else getattr(found, step, None)
    return found


def changed(settings: Settings, path: str) -> bool:
    """Whether the value, or a part of the table, differs from the default."""
    first, *rest = path.split(".")
    default: Any = type(settings).model_fields[first].default
    for step in rest:
        default = getattr(default, step)
    return bool(value(settings, path) != default)


def steps(path: str) -> Path:
    """``("routes", 0, "name")`` for ``routes.0.name``."""
    return tuple(int(step) if step.isdigit() else step for step in path.split("."))


@dataclass(frozen=True, slots=True)
class View:
    """The settings under check and the origins of their values."""

    settings: Settings
    origins: Mapping[Path, Origin]

    def filled(self, sentence: str) -> str:
        """``sentence`` with names, values and origins; without the value where that may be a secret."""
        return _NAMED.sub(self._say, sentence)

    def _say(self, name: re.Match[str]) -> str:
        """The setting behind ``<name>`` in a sentence, with value and origin."""
        path = steps(name[1])
        field = find(type(self.settings), path)
        if field is None:
            return name[0]  # in a text of the user's
        origin = origin_of(path, self.origins)
        if field.sensitive or field.kind in {"table", "tables"}:
            return f"{dotted(path)} ({origin})"
        found = value(self.settings, name[1])
        return f"{dotted(path)} (not set)" if found is None else f"{dotted(path)} = {shown(found, field)} ({origin})"


def check(rules: Sequence[Rule], view: View, doubtful: Collection[Path]) -> list[str]:
    """The rules' sentences, without rules that read a setting in doubt, or a part of one."""
    found: list[str] = []
    for rule in rules:
        paths = [tuple(path.split(".")) for path in rule.paths]
        if any(_meet(path, other) for path in paths for other in doubtful):
            continue
        found += map(view.filled, rule.find(view.settings))
    return found


def names_apart(table: str, users: str) -> Rule:
    """A rule about different names of the tables in an array; ``users`` are who needs them, for the sentence."""

    def find_all(settings: Settings) -> Iterator[str]:
        first: dict[str, int] = {}
        for number, one in enumerate(value(settings, table)):
            if one.name in first:
                yield (
                    f"<{table}.{number}.name> is also the name of <{table}.{first[one.name]}>: {users} would not tell "
                    "them apart; give each its own."
                )
            first.setdefault(one.name, number)

    return Rule((table,), find_all)


def _meet(one: Path, other: Path) -> bool:
    size = min(len(one), len(other))
    return one[:size] == other[:size]
