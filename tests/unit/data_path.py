"""The pipeline with one accumulator and a ledger, on any producer."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from bridge.errors import BridgeError, PoisonedError, TopicMissingError
from bridge.ledger import Ledger
from bridge.ports import Headers, ProducerFactory, StoredRecord
from bridge.produce.accumulator import Slot
from bridge.produce.batch import Batch, Span
from bridge.produce.dead_letter import DeadLetterPlan
from bridge.produce.partitions import Partitions
from bridge.produce.pipeline import Pipeline, PipelineHooks
from bridge.produce.sender import SenderPolicy
from bridge.wire import DeadLetterReason
from config.settings import RouteSettings
from gateway.mqtt.properties import parse_properties
from tests.unit.fake_kafka import FakeKafka, FakeTopic
from tests.unit.manual_time import ManualLoop

DEAD_LETTERS = "dead-letters"
EPOCH_MS = 1_800_000_000_000
POLICY = SenderPolicy(delivery_timeout_ns=120_000_000_000, settle_ns=10_000_000_000)


def value_of(number: int, size: int = 0) -> bytes:
    """A payload that says which one it is."""
    return b"%d" % number + b"." * size


def named_poison(records: list[StoredRecord]) -> BridgeError | None:
    """What Kafka says of a batch with such records: it names them."""
    bad = tuple(n for n, record in enumerate(records) if (record.value or b"").startswith(b"poison"))
    return PoisonedError("Kafka will not take them.", records=bad) if bad else None


@dataclass
class Owner:
    """A connection that is owed acknowledgements."""

    released: list[bytes] = field(default_factory=list)
    released2: list[bytes] = field(default_factory=list)

    def release(self, ids: list[bytes], ids2: list[bytes]) -> None:
        self.released += ids
        self.released2 += ids2


def complete(span: Span, spans: list[Span], ledger: Ledger) -> None:
    """What the flow does with a durable span, which is added to ``spans``."""
    assert span.is_sealed
    assert span.pending == 0
    spans.append(span)
    ledger.delivered += span.stored
    ledger.dead_lettered += span.dead
    ledger.filtered += span.filtered
    ledger.copies += span.copies
    for owner, ids, ids2 in span.owed:
        owner.release(ids, ids2)


@dataclass
class Observer:
    """What the sender said."""

    stored: int = 0
    offsets: list[tuple[str, int, int, int]] = field(default_factory=list)  # topic, partition, offset, records
    failed: list[BridgeError] = field(default_factory=list)
    failed_at: list[int] = field(default_factory=list)  # in which partition
    incarnations: list[int] = field(default_factory=list)

    def batch_stored(self, batch: Batch, partition: int, offset: int, now_ns: int) -> None:
        assert now_ns >= batch.sent_ns > 0
        self.stored += batch.count
        self.offsets.append((batch.slot.queue.topic, partition, offset, batch.count))

    def batch_failed(self, batch: Batch, partition: int, error: BridgeError) -> None:
        assert batch.first_failed_ns
        self.failed_at.append(partition)
        self.failed.append(error)

    def incarnation_started(self, number: int) -> None:
        self.incarnations.append(number)


class AnyPath:
    """The data path below MQTT; ``async with`` starts and closes the sender. Make it in the running loop."""

    def __init__(
        self,
        factory: ProducerFactory,
        clock_ns: Callable[[], int],
        *,
        policy: SenderPolicy = POLICY,
        max_record_bytes: int = 4096,
        dead_letters: str = DEAD_LETTERS,
        routes: Sequence[RouteSettings] = (),
    ) -> None:
        self.clock_ns = clock_ns
        self.clock_error_ms = 0  # by how much our wall clock is wrong
        self.route = "route"
        self.dead: list[DeadLetterReason] = []
        self.made: Callable[[str, DeadLetterReason, BaseException], None] = lambda _route, _reason, _error: None
        self.observer = Observer()
        self.fatal: list[BaseException] = []
        hooks = PipelineHooks(
            topics=self, parse_properties=parse_properties, filtered=lambda _route, _reason: None,
            failed=self.fatal.append, observer=self.observer, dead_letter_made=self._made, clock_ns=clock_ns,
            wall_ms=self.wall_ms,
        )  # fmt: skip
        self.pipeline = Pipeline(Partitions(), factory, policy, hooks)
        self.sender = self.pipeline.sender
        self.accumulator = self.pipeline.accumulator(self.completed)
        self.ledger = Ledger(self.accumulator.in_flight)
        self.dead_letter_plan = DeadLetterPlan(dead_letters, "gw", max_record_bytes, routes)
        self.dead_letters = self.pipeline.dead_letters(self.accumulator, self.dead_letter_plan)
        self.owner = Owner()
        self.spans: list[Span] = []  # completed, in order
        self._ids: list[bytes] = []
        self._number = 0

    def _made(self, route: str, reason: DeadLetterReason, error: BaseException, _topic: str | None) -> None:
        self.dead.append(reason)
        self.made(route, reason, error)

    def right_ms(self) -> int:
        """The wall clock of a machine whose clock is right."""
        return EPOCH_MS + self.clock_ns() // 1_000_000

    def wall_ms(self) -> int:
        return self.right_ms() + self.clock_error_ms

    def partition_count(self, topic: str) -> int | None:
        return self.sender.producer.partition_count(topic)

    async def locate(self, topic: str) -> int:
        raise NotImplementedError(topic)

    async def __aenter__(self) -> Self:
        await self.sender.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sender.close(patience_s=1.0)

    def completed(self, span: Span) -> None:
        complete(span, self.spans, self.ledger)

    def slot(self, topic: str, partition: int = 0, *, qos: int = 1) -> Slot:
        return self.accumulator.slot(self.route, qos, topic, partition)

    def append(
        self,
        slot: Slot,
        value: bytes | None,
        *,
        key: bytes | None = b"k",
        headers: Headers | None = None,
        timestamp: int = 7,
    ) -> bytes:
        """Take in one message as the hot path does; returns its packet id, which is released when it is durable."""
        self._number += 1
        packet_id = b"%d" % self._number
        headers = [] if headers is None else headers
        self.accumulator.now_ns = self.clock_ns()
        if slot.append(slot.count, timestamp, key, value, headers) is None:
            slot.roll(timestamp, key, value, headers)
        else:
            slot.count += 1
        self.took(packet_id)
        return packet_id

    def took(self, packet_id: bytes) -> None:
        self.ledger.received += 1
        self._ids.append(packet_id)

    def flush(self) -> None:
        """End the span, as the flow does."""
        if self._ids:
            self.accumulator.current.owed.append((self.owner, self._ids, []))
            self._ids = []
        self.accumulator.flush()
        self.sender.pump()

    def send(self, value: bytes | None, topic: str = "t", partition: int = 0, *, qos: int = 1, **more: Any) -> bytes:
        """Take in one message and end its span; returns its packet id."""
        packet_id = self.append(self.slot(topic, partition, qos=qos), value, **more)
        self.flush()
        return packet_id

    def balanced(self) -> bool:
        return self.ledger.imbalance() == 0

    @property
    def held(self) -> int:
        return self.ledger.in_flight()

    async def until(self, condition: Callable[[], bool], what: str = "", *, within_s: float = 600.0) -> None:
        """Let time pass until the condition holds; the ledger balances at each look."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        wait_s = 0.001
        while not condition():
            assert loop.time() < deadline_s, f"not within {within_s:g} s: {what or condition}; {self.ledger}"
            assert not self.fatal, self.fatal
            assert self.balanced(), self.ledger
            await asyncio.sleep(wait_s)
            wait_s = min(1.2 * wait_s, 0.2)
        assert self.balanced(), self.ledger

    async def drained(self, *, within_s: float = 600.0) -> None:
        """End the span if one is open; then all taken in is durable and acknowledged, and no byte is held."""
        if self._ids:
            self.flush()
        await self.until(lambda: self.held == 0, "drained", within_s=within_s)
        assert self.accumulator.buffered_bytes == 0, self.accumulator.buffered_bytes
        assert not self.accumulator.spans
        assert all(not queue.open and not queue.sealed for queue in self.accumulator.partitions.queues.values())


