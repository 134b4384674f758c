"""A client's rules as the ``acl`` of the login's answer, so that EMQX decides by itself and does not ask per topic.

EMQX looks through that list first and asks the service only about what no rule of it matches. Its rules are not ours:
read at v5.8.9 (``emqx_authz_rule``, ``emqx_topic:match/2``), it compares the requested filter word by word as if it
were a topic. So

- ``allow a/+`` lets a client subscribe to ``a/#``, and ``allow a/+/#`` too, since ``#`` is a word that ``+`` matches;
- ``deny a/secret`` does not stop a subscription to ``a/+``, which then meets a later ``allow a/#``;
- ``#`` and ``+/…`` leave topics that begin with ``$`` alone, as they should, since 5.8.2 (emqx#14004). In 5.8.0 and
  5.8.1 they do not, and nothing that could be handed over makes them;
- text of the form ``${…}`` is a placeholder there, and its escape is not undone in a topic that has no other;
- ``eq F`` compares words, placeholders and all, as text; ``retain`` is asked of publishing alone, as here.

What is handed over is therefore only what EMQX decides as ``auth.rules.rules.decide`` does: each rule is taken,
narrowed to the actions and QoS for which it is exact, or left out; a rule left out keeps later ones that contradict it
out too. What is not matched there is asked, so leaving out costs a question and never a right. A list from which
nothing was left out ends in a denial of everything; topics that begin with ``$`` are beyond its ``#`` and are still
asked, and denied here.
"""

from __future__ import annotations

__all__ = ["ClosedList", "closed_list", "hand_over", "whole_list"]

from typing import TYPE_CHECKING, Final, NamedTuple

from auth.model import AccessRequest
from auth.rules.conditions import concerns
from auth.rules.rules import decide
from auth.rules.topics import covered, parse_topic, shared
from bridge.routing.filters import FilterError, validate_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from auth.model import Permission, Rule, Subject

# What a rule is about is a set of nine kinds of request, kept as bits: subscriptions by QoS in bits 0 to 2, publishing
# without retain in 3 to 5 and with it in 6 to 8.
_SUBSCRIBE: Final = 0b000_000_111
_PUBLISH: Final = 0b111_111_000
_ALL: Final = _SUBSCRIBE | _PUBLISH
# EMQX takes these off a request before it looks at rules, we do, and neither expects them in a rule.
_WRAPPERS: Final = ("$share/", "$queue/", "$exclusive/", "$delayed/")


class _Line(NamedTuple):
    """A rule that concerns the subject, its placeholders resolved. ``kinds`` are the bits of what it is about."""

    permission: Permission
    topic: str
    eq: bool
    kinds: int


class ClosedList(NamedTuple):
    """Rules after which EMQX asks nothing. ``whole``: each denial is among them, and what would be asked is denied;
    otherwise the list had better not be used."""

    acl: list[dict[str, object]]
    whole: bool


def hand_over(rules: Sequence[Rule], subject: Subject, *, limit: int) -> list[dict[str, object]] | None:
    """The rules in EMQX's form, at most ``limit`` of them, or None when there is nothing that EMQX can be told.

    For requests that the list matches, EMQX decides as ``decide`` would with the same rules and subject; the others
    it asks. Does not block: no I/O, some 10 us a rule.
    """
    writer = _Writer(rules, subject, closed=False)
    if writer.fill(limit):
        writer.close()
    return writer.acl[:limit] or None


def whole_list(rules: Sequence[Rule], subject: Subject, *, limit: int) -> list[dict[str, object]] | None:
    """The same if nothing was left out of it, which no question can contradict then; else None."""
    writer = _Writer(rules, subject, closed=False)
    if not writer.fill(limit) or writer.left_out:
        return None
    writer.close()
    return writer.acl if len(writer.acl) <= limit else None


