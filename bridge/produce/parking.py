"""Records of a Kafka topic whose partitions are not known yet: kept in order until they are, each holding its span."""

from __future__ import annotations

__all__ = ["LOCATE_RETRY_S", "Parking", "TopicLocator", "mark_unfinished"]

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from bridge.errors import BridgeError, RefusedError, RetriableError
from bridge.wire import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.ports import Headers
    from bridge.produce.accumulator import Accumulator, Slot
    from bridge.produce.batch import Span
    from bridge.produce.dead_letter import DeadLetters
    from bridge.routing.router import Route

log = structlog.get_logger("dispatch")

LOCATE_RETRY_S = 1.0


class TopicLocator(Protocol):
    """Knows Kafka topics and their partitions."""

    def partition_count(self, topic: str) -> int | None:
        """Partitions by the last metadata, None for a topic not known (yet)."""

    async def locate(self, topic: str) -> int:
        """Find, or make, a topic. Raises RetriableError, RefusedError, TopicMissingError."""


class _Parked(NamedTuple):
    """Everything needed to append a record later. ``last``: its message is counted with it."""

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

    ``choose`` gives the slot for route, QoS, topic, key and number of partitions; ``settled`` is called when a topic's
    partitions have become known; ``failed`` is told of a defect, after which records would stay here for ever.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        topics: TopicLocator,
        dead_letters: DeadLetters,
        *,
        choose: Callable[[Route, int, str, bytes | None, int], Slot],
        settled: Callable[[], None],
        pump: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._accumulator = accumulator
        self._topics = topics
        self._dead_letters = dead_letters
        self._choose = choose
        self._settled = settled
        self._pump = pump
        self._failed = failed
        self._parked: dict[str, list[_Parked]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def holds(self, kafka_topic: str) -> bool:
        """Whether records of the topic wait here, so that later ones have to queue behind them."""
        return kafka_topic in self._parked

    def holds_of(self, route: str) -> bool:
        """Whether records of the route wait here."""
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
        """Keep a record of the current span until its topic is known, or dead-letter it when there is none."""
        accumulator = self._accumulator
        record = _Parked(route, qos, timestamp_ms, key, value, headers, accumulator.occupy(), last)
        parked = self._parked.get(kafka_topic)
        if parked is None:
            parked = self._parked[kafka_topic] = []
            task = asyncio.get_running_loop().create_task(self._unpark(kafka_topic))
            self._tasks.add(task)
            task.add_done_callback(self._unparked)
        parked.append(record)
        accumulator.parked_messages += last
        accumulator.buffered_bytes += record.size()

    async def _unpark(self, kafka_topic: str) -> None:
        """Wait until the topic's partitions are known, then let its records go, in order; or bury them."""
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
                self._bury(record, kafka_topic, failure) if failure else self._let_go(record, kafka_topic, partitions)
            )
            slots[slot] = None
            record.span.pending -= 1
            accumulator.parked_messages -= record.last
            accumulator.buffered_bytes -= record.size()
        self._settled()
        for slot in slots:
            accumulator.hurry(slot)
        self._pump()

    def _let_go(self, record: _Parked, kafka_topic: str, partitions: int) -> Slot:
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
        return self._dead_letters.bury(
            record.route.name, record.qos, record.timestamp_ms, record.key, record.value, record.headers,
            DeadLetterReason.INVALID_TOPIC, failure, kafka_topic, record.span, whole=record.last,
        )  # fmt: skip

    def _unparked(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def close(self) -> None:
        """Give up waiting for topics; what is parked stays unacknowledged."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def mark_unfinished(slot: Slot) -> None:
    """Say of the record appended last that its message is counted with another one."""
    assert slot.batch is not None
    slot.batch.unfinished.append(slot.count - 1)