class Path(AnyPath):
    """The same on the Kafka in memory, in a ManualLoop; one with a topic t, ``led`` or not, if none is given.

    ``topics`` are those the producer's metadata knows from the start; all there are if not given.
    """

    def __init__(
        self,
        kafka: FakeKafka | None = None,
        *,
        led: bool = True,
        policy: SenderPolicy = POLICY,
        max_record_bytes: int = 4096,
        topics: Sequence[str] | None = None,
        routes: Sequence[RouteSettings] = (),
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ManualLoop)
        self.kafka = kafka = FakeKafka.with_topic(led=led)[0] if kafka is None else kafka
        if DEAD_LETTERS not in kafka.topics:
            kafka.topic(DEAD_LETTERS)
        self.letters = kafka.topics[DEAD_LETTERS]
        super().__init__(
            lambda: kafka.make_producer(kafka.topics if topics is None else topics), loop.time_ns, policy=policy,
            max_record_bytes=max_record_bytes, routes=routes,
        )  # fmt: skip

    @property
    def topic(self) -> FakeTopic:
        return self.kafka.topics["t"]


class TopicFinder:
    """Finds a topic a moment after it is asked (``bridge.produce.parking.TopicLocator``), or raises ``answers``."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        self.located: list[str] = []
        self.answers: deque[BaseException | None] = deque()

    def partition_count(self, topic: str) -> int | None:
        return self.path.partition_count(topic)

    async def locate(self, topic: str) -> int:
        self.located.append(topic)
        await asyncio.sleep(0.1)
        if self.answers and (error := self.answers.popleft()) is not None:
            raise error
        producer = self.path.sender.producer
        producer.watch_topic(topic)
        await producer.refresh_metadata()
        count = producer.partition_count(topic)
        if count is None:
            raise TopicMissingError(f"Kafka has no topic {topic}.")
        return count
