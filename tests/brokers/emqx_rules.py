"""How EMQX 5.8.9 judges a topic: rules that came with a login, ``acl.conf``, and the words of topics.

A model in Python of ``emqx_topic``, ``emqx_authz_rule``, ``emqx_authz_rule_raw`` and ``emqx_authz_client_info``, with
their edges as they are, the unpleasant ones too: a filter that a client subscribes to is compared word by word with a
rule's, so that a subscription to ``a/#`` is matched by a rule for ``a/+``; and an undefined user name is rendered as
the word ``undefined``.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Action = Literal["publish", "subscribe"]
Verdict = Literal["allow", "deny", "nomatch"]

PLACEHOLDER = re.compile(r"\$\{(\$)\}|\$\{\.?([a-zA-Z0-9._]*)\}")
_ALLOWED = ("username", "clientid", "cert_common_name", "zone")
_ACTIONS: dict[str, frozenset[Action]] = {
    **dict.fromkeys(("pub", "publish"), frozenset({"publish"})),
    **dict.fromkeys(("sub", "subscribe"), frozenset({"subscribe"})),
    "all": frozenset({"publish", "subscribe"}),
}


class BadRuleError(Exception):
    """EMQX refuses the rule: with a login that refuses the login, in ``acl.conf`` the start."""


class FilterRefusedError(Exception):
    """EMQX refuses the topic or filter before it looks at any rule."""


@dataclass(frozen=True)
class Client:
    """What rules can ask of a client. None is Erlang's ``undefined``."""

    username: str | None = None
    clientid: str = ""
    peerhost: str = "127.0.0.1"
    cert_common_name: str | None = None
    cert_subject: str | None = None
    zone: str = "default"
    listener: str = "tcp:default"
    client_attrs: Mapping[str, str] = field(default_factory=dict)


def topic_matches(topic: str, topic_filter: str) -> bool:
    """``emqx_topic:match``: word by word, ``topic`` being a name or a filter that somebody subscribes to."""
    return _words_match(topic.split("/"), topic_filter.split("/"))


def _words_match(name: Sequence[str], pattern: Sequence[str]) -> bool:
    if name[0].startswith("$") and pattern[0] in ("+", "#"):
        return False
    for index, word in enumerate(pattern):
        if word == "#" and index == len(pattern) - 1:
            return True
        if index >= len(name) or word not in (name[index], "+"):
            return False
    return len(name) == len(pattern)


class _UnrenderableError(Exception):
    """A placeholder without a value: the topic matches nothing."""


def _is_known(name: str) -> bool:
    return name in _ALLOWED or name.startswith("client_attrs.")


