"""Losses before the gateway, by EMQX's counts. The ledger has only messages that the gateway received."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from config.errors import GatewayError, sentence
from config.numbers import many
from gateway.base.group_plan import client_ids
from gateway.base.moments import moment

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.health.emqx.model import EmqxClient

_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Before:
    """EMQX's counts since the sessions began, of too large messages since their present connections; they cannot be
    limited to a span. ``unknown``: our sessions that EMQX does not know. ``problem`` is the reason without an answer,
    or None."""

    sessions: tuple[EmqxClient, ...] = ()
    problem: str | None = None
    unknown: int = 0

    @property
    def dropped(self) -> int:
        return sum(one.mqueue_dropped + one.dropped_too_large for one in self.sessions)

    def as_dict(self) -> dict[str, object]:
        return {
            "looked": self.problem is None,
            "problem": self.problem,
            "dropped": self.dropped if self.problem is None else None,
            "unknown_sessions": self.unknown if self.problem is None else None,
            "sessions": [
                {
                    "client_id": one.client_id,
                    "dropped": one.mqueue_dropped,
                    "too_large": one.dropped_too_large,
                    "since_ms": one.session_ms or None,
                }
                for one in self.sessions
            ],
        }


def workers_of(settings: Settings, seen: Iterable[int]) -> list[int]:
    """The numbers of workers in the settings and of those that were ``seen``."""
    named = {settings.worker} if settings.workers in (None, 0) else set(range(settings.workers or 0))
    return sorted(named | set(seen))


async def look_before(settings: Settings, workers: Iterable[int]) -> Before:
    """Ask EMQX about the sessions of these workers. Never raises; ``problem`` has a failure."""
    if settings.emqx.url is None:
        return Before(problem="emqx.url is not set")
    from gateway.health.emqx.api import EmqxApi

    wanted = [client_id for worker in workers for _, client_id in client_ids(settings, worker)]
    try:
        found = await EmqxApi(settings.emqx).clients(wanted)
    except GatewayError as error:
        return Before(problem=str(error))
    known = tuple(found[client_id] for client_id in sorted(found))
    return Before(known, unknown=len(wanted) - len(known))


def as_sentence(before: Before, *, lost: int = 0) -> str:
    """The result in a sentence. ``lost``: sessions that were lost in the span, which EMQX does not count."""
    if before.problem is not None:
        return f"Before the gateway: not looked at: {sentence(before.problem)}"
    if not before.sessions:
        return "Before the gateway: EMQX knows none of its sessions, so it cannot say what it dropped for them."
    sessions = many(len(before.sessions), "session")
    losing = [one for one in before.sessions if one.mqueue_dropped or one.dropped_too_large]
    if not losing:
        since = min(one.session_ms for one in before.sessions)
        but = "" if not before.unknown else f"; it knows nothing of {before.unknown} others"
        but += "" if not lost else "; what was in sessions that it lost before, it does not count"
        return f"Before the gateway: EMQX has dropped nothing for our {sessions}{_since(since)}{but}."
    named = "; ".join(_drops_of(session) for session in losing[:_NAMED])
    more = f"; and {len(losing) - _NAMED} more" if len(losing) > _NAMED else ""
    return (
        f"BEFORE THE GATEWAY: EMQX has dropped {many(before.dropped, 'message')} of {len(losing)} of our {sessions}, "
        f"though devices have had their acknowledgement: {named}{more}."
    )


def _drops_of(session: EmqxClient) -> str:
    """What EMQX has dropped for a session: its client id, then numbers with their reasons."""
    parts = []
    if session.mqueue_dropped:
        parts.append(f"{session.mqueue_dropped} from the full queue{_since(session.session_ms)}")
    if session.dropped_too_large:
        parts.append(f"{session.dropped_too_large} larger than mqtt.max_packet_bytes")
    return f"{session.client_id} {' and '.join(parts)}"


def _since(unix_ms: int) -> str:
    return f" since {moment(unix_ms / 1000)}" if unix_ms else ""
