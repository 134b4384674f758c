"""The Kafka in memory behaves at the port as the real one does."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from bridge.kafka.batch import KafkaBatch
from bridge.ports import BatchBuilder, StoredRecord
from tests.producer_port import ProducerPort
from tests.unit.fake_kafka import DOWN, FakeBatch, FakeKafka, FakePartition, FakeProducer


class FakeBackend:
    """``tests.producer_port.Backend`` in memory."""

    def __init__(self) -> None:
        self.kafka = FakeKafka(batch_bytes=16_384)
        self.kafka.latency_s = lambda: 0.001
        self.kafka.metadata_max_age_s = 0.05
        self.batch_bytes = self.kafka.batch_bytes
        self._numbers = itertools.count()

    async def topic(self, partitions: int = 1, *, max_batch_bytes: int | None = None) -> str:
        name = f"topic-{next(self._numbers)}"
        self.kafka.topic(name, partitions, max_batch_bytes=max_batch_bytes or 1 << 20)
        return name

    async def grow(self, topic: str, partitions: int) -> None:
        have = self.kafka.topics[topic].partitions
        have += [FakePartition() for _ in range(partitions - len(have))]

    def producer(self, topics: Iterable[str] = (), **_changes: Any) -> FakeProducer:
        return self.kafka.make_producer(topics)

    def nowhere(self) -> FakeProducer:
        self.kafka.unreachable = DOWN
        return self.kafka.make_producer()

    async def read(self, topic: str, partition: int = 0) -> list[StoredRecord]:
        await asyncio.sleep(0.01)
        return self.kafka.topics[topic].partitions[partition].log

    async def forbid(self, topic: str, *, forbidden: bool = True) -> None:
        self.kafka.topics[topic].refused = forbidden

    def freeze(self) -> None:
        self.kafka.freeze()

    def thaw(self) -> None:
        self.kafka.thaw()


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


class TestFakeKafka(ProducerPort):
    """All of the suite."""


@pytest.mark.parametrize("make", [lambda: KafkaBatch(16_384, 0), lambda: FakeBatch(16_384)], ids=["real", "fake"])
def test_a_batch_that_raises_for_a_wrong_type_has_taken_nothing(make: Callable[[], BatchBuilder]) -> None:
    """The data path counts on it: the message goes elsewhere, and the batch goes on."""
    wrong: list[tuple[Any, Any, Any, Any]] = [
        (5, b"k", "text", []), (5, "k", b"v", []), (1 << 63, b"k", b"v", []), (5, b"k", b"v", None),
        (5, b"k", b"v", (("a", b"b"),)), (5, b"k", b"v", [("a", b"b"), ("c", "d")]),
        (5, b"k", b"v", [("a", b"b"), (b"c", b"d")]), (5, b"k", b"v", [("a", b"b"), ("\ud800", b"d")]),
        (5, b"k", b"v", [("a", b"b"), ("c", b"d", 1)]),
    ]  # fmt: skip
    batch = make()
    for number, (timestamp, key, value, headers) in enumerate(wrong):
        assert batch.append(number, 5, b"k", b"good", [("a", b"b")]) is not None
        size = batch.size()
        with pytest.raises((TypeError, ValueError, OverflowError)):
            batch.append(number + 1, timestamp, key, value, headers)
        assert batch.size() == size
    batch.close(len(wrong))
    restored = type(batch).restored(batch.encode())  # type: ignore[attr-defined]
    assert restored.record_count() == len(wrong)
