"""A Kafka in memory behind the Producer port, as far as the data path can tell the two apart.

``tests/producer_port.py`` holds this one and the real one to the same behaviour. What it imitates beyond the obvious:
sequence numbers (a rejected batch gives them back, any other failure leaves a gap that fails every later batch of the
partition); a batch whose leader has gone waits for the next one; futures of a closed producer stay pending for ever;
what a closed producer had sent may still arrive.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bridge.errors import (
    BridgeError,
    IncarnationError,
    LeaderMissingError,
    PoisonedError,
    RefusedError,
    TimestampError,
    UnreachableError,
)
from bridge.ports import BatchBuilder, Headers, StoredRecord
from bridge.wire import DeadLetterReason
from tests.brokers.data_path import HandsOver

RETRY_BACKOFF_S = 0.1
HEADER_BYTES = 61  # of an empty batch, as Kafka's format has it
DOWN = UnreachableError("No broker answers.")


class FakeBatch:
    """Collects records (``bridge.ports.BatchBuilder``). ``fault`` is for mutations: it may drop or double a record."""

    def __init__(self, limit: int, fault: Callable[[StoredRecord], int] | None = None) -> None:
        self.stored: list[StoredRecord] = []
        self.sent = False
        self.closed = False
        self._limit = limit
        self._fault = fault
        self._bytes = HEADER_BYTES
        self._count = 0

    def append(
        self, number: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> object | None:
        assert not self.closed, "appended to a closed batch"
        _check_types(timestamp, key, value, headers)
        assert self._fault or number == len(self.stored), f"record {number} appended as number {len(self.stored)}"
        size = 8 + len(key or b"") + len(value or b"")
        size += sum(2 + len(name.encode()) + len(content or b"") for name, content in headers)
        if self.stored and self._bytes + size > self._limit:
            return None
        record = StoredRecord(timestamp, key, value, list(headers))
        copies = 1 if self._fault is None else self._fault(record)
        self.stored += [record] * copies
        self._bytes += size
        return self

    def size(self) -> int:
        return self._bytes

    def close(self, count: int) -> None:
        self.closed = True
        self._count = count

    def record_count(self) -> int:
        return len(self.stored) if self.sent else self._count

    def encode(self) -> bytes:
        assert self.closed
        return pickle.dumps((self.stored, self._bytes, self._limit))

    @classmethod
    def restored(cls, data: bytes) -> FakeBatch:
        stored, size, limit = pickle.loads(data)
        batch = cls(limit)
        batch.stored, batch._bytes, batch._count, batch.closed = stored, size, len(stored), True
        return batch


def _check_types(timestamp: object, key: object, value: object, headers: object) -> None:
    """Raises as the strictest builder does, before anything is taken."""
    for part in (key, value):
        if part is not None and type(part) is not bytes:
            raise TypeError(f"bytes are required, not {type(part).__name__!r}")
    if type(timestamp) is not int:
        raise TypeError("an integer is required")
    if not -(1 << 63) <= timestamp < 1 << 63:
        raise OverflowError("Python int too large to convert to C long")
    if not isinstance(headers, list):
        raise TypeError("Argument 'headers' has incorrect type")
    for header in headers:
        if type(header) is not tuple:
            raise TypeError("Expected tuple")
        name, content = header
        if type(name) is not str or not (content is None or type(content) is bytes):
            raise TypeError("Expected str, bytes")
        name.encode()


@dataclass
class FakePartition:
    """The log of one partition, and what it remembers of producers."""

    has_leader: bool = True
    log: list[StoredRecord] = field(default_factory=list)
    next_sequence: dict[int, int] = field(default_factory=dict)
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)  # of batches, by producer and sequence


@dataclass
class FakeTopic:
    """A topic, and what it refuses. ``reject`` is asked for each batch, and raises nothing: it returns the error."""

    partitions: list[FakePartition]
    max_batch_bytes: int = 1 << 30
    refused: bool = False
    reject: Callable[[list[StoredRecord]], BridgeError | None] | None = None

    def records(self) -> list[StoredRecord]:
        return [record for partition in self.partitions for record in partition.log]

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records()]


@dataclass
class _Request:
    """A batch on its way to a partition."""

    producer: FakeProducer
    topic: str
    partition: int
    batch: FakeBatch
    sequence: int
    answer: asyncio.Future[int]


class FakeKafka:
    """A cluster, with a topic to begin with if one is named. Tests change its attributes while it runs.

    - ``frozen``: takes requests and answers none, until thawed;
    - ``unreachable``: an error that starting producers get;
    - ``latency_s``: between a request and its answer, a number or a function that draws one;
    - ``held_until_ns``: brokers want no batches until then, by the loop's clock (KIP-219);
    - ``lose``: asked at each request, whether the record is written and the answer lost (True);
    - ``late``: asked for each request under way when its producer is closed, whether it arrives all the same;
    - ``answers_after_close``: answers reach a producer that has been closed, which no real one lets happen;
    - ``fault``: makes batches drop or double records, for mutation tests.
    """

    def __init__(
        self, topic: str = "", partitions: int = 1, *, batch_bytes: int = 16384, request_timeout_s: float = 5.0
    ) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.batch_bytes = batch_bytes
        self.request_timeout_s = request_timeout_s
        self.latency_s: Callable[[], float] = lambda: 0.005
        self.metadata_max_age_s = 1.0
        self.frozen = False
        self.held_until_ns = 0
        self.unreachable: BridgeError | None = None
        self.start_failures: deque[BaseException] = deque()
        self.lose: Callable[[], bool] = lambda: False
        self.late: Callable[[], bool] = lambda: False
        self.answers_after_close = False
        self.fault: Callable[[StoredRecord], int] | None = None
        self.producers: list[FakeProducer] = []
        self._waiting: list[_Request] = []
        self._ids = itertools.count(1)
        if topic:
            self.topic(topic, partitions)

    @classmethod
    def with_topic(
        cls, partitions: int = 1, *, batch_bytes: int = 16384, led: bool = True, **options: object
    ) -> tuple[FakeKafka, FakeTopic]:
        """A cluster and its topic t, whose first partition has no leader unless it is ``led``."""
        kafka = cls(batch_bytes=batch_bytes)
        topic = kafka.topic("t", partitions, **options)
        topic.partitions[0].has_leader = led
        return kafka, topic

    def topic(self, name: str, partitions: int = 1, **options: object) -> FakeTopic:
        """Create a topic."""
        topic = self.topics[name] = FakeTopic([FakePartition() for _ in range(partitions)], **options)  # type: ignore[arg-type]
        return topic

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        self.settle()

    def make_producer(self, topics: Iterable[str] = ()) -> FakeProducer:
        return FakeProducer(self, next(self._ids), topics)

    @property
    def live(self) -> list[FakeProducer]:
        return [producer for producer in self.producers if not producer.closed]

    def settle(self) -> None:
        """Handle what waited for a thaw, a leader or an expiry."""
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self.arrive(request)

    def arrive(self, request: _Request) -> None:
        """A request has reached the cluster, or waits no longer."""
        partition = self.topics[request.topic].partitions[request.partition]
        if self.frozen:
            self._waiting.append(request)
            return
        if not partition.has_leader:
            if not request.producer.closed:  # which asks again, for as long as it lives
                asyncio.get_running_loop().call_later(RETRY_BACKOFF_S, self.arrive, request)
            return
        lost = self.lose()
        error = self._write(request, partition)
        if not lost:
            self._answer(request, error, partition.offsets.get((request.producer.id, request.sequence), -1))

    def _write(self, request: _Request, partition: FakePartition) -> BridgeError | None:
        topic, producer_id = self.topics[request.topic], request.producer.id
        expected = partition.next_sequence.get(producer_id, 0)
        if request.sequence > expected:
            return IncarnationError("OutOfOrderSequenceNumber")
        if request.sequence < expected:
            return None  # written before
        error = self._refusal(topic, request.batch)
        if error is not None:
            if isinstance(error, PoisonedError | TimestampError | RefusedError):
                request.producer.give_back(request.topic, request.partition, request.sequence)
            return error
        partition.next_sequence[producer_id] = expected + len(request.batch.stored)
        partition.offsets[producer_id, expected] = len(partition.log)
        partition.log += request.batch.stored
        return None

    @staticmethod
    def _refusal(topic: FakeTopic, batch: FakeBatch) -> BridgeError | None:
        if topic.refused:
            return RefusedError("Kafka refused us: TopicAuthorizationFailedError.")
        if batch.size() > topic.max_batch_bytes:
            return PoisonedError("Kafka will not take it: MessageSizeTooLargeError.", DeadLetterReason.TOO_LARGE)
        return topic.reject(batch.stored) if topic.reject is not None else None

    def _answer(self, request: _Request, error: BridgeError | None, offset: int) -> None:
        if (request.producer.closed and not self.answers_after_close) or request.answer.done():
            return
        if error is None:
            request.answer.set_result(offset)
        else:
            request.answer.set_exception(error)


class FakeProducer(HandsOver):
    """One incarnation (``bridge.ports.Producer``)."""

    def __init__(self, kafka: FakeKafka, number: int, topics: Iterable[str]) -> None:
        self.id = number
        self.started = False
        self.closed = False
        self._kafka = kafka
        self._topics = set(topics)
        self._under_way: dict[tuple[str, int], asyncio.Future[int]] = {}
        self._sequences: dict[tuple[str, int], int] = {}
        self._flying: dict[asyncio.TimerHandle, _Request] = {}
        self._metadata: dict[str, list[bool]] = {}
        self._refreshed_s = 0.0

    def __repr__(self) -> str:
        return f"<FakeProducer {self.id}>"

    async def start(self) -> None:
        kafka = self._kafka
        assert not self.closed, "a closed incarnation stays closed"
        assert not self.started, "an incarnation is started once"
        self.started = True
        kafka.producers.append(self)
        assert kafka.live == [self], f"{kafka.live} live side by side"
        if kafka.frozen:
            await asyncio.sleep(kafka.request_timeout_s)
        else:
            await asyncio.sleep(kafka.latency_s())
        if kafka.start_failures:
            raise kafka.start_failures.popleft()
        if kafka.unreachable is not None:
            raise kafka.unreachable
        if kafka.frozen:
            raise UnreachableError("No answer within the request time-out.")
        self._refresh()

    async def close(self, *, patience_s: float) -> None:
        assert patience_s >= 0
        if self.closed:
            return
        self.closed = True
        for timer in self._flying:
            if not self._kafka.late():
                timer.cancel()
        self._kafka._waiting = [r for r in self._kafka._waiting if r.producer is not self or self._kafka.late()]
        await asyncio.sleep(0)

    def create_batch(self, *, compressed: bool) -> FakeBatch:
        assert isinstance(compressed, bool)
        return FakeBatch(self._kafka.batch_bytes, self._kafka.fault)

    def send(self, topic: str, partition: int, batch: BatchBuilder) -> asyncio.Future[int]:
        assert batch.closed, "handed over while open"
        if self.closed:
            raise IncarnationError("The producer is closed.")
        key = (topic, partition)
        leaders = self._fresh().get(topic)
        if leaders is None or partition >= len(leaders) or not leaders[partition]:
            raise LeaderMissingError(f"Kafka names no leader for {topic}/{partition}; was the topic deleted?")
        under_way = self._under_way.get(key)
        assert under_way is None or under_way.done(), f"two batches of {topic}/{partition} under way"
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + len(batch.stored)
        self._under_way[key] = answer
        batch.sent = True
        request = _Request(self, topic, partition, batch, sequence, answer)
        timer = loop.call_later(self._kafka.latency_s(), self._land, request)
        self._flying[timer] = request
        return answer

    def _land(self, request: _Request) -> None:
        self._flying = {timer: r for timer, r in self._flying.items() if r is not request}
        self._kafka.arrive(request)

    def give_back(self, topic: str, partition: int, sequence: int) -> None:
        """Nothing was stored under these numbers: the next batch has them."""
        self._sequences[topic, partition] = sequence

    def failure(self, answer: asyncio.Future[int]) -> BridgeError | None:
        if answer.cancelled():
            return IncarnationError("The producer ended before Kafka answered.")
        error = answer.exception()
        assert error is None or isinstance(error, (IncarnationError, PoisonedError, TimestampError, RefusedError))
        return error

    def cluster_id(self) -> str | None:
        return "fake-cluster" if self._refreshed_s else None

    def partition_count(self, topic: str) -> int | None:
        leaders = self._fresh().get(topic)
        return len(leaders) if leaders is not None else None

    def has_leader(self, topic: str, partition: int) -> bool:
        leaders = self._fresh().get(topic)
        return leaders is not None and partition < len(leaders) and leaders[partition]

    def held_until_ns(self, topic: str, partition: int) -> int:
        del topic, partition
        return self._kafka.held_until_ns

    def metadata_refreshed_ns(self) -> int:
        return round(self._refreshed_s * 1e9)

    def watch_topic(self, topic: str) -> None:
        if topic not in self._topics:
            self._topics.add(topic)
            asyncio.get_running_loop().call_later(self._kafka.latency_s(), self._refresh)

    async def refresh_metadata(self) -> bool:
        if self.closed:
            return False
        await asyncio.sleep(self._kafka.latency_s())
        return self._refresh()

    def records(self, batch: BatchBuilder) -> list[StoredRecord]:
        assert batch.closed
        return list(batch.stored)

    def restore(self, data: bytes) -> FakeBatch:
        return FakeBatch.restored(data)

    def _fresh(self) -> dict[str, list[bool]]:
        """The metadata, which a real client renews by itself."""
        if asyncio.get_running_loop().time() - self._refreshed_s >= self._kafka.metadata_max_age_s:
            self._refresh()
        return self._metadata

    def _refresh(self) -> bool:
        kafka = self._kafka
        if self.closed or kafka.frozen or kafka.unreachable is not None:
            return False
        self._refreshed_s = asyncio.get_running_loop().time()
        self._metadata = {
            name: [partition.has_leader for partition in kafka.topics[name].partitions]
            for name in self._topics
            if name in kafka.topics
        }
        return True
