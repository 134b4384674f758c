"""The parts of EMQX's access rules in tokens, its REST API and acl.conf.

Regular expressions are refused: a client chooses its client id, and an expression such as ``(a+)+$`` can run for hours
on it. An expression for a single text, as EMQX's own ``{re, "^dashboard$"}``, becomes that text. In place of others
there are groups, tenants and attributes.
"""

import re
from typing import Final

from auth.errors import RuleFormatError
from auth.model import Action, Permission

_ACTIONS: Final[dict[str, frozenset[Action]]] = {
    "publish": frozenset({"publish"}),
    "pub": frozenset({"publish"}),
    "subscribe": frozenset({"subscribe"}),
    "sub": frozenset({"subscribe"}),
    "all": frozenset({"publish", "subscribe"}),
}
_RETAIN: Final[dict[object, bool | None]] = {"all": None, "true": True, "1": True, "false": False, "0": False}
_LITERAL: Final = re.compile(r"\^((?:[^\\.^$|?*+()\[\]{}]|\\[^A-Za-z0-9])*)\$")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def shown(value: object) -> str:
    """A value for a sentence: escaped and shortened."""
    if isinstance(value, (dict, list)):
        return "a JSON object" if isinstance(value, dict) else "a JSON array"
    text = repr(value[:100] if isinstance(value, str) else value)
    return text if len(text) <= 120 else f"{text[:120]}…"


def permission_of(value: object) -> Permission:
    """``allow`` or ``deny``. Raises RuleFormatError for anything else."""
    if value == "allow":
        return "allow"
    if value == "deny":
        return "deny"
    raise RuleFormatError(f"the permission of a rule is allow or deny, not {shown(value)}")


def actions_of(value: object) -> frozenset[Action]:
    """The actions of ``publish``, ``subscribe`` or ``all``. Raises RuleFormatError."""
    found = _ACTIONS.get(value) if isinstance(value, str) else None
    if found is None:
        raise RuleFormatError(f"the action of a rule is publish, subscribe or all, not {shown(value)}")
    return found


def qos_of(value: object) -> frozenset[int]:
    """The QoS of a rule, given as a number, a list of them, or a text such as ``0,1``; empty for any. Raises
    RuleFormatError."""
    if value is None:
        return frozenset()
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    if 0 < len(parts) <= 3 and all(part in ("0", "1", "2") or (type(part) is int and 0 <= part <= 2) for part in parts):
        found = frozenset(int(str(part)) for part in parts)
        return frozenset() if len(found) == 3 else found
    raise RuleFormatError(f"the qos of a rule is 0, 1, 2, a list or a text of these such as '0,1', not {shown(value)}")


def retain_of(value: object) -> bool | None:
    """Whether a rule is about retained messages (True), others (False) or both (None). Raises RuleFormatError."""
    if value is None or isinstance(value, bool):
        return value
    key = str(value) if type(value) is int else value
    if not isinstance(key, str) or key not in _RETAIN:
        raise RuleFormatError(f"the retain of a rule is true, false or all, not {shown(value)}")
    return _RETAIN[key]


def topic_of(value: object) -> tuple[str, bool]:
    """A rule's topic, and whether it is compared as text (``eq TOPIC``), where EMQX fills in no placeholders. Raises
    RuleFormatError, also for ``${tenant}``, which is text to EMQX."""
    if not isinstance(value, str):
        raise RuleFormatError(f"the topic of a rule is a text, not {shown(value)}")
    if len(value) > 65_535:
        raise RuleFormatError(f"the topic {shown(value)}… has {len(value)} characters; MQTT allows 65535 bytes")
    if value.startswith("eq "):
        return value[3:].replace("${", "${$}{"), True
    refuse_our_placeholder(value)
    return value, False


def refuse_our_placeholder(topic: str) -> None:
    """Raises RuleFormatError for ``${tenant}``: text to EMQX, a placeholder here. As text the rule might miss a needed
    denial; as a placeholder it might allow too much."""
    if "${tenant}" in topic or "${.tenant}" in topic:
        raise RuleFormatError(
            f"${{tenant}} in the topic {shown(topic)} is text to EMQX and each client's tenant here: write "
            "${$}{tenant} for the text; for the tenant add a rule with `gateway auth acl add`"
        )


def literal_of_regex(pattern: str) -> str | None:
    """The one text that a regular expression matches, or None when it may match several."""
    found = _LITERAL.fullmatch(pattern)
    return _ESCAPED.sub(r"\1", found[1]) if found and found[1] else None
