"""What is wrong between EMQX and the gateway, in sentences. Pure."""

from __future__ import annotations

__all__ = ["emqx_problems"]

import time
from typing import TYPE_CHECKING, Final

from gateway.health_model import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gateway.emqx.losses import Episode, SessionLosses

FAILED_LOOKS: Final = 2  # in a row: one falls into the restart of an EMQX node


def emqx_problems(
    sessions: Iterable[SessionLosses], now_ms: int, *, failed_looks: int = 0, failure: str = ""
) -> Iterator[Problem]:
    """Losses before us and what leads to them, and that nobody can look: ``failure`` is why, since ``failed_looks``."""
    for session in sessions:
        if (episode := session.episode("queue_full", now_ms)) is not None:
            yield _dropping(session, episode)
        elif session.filling:
            yield _filling(session)
        if (episode := session.episode("too_large", now_ms)) is not None:
            yield _too_large(session, episode)
    if failed_looks >= FAILED_LOOKS:
        yield Problem(
            "emqx-unwatched",
            "warning",
            f"What EMQX drops before the gateway gets it is not seen: {failure}",
            "emqx.url, emqx.api_key and emqx.api_secret; traffic is not affected.",
        )


def _dropping(session: SessionLosses, episode: Episode) -> Problem:
    client = session.client
    limit = f" of {client.mqueue_max}" if client is not None and client.mqueue_max else ""
    window = f", with {client.inflight_max} in flight at most" if client is not None and client.inflight_max else ""
    return Problem(
        "emqx-queue-dropping",
        "critical",
        f"EMQX has dropped {_messages(episode.count)} from the full queue{limit} of {_who(session)} since "
        f"{_moment(episode.began_ms)}, the last before {_moment(episode.last_ms)}{window}: devices have had their "
        "acknowledgement, and the gateway never got them.",
        "whether Kafka takes messages at full rate; then raise mqtt.max_mqueue_len and mqtt.max_inflight in EMQX, "
        "mqtt.receive_maximum and mqtt.sessions here.",
        session.name,
    )


def _filling(session: SessionLosses) -> Problem:
    client = session.client
    assert client is not None, "a queue that fills has been looked at"
    return Problem(
        "emqx-queue-filling",
        "warning",
        f"EMQX's queue of {_who(session)} holds {client.mqueue_len} of {client.mqueue_max} messages: when it is full "
        "EMQX drops the oldest, although their devices have had their acknowledgement.",
        "whether Kafka takes messages at full rate; then raise mqtt.max_inflight and mqtt.max_mqueue_len in EMQX, "
        "mqtt.receive_maximum and mqtt.sessions here.",
        session.name,
    )


def _too_large(session: SessionLosses, episode: Episode) -> Problem:
    return Problem(
        "emqx-too-large",
        "critical",
        f"EMQX has dropped {_messages(episode.count)} of {_who(session)} since {_moment(episode.began_ms)} because "
        "their packets are larger than mqtt.max_packet_bytes: devices have had their acknowledgement.",
        "mqtt.max_packet_bytes: it must be at least EMQX's mqtt.max_packet_size.",
        session.name,
    )


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _who(session: SessionLosses) -> str:
    return f"session {session.name} ({session.client_id})"


def _moment(unix_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_ms / 1000))
