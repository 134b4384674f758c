"""Why a rule did not decide about a request, as a sentence. ``auth.rules.rules.decide`` decides."""

from auth.model import AccessRequest, Rule, Subject
from auth.rules.conditions import concerns
from auth.rules.topics import covered, judged_topic, parse_topic, shared

_KINDS = {
    "username": "the user name is not {0}",
    "clientid": "the client id is not {0}",
    "group": "not in the group {0}",
    "tenant": "not of the tenant {0}",
    "address": "the address is not in {0}",
    "common_name": "the certificate's name is not {0}",
    "attribute": "without the attribute {0}",
}


def mismatch(rule: Rule, request: AccessRequest) -> str:
    """Why ``rule`` does not match ``request``; "" if it matches. The first rule that matches decides."""
    action = request.action
    if action not in rule.actions:
        return f"it is about {'subscribing' if action == 'publish' else 'publishing'} alone"
    if rule.qos and request.qos not in rule.qos:
        return f"it is about QoS {' and '.join(map(str, sorted(rule.qos)))} alone"
    if action == "publish" and rule.retain is not None and rule.retain != request.retain:
        return f"it is about {'retained' if rule.retain else 'unretained'} messages alone"
    for condition in rule.who:
        if not concerns((condition,), request.subject):
            return _KINDS.get(condition[0], "it concerns {0}").format(condition[1])
    if not rule.who:
        return "it concerns nobody"
    return _topic(rule, request)


def _topic(rule: Rule, request: AccessRequest) -> str:
    """Why the rule's topic does not match; "" if it matches."""
    topic = judged_topic(request.action, request.topic)
    if topic is None:
        return "what was asked about is no topic"
    filter_: str | None = rule.topic
    if "${" in rule.topic:
        filter_ = parse_topic(rule.topic).resolve(request.subject)
        if filter_ is None:
            return _no_value(rule.topic, request.subject)
    assert filter_ is not None
    if rule.eq:
        return "" if topic == filter_ else f"it is about the topic {filter_} literally"
    if request.action == "publish" or rule.permission == "allow":
        if covered(filter_, topic):
            return ""
        if request.action == "subscribe" and shared(filter_, topic):
            return f"{filter_} does not cover all of {topic}"
        return f"{filter_} does not match"
    return "" if shared(filter_, topic) else f"{filter_} has no topic in common with it"


def _no_value(text: str, subject: Subject) -> str:
    """Why a rule's topic has no filter for this client."""
    template = parse_topic(text)
    if template.problem:
        return template.problem
    for name in template.parts[1::2]:
        if parse_topic(f"${{{name}}}").resolve(subject) is None:
            return f"${{{name}}} has no value, or one with +, # or / in it, and then matches nothing"
    return "its topic is none that MQTT allows"