def closed_list(rules: Sequence[Rule], subject: Subject, *, limit: int, behind: Sequence[Rule] = ()) -> ClosedList:
    """The same for rules that are known at the login alone, a token's: about what they say EMQX cannot ask.

    The list ends in denials of everything, so EMQX may deny more than ``decide`` does, and never allows more. ``#``
    says nothing of topics that begin with ``$``: for each first level such as ``$SYS`` that ``rules``, or the rules
    ``behind`` that a question would be decided by, allow anything of, there is a denial of its own. ``limit`` is of
    the rules before those.
    """
    writer = _Writer(rules, subject, closed=True)
    whole = writer.fill(limit) and "deny" not in writer.left_out
    acl = writer.acl[:limit]
    openings = (topic for rule, topic in _resolved([*rules, *behind], subject) if rule.permission == "allow")
    for level in dict.fromkeys(topic.partition("/")[0] for topic in openings if topic.startswith("$")):
        if "${" in level:
            whole = False  # EMQX would read it as a placeholder
        else:
            acl += _entries("deny", f"{level}/#", _ALL)
    return ClosedList([*acl, *_entries("deny", "#", _ALL)], whole)


def _resolved(rules: Sequence[Rule], subject: Subject) -> Iterator[tuple[Rule, str]]:
    """The rules that concern the subject, each with its topic."""
    for rule in rules:
        if concerns(rule.who, subject):
            topic = parse_topic(rule.topic).resolve(subject) if "${" in rule.topic else rule.topic
            if topic is not None:
                yield rule, topic


def _kinds(rule: Rule) -> int:
    qos = 0
    for value in rule.qos or (0, 1, 2):
        qos |= 1 << value if 0 <= value <= 2 else 0
    kinds = qos if "subscribe" in rule.actions else 0
    if "publish" in rule.actions:
        kinds |= (qos << 3 if rule.retain is not True else 0) | (qos << 6 if rule.retain is not False else 0)
    return kinds


class _Writer:
    """Takes a subject's rules in order and keeps what EMQX can be told of them in ``acl``."""

    def __init__(self, rules: Sequence[Rule], subject: Subject, *, closed: bool) -> None:
        self.acl: list[dict[str, object]] = []
        self._rules = rules
        self._by_qos = any(rule.qos for rule in rules)
        self._subject = subject
        self._closed = closed
        self._denials: list[_Line] = []
        self._left_out: list[_Line] = []  # each with the kinds it was left out for

    @property
    def left_out(self) -> frozenset[Permission]:
        """What kinds of rule were left out, or a part of them."""
        return frozenset(line.permission for line in self._left_out)

    def fill(self, limit: int) -> bool:
        """Add the rules until there are ``limit`` entries, or more; returns whether all rules were looked at."""
        for rule, topic in _resolved(self._rules, self._subject):
            if len(self.acl) >= limit:
                return False
            self.add(_Line(rule.permission, topic, rule.eq, _kinds(rule)))
        return len(self.acl) <= limit

    def add(self, line: _Line) -> None:
        """Tell EMQX of a rule, as far as that is exact."""
        kinds = line.kinds
        if not _plain(line.topic):
            self._leave_out(line, kinds)
        elif line.eq and _wild(line.topic):
            self._add_eq(line)
        elif line.permission == "deny":
            told = kinds if self._closed else self._uncontradicted(line, kinds)
            if not line.eq:
                self._denials.append(line)
            self._tell(line, kinds, told)
        else:
            kinds, told = self._beside_denials(line)
            self._tell(line, kinds, self._guarded(line.topic, self._uncontradicted(line, told)))

    def close(self) -> None:
        """All rules are told: what EMQX has found none for is denied, unless one was left out that might allow it."""
        open_kinds = 0
        for line in self._left_out:
            open_kinds |= line.kinds
        for kinds in (_ALL, _SUBSCRIBE, _PUBLISH):
            if not open_kinds & kinds:
                self.acl += _entries("deny", "#", kinds)
                break

    def _tell(self, line: _Line, kinds: int, told: int) -> None:
        text: str | None = line.topic
        if not _wild(line.topic):
            if line.eq or "${" in line.topic:  # the same thing without wildcards, and EMQX looks for no placeholder
                text = f"eq {line.topic}"
        elif "${" in line.topic:
            text = None
        if text is None:
            told = 0
        else:
            self.acl += _entries(line.permission, text, told)
        self._leave_out(line, kinds & ~told)

    def _leave_out(self, line: _Line, kinds: int) -> None:
        if kinds:
            self._left_out.append(line._replace(kinds=kinds))

    def _uncontradicted(self, line: _Line, kinds: int) -> int:
        """The kinds for which no rule that was left out would have decided otherwise before this one."""
        for other in self._left_out:
            if kinds & other.kinds and other.permission != line.permission and shared(other.topic, line.topic):
                kinds &= ~other.kinds
        return kinds

    def _beside_denials(self, line: _Line) -> tuple[int, int]:
        """For a rule that allows: the kinds for which it can still mean something, and those of them for which EMQX
        takes it as we do. A denial of all its topics makes it vain. One of some of them is told exactly for publishing;
        of subscriptions EMQX would let a filter wider than the denial past it, to this rule."""
        kinds = told = line.kinds
        for denial in self._denials:
            if told & denial.kinds and shared(denial.topic, line.topic):
                if covered(denial.topic, line.topic):
                    kinds &= ~denial.kinds
                    told &= ~denial.kinds
                else:
                    told &= ~(denial.kinds & _SUBSCRIBE)
        return kinds, told

    def _guarded(self, topic: str, kinds: int) -> int:
        """The kinds for which EMQX can be told to allow this topic. One that ends in '+' or '+/#' would let its '#'
        neighbour pass, ``a/#`` for ``a/+``: what is decided about that is told first. With a '+' before that one there
        are too many neighbours."""
        stem = topic.removesuffix("/#")
        if not kinds & _SUBSCRIBE or not (stem == "+" or stem.endswith("/+")):
            return kinds
        if "+" in stem[:-1]:
            return kinds & ~_SUBSCRIBE
        neighbour = f"{stem[:-1]}#"
        self.acl += _entries("deny", f"eq {neighbour}", kinds & self._denied(neighbour))
        return kinds

    def _denied(self, filter_: str) -> int:
        """The kinds of subscription to exactly this filter that are denied."""
        kinds = 0
        for qos in range(3 if self._by_qos else 1):
            request = AccessRequest(self._subject, "subscribe", filter_, qos)
            if not decide(self._rules, request).allowed:
                kinds |= 1 << qos
        return kinds if self._by_qos else kinds * _SUBSCRIBE

    def _add_eq(self, line: _Line) -> None:
        """A filter with wildcards that is compared as text is one request alone: what is decided about that is told.
        Nothing can be published to it."""
        kinds = line.kinds & _SUBSCRIBE
        denied = self._denied(line.topic)
        self.acl += _entries("deny", f"eq {line.topic}", kinds & denied)
        self.acl += _entries("allow", f"eq {line.topic}", kinds & ~denied)


