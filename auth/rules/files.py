"""Files of rules in JSON: this service's own, and those of EMQX's REST API.

Our form is ``{"rules": [...]}`` in order. Each rule has ``permission``, ``action`` and ``topic``, and optionally
``eq``, ``qos``, ``retain`` and ``who``, a list of conditions such as ``"group=sensors"`` that must all hold.

EMQX's form is an object or a list of them (or a page, ``{"data": […]}``), each with ``rules``, and ``username``,
``clientid`` or neither for everybody. EMQX compares the rules of a client id first, then a user's, then everybody's,
and the rules get this order. EMQX has no CSV files of rules.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, cast

from auth.errors import ImportFormatError, RuleFormatError
from auth.members import unique
from auth.model import EVERYBODY, Condition, Rule, SubjectKind, Who
from auth.rules.acl_claim import CONDITION_KEYS, rules_of_entry
from auth.rules.conditions import condition_problem
from auth.rules.emqx_forms import actions_of, permission_of, qos_of, retain_of, shown
from auth.rules.rules import rule_problem

_OUR_KEYS: Final = frozenset({"id", "permission", "action", "topic", "eq", "qos", "retain", "who", "source"})
_EMQX_KEYS: Final = _OUR_KEYS - {"eq", "who"} | {"topics", *CONDITION_KEYS}
_GROUP_KEYS: Final = frozenset({"rules", "username", "clientid"})


def condition_text(kind: str, value: str) -> str:
    """A condition as text: ``group=sensors``, ``attribute=site=north``, ``all``."""
    return kind if kind == "all" else f"{kind}={value}"


def condition_of(text: str) -> Condition:
    """The condition in a text. Raises RuleFormatError with a sentence."""
    kind, _, value = text.partition("=")
    kind = {"user": "username", "client": "clientid", "cn": "common_name", "ip": "address"}.get(kind, kind)
    problem = condition_problem(kind, value)
    if problem:
        raise RuleFormatError(problem)
    return cast("SubjectKind", kind), value


def rule_as_json(rule: Rule) -> dict[str, object]:
    """A rule as an object of our form, without defaults."""
    entry: dict[str, object] = {"permission": rule.permission, "action": action_text(rule), "topic": rule.topic}
    if rule.eq or rule.topic.startswith("eq ") or "${tenant}" in rule.topic:  # else it would be read as EMQX's form
        entry["eq"] = rule.eq
    if rule.qos:
        entry["qos"] = sorted(rule.qos)
    if rule.retain is not None:
        entry["retain"] = rule.retain
    if rule.who != EVERYBODY:
        entry["who"] = [condition_text(kind, value) for kind, value in rule.who]
    return entry


def action_text(rule: Rule) -> str:
    """``publish``, ``subscribe`` or ``all``."""
    return "all" if len(rule.actions) == 2 else next(iter(rule.actions), "nothing")


def write_rules(rules: Iterable[Rule]) -> str:
    """A file in our form, a line for each rule."""
    lines = (json.dumps(rule_as_json(rule), ensure_ascii=False) for rule in rules)
    return '{"rules": [\n' + ",\n".join(f"  {line}" for line in lines) + "\n]}\n"


def read_rules(text: str) -> list[Rule]:
    """The rules of a file in either form. Raises ImportFormatError, which names the entry."""
    try:
        content = json.loads(text, object_pairs_hook=unique)
    except ValueError as error:
        raise ImportFormatError(f"this is no JSON: {error}") from None
    except RecursionError:
        raise ImportFormatError("this JSON is nested too deep to be rules") from None
    try:
        rules = list(_rules(content))
    except RuleFormatError as error:
        raise ImportFormatError(str(error)) from None
    for rule in rules:
        problem = rule_problem(rule)
        if problem:
            raise ImportFormatError(f"{rule.source}: {problem}")
    return rules


def _rules(content: object) -> Iterator[Rule]:
    """The rules of decoded JSON: of a list or page of EMQX's groups, or of one of ours. Raises RuleFormatError."""
    groups: object = [content]
    if isinstance(content, dict) and "data" in content:
        groups = content["data"]
        meta = content.get("meta")
        if isinstance(meta, dict) and meta.get("hasnext") is True:
            raise RuleFormatError(
                "this is one page of several (meta.hasnext): ask EMQX for all with ?limit=10000, or give the lists "
                "named data of all pages as one"
            )
    elif isinstance(content, list):
        groups = content
    if not isinstance(groups, list) or not all(isinstance(group, dict) and "rules" in group for group in groups):
        raise RuleFormatError(
            'a file of rules is {"rules": [...]}, or a list of objects with rules for a user or client'
        )
    numbered: list[tuple[int, Mapping[str, object]]] = list(enumerate(groups))
    for index, group in sorted(numbered, key=lambda one: _rank(one[1])):  # which keeps the order within a kind
        yield from _group(group, "" if len(groups) == 1 else f"[{index}].")


