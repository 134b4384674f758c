"""Problems between EMQX and a worker, in sentences: one for each kind, whatever the number of sessions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from config.numbers import many, some
from gateway.base.moments import moment
from gateway.base.problem import Problem

if TYPE_CHECKING:
    from gateway.base.lookout_metrics import Reason
    from gateway.health.emqx.losses import Episode, SessionLosses

FAILED_LOOKS: Final = 2  # in a row: a restart of an EMQX node fails one
_NAMED: Final = 4
_RAISE: Final = (
    "check that Kafka takes messages at full rate; then raise mqtt.max_inflight and mqtt.max_mqueue_len in EMQX, "
    "mqtt.receive_maximum and mqtt.sessions here."
)


def emqx_problems(
    sessions: Iterable[SessionLosses], now_ms: int, *, subject: str = "", failed_looks: int = 0, failure: str = ""
) -> Iterator[Problem]:
    """Losses before the gateway, their precursors, and failing looks. ``failure`` is the reason since ``failed_looks``.

    ``subject`` is the owner of the sessions.
    """
    sessions = list(sessions)
    if dropping := _episodes(sessions, "queue_full", now_ms):
        yield Problem("emqx-queue-dropping", "critical", _dropping(dropping), _RAISE, subject)
    dropped = {id(session) for session, _ in dropping}
    if filling := [session for session in sessions if session.filling and id(session) not in dropped]:
        yield Problem("emqx-queue-filling", "warning", _filling(filling), _RAISE, subject)
    if large := _episodes(sessions, "too_large", now_ms):
        text = (
            f"EMQX has dropped {_count(large)} of {_who(large)} because their packets are larger than "
            "mqtt.max_packet_bytes. The devices have an acknowledgement."
        )
        check = "raise mqtt.max_packet_bytes to EMQX's mqtt.max_packet_size at least."
        yield Problem("emqx-too-large", "critical", text, check, subject)
    if failed_looks >= FAILED_LOOKS:
        text = f"EMQX's drops and the state of its nodes are unknown: {failure}"
        check = "check emqx.url, emqx.api_key and emqx.api_secret; messages flow."
        yield Problem("emqx-unwatched", "warning", text, check)


def said_of_counts(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """EMQX's counts while a session was lost, in whole sentences.

    The counts are the cluster's: at the last look before the loss, and at the first one after.
    """
    if not before:
        return "EMQX's earlier counts are unknown."
    anew = any(now.get(name, 0) < count for name, count in before.items())
    grown = {name: count - (0 if anew else before.get(name, 0)) for name, count in now.items()}
    said = ", ".join(f"{name} +{count}" for name, count in sorted(grown.items()) if count > 0)
    if anew:
        begun = "EMQX's counters restarted, so a node was restarted; what they had until then is unknown. "
        return f"{begun}Since then EMQX counted, of all clients: {said or 'none of it'}."
    if not said:
        return "EMQX counted none of it (delivery.dropped, messages.dropped.no_subscribers)."
    return f"EMQX counted meanwhile, of all clients: {said}."


def _episodes(sessions: Iterable[SessionLosses], reason: Reason, now_ms: int) -> list[tuple[SessionLosses, Episode]]:
    """The sessions that lose messages for this reason, the most first."""
    found = [(session, episode) for session in sessions if (episode := session.episode(reason, now_ms)) is not None]
    return sorted(found, key=lambda one: -one[1].count)


def _dropping(losing: Sequence[tuple[SessionLosses, Episode]]) -> str:
    """The sentences about sessions that lose messages from a full queue."""
    last = max(episode.last_ms for _, episode in losing)
    client = losing[0][0].client
    limits = "" if client is None else f" (queue {client.mqueue_max or 'without limit'}, window {client.inflight_max})"
    queue = "the full queue" if len(losing) == 1 else "the full queues"
    return (
        f"EMQX has dropped {_count(losing)} from {queue} of {_who(losing)}, the last before "
        f"{moment(last / 1000)}{limits}. "
        "The devices have an acknowledgement, but the gateway never received the messages."
    )


def _filling(sessions: Sequence[SessionLosses]) -> str:
    """The sentences about queues that are nearly full."""
    each = [
        f"{session.name} ({session.client_id}) holds {session.client.mqueue_len} of {session.client.mqueue_max}"
        for session in sessions
        if session.client is not None
    ]
    return (
        f"EMQX's queue of session {some(each, _NAMED)} messages. A full queue drops its oldest messages, although the "
        "devices have an acknowledgement."
    )


def _count(losing: Sequence[tuple[SessionLosses, Episode]]) -> str:
    return many(sum(episode.count for _, episode in losing), "message")


def _who(losing: Sequence[tuple[SessionLosses, Episode]]) -> str:
    """The sessions and since when they lose messages, for the middle of a sentence."""
    since = moment(min(episode.began_ms for _, episode in losing) / 1000)
    if len(losing) == 1:
        session = losing[0][0]
        return f"session {session.name} ({session.client_id}) since {since}"
    each = [f"{session.name} ({session.client_id}) {episode.count}" for session, episode in losing]
    return f"{len(losing)} sessions since {since} ({some(each, _NAMED)})"
