"""EMQX 5.8.9 as a client of an authentication service: what it asks, and what it makes of each answer.

No MQTT: a test says that a client connects, publishes or subscribes, and is told what EMQX would do. The requests are
made from the templates of a real ``emqx.conf`` and go over real connections (:mod:`tests.brokers.emqx_http`); the
answers are taken as ``emqx_authn_http``, ``emqx_authz``, ``emqx_authz_http`` and ``emqx_authz_cache`` take them:
whatever is not a clear word is passed over.
"""

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import parse_qsl

from tests.brokers.emqx_conf import AuthConf
from tests.brokers.emqx_http import Answer, HttpPool, RequestFailed
from tests.brokers.emqx_rules import (
    PLACEHOLDER,
    Action,
    BadRuleError,
    Client,
    LoginRules,
    Rule,
    judge,
    parse_acl_conf,
    parse_login_rules,
)

Outcome = Literal["allow", "deny"]

_AUTHN_NAMES = {
    "username", "clientid", "password", "peerhost", "peerport", "cert_subject", "cert_common_name", "cert_pem", "zone",
    "listener",
}  # fmt: skip
_AUTHZ_NAMES = (_AUTHN_NAMES - {"password"}) | {
    "topic", "action", "qos", "retain", "access", "proto_name", "mountpoint",
}  # fmt: skip
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*|[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Refused:
    """The CONNACK says no. ``reason`` is EMQX's: ``not_authorized``, ``bad_username_or_password``."""

    reason: str


@dataclass
class Connection:
    """A client that got in, with what the login's answer left with EMQX."""

    client: Client
    is_superuser: bool = False
    login_rules: LoginRules | None = None
    expires_at_s: int | None = None
    connected: bool = True
    """False after something denied, where ``deny_action`` is ``disconnect``, and past ``expires_at_s``."""
    decided_by: str = ""
    """Who decided the last access: ``superuser``, ``login``, ``http``, ``file``, ``no_match``, ``cache``."""
    cache: OrderedDict[tuple[Any, ...], tuple[Outcome, float]] = field(default_factory=OrderedDict)


class EmqxModel:
    """One EMQX node. Make it from the configuration, use it on one event loop, and close it.

    ``now`` gives the time in Unix seconds, so that a test can let a cache entry or a login grow old.
    """

    def __init__(self, conf: AuthConf, *, now: Callable[[], float] = time.time) -> None:
        self.conf = conf
        self._now = now
        self._authentication = [(one, HttpPool(one)) for one in conf.authentication]
        self._sources: list[tuple[Any, HttpPool | tuple[Rule, ...]]] = [
            (one, parse_acl_conf(one.read_text()) if isinstance(one, Path) else HttpPool(one)) for one in conf.sources
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for _, pool in (*self._authentication, *self._sources):
            if isinstance(pool, HttpPool):
                await pool.close()

    @property
    def asked(self) -> tuple[int, int]:
        """HTTP requests so far: for logins, for accesses."""
        of_sources = sum(pool.requests for _, pool in self._sources if isinstance(pool, HttpPool))
        return sum(pool.requests for _, pool in self._authentication), of_sources

    # --- connecting --------------------------------------------------------------------------------------------------

    async def connect(
        self, username: str | None = None, clientid: str = "", password: str | bytes | None = None, **more: Any
    ) -> Connection | Refused:
        """What comes of a CONNECT. ``more`` are further fields of :class:`Client`."""
        client = Client(username=username, clientid=clientid, **more)
        if not self._authentication:
            return Connection(client)  # no authenticator: everybody
        for conf, pool in self._authentication:
            body = _render_body(conf.body, {**_client_values(client), "password": _text(password)}, _AUTHN_NAMES)
            if body is None:
                continue
            try:
                answer = await pool.post(_serialise(body, conf.headers["content-type"]))
            except RequestFailed:
                continue
            made = self._login(client, answer)
            if made is not None:
                return made
        return Refused("not_authorized")

    def _login(self, client: Client, answer: Answer) -> Connection | Refused | None:
        """None: the next authenticator is asked."""
        if answer.status == 204:
            return Connection(client)
        if answer.status != 200:
            return None
        body = _parse(answer, default_type=None)
        if body is None:
            return None
        match body.get("result", "ignore"):
            case "allow":
                return self._admit(client, body)
            case "deny":
                return Refused("not_authorized")
        return None

    def _admit(self, client: Client, body: Mapping[str, Any]) -> Connection | Refused | None:
        attributes = body.get("client_attrs", {})
        if not isinstance(attributes, dict) or not all(isinstance(one, str) for one in attributes.values()):
            return None  # the authenticator crashes on it, which counts as nothing said
        expires_at_s = body.get("expire_at")
        if "expire_at" in body:
            now_s = int(self._now())
            if not isinstance(expires_at_s, int) or isinstance(expires_at_s, bool):
                return Refused("bad_username_or_password")
            if expires_at_s < now_s or expires_at_s > now_s * 1000 // 2:
                return Refused("bad_username_or_password")
        rules = None
        if "acl" in body:
            try:
                rules = parse_login_rules(body["acl"], expires_at_s)
            except BadRuleError:
                return Refused("bad_username_or_password")
        kept = {name: value for name, value in attributes.items() if _ATTRIBUTE_NAME.fullmatch(name)}
        return Connection(
            replace(client, client_attrs={**client.client_attrs, **kept}),
            is_superuser=_boolean(body.get("is_superuser", False)),
            login_rules=rules,
            expires_at_s=expires_at_s,
        )

    # --- publishing and subscribing ----------------------------------------------------------------------------------

    async def publish(self, connection: Connection, topic: str, qos: int = 0, *, retain: bool = False) -> Outcome:
        """Whether EMQX takes the message; a denied one is dropped, whatever a 3.1.1 client hears."""
        return await self._access(connection, "publish", topic, qos, retain=retain)

    async def subscribe(self, connection: Connection, topic_filter: str, qos: int = 0) -> Outcome:
        """Whether the SUBACK grants it. Of a shared subscription EMQX judges the filter alone."""
        for prefix in ("$share/", "$queue/", "$exclusive/"):
            if topic_filter.startswith(prefix):
                topic_filter = topic_filter.removeprefix(prefix)
                if prefix == "$share/":
                    topic_filter = topic_filter.partition("/")[2]
                break
        return await self._access(connection, "subscribe", topic_filter, qos, retain=False)

    async def _access(self, connection: Connection, action: Action, topic: str, qos: int, *, retain: bool) -> Outcome:
        now_s = self._now()
        if connection.expires_at_s is not None and connection.expires_at_s <= now_s:
            connection.connected = False  # EMQX has disconnected it
        if not connection.connected:
            connection.decided_by = "disconnected"
            return "deny"
        if topic.startswith("$delayed/"):
            _, _, rest = topic.removeprefix("$delayed/").partition("/")
            if not rest:
                return self._denied(connection)
            topic = rest
        key = (action, qos, retain if action == "publish" else None, topic)
        cached = connection.cache.get(key)
        if self.conf.cache_size and cached is not None and now_s < cached[1] + self.conf.cache_ttl_s:
            outcome, connection.decided_by = cached[0], "cache"
        else:
            outcome = await self._decide(connection, action, topic, qos, retain=retain)
            self._remember(connection, key, outcome)
        return self._denied(connection) if outcome == "deny" else outcome

    def _remember(self, connection: Connection, key: tuple[Any, ...], outcome: Outcome) -> None:
        if not self.conf.cache_size:
            return
        connection.cache.pop(key, None)
        while len(connection.cache) >= self.conf.cache_size:
            connection.cache.popitem(last=False)
        connection.cache[key] = (outcome, self._now())

    def _denied(self, connection: Connection) -> Outcome:
        if self.conf.deny_action == "disconnect":
            connection.connected = False
        return "deny"

    async def _decide(self, connection: Connection, action: Action, topic: str, qos: int, *, retain: bool) -> Outcome:
        client = connection.client
        if connection.is_superuser:
            connection.decided_by = "superuser"
            return "allow"
        if connection.login_rules is not None:
            verdict = connection.login_rules.judge(client, action, topic, qos, retain=retain, now_s=self._now())
            if verdict != "nomatch":
                connection.decided_by = "login"
                return verdict
        for conf, source in self._sources:
            if isinstance(source, HttpPool):
                values = {
                    **_client_values(client),
                    "topic": topic, "action": action, "qos": str(qos), "retain": "true" if retain else "false",
                    "access": "1" if action == "subscribe" else "2",
                }  # fmt: skip
                said: str | None = await self._ask(source, conf, values)
                name = "http"
            else:
                said, name = judge(source, client, action, topic, qos, retain=retain), "file"
            if said in ("allow", "deny"):
                connection.decided_by = name
                return "allow" if said == "allow" else "deny"
        connection.decided_by = "no_match"
        return self.conf.no_match

    async def _ask(self, pool: HttpPool, conf: Any, values: Mapping[str, str]) -> str | None:
        """The word of an HTTP source; None where there is none, and the next source is asked."""
        body = _render_body(conf.body, values, _AUTHZ_NAMES)
        if body is None:
            return None
        try:
            answer = await pool.post(_serialise(body, conf.headers["content-type"]))
        except RequestFailed:
            return None
        if answer.status == 204:
            return "allow"
        if answer.status != 200:
            return None  # a 403 does not deny
        parsed = _parse(answer, default_type="application/json")
        word = None if parsed is None else parsed.get("result", "ignore")
        return word if isinstance(word, str) else None


# --- requests --------------------------------------------------------------------------------------------------------


def _client_values(client: Client) -> dict[str, str]:
    values = {
        "username": client.username, "clientid": client.clientid, "peerhost": client.peerhost,
        "cert_common_name": client.cert_common_name, "cert_subject": client.cert_subject, "zone": client.zone,
        "listener": client.listener, "proto_name": "MQTT",
        **{f"client_attrs.{name}": value for name, value in client.client_attrs.items()},
    }  # fmt: skip
    return {name: value for name, value in values.items() if value is not None}


def _text(password: str | bytes | None) -> str:
    if isinstance(password, bytes):
        return password.decode("utf-8", "surrogateescape")
    return password or ""


def _render_body(templates: Mapping[str, str], values: Mapping[str, str], names: set[str]) -> dict[str, str] | None:
    """The body's fields; an absent value is empty text. None: a value is no Unicode, and EMQX asks nobody."""

    def value(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        if escaped:
            return "$"
        if name not in names and not name.startswith("client_attrs."):
            return found[0]
        return values.get(name, "")

    body = {name: PLACEHOLDER.sub(value, template) for name, template in templates.items()}
    try:
        "".join(body.values()).encode()
    except UnicodeEncodeError:
        return None
    return body


def _serialise(body: Mapping[str, str], content_type: str) -> bytes:
    if content_type == "application/json":
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    raise AssertionError(f"emqx.conf asks for {content_type}")


# --- answers ---------------------------------------------------------------------------------------------------------


def _parse(answer: Answer, *, default_type: str | None) -> dict[str, Any] | None:
    """The fields of a body; None where EMQX cannot read it."""
    content_type = answer.headers.get("content-type", default_type)
    if content_type is None:
        return None
    if content_type.startswith("application/x-www-form-urlencoded"):
        return dict(parse_qsl(answer.body.decode("utf-8", "replace"), keep_blank_values=True))
    if not content_type.startswith("application/json"):
        return None
    try:
        parsed = json.loads(answer.body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value == "true" or (value.lstrip("+-").isdecimal() and int(value) >= 1)
    return isinstance(value, int) and value >= 1
