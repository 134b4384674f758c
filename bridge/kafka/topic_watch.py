"""Holds a topic to the number of partitions it was first seen with, and notices what happens to it afterwards.

A message's partition follows from its key and the topic's number of partitions. Were a grown number taken at once, a
device's next message would go to another partition while its last one still waits for Kafka, and could come before it.
So the number stays the one it was first seen with until the process ends; the next one starts with the new number,
after this one has drained. An operator who adds partitions sees it said in the log, on /status and in a metric.

The same pin holds the messages of a topic that was deleted: they wait in their partitions until there is a topic of
that name again, made by somebody, or, with ``kafka.topics.create``, here, with as many partitions as it had.
"""

from __future__ import annotations

__all__ = ["TopicState", "TopicWatch"]

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from bridge.backoff import Backoff
from bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

log = structlog.get_logger("kafka")

LOOKS_BEFORE_CREATION = 3  # metadata leave a topic out for a moment while it is being made, too


class Metadata(Protocol):
    """What the producer of the moment knows of topics."""

    def partition_count(self, topic: str) -> int | None: ...

    def refused(self, topic: str) -> bool:
        """Whether we may not see it: no word on whether it exists."""

    def metadata_refreshed_ns(self) -> int: ...


class Creator(Protocol):
    """Makes topics as settings say. Raises BridgeError."""

    async def create(self, topics: list[str], partitions: int | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is used and as it is. ``there`` is None for one that does not exist any more."""

    name: str
    used: int
    there: int | None

    @property
    def unused(self) -> int:
        """Partitions that nothing is written to."""
        return max(0, (self.there or 0) - self.used)

    @property
    def problem(self) -> str | None:
        """Why messages for it wait, in a few words; None when they do not have to."""
        if self.there is None or self.there >= self.used:
            return None
        return (
            f"it was made anew with {self.there} partitions, and messages wait for {self.used}; add partitions, or "
            "restart the gateway, which then uses what is there"
        )


class TopicWatch:
    """The pinned numbers of partitions, and a task that compares them with metadata. The event loop's thread owns it.

    ``producer`` gives the incarnation of the moment. ``pinned`` is told of each number that is settled. ``creator`` is
    None where topics are nobody's but the operator's.
    ``now_ns`` times the attempts to create. ``failed`` is told of a defect of ours.
    """

    name = "topics"

    def __init__(
        self,
        producer: Callable[[], Metadata],
        creator: Creator | None,
        now_ns: Callable[[], int],
        failed: Callable[[BaseException], None],
        *,
        interval_s: float,
        pinned: Callable[[str, int], None] = lambda _topic, _count: None,
    ) -> None:
        self._tell_pinned = pinned
        self._producer = producer
        self._creator = creator
        self._now_ns = now_ns
        self._failed = failed
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._pinned: dict[str, int] = {}
        self._seen: dict[str, int | None] = {}
        self._missed: dict[str, int] = {}  # looks since a topic was there
        self._looked_ns = 0  # when the metadata of the last look were made
        self._not_before_ns = 0
        self._backoff = Backoff(500_000_000, 10_000_000_000)

    def partition_count(self, topic: str) -> int | None:
        """How many partitions messages are spread over; None for a topic that has not been seen yet."""
        count = self._pinned.get(topic)
        if count is None:
            count = self._producer().partition_count(topic)
            if count is not None:
                self._pinned[topic] = self._seen[topic] = count
                self._tell_pinned(topic, count)
        return count

    def pinned(self, topic: str) -> int | None:
        """The number in use, None for a topic that has not been seen yet. Asks no producer."""
        return self._pinned.get(topic)

    def preset(self, topic: str, count: int) -> None:
        """Use a number from an earlier life: for a topic whose messages wait for those partitions, or one that Kafka
        is not there to be asked about. Comes before any message."""
        self._pinned[topic] = count
        self._seen.setdefault(topic, None)

    def release(self, topics: Iterable[str]) -> None:
        """Hold topics to their numbers no more, nor see to it that they exist: nothing is written to them any more.
        Should something be after all, they are seen for the first time again."""
        for topic in topics:
            self._pinned.pop(topic, None)
            self._seen.pop(topic, None)
            self._missed.pop(topic, None)

    def states(self) -> list[TopicState]:
        """Every topic that is in use, by name."""
        return [TopicState(topic, used, self._seen[topic]) for topic, used in sorted(self._pinned.items())]

    def pin(self, topics: Iterable[str]) -> None:
        """Settle the numbers of topics that are going to be used."""
        for topic in topics:
            self.partition_count(topic)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="topic watch")
        self._task.add_done_callback(self._ended)

    async def stop(self, _deadline_ns: int) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            missing = self.look()
            if missing and self._creator is not None and self._now_ns() >= self._not_before_ns:
                await self._create(self._creator, missing)

    def look(self) -> list[str]:
        """Compare with metadata, and say what has changed. Returns the topics that are surely gone."""
        producer = self._producer()
        refreshed_ns = producer.metadata_refreshed_ns()
        if refreshed_ns <= self._looked_ns:
            return []  # nobody answers: what was there may well be there
        self._looked_ns = refreshed_ns
        gone = []
        for topic, used in self._pinned.items():
            there = producer.partition_count(topic)
            if there is None and producer.refused(topic):
                continue
            if there != self._seen[topic]:
                self._seen[topic] = there
                self._say(topic, used, there)
            self._missed[topic] = 0 if there is not None else self._missed.get(topic, 0) + 1
            if self._missed[topic] >= LOOKS_BEFORE_CREATION:
                gone.append(topic)
        return gone

    def _say(self, topic: str, used: int, there: int | None) -> None:
        if there is None:
            made = "it is made anew soon" if self._creator is not None else "kafka.topics.create is off: make it anew"
            log.error(
                "topic_gone", topic=topic, consequence="its messages wait until there is one of its name", now=made
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
                consequence="messages for the others wait: add partitions, or restart the gateway",
            )  # fmt: skip
        else:
            log.info("topic_as_before", topic=topic, partitions=there)

    async def _create(self, creator: Creator, topics: list[str]) -> None:
        for topic in topics:
            count = self._pinned.get(topic)
            if count is None:
                continue  # let go of while others were made
            try:
                await creator.create([topic], count)
            except BridgeError as error:
                log.error("topic_not_made_anew", topic=topic, error=str(error))  # noqa: TRY400 - a sentence
                self._not_before_ns = self._now_ns() + self._backoff.next_ns(self._now_ns())
            else:
                self._missed[topic] = 0
                self._backoff.reset()
