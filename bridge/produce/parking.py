"""Keeps records of a Kafka topic in order until its partitions are known. Each record keeps its span pending."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from bridge.errors import BridgeError, RefusedError, RetriableError
from bridge.produce.dead_letter import DeadLetterDraft, DeadLetters
from bridge.waiting import end_tasks, report_failure
from bridge.wire import DeadLetterReason

if TYPE_CHECKING:
    from bridge.ports import Headers
    from bridge.produce.accumulator import Accumulator, Slot
    from bridge.produce.batch import Span
    from bridge.routing.router import Route

log = structlog.get_logger("dispatch")

LOCATE_RETRY_S = 1.0


class TopicLocator(Protocol):
    """Knows Kafka topics and their partitions."""

    def partition_count(self, topic: str) -> int | None:
        """Number of partitions by the last metadata; None for an unknown topic."""

    async def locate(self, topic: str) -> int:
        """Find or create a topic; returns its partitions. Raises RetriableError, RefusedError, TopicMissingError."""


class _Parked(NamedTuple):
    """A record to append later. Its message is counted with its ``last`` record."""

    route: Route
    qos: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    span: Span
    last: bool

    def size(self) -> int:
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers + 100


class Parking:
    """One per dispatcher; belongs to the event loop's thread.

    ``choose`` returns the slot for route, QoS, topic, key and number of partitions. ``settled`` is called when the
    partitions of a topic are known. ``failed`` receives defects, after which records would stay parked for ever.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        topics: TopicLocator,
        dead_letters: DeadLetters,
        *,
        choose: Callable[[Route, int, str, bytes | None, int], Slot],  # of route, QoS, topic, key, partitions
        settled: Callable[[], None],  # called when a topic's partitions are known
        failed: Callable[[BaseException], None],  # receives defects
    ) -> None:
        self._accumulator = accumulator
        self._topics = topics
        self._dead_letters = dead_letters
        self._choose = choose
        self._settled = settled
        self._failed = failed
        self._parked: dict[str, list[_Parked]] = {}  # by Kafka topic
        self._tasks: set[asyncio.Task[None]] = set()  # one for each topic that is located

    def holds(self, kafka_topic: str) -> bool:
        """Whether records of the topic are parked. Later ones must wait behind them."""
        return kafka_topic in self._parked

    def holds_of(self, route: str) -> bool:
        return any(record.route.name == route for records in self._parked.values() for record in records)

    def park(
        self,
        kafka_topic: str,
        route: Route,
        qos: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        *,
        last: bool = True,
    ) -> None:
        """Keep a record of the current span until its topic is known. Without a topic it becomes a dead letter."""
        accumulator = self._accumulator
        record = _Parked(route, qos, timestamp_ms, key, value, headers, accumulator.hold_span(), last)
        parked = self._parked.get(kafka_topic)
        if parked is None:
            parked = self._parked[kafka_topic] = []
            task = asyncio.get_running_loop().create_task(self._unpark(kafka_topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(report_failure(self._failed))
        parked.append(record)
        accumulator.parked_messages += last
        accumulator.buffered_bytes += record.size()

    async def _unpark(self, kafka_topic: str) -> None:
        """Append a topic's records in order once its partitions are known; without a topic, make dead letters."""
        failure: BridgeError | None = None
        partitions = 0
        while True:
            try:
                partitions = await self._topics.locate(kafka_topic)
            except (RetriableError, RefusedError) as error:
                log.warning("topic_not_located", topic=kafka_topic, error=str(error))
                await asyncio.sleep(LOCATE_RETRY_S)
            except BridgeError as error:
                log.error("topic_not_located", topic=kafka_topic, error=str(error))  # noqa: TRY400 - a sentence
                failure = error
                break
            else:
                break
        accumulator = self._accumulator
        slots: dict[Slot, None] = {}
        for record in self._parked.pop(kafka_topic):
            slot = (
                self._bury(record, kafka_topic, failure) if failure else self._append(record, kafka_topic, partitions)
            )
            slots[slot] = None
            record.span.pending -= 1
            accumulator.parked_messages -= record.last
            accumulator.buffered_bytes -= record.size()
        self._settled()
        for slot in slots:
            accumulator.make_due(slot)
        accumulator.partitions.pump()

    def _append(self, record: _Parked, kafka_topic: str, partitions: int) -> Slot:
        """Append a record to a slot, counted to its own span, and return the slot."""
        accumulator = self._accumulator
        slot = self._choose(record.route, record.qos, kafka_topic, record.key, partitions)
        accumulator.append(
            slot, timestamp=record.timestamp_ms, key=record.key, value=record.value, headers=record.headers
        )
        if not record.last:
            mark_unfinished(slot)
        accumulator.move([(record.span, int(record.last))], slot)
        return slot

    def _bury(self, record: _Parked, kafka_topic: str, failure: BridgeError) -> Slot:
        """Make a dead letter of a record, and return its slot."""
        letter = DeadLetterDraft(
            record.route.name, record.qos, record.key, record.value, record.headers, DeadLetterReason.INVALID_TOPIC,
            failure, first_seen_ms=record.timestamp_ms, kafka_topic=kafka_topic,
        )  # fmt: skip
        return self._dead_letters.bury(letter, record.span, whole=record.last)

    async def close(self) -> None:
        """Stop waiting for topics. Parked records stay unacknowledged."""
        await end_tasks(*self._tasks)


def mark_unfinished(slot: Slot) -> None:
    """Note that the message of the record appended last is counted with another record."""
    assert slot.batch is not None
    slot.batch.unfinished.append(slot.count - 1)