def _rank(group: Mapping[str, object]) -> int:
    return 0 if "clientid" in group else 1 if "username" in group else 2


def _group(group: Mapping[str, object], place: str) -> Iterator[Rule]:
    """The rules of an object for a user, a client or all; ``place`` begins their source. Raises RuleFormatError."""
    kinds: tuple[SubjectKind, ...] = ("clientid", "username")
    _refuse_unknown(group, _GROUP_KEYS, f"{place or 'the object with '}rules")
    concerning: list[Condition] = []
    for kind in kinds:
        if kind in group:
            value = group[kind]
            if not isinstance(value, str) or not value:
                raise RuleFormatError(f"{place}{kind}: it is a text with at least one character, not {shown(value)}")
            concerning.append((kind, value))
    entries = group["rules"]
    if not isinstance(entries, list):
        raise RuleFormatError(f"{place}rules: it is a list, not {shown(entries)}")
    for number, entry in enumerate(entries):
        source = f"{place}rules[{number}]"
        try:
            if isinstance(entry, dict) and ("who" in entry or "eq" in entry):
                yield _own(entry, source, tuple(concerning))
            else:
                if isinstance(entry, dict):
                    _refuse_unknown(entry, _EMQX_KEYS, "a rule")
                yield from rules_of_entry(entry, source, tuple(concerning))
        except RuleFormatError as error:
            raise RuleFormatError(f"{source}: {error}") from None


def _own(entry: Mapping[str, object], source: str, concerning: Who) -> Rule:
    """A rule in our form, with the further conditions ``concerning``. Raises RuleFormatError."""
    _refuse_unknown(entry, _OUR_KEYS, "a rule")
    topic, eq, texts = entry.get("topic"), entry.get("eq", False), entry.get("who", [])
    if not isinstance(topic, str):
        raise RuleFormatError(f"the topic of a rule is a text, not {shown(topic)}")
    if not isinstance(eq, bool):
        raise RuleFormatError(f"eq is true or false, not {shown(eq)}")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RuleFormatError(f'who is a list of conditions such as "group=sensors", not {shown(texts)}')
    if not texts and "who" in entry:
        raise RuleFormatError("who is empty, and would mean everybody: leave it out if that is meant")
    who = (*concerning, *(condition_of(text) for text in texts)) or EVERYBODY
    actions = actions_of(entry.get("action"))
    qos, retain = qos_of(entry.get("qos")), retain_of(entry.get("retain"))
    return Rule(permission_of(entry.get("permission")), topic, who, actions, eq, qos, retain, source)


def _refuse_unknown(entry: Mapping[str, object], known: frozenset[str], what: str) -> None:
    """Raises RuleFormatError for a key that is not known: it may be a misspelt condition, without which the rule would
    concern everybody."""
    unknown = entry.keys() - known
    if unknown:
        raise RuleFormatError(f"{shown(min(unknown))} is no part of {what}; there are {', '.join(sorted(known))}")
