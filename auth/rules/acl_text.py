"""The ``acl`` of a login's answer as JSON text, for a fleet whose clients have the same rules.

What ``auth.rules.hand_over`` makes of a list of rules differs between two clients only in the values of their
placeholders, as long as these are ordinary: a value stands for a whole level of a topic, is a level that no rule names,
and two of them are equal for the one client where they are for the other. Then every comparison of topics has the same
outcome, so the list is made once, with stand-ins for the values, and the values are put in for each client: 3 us
instead of 30. Whatever is not ordinary is made afresh.
"""

from __future__ import annotations

__all__ = ["AclText"]

import json
import re
import secrets
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from auth.model import Subject
from auth.rules.conditions import concerns
from auth.rules.hand_over import hand_over
from auth.rules.topics import parse_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from auth.model import Rule, SubjectKind

_KEPT: Final = 1000  # lists of rules; a fleet has a handful
_RULES_MAX: Final = 500
_TOPIC_MAX: Final = 4096  # with sixteen values of the longest kind still far from MQTT's limit
_VALUES_MAX: Final = 16
_ORDINARY: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_.:@=~-]{0,255}"
)  # none that JSON or a topic would write otherwise
_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode


_ALL: Final[tuple[tuple[SubjectKind, str], ...]] = (("all", ""),)
_OWN: Final = frozenset({"username", "clientid", "common_name"})  # a client's own rules, read anew for each login


class _Template(NamedTuple):
    """``pieces``: text, and numbers of values."""

    pieces: tuple[str | int, ...]
    entries: int


class _Shape(NamedTuple):
    """What is known of a list of rules before any value."""

    rules: tuple[Rule, ...]  # kept, so that their ids stay theirs
    names: tuple[str, ...]  # of their placeholders
    literals: frozenset[str]  # levels that they name
    ordinary: bool  # whether values can be put in at all
    templates: dict[tuple[int, ...], _Template]  # by which values are equal


class AclText:
    """Writes them. Belongs to one event loop.

    Args:
        limit: rules in one list at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shapes: OrderedDict[tuple[int, ...], _Shape] = OrderedDict()
        self._common = _shape(())

    def write(self, rules: Sequence[Rule], subject: Subject) -> tuple[str, int]:
        """What ``hand_over`` gives for these rules, as text, and how many entries it has; "" and 0 for None."""
        if rules is self._common.rules:  # for everybody: the database gives them as the same tuple each time
            shape = self._common
        else:
            concerned = tuple([rule for rule in rules if concerns(rule.who, subject)])
            found = self._known(concerned)
            if found is None:
                return self._afresh(concerned, subject)
            shape = found
            if isinstance(rules, tuple) and all(rule.who == _ALL for rule in rules):
                self._common = shape = shape._replace(rules=rules)
        if not shape.ordinary:
            return self._afresh(shape.rules, subject)
        values = [_value(name, subject) for name in shape.names]
        for value in values:
            if value in shape.literals or not _ORDINARY.fullmatch(value):
                return self._afresh(shape.rules, subject)
        equal = tuple(values.index(value) for value in values)
        template = shape.templates.get(equal)
        if template is None:
            template = shape.templates[equal] = self._template(shape, equal)
        return "".join([values[one] if isinstance(one, int) else one for one in template.pieces]), template.entries

    def _known(self, rules: tuple[Rule, ...]) -> _Shape | None:
        """What is known of these rules, which concern a client; None for those that it is not worth knowing of."""
        key = tuple(map(id, rules))
        shape = self._shapes.get(key)
        if (
            shape is None
            and len(rules) <= _RULES_MAX
            and not any(kind in _OWN for rule in rules for kind, _ in rule.who)
        ):
            shape = self._shapes[key] = _shape(rules)
            if len(self._shapes) > _KEPT:
                self._shapes.popitem(last=False)
        return shape

    def _afresh(self, rules: Sequence[Rule], subject: Subject) -> tuple[str, int]:
        acl = hand_over(rules, subject, limit=self._limit)
        return ("", 0) if acl is None else (_ENCODE(acl), len(acl))

    def _template(self, shape: _Shape, equal: tuple[int, ...]) -> _Template:
        stand_ins = [f"x{secrets.token_hex(16)}" for _ in shape.names]
        values = {name: stand_ins[first] for name, first in zip(shape.names, equal, strict=True)}
        # All of them concern the client: asked again with stand-ins, a rule for one user would not.
        rules = [replace(rule, who=_ALL) for rule in shape.rules]
        text, entries = self._afresh(rules, _stand_in(values))
        split = re.split(f"({'|'.join(stand_ins)})", text) if stand_ins else [text]
        return _Template(tuple(stand_ins.index(one) if one in stand_ins else one for one in split), entries)


def _shape(rules: tuple[Rule, ...]) -> _Shape:
    names: dict[str, None] = {}
    literals: set[str] = set()
    ordinary = True
    for rule in rules:
        if len(rule.topic) > _TOPIC_MAX:
            ordinary = False
        parsed = parse_topic(rule.topic)
        if parsed.problem:
            continue  # it never comes to a topic
        for index, part in enumerate(parsed.parts):
            if index % 2 == 0:
                literals.update(part.split("/"))
                continue
            before, behind = parsed.parts[index - 1], parsed.parts[index + 1]
            whole = (before.endswith("/") or (index == 1 and not before)) and (not behind or behind.startswith("/"))
            ordinary = ordinary and whole
            names[part] = None
        ordinary = ordinary and len(parsed.parts) <= 2 * _VALUES_MAX
    return _Shape(rules, tuple(names), frozenset(literals), ordinary, {})


def _value(name: str, subject: Subject) -> str:
    match name:
        case "clientid":
            return subject.clientid
        case "username":
            return subject.username
        case "tenant":
            return subject.tenant
        case "cert_common_name":
            return subject.cert_common_name
        case _:
            return subject.attributes.get(name.removeprefix("client_attrs."), "")


def _stand_in(values: dict[str, str]) -> Subject:
    named = {name: value for name, value in values.items() if not name.startswith("client_attrs.")}
    attributes = {
        name.removeprefix("client_attrs."): value for name, value in values.items() if name.startswith("client_attrs.")
    }
    return Subject(**named, attributes=attributes)  # type: ignore[arg-type] # the names are fields of it
