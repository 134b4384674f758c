"""A client's rules as the ``acl`` of the login's answer, so that EMQX decides without asking for each topic.

EMQX compares a request with this list first, and asks the service if no rule of it matches. Its comparison differs from
ours: it compares the requested filter word by word, like a topic (v5.8.9, ``emqx_authz_rule``, ``emqx_topic:match/2``).
So

- ``allow a/+`` lets a client subscribe to ``a/#``, and ``allow a/+/#`` too, since ``#`` is a word that ``+`` matches;
- ``deny a/secret`` does not stop a subscription to ``a/+``, which then meets a later ``allow a/#``;
- ``#`` and ``+/…`` do not match topics that begin with ``$``, since 5.8.2 (emqx#14004). In 5.8.0 and 5.8.1 they do,
  and no rule can change that;
- ``${…}`` is a placeholder, and its escape is not undone in a topic without another placeholder;
- ``eq F`` compares words as text, placeholders included; ``retain`` concerns publishing only, as here.

So only rules with the same result as in ``auth.rules.rules.decide`` are handed over. Each rule is taken, narrowed to
the actions and QoS for which it is exact, or left out. Later rules that contradict a left-out rule are left out too.
EMQX asks about requests without a match, so leaving out costs a question and changes no decision. A complete list ends
in a denial of everything. Topics that begin with ``$`` are not in its ``#``: EMQX asks, and they are denied here.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from auth.model import AccessRequest, Action, Permission, Rule, Subject
from auth.rules.conditions import concerns
from auth.rules.rules import decide
from auth.rules.topics import covered, parse_topic, shared
from bridge.routing.filters import FilterError, validate_filter

# A rule concerns a set of nine kinds of request, as bits: subscriptions by QoS in bits 0 to 2, publishing without
# retain in 3 to 5, and with it in 6 to 8.
_SUBSCRIBE: Final = 0b000_000_111
_PUBLISH: Final = 0b111_111_000
_ALL: Final = _SUBSCRIBE | _PUBLISH
# EMQX reads the first as a mark. It and this service take the others off a request before comparing it with rules.
_MARKS: Final = ("eq ", "$share/", "$queue/", "$exclusive/", "$delayed/")


class _Line(NamedTuple):
    """A rule that concerns the subject, with resolved placeholders. ``kinds`` are its kinds of request."""

    permission: Permission
    topic: str
    eq: bool
    kinds: int


class ClosedList(NamedTuple):
    """Rules after which EMQX asks nothing. Use it only if ``whole``: it then has each denial, and denies all else."""

    acl: list[dict[str, object]]
    whole: bool


def hand_over(rules: Sequence[Rule], subject: Subject, *, limit: int) -> list[dict[str, object]] | None:
    """The rules in EMQX's form, at most ``limit``; None if none has such a form.

    For requests that the list matches EMQX decides as ``decide`` does. It asks about others. No I/O; some 10 µs per
    rule.
    """
    writer = _Writer(rules, subject, closed=False)
    if writer.fill(limit):
        writer.close()
    return writer.acl[:limit] or None


def whole_list(rules: Sequence[Rule], subject: Subject, *, limit: int) -> list[dict[str, object]] | None:
    """The rules in EMQX's form if none was left out, so that no question can contradict the list; else None."""
    writer = _Writer(rules, subject, closed=False)
    if not writer.fill(limit) or writer.left_out:
        return None
    writer.close()
    return writer.acl if len(writer.acl) <= limit else None