def _render(template: str, client: Client) -> str:
    def value(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        if escaped:
            return "$"
        if name.startswith("client_attrs."):
            attribute = name.removeprefix("client_attrs.")
            if attribute not in client.client_attrs:
                raise _UnrenderableError
            return client.client_attrs[attribute]
        if not _is_known(name):
            return found[0]  # what EMQX does not know stays as it is written
        known: str | None = getattr(client, name)
        if known is None and name == "cert_common_name":
            raise _UnrenderableError  # not in the client's data at all, unlike an undefined user name
        return "undefined" if known is None else known

    if not any(_is_known(name) for _, name in PLACEHOLDER.findall(template)):
        return template  # a constant, which keeps even the escape ${$} (emqx_authz_rule:compile_topic/1)
    return PLACEHOLDER.sub(value, template)


@dataclass(frozen=True)
class Rule:
    """One rule, compiled. ``topics`` None: any topic at all (``{deny, all}.``)."""

    permission: Literal["allow", "deny"]
    who: Any = "all"
    actions: frozenset[Action] = frozenset({"publish", "subscribe"})
    topics: tuple[tuple[bool, str], ...] | None = None  # (eq, template)
    qos: frozenset[int] = frozenset({0, 1, 2})
    retain: bool | None = None

    def matches(self, client: Client, action: Action, topic: str, qos: int = 0, *, retain: bool = False) -> bool:
        if action not in self.actions or qos not in self.qos:
            return False
        if action == "publish" and self.retain is not None and retain is not self.retain:
            return False
        return _who_matches(client, self.who) and self._topic(client, topic)

    def _topic(self, client: Client, topic: str) -> bool:
        if self.topics is None:
            return True
        for eq, template in self.topics:
            if eq:
                if topic == template:
                    return True
                continue
            try:
                rendered = _render(template, client)
            except _UnrenderableError:
                continue
            if topic_matches(topic, rendered):
                return True
        return False


def judge(rules: Sequence[Rule], client: Client, action: Action, topic: str, qos: int, *, retain: bool) -> Verdict:
    """The first rule that matches decides."""
    for rule in rules:
        if rule.matches(client, action, topic, qos, retain=retain):
            return rule.permission
    return "nomatch"


# --- what is asked about (emqx_topic:parse/2, emqx_access_control:authorize/3) ----------------------------------------


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


# --- rules out of a login's answer or a token ------------------------------------------------------------------------


@dataclass(frozen=True)
class LoginRules:
    """What a login's ``acl`` left in the client's data: asked before every source."""

    rules: tuple[Rule, ...]
    closed: bool = False  # the older form, {"pub": […], …}: what it does not name is denied
    expires_at_s: int | None = None

    def judge(self, client: Client, action: Action, topic: str, qos: int, *, retain: bool, now_s: float) -> Verdict:
        if self.expires_at_s is not None and self.expires_at_s < int(now_s):
            return "deny"
        verdict = judge(self.rules, client, action, topic, qos, retain=retain)
        return "deny" if verdict == "nomatch" and self.closed else verdict


def parse_login_rules(raw: Any, expires_at_s: int | None = None) -> LoginRules:
    """The list form of an HTTP answer's ``acl`` (and of a token's claim). Raises BadRuleError."""
    if not isinstance(raw, list):
        raise BadRuleError(f"acl is no list: {raw!r}")
    return LoginRules(tuple(_raw_rule(one) for one in raw), expires_at_s=expires_at_s)


def parse_token_rules(raw: Any, expires_at_s: int | None = None) -> LoginRules:
    """A token's ``acl`` claim, in either of its forms. Raises BadRuleError."""
    if not isinstance(raw, dict):
        return parse_login_rules(raw, expires_at_s)
    rules = [
        Rule("allow", actions=_ACTIONS[name], topics=tuple(_topic(topic) for topic in raw[name]))
        for name in ("pub", "sub", "all")
        if name in raw
    ]
    return LoginRules(tuple(rules), closed=True, expires_at_s=expires_at_s)


def _raw_rule(raw: Any) -> Rule:
    if not isinstance(raw, dict) or "permission" not in raw or "action" not in raw:
        raise BadRuleError(f"missing 'permission' or 'action': {raw!r}")
    if isinstance(raw.get("topic"), str):
        topics = (raw["topic"],)
    elif isinstance(raw.get("topics"), list) and all(isinstance(one, str) for one in raw["topics"]):
        topics = tuple(raw["topics"])
    else:
        raise BadRuleError(f"missing topic or topics: {raw!r}")
    if any(topic.startswith("eq eq ") for topic in topics):
        raise BadRuleError(f"eq twice: {raw!r}")
    if raw["permission"] not in ("allow", "deny"):
        raise BadRuleError(f"permission {raw['permission']!r}")
    if not isinstance(raw["action"], str) or raw["action"] not in _ACTIONS:
        raise BadRuleError(f"action {raw['action']!r}")
    action = _ACTIONS[raw["action"]]
    retain = _retain(raw.get("retain", "all")) if "publish" in action else None
    return Rule(raw["permission"], "all", action, tuple(map(_topic, topics)), _qos(raw.get("qos")), retain)


def _topic(text: str) -> tuple[bool, str]:
    return (True, text.removeprefix("eq ")) if text.startswith("eq ") else (False, text)


def _qos(raw: Any) -> frozenset[int]:
    if raw is None:
        return frozenset({0, 1, 2})
    parts = raw.split(",") if isinstance(raw, str) else raw if isinstance(raw, list) else [raw]
    known = {0: 0, 1: 1, 2: 2, "0": 0, "1": 1, "2": 2}
    if any(isinstance(part, bool) or not isinstance(part, int | str) or part not in known for part in parts):
        raise BadRuleError(f"qos {raw!r}")
    return frozenset(known[part] for part in parts)


def _retain(raw: Any) -> bool | None:
    if raw is None or raw == "all":
        return None
    if raw is True or raw in ("1", "true") or (raw == 1 and not isinstance(raw, float)):
        return True
    if raw is False or raw in ("0", "false") or (raw == 0 and not isinstance(raw, float)):
        return False
    raise BadRuleError(f"retain {raw!r}")


# --- acl.conf --------------------------------------------------------------------------------------------------------


def parse_acl_conf(text: str) -> tuple[Rule, ...]:
    """The rules of an ``acl.conf``: Erlang terms, each ended by a full stop. Raises BadRuleError."""
    return tuple(_compile(term) for term in _Terms(text).all())


class _Terms:
    """Reads the part of Erlang's terms that ``acl.conf`` uses: tuples, lists, strings, binaries, atoms, integers."""

    _TOKEN = re.compile(
        r"""\s+|%[^\n]*|(?P<string>"(?:[^"\\]|\\.)*")|(?P<quoted>'[^']*')|(?P<integer>-?\d+)|(?P<atom>[a-z]\w*)"""
        r"""|(?P<mark><<|>>|[{}\[\],.])"""
    )

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text):
            found = self._TOKEN.match(text, position)
            if found is None:
                raise BadRuleError(f"no Erlang term at {text[position : position + 30]!r}")
            if found.lastgroup is not None:
                self._tokens.append((found.lastgroup, found[0]))
            position = found.end()
        self._at = 0

    def all(self) -> list[Any]:
        terms = []
        while self._at < len(self._tokens):
            terms.append(self._term())
            self._expect(".")
        return terms

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise BadRuleError("the last term is not ended by a full stop")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, mark: str) -> None:
        token = self._next()
        if token[1] != mark:
            raise BadRuleError(f"{token[1]!r} where {mark!r} should stand")

    def _term(self) -> Any:
        kind, text = self._next()
        match kind, text:
            case "string", _:
                return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
            case "integer", _:
                return int(text)
            case "atom" | "quoted", _:
                return _Atom(text.strip("'"))
            case _, "<<":
                inner = self._term()
                self._expect(">>")
                return inner
            case _, "{" | "[":
                items = self._items("}" if text == "{" else "]")
                return tuple(items) if text == "{" else items
        raise BadRuleError(f"{text!r} begins no term")

    def _items(self, end: str) -> list[Any]:
        items: list[Any] = []
        while True:
            if self._at < len(self._tokens) and self._tokens[self._at][1] == end and not items:
                self._at += 1
                return items
            items.append(self._term())
            mark = self._next()[1]
            if mark == end:
                return items
            if mark != ",":
                raise BadRuleError(f"{mark!r} where ',' should stand")


