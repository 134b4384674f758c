"""Whether a client may publish to a topic or subscribe to a filter.

The first rule that matches decides. Without a match the access is denied. Filters are compared as sets of topics. For
a subscription

- a rule that allows matches if its filter covers all of the requested one: ``a/#`` does not allow ``#``, and ``a/+``
  does not allow ``a/#``;
- a rule that denies matches if the two filters share a topic: a subscription to ``#`` would deliver ``a/secret`` too.

A rule with a placeholder without a value (see ``auth.rules.topics``) matches nothing, whether it allows or denies. For
a rule that allows this is safe. A rule that denies concerns only the topics of the client's own value, and a client
without that value has no such topics. As a wildcard the placeholder would deny the topics of all clients. A denial for
every client must not depend on the client's data: it names topics with wildcards (``deny config/#``).
"""

from collections.abc import Sequence

from auth.model import AccessRequest, Decision, Rule, Subject
from auth.rules.conditions import concerns, condition_problem
from auth.rules.topics import covered, judged_topic, parse_topic, shared, topic_problem


def decide(rules: Sequence[Rule], request: AccessRequest) -> Decision:
    """Whether ``request`` is allowed, and by which rule. Never blocks, never raises.

    Takes a few microseconds for ten rules. Pass only the subject's rules (``RuleSource.rules_for``).
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
    """Why this rule cannot be stored, as a sentence; empty if it can. For edits and imports. In ``decide`` a rule with
    a problem matches nothing."""
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
