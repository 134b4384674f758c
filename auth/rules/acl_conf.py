"""Reads EMQX's acl.conf into rules.

Terms without a counterpart are listed with their lines: conditions on zone or listener, and regular expressions for
more than one name (``auth.rules.emqx_forms``). The user decides about them: without a left-out denial the rules allow
more than EMQX did.

An ``'or'`` and several topics become several rules. ``%c`` and ``%u`` of EMQX 4, each a whole level, become
``${clientid}`` and ``${username}``. ``{allow, all}`` becomes ``#`` and is listed, because ``#`` does not match topics
that begin with ``$``. A last ``{deny, all}`` is left out: denial is the default, and it must not precede later rules.

Subscriptions are compared differently: EMQX takes the requested filter for a topic, this service for a set of topics
(``auth.rules.rules``). So the rules allow no more here than there.
"""

import re
from itertools import product
from typing import Final, NamedTuple

from auth.errors import RuleFormatError
from auth.model import EVERYBODY, Action, Permission, Rule, SubjectKind, Who
from auth.rules.emqx_forms import literal_of_regex, refuse_our_placeholder
from auth.rules.erlang_terms import Atom, TopTerm, parse_terms
from auth.rules.rules import rule_problem

_MOST: Final = 1000  # rules out of one term
_ACTIONS: Final[dict[str, frozenset[Action]]] = {
    "publish": frozenset({"publish"}),
    "subscribe": frozenset({"subscribe"}),
    "all": frozenset({"publish", "subscribe"}),
    "pubsub": frozenset({"publish", "subscribe"}),  # EMQX 4
}
_KINDS: Final[dict[str, SubjectKind]] = {
    "username": "username",
    "user": "username",
    "clientid": "clientid",
    "client": "clientid",
}
_OLD_PLACEHOLDERS: Final = {"%c": "${clientid}", "%u": "${username}"}
_PLACEHOLDER_OF_CN: Final = re.compile(r"\$\{\.?cn\}")  # as EMQX's own acl.conf calls it
_PLACEHOLDER_WITH_DOT: Final = re.compile(r"\$\{\.(?=[a-z])")
_RETAIN: Final[dict[str, bool | None]] = {"true": True, "false": False, "all": None}


class Untranslated(NamedTuple):
    """A term without an exact counterpart. With ``left_out`` it has none at all."""

    line: int
    reason: str
    left_out: bool = True
    permission: Permission | None = None


class AclFile(NamedTuple):
    """The rules of a file, in order, and the terms without a counterpart."""

    rules: tuple[Rule, ...]
    untranslated: tuple[Untranslated, ...]


def read_acl_conf(text: str) -> AclFile:
    """The rules of an acl.conf; unknown terms are in ``untranslated``. Raises ImportFormatError with the line for text
    that is no list of Erlang terms."""
    terms = parse_terms(text)
    rules: list[Rule] = []
    untranslated: list[Untranslated] = []
    for number, top in enumerate(terms):
        permission = _permission(top.term)
        if permission and isinstance(top.term, tuple) and len(top.term) == 2 and _is_atom(top.term[1], "all"):
            rest = terms[number + 1 :]
            if permission == "allow" or rest:
                rules.append(Rule(permission, "#", source=f"line {top.line}"))
            if permission == "allow":
                untranslated.append(Untranslated(top.line, _DOLLAR, left_out=False, permission=permission))
            untranslated += [_behind(later, top.line) for later in rest]
            break
        try:
            rules += _rules(top)
        except RuleFormatError as error:
            untranslated.append(Untranslated(top.line, str(error), permission=permission))
    return AclFile(tuple(rules), tuple(untranslated))


_DOLLAR: Final = (
    "{allow, all} is about topics that begin with $ too, and # is not; name those that clients may use, such as "
    "$SYS/#, in rules of their own"
)


def _behind(top: TopTerm, line: int) -> Untranslated:
    reason = f"it is never reached: line {line} decides everything"
    return Untranslated(top.line, reason, permission=_permission(top.term))


def _permission(term: object) -> Permission | None:
    if isinstance(term, tuple) and term and isinstance(term[0], Atom):
        return "allow" if term[0] == "allow" else "deny" if term[0] == "deny" else None
    return None


def _is_atom(term: object, name: str) -> bool:
    return isinstance(term, Atom) and term == name


def _rules(top: TopTerm) -> list[Rule]:
    """A term's rules, one for each of its topics and alternatives. Raises RuleFormatError."""
    term = top.term
    permission = _permission(term)
    if not isinstance(term, tuple) or len(term) != 4 or permission is None:
        raise RuleFormatError("a rule is {allow, all}, {deny, all} or {allow | deny, Who, Action, [Topic, ...]}")
    _, who, action, topics = term
    actions, qos, retain = _action(action)
    if not isinstance(topics, list):
        raise RuleFormatError("a rule's topics are a list of texts")
    rules = []
    for topic in topics:
        text, eq = _topic(topic)
        for conditions in _alternatives(who):
            rule = Rule(permission, text, conditions, actions, eq, qos, retain, f"line {top.line}")
            problem = rule_problem(rule)
            if problem:
                raise RuleFormatError(problem)
            rules.append(rule)
            if len(rules) > _MOST:
                raise RuleFormatError(f"it would become more than {_MOST} rules: its topics times whom it concerns")
    return rules