def _wild(topic: str) -> bool:
    return "+" in topic or "#" in topic


def _plain(topic: str) -> bool:
    """Whether EMQX reads this text as the topic that we mean."""
    if topic.startswith(("eq ", *_WRAPPERS)):
        return False
    try:
        validate_filter(topic)
    except FilterError:
        return False
    return True


def _entries(permission: Permission, topic: str, kinds: int) -> Iterator[dict[str, object]]:
    """EMQX's rules for these kinds of request: one as a rule, more where the kinds are no product of its terms."""
    subscribe, publish, retained = kinds & 0b111, kinds >> 3 & 0b111, kinds >> 6 & 0b111
    if subscribe and subscribe == (publish or retained) and (not publish or not retained or publish == retained):
        yield _entry(permission, "all", topic, subscribe, _retain(publish, retained))
        return
    if subscribe:
        yield _entry(permission, "subscribe", topic, subscribe, None)
    if publish == retained:
        if publish:
            yield _entry(permission, "publish", topic, publish, None)
        return
    if publish:
        yield _entry(permission, "publish", topic, publish, False)
    if retained:
        yield _entry(permission, "publish", topic, retained, True)


def _retain(publish: int, retained: int) -> bool | None:
    return None if publish and retained else bool(retained)


def _entry(permission: Permission, action: str, topic: str, qos: int, retain: bool | None) -> dict[str, object]:
    entry: dict[str, object] = {"permission": permission, "action": action, "topic": topic}
    if qos != 0b111:
        entry["qos"] = [value for value in range(3) if qos >> value & 1]
    if retain is not None:
        entry["retain"] = retain
    return entry
