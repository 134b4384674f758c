"""EMQX's losses of one session's messages, counted over EMQX's own resets. Pure: readings and times go in.

EMQX counts messages dropped by a full queue for the session's life, and those dropped for age or size for the
connection's. Both begin at 0 again with the next one; the counts here only grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

from gateway.base.lookout_metrics import REASONS, Reason

if TYPE_CHECKING:
    from gateway.health.emqx.model import EmqxClient

CALM_MS: Final = 10 * 60_000  # a pause of this length ends an episode of losses
FILLING_FROM: Final = 0.5  # of the queue
FILLING_LOOKS: Final = 2  # in a row: a single one may show the end of our own restart


@dataclass(frozen=True, slots=True)
class Marks:
    """EMQX's counts at the last look, with the begin of their session and of their connection."""

    session_ms: int
    connection_ms: int
    queue_full: int
    expired: int
    too_large: int

    @classmethod
    def of(cls, client: EmqxClient) -> Self:
        """The counts of a look."""
        return cls(
            client.session_ms,
            client.connection_ms,
            client.mqueue_dropped,
            client.dropped_expired,
            client.dropped_too_large,
        )

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """From JSON. Raises KeyError, TypeError or ValueError."""
        return cls(**{field.name: int(values[field.name]) for field in fields(cls)})


@dataclass(slots=True)
class Episode:
    """Losses with pauses below ``CALM_MS``. ``began_ms``: the last look before the first loss."""

    began_ms: int
    last_ms: int
    count: int


class SessionLosses:
    """The losses of one session. ``marks`` are those of an earlier life, whose last look was at ``looked_ms``. Without
    marks, counting begins at EMQX's present counts; at 0 for a session younger than ``since_ms``, the begin of this
    life.
    """

    def __init__(
        self, name: str, client_id: str, *, since_ms: int, marks: Marks | None = None, looked_ms: int | None = None
    ) -> None:
        self.name = name
        self.client_id = client_id
        self.client: EmqxClient | None = None  # at the last look; None when EMQX has no such session
        self.lost: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self.before = 0  # EMQX's count of the queue before the first look
        self.marks = marks  # of the last look, perhaps an earlier worker's
        self._since_ms = since_ms  # when the watch began; ms since 1970
        self._looked_ms = since_ms if marks is None or looked_ms is None else looked_ms
        self._fuller = 0  # looks in a row at a queue that is filling
        self._episodes: dict[Reason, Episode] = {}

    def look(self, client: EmqxClient | None, now_ms: int) -> dict[Reason, int]:
        """Note the session's figures; None: EMQX has none. Returns the losses since the last look, by reason."""
        self.client = client
        began_ms, self._looked_ms = self._looked_ms, now_ms
        if client is None:
            self._fuller = 0
            return {}
        limit = client.mqueue_max
        self._fuller = self._fuller + 1 if limit and client.mqueue_len >= FILLING_FROM * limit else 0
        marks, self.marks = self.marks, Marks.of(client)
        new = {reason: count for reason, count in self._since(marks, client).items() if count}
        for reason, count in new.items():
            self.lost[reason] += count
            self._note(reason, count, began_ms, now_ms)
        return new

    def _since(self, marks: Marks | None, client: EmqxClient) -> dict[Reason, int]:
        """Messages lost after ``marks``. EMQX's counts begin anew with a session, or with a connection."""
        if marks is None and client.session_ms < self._since_ms:
            self.before = client.mqueue_dropped
            return {}
        same_session = marks is not None and marks.session_ms == client.session_ms
        same_connection = marks is not None and marks.connection_ms == client.connection_ms
        return {
            "queue_full": _grown(marks.queue_full if marks and same_session else 0, client.mqueue_dropped),
            "expired": _grown(marks.expired if marks and same_connection else 0, client.dropped_expired),
            "too_large": _grown(marks.too_large if marks and same_connection else 0, client.dropped_too_large),
        }

    def _note(self, reason: Reason, count: int, began_ms: int, now_ms: int) -> None:
        """Add losses to the reason's present episode, or begin one at ``began_ms``, the look before this one."""
        episode = self.episode(reason, now_ms)
        if episode is None:
            self._episodes[reason] = Episode(began_ms, now_ms, count)
        else:
            episode.last_ms = now_ms
            episode.count += count

    def episode(self, reason: Reason, now_ms: int) -> Episode | None:
        """The losses for this reason that continue, or ended less than ``CALM_MS`` ago."""
        episode = self._episodes.get(reason)
        return episode if episode is not None and now_ms - episode.last_ms < CALM_MS else None

    @property
    def filling(self) -> bool:
        """Whether the queue has been half full at several looks."""
        return self._fuller >= FILLING_LOOKS


def _grown(before: int, now: int) -> int:
    """The growth of a count; a smaller count has begun at 0 again."""
    return now - before if now >= before else now