def closed_list(rules: Sequence[Rule], subject: Subject, *, limit: int, behind: Sequence[Rule] = ()) -> ClosedList:
    """A token's rules in EMQX's form. Only the login knows them: EMQX cannot ask about them.

    The list ends in denials of everything. EMQX may deny more than ``decide`` does, and never allows more. ``#`` does
    not match topics that begin with ``$``. So each first level such as ``$SYS`` gets its own denial, if ``rules`` or
    the stored rules ``behind`` allow a topic of it. ``limit`` is of the rules before those.
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


def open_list(
    rules: Sequence[Rule], subject: Subject, *, limit: int, behind: Sequence[Rule]
) -> list[dict[str, object]]:
    """A token's rules, which all allow, in EMQX's form. EMQX asks about the rest, and hears what the stored rules
    ``behind`` say: so nothing that those allow is denied."""
    writer = _Writer(rules, subject, closed=False, behind=behind)
    writer.fill(limit)
    return writer.acl[:limit]


def _resolved(rules: Sequence[Rule], subject: Subject) -> Iterator[tuple[Rule, str]]:
    """The rules that concern the subject, each with its topic."""
    for rule in rules:
        if concerns(rule.who, subject):
            topic = parse_topic(rule.topic).resolve(subject) if "${" in rule.topic else rule.topic
            if topic is not None:
                yield rule, topic


@lru_cache(maxsize=256)
def _kinds(actions: frozenset[Action], qos: frozenset[int], retain: bool | None) -> int:
    """The kinds of request with these actions, QoS (empty for any) and retain (None for both), as bits."""
    levels = 0
    for value in qos or (0, 1, 2):
        levels |= 1 << value if 0 <= value <= 2 else 0
    kinds = levels if "subscribe" in actions else 0
    if "publish" in actions:
        kinds |= (levels << 3 if retain is not True else 0) | (levels << 6 if retain is not False else 0)
    return kinds


class _Writer:
    """Takes a subject's rules in order, and keeps those with a form in EMQX in ``acl``. The rules ``behind`` are not
    taken, but decide with them."""

    def __init__(self, rules: Sequence[Rule], subject: Subject, *, closed: bool, behind: Sequence[Rule] = ()) -> None:
        self.acl: list[dict[str, object]] = []
        self._rules = rules
        self._deciding = (*rules, *behind)
        self._by_qos = any(rule.qos for rule in self._deciding)
        self._subject = subject
        self._closed = closed  # the list will end in denials of everything
        self._denials: list[_Line] = []
        self._left_out: list[_Line] = []  # each with the kinds it was left out for

    @property
    def left_out(self) -> frozenset[Permission]:
        """The permissions of rules that were left out, wholly or in part."""
        return frozenset(line.permission for line in self._left_out)

    def fill(self, limit: int) -> bool:
        """Add rules until there are ``limit`` entries. Returns whether all rules were added."""
        for rule, topic in _resolved(self._rules, self._subject):
            if len(self.acl) >= limit:
                return False
            self.add(_Line(rule.permission, topic, rule.eq, _kinds(rule.actions, rule.qos, rule.retain)))
        return len(self.acl) <= limit

    def add(self, line: _Line) -> None:
        """Add a rule as far as it is exact in EMQX."""
        kinds = line.kinds
        if not _plain(line.topic):
            self._leave_out(line, kinds)
        elif line.eq and _wild(line.topic):
            self._add_eq(line)
        elif line.permission == "deny":
            told = kinds if self._closed else self._uncontradicted(line, kinds)
            if not line.eq:
                self._denials.append(line)
            self._hand_over_line(line, kinds, told)
        else:
            kinds, told = self._beside_denials(line)
            self._hand_over_line(line, kinds, self._guarded(line.topic, self._uncontradicted(line, told)))

    def close(self) -> None:
        """End the list: deny topics without a rule, unless a left-out rule might allow them."""
        open_kinds = 0
        for line in self._left_out:
            open_kinds |= line.kinds
        for kinds in (_ALL, _SUBSCRIBE, _PUBLISH):
            if not open_kinds & kinds:
                self.acl += _entries("deny", "#", kinds)
                break

    def _hand_over_line(self, line: _Line, kinds: int, told: int) -> None:
        """Add a rule for the kinds ``told``; it is left out for the rest of its ``kinds``."""
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
        """The kinds for which no left-out rule before this one decides otherwise."""
        for other in self._left_out:
            if kinds & other.kinds and other.permission != line.permission and shared(other.topic, line.topic):
                kinds &= ~other.kinds
        return kinds

    def _beside_denials(self, line: _Line) -> tuple[int, int]:
        """For a rule that allows: the kinds for which it has an effect, and those with the same effect in EMQX.

        A denial of all its topics removes its effect. A denial of some topics is exact for publishing. For
        subscriptions a filter wider than the denial would pass it in EMQX, and reach this rule."""
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
        """The kinds for which EMQX may allow this topic. A topic that ends in '+' or '+/#' would also allow its '#'
        neighbour, ``a/#`` for ``a/+``, so the decision about that one is added first. With another '+' before it there
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
            if not decide(self._deciding, request).allowed:
                kinds |= 1 << qos
        return kinds if self._by_qos else kinds * _SUBSCRIBE

    def _add_eq(self, line: _Line) -> None:
        """Add the decision about a filter with wildcards that is compared as text: a single request. Nothing can be
        published to it."""
        kinds = line.kinds & _SUBSCRIBE
        denied = self._denied(line.topic)
        self.acl += _entries("deny", f"eq {line.topic}", kinds & denied)
        self.acl += _entries("allow", f"eq {line.topic}", kinds & ~denied)


def _wild(topic: str) -> bool:
    return "+" in topic or "#" in topic


def _plain(topic: str) -> bool:
    """Whether EMQX takes this text for the same topic."""
    if topic.startswith(_MARKS):
        return False
    try:
        validate_filter(topic)
    except FilterError:
        return False
    return True


def _entries(permission: Permission, topic: str, kinds: int) -> Iterator[dict[str, object]]:
    """EMQX's rules for these kinds of request: usually one, more if one rule cannot express them."""
    subscribe, publish, retained = kinds & 0b111, kinds >> 3 & 0b111, kinds >> 6 & 0b111
    if subscribe and subscribe == (publish or retained) and (not publish or not retained or publish == retained):
        retain = None if publish and retained else bool(retained)
        yield _entry(permission, "all", topic, subscribe, retain)
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


def _entry(permission: Permission, action: str, topic: str, qos: int, retain: bool | None) -> dict[str, object]:
    """A rule in EMQX's form; ``qos`` has a bit for each level, ``retain`` is None for both."""
    entry: dict[str, object] = {"permission": permission, "action": action, "topic": topic}
    if qos != 0b111:
        entry["qos"] = [value for value in range(3) if qos >> value & 1]
    if retain is not None:
        entry["retain"] = retain
    return entry
