"""Accumulator, sender and dead letters on a real Kafka that refuses, freezes and dies: nothing is lost.

Numbered records go in; a client that is not ours reads them back. Nothing may be released before it can be read, first
occurrences are in order, and the account balances at every look.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bridge import wire
from bridge.errors import IncarnationError, PoisonedError
from bridge.kafka.producer import KafkaProducer
from bridge.produce.sender import SenderPolicy
from bridge.wire import DeadLetterReason
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.kafka_backend import KafkaBackend, kafka_settings, read_topic
from tests.brokers.topics import create_topic
from tests.unit.data_path import AnyPath, value_of

PARTITIONS = 3
POLICY = SenderPolicy(delivery_timeout_ns=60_000_000_000, settle_ns=4_000_000_000)
NOW_MS = time.time_ns() // 1_000_000


class Stream(AnyPath):
    """The data path on a real Kafka, fed with numbered messages: number n to partition n % 3."""

    def __init__(
        self, bootstrap: str, topics: list[str], dead_letters: str, *, policy: SenderPolicy = POLICY, **settings: Any
    ) -> None:
        kafka = kafka_settings(bootstrap, **settings)
        super().__init__(
            lambda: KafkaProducer(kafka, "test", [*topics, dead_letters]),
            time.monotonic_ns,
            policy=policy,
            max_record_bytes=1_000_000,
            dead_letters=dead_letters,
        )
        self.topic = topics[0]
        self.bootstrap = bootstrap
        self.fed = 0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000  # the broker compares it with its own

    def feed(self, count: int, *, size: int = 100) -> None:
        for _ in range(count):
            self.append(
                self.slot(self.topic, self.fed % PARTITIONS), value_of(self.fed, size), timestamp=NOW_MS, key=b"k"
            )
            self.fed += 1
        self.flush()

    async def feed_for(self, seconds: float, condition: Callable[[], object] = lambda: True) -> None:
        """Keep feeding for so long and until the condition holds, while not too much is held: what the flow does with a
        paused session."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or not condition():
            assert time.monotonic() < end + 60, "the condition does not come"
            if self.accumulator.buffered_bytes < 4 << 20:
                self.feed(20)
            assert self.balanced(), self.ledger
            assert not self.fatal, self.fatal
            await asyncio.sleep(0.005)

    async def verdict(self, *, copies: bool = False) -> None:
        """Everything fed is there and acknowledged in order; ``copies`` allows repetitions behind first occurrences."""
        await self.drained(within_s=60)
        assert self.owner.released == [b"%d" % n for n in range(1, self.fed + 1)]
        logs = await asyncio.to_thread(read_topic, self.bootstrap, self.topic)
        for partition, log in enumerate(logs):
            numbers = [int((record.value or b"").rstrip(b".")) for record in log]
            firsts = list(dict.fromkeys(numbers))
            assert firsts == list(range(partition, self.fed, PARTITIONS)), f"partition {partition}"
            if not copies:
                assert len(numbers) == len(firsts), f"partition {partition} has copies"


async def test_poisoned_records_in_full_batches_are_singled_out(backend: KafkaBackend) -> None:
    """A compacted topic refuses a batch for one record without a key; the broker does not take the others either."""
    topic, dead = await backend.topic(**{"cleanup.policy": "compact"}), await backend.topic()
    stream = Stream(backend.cluster.bootstrap, [topic], dead)
    bad = {0, 17, 18, 250, 499}
    async with stream:
        slot = stream.slot(topic)
        for number in range(500):
            key = None if number in bad else b"%d" % number
            headers = [("mqtt.topic", b"devices/%d" % number)]
            stream.append(slot, value_of(number), key=key, headers=headers, timestamp=NOW_MS)
        stream.flush()
        await stream.drained(within_s=60)
        assert stream.owner.released == [b"%d" % n for n in range(1, 501)]
        assert stream.dead == [DeadLetterReason.INVALID_RECORD] * len(bad)
        assert {type(error) for error in stream.observer.failed} == {PoisonedError}
        assert stream.observer.incarnations == [1]
    (log,) = await asyncio.to_thread(read_topic, stream.bootstrap, topic)
    assert [record.value for record in log] == [value_of(n) for n in range(500) if n not in bad]
    (letters,) = await asyncio.to_thread(read_topic, stream.bootstrap, dead)
    assert [record.value for record in letters] == [value_of(n) for n in sorted(bad)]
    for record, number in zip(letters, sorted(bad), strict=True):
        headers = dict(record.headers)
        assert headers["mqtt.topic"] == b"devices/%d" % number
        assert headers[wire.DLQ_REASON] == b"invalid_record"
        assert headers[wire.DLQ_KAFKA_TOPIC] == topic.encode()
        sentence = headers[wire.DLQ_ERROR]
        assert sentence is not None
        assert b"a record without a key for a compacted topic" in sentence


async def test_a_freeze_beyond_the_delivery_timeout_costs_incarnations_and_loses_nothing(backend: KafkaBackend) -> None:
    topic, dead = await backend.topic(PARTITIONS), await backend.topic()
    policy = SenderPolicy(delivery_timeout_ns=3_000_000_000, settle_ns=1_000_000_000)
    stream = Stream(backend.cluster.bootstrap, [topic], dead, policy=policy)
    async with stream:
        await stream.feed_for(0.5)
        backend.freeze()
        try:
            await stream.feed_for(8, lambda: stream.observer.failed)
            assert {type(error) for error in stream.observer.failed} == {IncarnationError}
        finally:
            backend.thaw()
        await stream.feed_for(0.5)
        await stream.verdict(copies=True)
        assert len(stream.observer.incarnations) >= 2


async def test_a_kafka_that_is_killed_and_started_again_has_everything_once(
    make_kafka: Callable[..., KafkaCluster], unique: str
) -> None:
    cluster = make_kafka()
    for topic, partitions in ((unique, PARTITIONS), (f"{unique}-dead", 1)):
        await create_topic(cluster.bootstrap, topic, partitions=partitions)
    stream = Stream(cluster.bootstrap, [unique], f"{unique}-dead")
    async with stream:
        await stream.feed_for(1)
        cluster.kill()
        feeding = asyncio.create_task(stream.feed_for(2))
        await asyncio.to_thread(cluster.restart)
        await feeding
        await stream.feed_for(1)
        await stream.verdict()
        assert stream.observer.incarnations == [1]
