"""What EMQX lost of one session's messages, counted over EMQX's own resets. Pure: readings and times go in.

EMQX counts what a full queue drops for as long as the session lives, and what it drops for its age or size for as long
as the connection does. Both begin at 0 again with the next one; what is counted here only grows.
"""

from __future__ import annotations

__all__ = ["REASONS", "Episode", "Marks", "Reason", "SessionLosses"]

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.health.emqx.model import EmqxClient

Reason = Literal["queue_full", "expired", "too_large"]
REASONS: Final[tuple[Reason, ...]] = ("queue_full", "expired", "too_large")

CALM_MS: Final = 10 * 60_000  # after so long without another loss it is no longer going on
FILLING_FROM: Final = 0.5  # of the queue
FILLING_LOOKS: Final = 2  # in a row: a single one may be what a restart of ours left, seen late


@dataclass(frozen=True, slots=True)
class Marks:
    """EMQX's counts at the last look, and whose they were: those of the session and the connection that began then."""

    session_ms: int
    connection_ms: int
    queue_full: int
    expired: int
    too_large: int

    @classmethod
    def of(cls, client: EmqxClient) -> Self:
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
        return cls(
            int(values["session_ms"]),
            int(values["connection_ms"]),
            int(values["queue_full"]),
            int(values["expired"]),
            int(values["too_large"]),
        )

    def as_dict(self) -> dict[str, int]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(slots=True)
class Episode:
    """Losses with less than ``CALM_MS`` between them. ``began_ms``: the last look before the first of them."""

    began_ms: int
    last_ms: int
    count: int


class SessionLosses:
    """One session's. ``marks`` are those of an earlier life, whose last look was at ``looked_ms``; None when there were
    none: then what EMQX has counted so far is where counting begins, unless the session is younger than ``since_ms``,
    when this life began.
    """

    def __init__(
        self, name: str, client_id: str, *, since_ms: int, marks: Marks | None = None, looked_ms: int | None = None
    ) -> None:
        self.name = name
        self.client_id = client_id
        self.client: EmqxClient | None = None  # as last seen; None when EMQX has no such session
        self.lost: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self.before = 0  # what EMQX had counted of the queue before anybody looked
        self.marks = marks
        self._since_ms = since_ms
        self._looked_ms = since_ms if marks is None or looked_ms is None else looked_ms
        self._fuller = 0  # looks in a row at a queue that is filling
        self._episodes: dict[Reason, Episode] = {}

    def look(self, client: EmqxClient | None, now_ms: int) -> dict[Reason, int]:
        """Take a reading in; returns what was lost since the last one, by reason, nothing where nothing was."""
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
        episode = self.episode(reason, now_ms)
        if episode is None:
            self._episodes[reason] = Episode(began_ms, now_ms, count)
        else:
            episode.last_ms = now_ms
            episode.count += count

    def episode(self, reason: Reason, now_ms: int) -> Episode | None:
        """The losses for this reason that are going on, or ended less than ``CALM_MS`` ago."""
        episode = self._episodes.get(reason)
        return episode if episode is not None and now_ms - episode.last_ms < CALM_MS else None

    @property
    def filling(self) -> bool:
        """Whether the queue has been half full at several looks."""
        return self._fuller >= FILLING_LOOKS


def _grown(before: int, now: int) -> int:
    """A count that is smaller than it was has begun anew."""
    return now - before if now >= before else now
