"""What the log says of topics that go to the disk and come back: a pair of lines an episode, and one pair a minute.

A Kafka that is just slow enough sends partitions to the disk for a moment, again and again. Each time is no news; how
often it was, is. An outage has its lines at once, at both ends.
"""

from __future__ import annotations

__all__ = ["OUTAGE_NS", "PAIR_NS", "Episodes"]

from typing import Final

import structlog

log = structlog.get_logger("spool")

PAIR_NS: Final = 60_000_000_000  # moments on disk are told of together, once in so long
OUTAGE_NS: Final = 10_000_000_000  # the end of one that lasted so long is told at once


class _Episode:
    __slots__ = ("ended_ns", "entered_ns", "on_disk", "outage", "partitions", "said", "since_ns", "times")

    def __init__(self, since_ns: int) -> None:
        self.since_ns = self.entered_ns = self.ended_ns = since_ns
        self.outage = False  # one time was long
        self.said = False  # that messages go to the disk
        self.on_disk: set[int] = set()
        self.partitions: set[int] = set()
        self.times = 0


class Episodes:
    """Of each topic that has messages on disk, or had some within the last minute. Times are monotonic."""

    def __init__(self) -> None:
        self._topics: dict[str, _Episode] = {}

    def begin(self, topic: str, partition: int, now_ns: int, *, recovered: bool = False) -> None:
        """A partition's messages go to the disk from now on; ``recovered``: an earlier life's are there."""
        episode = self._topics.get(topic)
        if episode is None:
            episode = self._topics[topic] = _Episode(now_ns)
        if not (recovered or episode.said):
            episode.said = True
            log.warning("spooling", topic=topic, partition=partition)
        if not episode.on_disk:
            episode.times += 1
            episode.entered_ns = now_ns
        episode.on_disk.add(partition)
        episode.partitions.add(partition)

    def end(self, topic: str, partition: int, now_ns: int) -> None:
        """A partition has nothing on disk any more."""
        episode = self._topics[topic]
        episode.on_disk.discard(partition)
        if not episode.on_disk:
            episode.ended_ns = now_ns
            episode.outage |= now_ns - episode.entered_ns >= OUTAGE_NS

    def tell(self, now_ns: int | None) -> None:
        """Writes the lines that are due; None: all that have an end."""
        for topic, episode in list(self._topics.items()):
            due = now_ns is None or episode.outage or now_ns - episode.since_ns >= PAIR_NS
            if due and not episode.on_disk:
                del self._topics[topic]
                log.info(
                    "spool_drained",
                    topic=topic,
                    partitions=len(episode.partitions),
                    times=episode.times,
                    lasted_s=round((episode.ended_ns - episode.since_ns) / 1e9, 1),
                )