class _Atom(str):
    __slots__ = ()


def _compile(term: Any) -> Rule:
    match term:
        case ("allow" | "deny" as permission, "all"):
            return Rule(permission)
        case ("allow" | "deny" as permission, who, action, list(topics)):
            names, qos, retain = _action(action)
            return Rule(permission, _check_who(who), names, tuple(map(_acl_topic, topics)), qos, retain)
    raise BadRuleError(f"no rule: {term!r}")


def _action(term: Any) -> tuple[frozenset[Action], frozenset[int], bool | None]:
    name, options = (term[0], term[1]) if isinstance(term, tuple) else (term, [])
    if name not in ("publish", "subscribe", "all"):
        raise BadRuleError(f"action {term!r}")
    given = dict(options)
    retain = {"all": None, "true": True, "false": False}[given.get("retain", "all")]
    return _ACTIONS[name], _qos(given.get("qos")), retain


def _acl_topic(term: Any) -> tuple[bool, str]:
    if isinstance(term, tuple) and term[0] == "eq":
        return True, term[1]
    return _topic(term)


def _check_who(who: Any) -> Any:
    match who:
        case "all":
            return "all"
        case ("username" | "user" | "clientid" | "client", str() | ("re", str())):
            return who
        case ("client_attr", str(), str() | ("re", str())):
            return who
        case ("ipaddr", str(address)):
            ipaddress.ip_network(address, strict=False)
            return who
        case ("ipaddrs", list(addresses)):
            for address in addresses:
                ipaddress.ip_network(address, strict=False)
            return who
        case ("and" | "or", list(parts)):
            return who[0], [_check_who(part) for part in parts]
    raise BadRuleError(f"condition {who!r}")


def _who_matches(client: Client, who: Any) -> bool:
    match who:
        case "all":
            return True
        case ("username" | "user", wanted):
            return client.username is not None and _text_matches(client.username, wanted)
        case ("clientid" | "client", wanted):
            return _text_matches(client.clientid, wanted)
        case ("client_attr", name, wanted):
            return name in client.client_attrs and _text_matches(client.client_attrs[name], wanted)
        case ("ipaddr", network):
            return _in_network(client.peerhost, network)
        case ("ipaddrs", networks):
            return any(_in_network(client.peerhost, network) for network in networks)
        case ("and", parts):
            return all(_who_matches(client, part) for part in parts)
        case ("or", parts):
            return any(_who_matches(client, part) for part in parts)
    raise AssertionError(who)


def _text_matches(value: str, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return re.search(wanted[1], value) is not None
    return bool(value == wanted)


def _in_network(address: str, network: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
