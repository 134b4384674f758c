"""What EMQX's REST API tells, as far as the gateway asks. Names are EMQX 5.8's, as its clients API documents them."""

from __future__ import annotations

__all__ = ["Ban", "EmqxClient", "EmqxNode", "EmqxSubscription", "EmqxZone", "number", "text"]

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

FIELDS = (
    "clientid",
    "connected",
    "node",
    "created_at",
    "connected_at",
    "mqueue_len",
    "mqueue_max",
    "mqueue_dropped",
    "inflight_cnt",
    "inflight_max",
    "awaiting_rel_cnt",
    "subscriptions_cnt",
    "expiry_interval",
    "send_msg.dropped.expired",
    "send_msg.dropped.too_large",
)
"""What is asked of a client: all of them are known to every EMQX 5, which refuses names that it does not know."""


@dataclass(frozen=True, slots=True)
class EmqxClient:
    """A client id's session as EMQX saw it when it last looked itself, which is up to 15 s ago (its idle_timeout).

    ``session_ms`` is when the session began, ``connection_ms`` its present or last connection, in ms since 1970 (0: not
    told). ``mqueue_dropped`` counts what the full queue dropped since the session began, whatever connections came and
    went; ``dropped_expired`` and ``dropped_too_large`` count from the connection's begin. ``mqueue_max`` 0: without
    limit. A durable session has no queue in memory: its counts stay 0.
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
    awaiting_rel_cnt: int = 0
    subscriptions_cnt: int = 0
    expiry_interval_s: int = 0
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
            mqueue_len=number(values, "mqueue_len"),
            mqueue_max=number(values, "mqueue_max"),
            mqueue_dropped=number(values, "mqueue_dropped"),
            inflight_cnt=number(values, "inflight_cnt"),
            inflight_max=number(values, "inflight_max"),
            awaiting_rel_cnt=number(values, "awaiting_rel_cnt"),
            subscriptions_cnt=number(values, "subscriptions_cnt"),
            expiry_interval_s=number(values, "expiry_interval"),
            dropped_expired=number(values, "send_msg.dropped.expired"),
            dropped_too_large=number(values, "send_msg.dropped.too_large"),
        )


@dataclass(frozen=True, slots=True)
class EmqxSubscription:
    """One of a client's subscriptions; ``filter`` as it was subscribed, with its ``$share/GROUP/``."""

    filter: str
    qos: int
    retain_as_published: bool = False

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        return cls(text(values, "topic"), number(values, "qos"), number(values, "rap") == 1)


@dataclass(frozen=True, slots=True)
class EmqxNode:
    """One node of the cluster. ``status`` is ``running``, or what is wrong with it."""

    name: str
    status: str
    version: str
    edition: str = ""
    uptime_s: float = 0.0

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        return cls(
            text(values, "node"),
            text(values, "node_status").lower(),
            text(values, "version"),
            text(values, "edition"),
            number(values, "uptime") / 1000,
        )


@dataclass(frozen=True, slots=True)
class EmqxZone:
    """How EMQX treats sessions: its global zone. A listener may be in a zone of its own, which overrides some of it.

    Counts are None for ``infinity``; lengths of time as EMQX writes them (``2h``, ``infinity``).
    """

    max_inflight: int | None
    max_mqueue_len: int | None
    mqueue_store_qos0: bool
    shared_subscription_strategy: str
    retry_interval: str
    session_expiry_interval: str
    max_packet_size: str
    durable_sessions: bool
    max_heap_size: str
    max_mailbox: int | None

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """From JSON, absent fields being EMQX's defaults. Raises ValueError for something else."""
        mqtt = values.get("mqtt")
        if not isinstance(mqtt, dict):
            raise ValueError("a zone without mqtt")  # noqa: TRY004 - the answer's form, not ours
        return cls(
            _count(mqtt, "max_inflight", 32),
            _count(mqtt, "max_mqueue_len", 1000),
            mqtt.get("mqueue_store_qos0") is not False,
            str(mqtt.get("shared_subscription_strategy", "round_robin")),
            _length(mqtt, "retry_interval", "infinity"),
            _length(mqtt, "session_expiry_interval", "2h"),
            str(mqtt.get("max_packet_size", "1MB")),
            _table(values, "durable_sessions").get("enable") is True,
            str(_table(values, "force_shutdown").get("max_heap_size", "32MB")),
            _max_mailbox(_table(values, "force_shutdown")),
        )


@dataclass(frozen=True, slots=True)
class Ban:
    """One entry of EMQX's list of bans. ``kind``: clientid, username, peerhost, or a pattern of one. ``until`` as EMQX
    writes it, ``infinity`` for good."""

    kind: str
    who: str
    reason: str
    until: str

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        return cls(text(values, "as"), text(values, "who"), text(values, "reason"), text(values, "until"))


def number(values: Mapping[str, Any], name: str) -> int:
    """A count; 0 where there is none, or something else (``infinity``, null, a text)."""
    value = values.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def text(values: Mapping[str, Any], name: str) -> str:
    """A text; empty where there is none."""
    value = values.get(name)
    return value if isinstance(value, str) else ""


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _count(values: Mapping[str, Any], name: str, default: int) -> int | None:
    value = values.get(name, default)
    if isinstance(value, str):
        return int(value) if value.isdecimal() else None
    # 0 has been EMQX's way to write "without limit" for the queue; for the window it cannot be.
    return int(value) if isinstance(value, int | float) and value > 0 else None


def _max_mailbox(shutdown: Mapping[str, Any]) -> int | None:
    return None if shutdown.get("enable") is False else _count(shutdown, "max_mailbox_size", 1000)


def _length(values: Mapping[str, Any], name: str, default: str) -> str:
    value = values.get(name, default)
    return f"{value}ms" if isinstance(value, int) else str(value)  # older ones give ms


def _moment_ms(value: object) -> int:
    """EMQX writes RFC 3339; some versions ms since 1970."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return 0
    try:
        return round(datetime.fromisoformat(value).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
