"""Writes rules as EMQX's acl.conf, for a return to EMQX's own rules.

The file begins with a warning: EMQX compares a requested filter word by word (``auth.rules.hand_over``), so the same
rules allow some subscriptions there that are denied here.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from auth.errors import RuleFormatError
from auth.model import Rule
from auth.rules.erlang_terms import quoted
from auth.rules.files import action_text
from auth.rules.topics import parse_topic

_HEAD: Final = """\
%% Access rules for EMQX 5.8.9 or later, asked from the first to the last.
%%
%% EMQX compares the filter of a subscription word by word as if it were a topic: {allow, all, subscribe, ["a/+"]} lets
%% a client subscribe to a/# too, and {deny, all, subscribe, ["a/b"]} does not stop a subscription to a/+.
"""


class WrittenAcl(NamedTuple):
    """The text of an acl.conf, and the rules without a form in it, each with the reason."""

    text: str
    left_out: tuple[tuple[Rule, str], ...]


def write_acl_conf(rules: Iterable[Rule]) -> WrittenAcl:
    """The rules in the form of acl.conf, with a denial of everything at the end. A rule without such a form becomes a
    comment, and is in ``left_out``."""
    lines = [_HEAD]
    left_out: list[tuple[Rule, str]] = []
    for rule in rules:
        try:
            lines.append(f"{{{rule.permission}, {_who(rule)}, {_action(rule)}, [{_topic(rule)}]}}.\n")
        except RuleFormatError as error:
            left_out.append((rule, str(error)))
            name = rule.source or f"the rule for {rule.topic[:100]!r}"
            lines.append(f"%% Left out: {' '.join(f'{name}. {error}'.split())}\n")  # never more than one line
    lines.append("{deny, all}.\n")
    return WrittenAcl("".join(lines), tuple(left_out))


def _who(rule: Rule) -> str:
    conditions = [_condition(kind, value) for kind, value in rule.who]
    if not conditions:
        raise RuleFormatError("It concerns nobody")
    return conditions[0] if len(conditions) == 1 else f"{{'and', [{', '.join(conditions)}]}}"


def _condition(kind: str, value: str) -> str:
    """A condition in acl.conf's form. Raises RuleFormatError for one that EMQX lacks."""
    match kind:
        case "all":
            return "all"
        case "username" | "clientid":
            return f"{{{kind}, {quoted(value)}}}"
        case "address":
            return f"{{ipaddr, {quoted(value)}}}"
        case "tenant":  # which a login's answer gives EMQX as a client attribute
            return f'{{client_attr, "tenant", {quoted(value)}}}'
        case "group":  # and the groups as one, joined by commas
            escaped = "".join(one if one.isalnum() or one in "_-" else f"\\{one}" for one in value)
            return f'{{client_attr, "groups", {{re, {quoted(f"(^|,){escaped}(,|$)")}}}}}'
        case "attribute":
            name, _, wanted = value.partition("=")
            return f"{{client_attr, {quoted(name)}, {quoted(wanted)}}}"
        case _:
            raise RuleFormatError(f"EMQX's rules cannot ask about the {kind} of a client")


def _action(rule: Rule) -> str:
    """The rule's action with its options, in acl.conf's form."""
    options = []
    if rule.qos:
        options.append(f"{{qos, [{', '.join(str(qos) for qos in sorted(rule.qos))}]}}")
    if rule.retain is not None and "publish" in rule.actions:
        options.append(f"{{retain, {str(rule.retain).lower()}}}")
    action = action_text(rule)
    return f"{{{action}, [{', '.join(options)}]}}" if options else action


def _topic(rule: Rule) -> str:
    """The rule's topic in acl.conf's form. Raises RuleFormatError if EMQX would read another one."""
    template = parse_topic(rule.topic)
    if template.problem:
        raise RuleFormatError(f"It matches nothing here: {template.problem}")
    if len(template.parts) == 1:
        # EMQX undoes its escape ${$} only beside a placeholder, and fills in nothing in an eq.
        (text,) = template.parts
        if not rule.eq and (text.startswith("eq ") or "${" in text):
            if "+" in text or "#" in text:
                raise RuleFormatError("EMQX would take its topic for something else, with a placeholder or eq in it")
            return f"{{eq, {quoted(text)}}}"
        return f"{{eq, {quoted(text)}}}" if rule.eq else quoted(text)
    if rule.eq:
        raise RuleFormatError("EMQX fills in no placeholder in a topic that is compared as text")
    parts = list(template.parts)
    parts[::2] = [part.replace("${", "${$}{") for part in parts[::2]]
    parts[1::2] = [f"${{{'client_attrs.tenant' if name == 'tenant' else name}}}" for name in parts[1::2]]
    text = "".join(parts)
    if text.startswith("eq "):
        raise RuleFormatError("EMQX would take its topic for an eq")
    return quoted(text)
