"""The ``acl`` of a login's answer as JSON text, for a fleet whose clients have the same rules.

The lists of ``auth.rules.hand_over`` for two clients with the same rules differ only in the values of placeholders, if
these are ordinary: a value is a whole level of a topic, no rule names that level, and the same values are equal for
both clients. All comparisons of topics then have the same result. So the list is made once with stand-ins, which are
replaced by each client's values: 3 µs instead of 30. Other lists are made anew.
"""

import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from auth.model import EVERYBODY, Rule, Subject
from auth.rules.conditions import concerns
from auth.rules.hand_over import hand_over
from auth.rules.topics import parse_topic, value_of

_KEPT: Final = 1000  # lists of rules; a fleet has a handful
_RULES_MAX: Final = 500
_TOPIC_MAX: Final = 4096  # far below MQTT's limit, also with sixteen of the longest values
_VALUES_MAX: Final = 16
_ORDINARY: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_.:@=~-]{0,255}"
)  # none that JSON or a topic would write otherwise
_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode


_OWN: Final = frozenset({"username", "clientid", "common_name"})  # a client's own rules, read anew for each login


class _Template(NamedTuple):
    """A text with ``%s`` for each value of ``order``, which has numbers of values."""

    text: str
    order: tuple[int, ...]


class _Shape(NamedTuple):
    """The parts of a list of rules that do not depend on values."""

    rules: tuple[Rule, ...]  # kept, so that their ids stay theirs
    names: tuple[str, ...]  # of their placeholders
    literals: frozenset[str]  # levels that they name
    ordinary: bool  # whether values can be replaced in the text
    templates: dict[tuple[int, ...], _Template]  # by the pattern of equal values


class AclText:
    """Writes ``acl`` texts, of ``limit`` rules at most. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shapes: OrderedDict[tuple[int, ...], _Shape] = OrderedDict()
        self._common = _shape(())

    def write(self, rules: Sequence[Rule], subject: Subject) -> str:
        """The list of ``hand_over`` as text; "" for None."""
        if rules is self._common.rules:  # for everybody: the database returns the same tuple each time
            shape = self._common
        else:
            concerned = tuple([rule for rule in rules if concerns(rule.who, subject)])
            found = self._known(concerned)
            if found is None:
                return self._afresh(concerned, subject)
            shape = found
            if isinstance(rules, tuple) and all(rule.who == EVERYBODY for rule in rules):
                self._common = shape = shape._replace(rules=rules)
        if not shape.ordinary:
            return self._afresh(shape.rules, subject)
        values = [value_of(name, subject) for name in shape.names]
        for value in values:
            if value in shape.literals or not _ORDINARY.fullmatch(value):
                return self._afresh(shape.rules, subject)
        equal = tuple(map(values.index, values))
        template = shape.templates.get(equal)
        if template is None:
            template = shape.templates[equal] = self._template(shape, equal)
        return template.text % tuple([values[number] for number in template.order])

    def _known(self, rules: tuple[Rule, ...]) -> _Shape | None:
        """The shape of a client's rules; None for rules that are not cached."""
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

    def _afresh(self, rules: Sequence[Rule], subject: Subject) -> str:
        acl = hand_over(rules, subject, limit=self._limit)
        return "" if acl is None else _ENCODE(acl)

    def _template(self, shape: _Shape, equal: tuple[int, ...]) -> _Template:
        """The text for clients whose values are equal as in ``equal``: for each value, the number of the first equal
        one."""
        stand_ins = [f"x{secrets.token_hex(16)}" for _ in shape.names]
        values = {name: stand_ins[first] for name, first in zip(shape.names, equal, strict=True)}
        # All these rules concern the client. With stand-ins a rule for one user would not match any more.
        rules = [replace(rule, who=EVERYBODY) for rule in shape.rules]
        text = self._afresh(rules, _stand_in(values))
        split = re.split(f"({'|'.join(stand_ins)})", text) if stand_ins else [text]
        pieces = (one.replace("%", "%%") for one in split[::2])
        return _Template("%s".join(pieces), tuple(map(stand_ins.index, split[1::2])))


def _shape(rules: tuple[Rule, ...]) -> _Shape:
    """The parts of these rules that are the same for every client that they concern."""
    names: dict[str, None] = {}
    literals: set[str] = set()
    ordinary = True  # topics and values are short, and each value is a whole level
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


def _stand_in(values: dict[str, str]) -> Subject:
    """A client with these values of placeholders."""
    named = {name: value for name, value in values.items() if not name.startswith("client_attrs.")}
    attributes = {
        name.removeprefix("client_attrs."): value for name, value in values.items() if name.startswith("client_attrs.")
    }
    return Subject(**named, attributes=attributes)  # type: ignore[arg-type] # the names are fields of it
