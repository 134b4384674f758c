"""How the embedded MQTT broker asks the access service: the same questions over HTTP as EMQX asks, topic by topic.

It is closed: whatever is not a clear "allow" in time, is a no. Rules that come with a login are not looked at, so each
topic is asked about, and the answers are kept for a minute for each client, as EMQX keeps them.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_TIMEOUT_S = 5.0  # EMQX's, in deploy/emqx
_KEPT_S = 60.0
_KEPT = 100_000
_NONE: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class AccessEndpoint:
    """Where `gateway auth serve` listens, and the secret it wants to be shown."""

    port: int
    secret: str = field(repr=False)
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Login:
    """Who a client is, for as long as it is connected: what the answer to its login said."""

    username: str
    clientid: str
    peerhost: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_superuser: bool = False
    expires_at_s: int | None = None

    def to_json(self) -> str:
        """The client as text, to be kept with its connection."""
        return json.dumps(
            [
                self.username,
                self.clientid,
                self.peerhost,
                dict(self.attributes),
                self.is_superuser,
                self.expires_at_s,
            ]
        )

    @classmethod
    def from_json(cls, text: str) -> Login:
        return cls(*json.loads(text))


class AccessClient:
    """Asks the service. The methods block up to five seconds; any thread may call them."""

    def __init__(self, service: AccessEndpoint) -> None:
        self._service = service
        self._kept: OrderedDict[tuple[Any, ...], tuple[bool, float]] = OrderedDict()
        self._lock = threading.Lock()  # over what is kept

    def login(self, username: str, clientid: str, password: str, peerhost: str) -> Login | None:
        """Who the client is; None: it is not let in, for whatever reason."""
        question = {"username": username, "clientid": clientid, "password": password, "peerhost": peerhost}
        answer = self._ask("/authn", question)
        if answer.get("result") != "allow":
            return None
        try:
            expires_at_s = None if answer.get("expire_at") is None else int(answer["expire_at"])
            attributes = {str(name): str(value) for name, value in answer.get("client_attrs", _NONE).items()}
        except (TypeError, ValueError, AttributeError):
            return None
        if expires_at_s is not None and expires_at_s <= time.time():
            return None
        return Login(username, clientid, peerhost, attributes, answer.get("is_superuser") is True, expires_at_s)

    def known(self, login: Login, action: str, topic: str, qos: int, *, retain: bool) -> bool | None:
        """Whether the client may, as far as that is known without asking; None: :meth:`may` has to be called."""
        if login.expires_at_s is not None and login.expires_at_s <= time.time():
            return False
        if login.is_superuser:
            return True
        with self._lock:
            kept = self._kept.get(_key(login, action, topic, qos, retain=retain))
        return kept[0] if kept is not None and kept[1] > time.monotonic() else None

    def may(self, login: Login, action: str, topic: str, qos: int, *, retain: bool) -> bool:
        """Whether the client may; asks the service (and blocks) if that is not known. Without an answer it may not."""
        known = self.known(login, action, topic, qos, retain=retain)
        if known is not None:
            return known
        question = {
            "username": login.username,
            "clientid": login.clientid,
            "peerhost": login.peerhost,
            "topic": topic,
            "action": action,
            "qos": str(qos),
            "retain": "true" if retain else "false",
            **{_field(name): value for name, value in login.attributes.items()},
        }
        result = self._ask("/authz", question).get("result")
        if result in ("allow", "deny"):  # no answer is not remembered: the next question may be answered
            self._keep(_key(login, action, topic, qos, retain=retain), allowed=result == "allow")
        return result == "allow"

    def _keep(self, key: tuple[Any, ...], *, allowed: bool) -> None:
        with self._lock:
            self._kept[key] = (allowed, time.monotonic() + _KEPT_S)
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)

    def _ask(self, path: str, question: Mapping[str, str]) -> dict[str, Any]:
        """The answer; empty when there is none, or none that can be read."""
        connection = http.client.HTTPConnection(self._service.host, self._service.port, timeout=_TIMEOUT_S)
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._service.secret}"}
        try:
            connection.request("POST", path, json.dumps(question, ensure_ascii=False).encode(), headers)
            response = connection.getresponse()
            answer = json.loads(response.read()) if response.status == http.client.OK else {}
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()
        return answer if isinstance(answer, dict) else {}


def _field(name: str) -> str:
    """Under which name an attribute stands in a question about a topic."""
    return name if name in ("tenant", "groups") else f"attr_{name}"


def _key(login: Login, action: str, topic: str, qos: int, *, retain: bool) -> tuple[Any, ...]:
    attributes = tuple(sorted(login.attributes.items()))
    return login.username, login.clientid, login.peerhost, attributes, action, topic, qos, retain
