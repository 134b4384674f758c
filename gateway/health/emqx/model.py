"""The answers of EMQX's REST API, as far as the gateway uses them. Names are those of EMQX 5.8's clients API."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

_COUNTS = {name: name for name in ("mqueue_len", "mqueue_max", "mqueue_dropped", "inflight_cnt", "inflight_max")} | {
    "dropped_expired": "send_msg.dropped.expired",
    "dropped_too_large": "send_msg.dropped.too_large",
}
FIELDS = ("clientid", "connected", "node", "created_at", "connected_at", *_COUNTS.values())
"""The requested fields of a client. Every EMQX 5 knows all of them; it refuses unknown names."""


@dataclass(frozen=True, slots=True)
class EmqxClient:
    """A client id's session. EMQX's figures are up to 15 s old (its idle_timeout).

    ``session_ms`` is the begin of the session, ``connection_ms`` that of its present or last connection, in ms since
    1970 (0: unknown). ``mqueue_dropped`` counts drops of the full queue since the session began; ``dropped_expired``
    and ``dropped_too_large`` count since the connection began. ``mqueue_max`` 0: without limit. A durable session has
    no queue in memory, so its counts stay 0.
    """

    client_id: str
    connected: bool
    node: str = ""
    session_ms: int = 0
    connection_ms: int = 0
    mqueue_len: int = 0
    mqueue_max: int = 0
    mqueue_dropped: int = 0
    inflight_cnt: int = 0
    inflight_max: int = 0
    dropped_expired: int = 0
    dropped_too_large: int = 0

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """From JSON; a field that is missing or null counts as 0. Raises ValueError without a client id."""
        client_id = values.get("clientid")
        if not isinstance(client_id, str):
            raise ValueError("a client without clientid")  # noqa: TRY004 - the answer's form, not ours
        return cls(
            client_id,
            connected=values.get("connected") is True,
            node=text(values, "node"),
            session_ms=_moment_ms(values.get("created_at")),
            connection_ms=_moment_ms(values.get("connected_at")),
            **{name: number(values, field) for name, field in _COUNTS.items()},
        )


@dataclass(frozen=True, slots=True)
class EmqxNode:
    """One node of the cluster. ``status`` is ``running``, or another word of EMQX's."""

    name: str
    status: str
    version: str

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        return cls(text(values, "node"), text(values, "node_status").lower(), text(values, "version"))


@dataclass(frozen=True, slots=True)
class EmqxZone:
    """EMQX's global zone: its settings for sessions. A listener's own zone may override some of them.

    Counts are None for ``infinity``.
    """

    max_inflight: int | None
    max_mqueue_len: int | None
    shared_subscription_strategy: str
    durable_sessions: bool
    max_mailbox: int | None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """From JSON; absent fields have EMQX's defaults. Raises ValueError without the table ``mqtt``."""
        mqtt = values.get("mqtt")
        if not isinstance(mqtt, dict):
            raise ValueError("a zone without mqtt")  # noqa: TRY004 - the answer's form, not ours
        shutdown = _table(values, "force_shutdown")
        return cls(
            _count(mqtt, "max_inflight", 32),
            _count(mqtt, "max_mqueue_len", 1000),
            str(mqtt.get("shared_subscription_strategy", "round_robin")),
            _table(values, "durable_sessions").get("enable") is True,
            None if shutdown.get("enable") is False else _count(shutdown, "max_mailbox_size", 1000),
        )


@dataclass(frozen=True, slots=True)
class Ban:
    """One entry of EMQX's list of bans. ``kind``: clientid, username, peerhost, or a pattern of one. ``until`` is
    EMQX's text; ``infinity`` has no end."""

    kind: str
    who: str
    reason: str
    until: str

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        return cls(text(values, "as"), text(values, "who"), text(values, "reason"), text(values, "until"))


def number(values: Mapping[str, Any], name: str) -> int:
    """A count; 0 for a missing one and for anything else (``infinity``, null, a text)."""
    value = values.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def text(values: Mapping[str, Any], name: str) -> str:
    """A text; empty for a missing one."""
    value = values.get(name)
    return value if isinstance(value, str) else ""


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _count(values: Mapping[str, Any], name: str, default: int) -> int | None:
    """A limit; None without one, or for a text that is no number."""
    value = values.get(name, default)
    if isinstance(value, str):
        return int(value) if value.isdecimal() else None
    # For a queue EMQX writes 0 for "without limit"; a window of 0 does not exist.
    return int(value) if isinstance(value, int | float) and value > 0 else None


def _moment_ms(value: object) -> int:
    """ms since 1970, from RFC 3339 or, of some versions of EMQX, the number itself; 0 for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return 0
    try:
        return round(datetime.fromisoformat(value).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
