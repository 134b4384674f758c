"""Rules in the database: edits of the list, within a transaction of ``Editor``."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from auth.errors import NotStoredError, StoreError
from auth.model import Action, Rule
from auth.networks import prefix_code
from auth.rules.conditions import condition_problem
from auth.store.records import StoredRule
from auth.store.session import Session
from auth.store.values import check_identity, check_tenant_name, check_text

# A rule with several conditions is filed under the narrowest: the first of these that it has.
OWN_KINDS: Final = ("clientid", "username", "common_name")
GENERAL_KINDS: Final = ("address", "attribute", "group", "tenant", "all")
_KINDS: Final = OWN_KINDS + GENERAL_KINDS

RULE_COLUMNS: Final = "id, position, kind, value, permission, topic, eq, actions, qos, retain, who"
_INSERT: Final = (
    "INSERT INTO rules (position, kind, value, prefix, permission, topic, eq, actions, qos, retain, who) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_GAP: Final = 1 << 20  # between neighbours: 20 insertions in one place fit, then all rules are numbered again

_PUBLISH, _SUBSCRIBE = frozenset[Action]({"publish"}), frozenset[Action]({"subscribe"})
_ACTIONS: Final = (frozenset[Action](), _PUBLISH, _SUBSCRIBE, _PUBLISH | _SUBSCRIBE)
_QOS: Final = tuple(frozenset(level for level in (0, 1, 2) if bits >> level & 1) for bits in range(8))


def rule_of(row: Sequence[Any]) -> StoredRule:
    """The rule of a row of RULE_COLUMNS."""
    number, position, kind, value, permission, topic, eq, actions, qos, retain, who = row
    conditions = ((kind, value),) if who is None else tuple((one[0], one[1]) for one in json.loads(who))
    rule = Rule(
        "allow" if permission else "deny",
        topic,
        conditions,
        _ACTIONS[actions],
        eq != 0,
        _QOS[qos],
        None if retain is None else retain != 0,
        f"database rule {number}",
    )
    return StoredRule(number, position, rule)


def _values(rule: Rule) -> tuple[Any, ...]:
    """The columns of a rule after its position. Raises StoreError for a rule that cannot be stored."""
    if not rule.who:
        raise StoreError('A rule without a condition concerns nobody; everybody is ("all", "").')
    who = tuple((kind, _stored_value(kind, value)) for kind, value in rule.who)
    kind, value = min(who, key=lambda one: _KINDS.index(one[0]))
    if not rule.actions:
        raise StoreError("A rule without an action matches nothing: publish, subscribe, or both.")
    if not rule.qos <= {0, 1, 2}:
        raise StoreError("A rule names a QoS other than 0, 1 and 2.")
    return (
        kind,
        value,
        prefix_code(value) if kind == "address" else None,
        int(rule.permission == "allow"),
        check_text("A rule's topic", rule.topic),
        int(rule.eq),
        ("publish" in rule.actions) + 2 * ("subscribe" in rule.actions),
        sum(1 << level for level in rule.qos),
        None if rule.retain is None else int(rule.retain),
        None if len(who) == 1 else json.dumps(who, ensure_ascii=False),
    )


def _stored_value(kind: str, value: str) -> str:
    """The value of a condition as it is stored. Raises StoreError."""
    problem = condition_problem(kind, value)
    if problem:
        raise StoreError(f"A rule cannot be stored: {problem}.")
    if kind == "tenant":
        return check_tenant_name(value)
    if kind == "attribute":
        return check_text("The attribute", value)
    return check_identity(kind, value) if kind != "all" else value


class RuleEdits:
    """The list of rules, within a transaction of ``Editor``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._db = session.db

    def append(self, rule: Rule) -> int:
        """Put a rule at the end of the list; returns its id."""
        return self.extend([rule])[0]

    def extend(self, rules: Iterable[Rule]) -> list[int]:
        """Put rules at the end of the list, in this order; returns their ids. Raises StoreError and then adds none."""
        position = self._db.execute("SELECT max(position) FROM rules").fetchone()[0] or 0
        ids = []
        for rule in rules:
            position += _GAP
            ids.append(self._insert(position, rule))
        if len(ids) == 1:
            self._session.record("rule add", f"rule {ids[0]}", "at the end")
        elif ids:
            self._session.record("rule add", f"rules {ids[0]} to {ids[-1]}", f"{len(ids)} at the end")
        return ids

    def insert(self, rule: Rule, before: int | None = None) -> int:
        """Put a rule before the one of that id, or at the front of the list; returns its id. Raises StoreError when
        ``before`` is not there."""
        if before is None:
            found = self._db.execute("SELECT min(position) FROM rules").fetchone()
            position = (found[0] if found[0] is not None else _GAP) - _GAP
        else:
            position = self._between(before)
        number = self._insert(position, rule)
        self._session.record("rule add", f"rule {number}", "at the front" if before is None else f"before {before}")
        return number

    def _between(self, before: int) -> int:
        """A free position directly before a rule; without one the list is numbered anew."""
        for _ in range(2):
            at = self._position(before)
            below = self._db.execute("SELECT max(position) FROM rules WHERE position < ?", (at,)).fetchone()[0]
            low = at - 2 * _GAP if below is None else below
            if at - low > 1:
                return (low + at) // 2
            self._number_anew()
        raise AssertionError("a list that was just numbered has gaps")

    def _position(self, number: int) -> int:
        found = self._db.execute("SELECT position FROM rules WHERE id = ?", (number,)).fetchone()
        if found is None:
            raise NotStoredError(f"There is no rule {number}: `gateway auth acl list` shows those that there are.")
        return int(found[0])

    def _number_anew(self) -> None:
        """Give all rules positions with gaps; their order stays."""
        rows = self._db.execute("SELECT id FROM rules ORDER BY position").fetchall()
        self._db.executemany(
            "UPDATE rules SET position = ? WHERE id = ?",
            ((number * _GAP, row[0]) for number, row in enumerate(rows, start=1)),
        )

    def _insert(self, position: int, rule: Rule) -> int:
        number = self._db.execute(_INSERT, (position, *_values(rule))).lastrowid
        assert number is not None
        self._session.touch()
        return number

    def remove(self, ids: Iterable[int]) -> list[StoredRule]:
        """Remove the rules of these ids; returns them. Raises StoreError when one is not there."""
        removed = []
        for number in ids:
            row = self._db.execute(
                f"DELETE FROM rules WHERE id = ? RETURNING {RULE_COLUMNS}",  # noqa: S608 - no value is in the text
                (number,),
            ).fetchone()
            if row is None:
                raise NotStoredError(f"There is no rule {number}: nothing was removed.")
            removed.append(rule_of(row))
            self._session.record("rule remove", f"rule {number}", "")
        if removed:
            self._session.touch()
        return removed

    def clear(self) -> int:
        """Remove all rules; returns how many there were."""
        count = self._db.execute("DELETE FROM rules").rowcount
        if count:
            self._session.touch()
            self._session.record("rule clear", "all rules", f"{count} removed")
        return count
