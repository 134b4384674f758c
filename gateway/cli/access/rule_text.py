"""An access rule in words, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.cli.table import shown

if TYPE_CHECKING:
    from auth.model import Rule


def whom(rule: Rule) -> str:
    from auth.rules.files import condition_text

    return shown(
        " and ".join("everybody" if kind == "all" else condition_text(kind, value) for kind, value in rule.who)
    )


def only(rule: Rule) -> Iterator[str]:
    """The kinds of request that a rule is limited to, beside its action and topic."""
    if rule.eq:
        yield "as text"
    if rule.qos:
        yield f"QoS {' or '.join(map(str, sorted(rule.qos)))}"
    if rule.retain is not None:
        yield "retained" if rule.retain else "not retained"


def sentence(rule: Rule) -> str:
    from auth.rules.files import action_text

    verb = {"all": "publish and subscribe"}.get(action_text(rule), action_text(rule))
    limits = "".join(f", {one}" for one in only(rule))
    return f"{rule.permission} {whom(rule)} to {verb} to {shown(rule.topic)}{limits}"
