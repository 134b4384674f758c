"""How EMQX judges an access by the rules of a login's answer: a model of its source at v5.8.9, for tests.

What is modelled: ``emqx_authz_rule_raw:parse_rule/1`` (a rule it cannot read refuses the login), the compilation and
matching of ``emqx_authz_rule``, ``emqx_topic:match/2`` on words, ``emqx_topic:parse/2`` and the way of ``$delayed/``
through ``emqx_access_control:authorize/3``, and the template parser's placeholders and escape.
"""

from __future__ import annotations

__all__ = ["BadRuleError", "EmqxRules", "FilterRefusedError"]

import re
from typing import Any, Literal

_VARIABLES = {"username": "username", "clientid": "clientid", "cert_common_name": "cert_common_name", "zone": "zone"}
_TEMPLATE = re.compile(r"\$\{[.]?([a-zA-Z0-9._]*)\}|\$\{(\$)\}")


class BadRuleError(Exception):
    """EMQX cannot read the rule and refuses the login."""


class FilterRefusedError(Exception):
    """EMQX refuses the topic or filter before it looks at any rule."""


class EmqxRules:
    """The rules of one client's login."""

    def __init__(self, acl: list[Any], variables: dict[str, str]) -> None:
        self._variables = variables
        self._rules = [_parse(rule) for rule in acl]

    def judge(self, action: str, topic: str, *, qos: int = 0, retain: bool = False) -> Literal["allow", "deny"] | None:
        """What its rules say, or None: the next source is asked. Raises FilterRefusedError."""
        real = real_topic(action, topic)
        if real is None:
            return "deny"
        words = real.split("/")
        for permission, kind, levels, retains, topics in self._rules:
            if kind not in (action, "all") or qos not in levels:
                continue
            if action == "publish" and retains not in ("all", retain):
                continue
            if any(self._match(words, each) for each in topics):
                return permission
        return None

    def _match(self, words: list[str], topic: str | tuple[str, str]) -> bool:
        if isinstance(topic, tuple):
            return words == topic[1].split("/")
        found = [name for name, _dollar in _TEMPLATE.findall(topic) if name]
        if any(name in _VARIABLES or name.startswith("client_attrs.") for name in found):
            try:
                topic = _TEMPLATE.sub(self._render, topic)
            except KeyError:
                return False
        return self._match_words(words, topic.split("/"))

    def _render(self, match: re.Match[str]) -> str:
        if match[2]:
            return "$"
        name = match[1]
        if name not in _VARIABLES and not name.startswith("client_attrs."):
            return match[0]
        return self._variables[name]

    def _match_words(self, words: list[str], wanted: list[str]) -> bool:
        if words[0].startswith("$") and wanted[0] in ("+", "#"):
            return False
        for index, word in enumerate(wanted):
            if word == "#" and index == len(wanted) - 1:
                return True
            if index == len(words) or word not in ("+", words[index]):
                return False
        return len(words) == len(wanted)


def real_topic(action: str, topic: str) -> str | None:
    """What rules are asked about, or None when it is denied unasked. Raises FilterRefusedError."""
    if action == "publish":
        if not topic or "\0" in topic or any(word in ("+", "#") for word in topic.split("/")) or "+" in topic:
            raise FilterRefusedError(topic)
    else:
        topic = _parse_filter(topic)
    while topic.startswith("$delayed/"):
        _seconds, slash, topic = topic[9:].partition("/")
        if not slash:
            return None
    return topic


def _parse_filter(text: str) -> str:
    _validate(text)
    if text.startswith("$queue/"):
        return _shared(text[7:])
    if text.startswith("$share/"):
        return _shared(text[7:].partition("/")[2])
    if text.startswith("$exclusive/"):
        if text == "$exclusive/":
            raise FilterRefusedError(text)
        return text[11:]
    return text


def _shared(topic: str) -> str:
    if topic.startswith(("$queue/", "$share/")):
        raise FilterRefusedError(topic)
    return topic


def _validate(text: str) -> None:
    if not text or len(text.encode()) > 65_535:
        raise FilterRefusedError(text)
    if text.startswith("$share/"):
        group, slash, text = text[7:].partition("/")
        if not group or not slash or not text or "+" in group or "#" in group or text.startswith("$share/"):
            raise FilterRefusedError(text)
    words = text.split("/")
    for index, word in enumerate(words):
        if word == "+" or (word == "#" and index == len(words) - 1):
            continue
        if any(character in word for character in "+#\0"):
            raise FilterRefusedError(text)


def _parse(rule: Any) -> tuple[Any, str, list[int], Any, list[str | tuple[str, str]]]:
    if not isinstance(rule, dict) or "permission" not in rule or "action" not in rule:
        raise BadRuleError(rule)
    if rule["permission"] not in ("allow", "deny"):
        raise BadRuleError(rule)
    action = {"pub": "publish", "sub": "subscribe"}.get(rule["action"], rule["action"])
    if action not in ("publish", "subscribe", "all"):
        raise BadRuleError(rule)
    topics = [rule["topic"]] if isinstance(rule.get("topic"), str) else rule.get("topics")
    if not isinstance(topics, list):
        raise BadRuleError(rule)
    retain = {None: "all", "all": "all", 0: False, 1: True, "0": False, "1": True, "true": True, "false": False}.get(
        rule.get("retain", "all"), "bad"
    )
    if retain == "bad" and action != "subscribe":
        raise BadRuleError(rule)
    return rule["permission"], action, _qos(rule.get("qos")), retain, [_topic(topic) for topic in topics]


def _topic(text: Any) -> str | tuple[str, str]:
    if not isinstance(text, str):
        raise BadRuleError(text)
    if not text.startswith("eq "):
        return text
    if text.startswith("eq eq "):
        raise BadRuleError(text)
    return "eq", text[3:]


def _qos(value: Any) -> list[int]:
    if value is None:
        return [0, 1, 2]
    values = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    known = {0: 0, 1: 1, 2: 2, "0": 0, "1": 1, "2": 2}
    if isinstance(value, bool) or any(each not in known for each in values):
        raise BadRuleError(value)
    return [known[each] for each in values]