def _action(term: object) -> tuple[frozenset[Action], frozenset[int], bool | None]:
    """The actions, the QoS (empty for any), and whether retained (None for both). Raises RuleFormatError."""
    options: object = []
    if isinstance(term, tuple) and len(term) == 2:
        term, options = term
    actions = _ACTIONS.get(term) if isinstance(term, Atom) else None
    if actions is None or not isinstance(options, list):
        raise RuleFormatError(
            "a rule's action is publish, subscribe, all, or one of these with [{qos, …}, {retain, …}]"
        )
    qos: set[int] = set()
    retain: bool | None = None
    for option in options:
        if not isinstance(option, tuple) or len(option) != 2 or not isinstance(option[0], Atom):
            raise RuleFormatError("an option of an action is {qos, 0 | 1 | 2} or {retain, true | false | all}")
        name, value = option
        if name == "qos":
            values = value if isinstance(value, list) else [value]
            if not values or not all(type(one) is int and 0 <= one <= 2 for one in values):
                raise RuleFormatError("the qos of an action is 0, 1, 2 or a list of these")
            qos.update(values)
        elif name == "retain" and isinstance(value, Atom) and value in _RETAIN:
            retain = _RETAIN[value]
        else:
            raise RuleFormatError("an option of an action is {qos, 0 | 1 | 2} or {retain, true | false | all}")
    if len(qos) == 3:
        qos = set()
    return actions, frozenset(qos), retain if "publish" in actions else None


def _topic(term: object) -> tuple[str, bool]:
    """A topic in our form, and whether it is compared as text. Raises RuleFormatError."""
    eq = False
    if isinstance(term, tuple) and len(term) == 2 and _is_atom(term[0], "eq"):
        eq, term = True, term[1]
    if not isinstance(term, str) or isinstance(term, Atom):
        raise RuleFormatError('a topic is a text or {eq, "…"}')
    if term.startswith("eq ") and not eq:
        eq, term = True, term[3:]
    if eq:
        return term.replace("${", "${$}{"), True  # EMQX fills in nothing there
    refuse_our_placeholder(term)
    text = _PLACEHOLDER_OF_CN.sub("${cert_common_name}", term)
    text = _PLACEHOLDER_WITH_DOT.sub("${", text)
    return "/".join(_OLD_PLACEHOLDERS.get(level, level) for level in text.split("/")), False


def _alternatives(term: object) -> list[Who]:
    """The alternatives of a rule's conditions; all conditions of one must hold."""
    if _is_atom(term, "all"):
        return [EVERYBODY]
    if not isinstance(term, tuple) or not term or not isinstance(term[0], Atom):
        raise RuleFormatError('whom a rule concerns is all or a tuple such as {username, "…"}')
    name, *values = term
    match name, values:
        case ("and" | "or", [list() as parts]) if parts:
            return _combined(name, [_alternatives(part) for part in parts])
        case ("ipaddr", [str() as network]):
            return [(("address", network),)]
        case ("ipaddrs", [list() as networks]) if networks and all(isinstance(one, str) for one in networks):
            return [(("address", network),) for network in networks]
        case ("client_attr", [str() as attribute, value]):
            return [(("attribute", f"{attribute}={_value(name, value)}"),)]
        case (_, [value]) if name in _KINDS:
            return [((_KINDS[name], _value(name, value)),)]
        case _:
            raise RuleFormatError(
                f"nothing here can ask about {{{name[:50]}, …}}; there are all, username, clientid, ipaddr, ipaddrs, "
                "client_attr, 'and' and 'or'"
            )


def _combined(name: str, parts: list[list[Who]]) -> list[Who]:
    """The alternatives of an ``and`` or an ``or`` of these parts. Raises RuleFormatError for too many."""
    if name == "or":
        return [who for part in parts for who in part]
    total = 1
    for part in parts:
        total *= len(part)
        if total > _MOST:
            raise RuleFormatError(f"its 'and' of several 'or' would become more than {_MOST} rules")
    return [_together(choice) for choice in product(*parts)]


def _together(choice: tuple[Who, ...]) -> Who:
    conditions = dict.fromkeys(condition for who in choice for condition in who if condition[0] != "all")
    return tuple(conditions) or EVERYBODY


def _value(name: str, term: object) -> str:
    """A name, from a text or a regular expression for a single text."""
    if isinstance(term, tuple) and len(term) == 2 and _is_atom(term[0], "re") and isinstance(term[1], str):
        literal = literal_of_regex(term[1])
        if literal is None:
            raise RuleFormatError(
                f"the regular expression {term[1][:100]!r} for a {name} may match several, and rules here take only "
                "those that spell out one, such as ^dashboard$: give these clients a group or an attribute instead"
            )
        return literal
    if not isinstance(term, str) or isinstance(term, Atom):
        raise RuleFormatError(f'the {name} is a text or {{re, "…"}}')
    return term
