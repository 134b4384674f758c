"""Pins the number of partitions of each topic, and notices changes in Kafka.

A message's partition depends on its key and the number of partitions. If a new number were used at once, a device's
next message could go to another partition and arrive before its last one, which still waits. So the number is pinned
until the process ends. The next process starts with the new number, after this one has drained. The log, /status and a
metric show added partitions.

Messages of a deleted topic wait in their partitions until a topic of that name exists again. With
``kafka.topics.create`` it is created here, with as many partitions as before. So is a kept topic, such as the ledger's,
by the settings: its writer uses the partitions that are there.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import structlog

from bridge.backoff import Backoff
from bridge.errors import BridgeError
from bridge.waiting import end_tasks, report_failure, until_beat_s

log = structlog.get_logger("kafka")

LOOKS_BEFORE_CREATION = 3  # metadata also lack a topic for a moment during its creation


class Metadata(Protocol):
    """Metadata of the present producer."""

    def partition_count(self, topic: str) -> int | None: ...

    def refused(self, topic: str) -> bool:
        """Whether this user may not see the topic, which may exist."""

    def metadata_refreshed_ns(self) -> int: ...


class Creator(Protocol):
    """Creates topics by the settings. Raises BridgeError."""

    async def create(self, topics: list[str], partitions: int | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class TopicState:
    """Partitions of a topic: ``used`` by this process, and ``there`` in Kafka; None when the topic is gone."""

    name: str
    used: int
    there: int | None

    @property
    def unused(self) -> int:
        """Number of partitions in Kafka that are not used."""
        return max(0, (self.there or 0) - self.used)

    @property
    def problem(self) -> str | None:
        """Why messages of a topic made anew wait, in a few words; None if they do not, or the topic is gone."""
        if self.there is None or self.there >= self.used:
            return None
        return (
            f"it was made anew with {self.there} partitions, and messages wait for {self.used}: add partitions (a "
            "restarted gateway uses what is there only if none of the topic's messages are in its spool)"
        )


class TopicWatch:
    """The pinned numbers of partitions, and a task that compares them with metadata. The event loop's thread owns it.

    ``producer`` returns the present producer. ``pinned`` receives each new pin. ``creator`` is None if only the
    operator creates topics. ``now_ns`` times the attempts to create. ``failed`` receives defects.
    """

    name = "topics"

    def __init__(
        self,
        producer: Callable[[], Metadata],
        creator: Creator | None,  # None: the operator creates topics
        now_ns: Callable[[], int],  # monotonic
        failed: Callable[[BaseException], None],  # receives defects
        *,
        interval_s: float,
        pinned: Callable[[str, int], None] = lambda _topic, _count: None,  # receives new pins
    ) -> None:
        self._tell_pinned = pinned
        self._producer = producer
        self._creator = creator
        self._now_ns = now_ns
        self._failed = failed
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._pinned: dict[str, int] = {}  # partitions by topic
        self._kept: set[str] = set()  # made anew too, but not pinned
        self._seen: dict[str, int | None] = {}  # partitions by the last look; None: missing
        self._missed: dict[str, int] = {}  # looks since a topic was last seen
        self._looked_ns = 0  # the time of the last look's metadata
        self._not_before_ns = 0  # no topic is created before
        self._backoff = Backoff(500_000_000, 10_000_000_000)

    def partition_count(self, topic: str) -> int | None:
        """The pinned number of partitions; None for a topic that metadata lack so far."""
        count = self._pinned.get(topic)
        if count is None:
            count = self._producer().partition_count(topic)
            if count is not None:
                self._pinned[topic] = self._seen[topic] = count
                self._tell_pinned(topic, count)
        return count

    def pinned(self, topic: str) -> int | None:
        """The number in use, None for a topic not seen so far. Does not ask the producer."""
        return self._pinned.get(topic)

    def preset(self, topic: str, count: int) -> None:
        """Pin a number from an earlier run, before the first message: messages wait in the spool for these partitions,
        or Kafka cannot be asked."""
        self._pinned[topic] = count
        self._seen.setdefault(topic, None)

    def release(self, topics: Iterable[str]) -> None:
        """Drop the pins of unused topics. A later record pins them again."""
        for topic in topics:
            self._pinned.pop(topic, None)
            self._seen.pop(topic, None)
            self._missed.pop(topic, None)

    def states(self) -> list[TopicState]:
        """Every topic that is in use, by name."""
        return [TopicState(topic, used, self._seen[topic]) for topic, used in sorted(self._pinned.items())]

    def pin(self, topics: Iterable[str]) -> None:
        """Pin topics that will be used."""
        for topic in topics:
            self.partition_count(topic)

    def keep(self, topic: str) -> None:
        """Notice the end of a topic that is there and not pinned."""
        self._kept.add(topic)
        self._seen[topic] = self._producer().partition_count(topic)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="topic watch")
        self._task.add_done_callback(report_failure(self._failed))

    async def stop(self, _deadline_ns: int) -> None:
        await end_tasks(self._task)

    async def _run(self) -> None:
        """Look every ``interval_s``, and create missing topics again, if there is a creator."""
        while True:
            await asyncio.sleep(until_beat_s(self._interval_s))
            missing = self.look()
            if missing and self._creator is not None and self._now_ns() >= self._not_before_ns:
                await self._create(self._creator, missing)

    def look(self) -> list[str]:
        """Compare pins with metadata, and log changes. Returns topics that several metadata in a row lacked."""
        producer = self._producer()
        refreshed_ns = producer.metadata_refreshed_ns()
        if refreshed_ns <= self._looked_ns:
            return []  # without new metadata the topics may still exist
        self._looked_ns = refreshed_ns
        gone = []
        for topic in (*self._pinned, *self._kept):
            there = producer.partition_count(topic)
            if there is None and producer.refused(topic):
                continue
            before, self._seen[topic] = self._seen[topic], there
            if there != before and (topic in self._pinned or not before or not there):
                self._log_partitions(topic, self._pinned.get(topic, there or 0), there)
            self._missed[topic] = 0 if there is not None else self._missed.get(topic, 0) + 1
            if self._missed[topic] >= LOOKS_BEFORE_CREATION:
                gone.append(topic)
        return gone

    def _log_partitions(self, topic: str, used: int, there: int | None) -> None:
        """Log that a topic has ``there`` partitions now (None: gone), of which ``used`` are pinned."""
        if there is None:
            made = "it is made anew soon" if self._creator is not None else "kafka.topics.create is off: make it anew"
            log.error(
                "topic_gone", topic=topic, consequence="what is for it waits until there is one of its name", now=made
            )
        elif there > used:
            log.warning(
                "topic_has_more_partitions",
                topic=topic,
                partitions=there,
                used=used,
                consequence="the added ones get nothing until the gateway is restarted, so that order is kept",
            )
        elif there < used:
            log.error(
                "topic_has_fewer_partitions", topic=topic, partitions=there, used=used,
                consequence="messages for the others wait: add partitions",
            )  # fmt: skip
        else:
            log.info("topic_as_before", topic=topic, partitions=there)

    async def _create(self, creator: Creator, topics: list[str]) -> None:
        """Create missing topics with as many partitions as pinned. After a failure wait longer each time."""
        for topic in topics:
            count = self._pinned.get(topic)
            if count is None and topic not in self._kept:
                continue  # released while others were created
            try:
                await creator.create([topic], count)
            except BridgeError as error:
                log.error("topic_not_made_anew", topic=topic, error=str(error))  # noqa: TRY400 - a sentence
                self._not_before_ns = self._now_ns() + self._backoff.next_ns(self._now_ns())
            else:
                self._missed[topic] = 0
                self._backoff.reset()
