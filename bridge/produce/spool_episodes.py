"""Logs start and end of spooling by topic: one pair of lines for an outage, and at most one pair a minute.

A slightly slow Kafka makes partitions spool repeatedly for moments. Their number is logged once a minute. Start and end
of an outage are logged at once.
"""

from typing import Final

import structlog

log = structlog.get_logger("spool")

PAIR_NS: Final = 60_000_000_000  # short spoolings are logged together, once in this time
OUTAGE_NS: Final = 10_000_000_000  # the end of a longer spooling is logged at once


class _Episode:
    __slots__ = ("ended_ns", "entered_ns", "is_logged", "is_outage", "on_disk", "partitions", "since_ns", "times")

    def __init__(self, since_ns: int) -> None:
        self.since_ns = self.entered_ns = self.ended_ns = since_ns
        self.is_outage = False  # one of its spoolings was long
        self.is_logged = False  # its start is in the log
        self.on_disk: set[int] = set()  # partitions with messages on disk now
        self.partitions: set[int] = set()  # all partitions that had some
        self.times = 0  # how often the first message went to the disk


class Episodes:
    """Topics with messages on disk now or within the last minute. Times are monotonic."""

    def __init__(self) -> None:
        self._topics: dict[str, _Episode] = {}

    def begin(self, topic: str, partition: int, now_ns: int, *, recovered: bool = False) -> None:
        """Note that a partition spools. ``recovered``: its messages on disk are from an earlier run."""
        episode = self._topics.get(topic)
        if episode is None:
            episode = self._topics[topic] = _Episode(now_ns)
        if not (recovered or episode.is_logged):
            episode.is_logged = True
            log.warning("spooling", topic=topic, partition=partition)
        if not episode.on_disk:
            episode.times += 1
            episode.entered_ns = now_ns
        episode.on_disk.add(partition)
        episode.partitions.add(partition)

    def end(self, topic: str, partition: int, now_ns: int) -> None:
        """Note that a partition has nothing on disk."""
        episode = self._topics[topic]
        episode.on_disk.discard(partition)
        if not episode.on_disk:
            episode.ended_ns = now_ns
            episode.is_outage |= now_ns - episode.entered_ns >= OUTAGE_NS

    def tell(self, now_ns: int | None) -> None:
        """Log the ends that are due: of an outage, or a minute after the start. None: every end at once."""
        for topic, episode in list(self._topics.items()):
            due = now_ns is None or episode.is_outage or now_ns - episode.since_ns >= PAIR_NS
            if due and not episode.on_disk:
                del self._topics[topic]
                log.info(
                    "spool_drained",
                    topic=topic,
                    partitions=len(episode.partitions),
                    times=episode.times,
                    lasted_s=round((episode.ended_ns - episode.since_ns) / 1e9, 1),
                )
