"""Whether a client may publish to a topic or subscribe to a filter.

Rules are asked in order and the first that matches decides; when none does, the access is denied. Wildcards are
compared as sets of topics. For a subscription

- a rule that allows matches when its filter covers all of the requested one: ``a/#`` does not allow ``#``, and ``a/+``
  does not allow ``a/#``;
- a rule that denies matches when the two have any topic in common: a subscription to ``#`` would deliver what
  ``deny a/secret`` keeps back.

A rule with a placeholder that comes to nothing (``auth.rules.topics`` says when) matches nothing, whether it allows or
denies. For one that allows this is the safe side. For one that denies it is safe because such a rule takes away the
topics of one value, that of the client itself: a client whose value is missing or unusable is not kept from the topics
of any other value either, and neither would a client be whose value is merely a different one. Reading the placeholder
as a wildcard instead would let a client without that value be shut out of everybody's topics by a rule about its own.
A rule that has to hold for every client must not depend on what the client says of itself: name the topics with
wildcards (``deny config/#``), not with placeholders.
"""

from __future__ import annotations

__all__ = ["decide", "rule_problem"]

from typing import TYPE_CHECKING

from auth.model import Decision
from auth.rules.conditions import concerns, condition_problem
from auth.rules.topics import covered, judged_topic, parse_topic, shared, topic_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from auth.model import AccessRequest, Rule, Subject


def decide(rules: Sequence[Rule], request: AccessRequest) -> Decision:
    """Whether ``request`` is allowed, and which rule said so. Does not block, and raises for no text whatever.

    The work is that of the rules given, a few microseconds for ten: give it the subject's own
    (``RuleSource.rules_for``), not everybody's.
    """
    action = request.action
    topic = judged_topic(action, request.topic)
    if topic is None:
        return Decision(allowed=False, rule=None, reason=_malformed(request))
    subject = request.subject
    qos = request.qos
    retain = request.retain if action == "publish" else None
    for rule in rules:
        if (
            action in rule.actions
            and (not rule.qos or qos in rule.qos)
            and (rule.retain is None or retain is None or rule.retain == retain)
            and _names(rule, action == "publish" or rule.permission == "allow", topic, subject)
            and concerns(rule.who, subject)
        ):
            allowed = rule.permission == "allow"
            return Decision(allowed, rule, f"{rule.source or 'a rule'} {'allows' if allowed else 'denies'} it")
    return Decision(allowed=False, rule=None, reason="no rule matches, and what no rule allows is denied")


def _names(rule: Rule, whole: bool, topic: str, subject: Subject) -> bool:
    """Whether the rule's topic covers the requested one (``whole``), or else shares a topic with it."""
    filter_ = rule.topic
    if "${" in filter_:
        template = parse_topic(filter_)
        if (whole or rule.eq) and not topic.startswith(template.prefix):
            return False
        resolved = template.resolve(subject)
        if resolved is None:
            return False
        filter_ = resolved
    if rule.eq:
        return topic == filter_
    return covered(filter_, topic) if whole else shared(filter_, topic)


def _malformed(request: AccessRequest) -> str:
    if request.action == "publish":
        return "nothing can be published to this topic: it is empty, too long, or holds a wildcard or a NUL character"
    return "this is no topic filter that MQTT allows"


def rule_problem(rule: Rule) -> str:
    """Why this rule cannot be kept, as a sentence, or nothing. ``decide`` takes any rule: one with a problem matches
    nothing. This is for edits and imports, where somebody can still correct it."""
    problem = topic_problem(rule.topic, eq=rule.eq)
    if problem:
        return problem
    if not rule.who:
        return "the rule concerns nobody; say whom, or 'all'"
    for kind, value in rule.who:
        problem = condition_problem(kind, value)
        if problem:
            return problem
    if not rule.actions or rule.actions - {"publish", "subscribe"}:
        return "the rule has to be about publishing, subscribing, or both"
    if rule.qos - {0, 1, 2}:
        return f"QoS is 0, 1 or 2, not {', '.join(map(str, sorted(rule.qos)))}"
    if rule.retain is not None and "publish" not in rule.actions:
        return "only what is published can be retained: a rule about subscriptions alone cannot ask for it"
    return ""
