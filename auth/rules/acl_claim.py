"""Access rules of a token: EMQX's ``acl`` claim, in both forms.

The newer form is a list of rules in order; other rules follow them. ``permission``, ``action`` and ``topic`` or
``topics`` are required; ``qos`` and ``retain`` narrow a rule; ``username_re``, ``clientid_re`` and ``ipaddr`` are its
conditions. The older form, ``{"pub": […], "sub": […], "all": […]}``, is a white list: it denies all other topics.

The form is checked although the issuer is trusted. A wrong list refuses the login, because a left-out rule might be a
denial. ``auth.rules.emqx_forms`` tells which regular expressions are accepted.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from auth.errors import RuleFormatError
from auth.model import EVERYBODY, Condition, Rule, SubjectKind, Who
from auth.rules.conditions import condition_problem
from auth.rules.emqx_forms import actions_of, literal_of_regex, permission_of, qos_of, retain_of, shown, topic_of

MAX_RULES: Final = 1000  # of one token; a token is at most a password long, 64 KiB
_NARROWING: Final = ("zone", "zone_re", "listener", "listener_re")  # EMQX 6: ignoring them would widen a rule
_OLD: Final = ("pub", "sub", "all")
CONDITION_KEYS: Final = ("username", "username_re", "clientid", "clientid_re", "ipaddr", *_NARROWING)


class AclRules(NamedTuple):
    """A token's rules. ``closed``: they are a white list, and other rules do not count."""

    rules: tuple[Rule, ...]
    closed: bool


def rules_of_claim(claim: object, *, source: str = "token acl") -> AclRules:
    """The rules of an ``acl`` claim. ``source`` is their name in ``explain``. Raises only RuleFormatError, with a
    sentence."""
    if isinstance(claim, list):
        rules = _of_list(claim, source)
    elif isinstance(claim, dict):
        rules = _of_lists_by_action(claim, source)
    else:
        raise RuleFormatError(
            f"the acl is a list of rules, or an object of the lists pub, sub and all, not {shown(claim)}"
        )
    kept: list[Rule] = []
    for rule in rules:
        if len(kept) == MAX_RULES:
            raise RuleFormatError(f"the acl has more than {MAX_RULES} topics")
        kept.append(rule)
    return AclRules(tuple(kept), isinstance(claim, dict))


def _of_list(claim: list[object], source: str) -> Iterator[Rule]:
    """The rules of a list of entries; an error names the entry."""
    for number, entry in enumerate(claim):
        place = f"{source}[{number}]"
        try:
            yield from rules_of_entry(entry, place)
        except RuleFormatError as error:
            raise RuleFormatError(f"{place}: {error}") from None


def rules_of_entry(entry: object, place: str, concerning: Who = ()) -> Iterator[Rule]:
    """The rules, one for each topic, of a JSON object in EMQX's form. ``concerning`` are further conditions. Raises
    RuleFormatError."""
    if not isinstance(entry, dict):
        raise RuleFormatError(f"a rule is a JSON object, not {shown(entry)}")
    permission, actions = permission_of(entry.get("permission")), actions_of(entry.get("action"))
    qos = qos_of(entry.get("qos"))
    # EMQX ignores it too for subscriptions.
    retain = retain_of(entry.get("retain")) if "publish" in actions else None
    who = (*concerning, *_who(entry)) or EVERYBODY
    topic = entry.get("topic")
    topics = [topic] if isinstance(topic, str) else entry.get("topics", topic)
    if not isinstance(topics, list):
        raise RuleFormatError(f"a rule has a topic, which is a text, or topics, a list of texts, not {shown(topics)}")
    for text in topics:
        name, eq = topic_of(text)
        yield Rule(permission, name, who, actions, eq, qos, retain, place)


def _who(entry: Mapping[str, object]) -> Who:
    """The conditions of an entry; all must hold. Raises RuleFormatError."""
    for key in _NARROWING:
        if key in entry:
            raise RuleFormatError(f"{key} is nothing that rules here can ask about: take the rule or the condition out")
    who: list[Condition] = []
    kinds: tuple[SubjectKind, ...] = ("username", "clientid")
    for kind in kinds:
        if f"{kind}_re" in entry:
            who.append((kind, _literal(f"{kind}_re", entry[f"{kind}_re"])))
        if kind in entry:  # EMQX 5 ignores these; a rule that has them means them
            who.append((kind, _text(kind, entry[kind])))
    if "ipaddr" in entry:
        who.append(("address", _text("ipaddr", entry["ipaddr"])))
    for kind, value in who:
        problem = condition_problem(kind, value)
        if problem:
            raise RuleFormatError(problem)
    return tuple(who)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise RuleFormatError(f"{key} is a text, not {shown(value)}")
    return value


def _literal(key: str, value: object) -> str:
    """The only name that a regular expression matches. Raises RuleFormatError if it may match several."""
    literal = literal_of_regex(_text(key, value))
    if literal is None:
        raise RuleFormatError(
            f"{key} is the regular expression {shown(value)}, and rules here take only one that spells out a single "
            "name, such as ^gateway$: name a group or a client attribute instead"
        )
    return literal


def _of_lists_by_action(claim: Mapping[str, object], source: str) -> Iterator[Rule]:
    """The older form, pub, sub and all: what is in no list is refused, by ``AclRules.closed``."""
    if not any(key in claim for key in _OLD):
        raise RuleFormatError("the acl is an object without any of the lists pub, sub and all")
    for key in _OLD:
        topics = claim.get(key, [])
        if not isinstance(topics, list):
            raise RuleFormatError(f"{source}.{key}: it is a list of topics, not {shown(topics)}")
        for number, text in enumerate(topics):
            place = f"{source}.{key}[{number}]"
            try:
                name, eq = topic_of(text)
            except RuleFormatError as error:
                raise RuleFormatError(f"{place}: {error}") from None
            yield Rule("allow", name, EVERYBODY, actions_of(key), eq, source=place)
