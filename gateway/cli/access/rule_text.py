"""An access rule in words, for the terminal."""

from collections.abc import Iterator

from auth.model import Rule
from auth.rules.files import action_text, condition_text
from gateway.cli.table import shown


def whom(rule: Rule) -> str:
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
    verb = {"all": "publish and subscribe"}.get(action_text(rule), action_text(rule))
    limits = "".join(f", {one}" for one in only(rule))
    return f"{rule.permission} {whom(rule)} to {verb} to {shown(rule.topic)}{limits}"
