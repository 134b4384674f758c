"""What every producer behind ``bridge.ports.Producer`` does, as a suite: the one in memory and the real one obey it.

A test module makes a subclass and a fixture ``backend``.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import pytest

from bridge.errors import IncarnationError, LeaderMissingError, PoisonedError, RefusedError, UnreachableError
from bridge.ports import BatchBuilder, Producer, StoredRecord
from bridge.wire import DeadLetterReason
from tests.waiting import DEADLINE_S, until

NOW_MS = time.time_ns() // 1_000_000


class Backend(Protocol):
    """A Kafka to test on."""

    batch_bytes: int

    async def topic(self, partitions: int = 1, *, max_batch_bytes: int | None = None) -> str:
        """Create a topic with a name of its own; each partition has a leader."""

    async def grow(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""

    def producer(self, topics: Iterable[str] = (), **changes: Any) -> Producer:
        """A producer, not started, with these changes of its settings."""

    def nowhere(self) -> Producer:
        """A producer for a broker that is not there."""

    async def read(self, topic: str, partition: int = 0) -> list[StoredRecord]:
        """All that the partition holds, as a client that is not ours reads it."""

    async def forbid(self, topic: str, *, forbidden: bool = True) -> None:
        """Take the producers' right to write to a topic away, or give it back."""

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


RECORDS = [
    StoredRecord(NOW_MS, b"key", b"value", []),
    StoredRecord(NOW_MS + 5, None, b"no key", []),
    StoredRecord(NOW_MS - 7, b"tombstone", None, []),
    StoredRecord(NOW_MS, b"", b"", []),
    StoredRecord(NOW_MS, b"k", b"headers", [("a", b"1"), ("a", b"2"), ("ünï", b"\x00\xff"), ("null", None), ("", b"")]),
    StoredRecord(NOW_MS, b"k", bytes(range(256)) * 4, [("long", b"v" * 300)]),
]


def fill(batch: BatchBuilder, records: Sequence[StoredRecord]) -> BatchBuilder:
    """Append records and close the batch."""
    for number, record in enumerate(records):
        taken = batch.append(number, record.timestamp_ms, record.key, record.value, record.headers)
        assert taken is not None, f"record {number} does not fit"
    batch.close(len(records))
    return batch


def values(*content: bytes) -> list[StoredRecord]:
    return [StoredRecord(NOW_MS, b"k", value, []) for value in content]


@contextlib.asynccontextmanager
async def running(producer: Producer) -> AsyncIterator[Producer]:
    """A producer that is started, and closed at the end."""
    try:
        await producer.start()
        yield producer
    finally:
        await producer.close(patience_s=5)


async def sent(producer: Producer, topic: str, records: Sequence[StoredRecord], partition: int = 0) -> object:
    """Send one batch, as soon as its partition has a leader: after a broker was away there is none for a moment.

    Returns what ``failure`` says of it.
    """
    batch = fill(producer.create_batch(compressed=True), records)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            answer = producer.send(topic, partition, batch)
            break
        except LeaderMissingError:
            assert time.monotonic() < deadline, f"{topic}/{partition} has no leader within {DEADLINE_S:g} s"
            await producer.refresh_metadata()
            await asyncio.sleep(0.1)
    await asyncio.wait([answer], timeout=DEADLINE_S)
    assert answer.done(), f"no answer within {DEADLINE_S:g} s"
    return producer.failure(answer)


async def delivered(producer: Producer, topic: str, batch: BatchBuilder) -> None:
    """Send a closed batch, which nothing may be wrong with."""
    answer = producer.send(topic, 0, batch)
    await asyncio.wait([answer], timeout=DEADLINE_S)
    assert producer.failure(answer) is None


class ProducerPort:
    """The behaviour the data path relies on."""

    # --- the cluster

    async def test_the_cluster_names_itself_the_same_to_every_producer(self, backend: Backend) -> None:
        topic = await backend.topic()
        first, second = backend.producer([topic]), backend.producer([topic])
        assert first.cluster_id() is None
        async with running(first):
            name = first.cluster_id()
        async with running(second):
            assert name is not None
            assert second.cluster_id() == name
        assert first.cluster_id() == name

    # --- batches

    @pytest.mark.parametrize("compressed", [False, True])
    async def test_records_arrive_as_they_were_appended(self, backend: Backend, compressed: bool) -> None:
        topic = await backend.topic()
        async with running(backend.producer([topic])) as producer:
            batch = fill(producer.create_batch(compressed=compressed), RECORDS)
            assert batch.record_count() == len(RECORDS)
            await delivered(producer, topic, batch)
            assert batch.record_count() == len(RECORDS)
        assert await backend.read(topic) == RECORDS

    @pytest.mark.parametrize("compressed", [False, True])
    async def test_records_can_be_taken_out_of_a_batch_again_sent_or_not(
        self, backend: Backend, compressed: bool
    ) -> None:
        topic = await backend.topic()
        async with running(backend.producer([topic])) as producer:
            batch = fill(producer.create_batch(compressed=compressed), RECORDS)
            await producer.send(topic, 0, batch)
            assert producer.records(batch) == RECORDS
            assert producer.records(fill(producer.create_batch(compressed=compressed), RECORDS)) == RECORDS

    async def test_a_batch_made_by_one_incarnation_is_sent_by_the_next_and_records_outlive_it(
        self, backend: Backend
    ) -> None:
        topic = await backend.topic()
        async with running(backend.producer([topic])) as old:
            sent_by_old = fill(old.create_batch(compressed=True), values(b"1"))
            await old.send(topic, 0, sent_by_old)
            unsent = fill(old.create_batch(compressed=True), values(b"2"))
        assert old.records(sent_by_old) == values(b"1")
        async with running(backend.producer([topic])) as new:
            await new.send(topic, 0, unsent)
        assert await backend.read(topic) == values(b"1", b"2")

    async def test_a_batch_is_kept_as_bytes_and_sent_in_another_life_sent_before_or_not(self, backend: Backend) -> None:
        topic = await backend.topic()
        async with running(backend.producer([topic])) as old:
            unsent = fill(old.create_batch(compressed=True), RECORDS)
            twice = fill(old.create_batch(compressed=False), values(b"1", b"2"))
            await delivered(old, topic, twice)
            kept = [twice.encode(), unsent.encode()]
        async with running(backend.producer([topic])) as new:
            for data in kept:
                batch = new.restore(data)
                await delivered(new, topic, batch)
                assert new.records(batch)
            assert new.records(new.restore(kept[1])) == RECORDS
        assert await backend.read(topic) == values(b"1", b"2", b"1", b"2") + RECORDS

    async def test_a_full_batch_says_so_and_holds_what_it_had(self, backend: Backend) -> None:
        topic = await backend.topic()
        async with running(backend.producer([topic])) as producer:
            batch = producer.create_batch(compressed=False)
            empty = batch.size()
            record = StoredRecord(NOW_MS, b"k", b"." * 1000, [("h", b"v")])
            count = 0
            while batch.append(count, record.timestamp_ms, record.key, record.value, record.headers) is not None:
                count += 1
                assert empty + 1000 * count < batch.size() <= backend.batch_bytes
            assert backend.batch_bytes - 1100 < batch.size()
            assert batch.append(count, NOW_MS, None, record.value, []) is None  # full is not closed: it stays full
            batch.close(count)
            assert batch.record_count() == count
            await producer.send(topic, 0, batch)
        assert await backend.read(topic) == [record] * count

    async def test_a_first_record_fits_whatever_its_size(self, backend: Backend) -> None:
        topic = await backend.topic()
        async with running(backend.producer([topic])) as producer:
            large = values(b"." * (2 * backend.batch_bytes))
            batch = producer.create_batch(compressed=True)
            assert batch.append(0, NOW_MS, b"k", large[0].value, []) is not None
            assert batch.append(1, NOW_MS, b"k", b"", []) is None
            batch.close(1)
            await producer.send(topic, 0, batch)
        assert await backend.read(topic) == large

    # --- sending

    async def test_batches_of_a_partition_are_in_the_order_sent(self, backend: Backend) -> None:
        topic = await backend.topic(2)
        async with running(backend.producer([topic])) as producer:
            for number in range(20):
                answers = [
                    producer.send(topic, n, fill(producer.create_batch(compressed=True), values(b"%d" % number)))
                    for n in (0, 1)
                ]
                async with asyncio.timeout(DEADLINE_S):
                    await asyncio.gather(*answers)
        for partition in (0, 1):
            assert await backend.read(topic, partition) == values(*(b"%d" % n for n in range(20)))

    async def test_the_answer_is_the_offset_of_the_first_record(self, backend: Backend) -> None:
        topic = await backend.topic(2)
        async with running(backend.producer([topic])) as producer:
            for partition, before, size in ((0, 0, 3), (0, 3, 1), (1, 0, 2), (0, 4, 2)):
                batch = fill(producer.create_batch(compressed=True), values(*(b"%d" % n for n in range(size))))
                async with asyncio.timeout(DEADLINE_S):
                    assert await producer.send(topic, partition, batch) == before

    async def test_sending_does_not_wait(self, backend: Backend) -> None:
        topic = await backend.topic(12)
        async with running(backend.producer([topic])) as producer:
            ran: list[int] = []
            asyncio.get_running_loop().call_soon(ran.append, 1)
            answers = [
                producer.send(topic, n, fill(producer.create_batch(compressed=True), values(b"%d" % n)))
                for n in range(12)
            ]
            assert not ran
            assert not any(answer.done() for answer in answers)
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(*answers)
        assert [await backend.read(topic, n) for n in range(12)] == [values(b"%d" % n) for n in range(12)]

    @pytest.mark.parametrize("partition", [0, 7])
    async def test_a_partition_that_metadata_does_not_know_is_refused_at_once_and_nothing_is_spent(
        self, backend: Backend, partition: int
    ) -> None:
        topic = await backend.topic()
        async with running(backend.producer([topic])) as producer:
            batch = fill(producer.create_batch(compressed=True), values(b"x"))
            with pytest.raises(LeaderMissingError):
                producer.send(topic if partition else f"{topic}-missing", partition, batch)
            assert not producer.has_leader(topic, 7)
            assert not producer.has_leader(f"{topic}-missing", 0)
            await producer.send(topic, 0, batch)  # the same batch, and no sequence number is missing
        assert await backend.read(topic) == values(b"x")

    # --- refusals

    async def test_a_batch_too_large_for_its_topic_is_poisoned_and_the_producer_serves_on(
        self, backend: Backend
    ) -> None:
        topic = await backend.topic(max_batch_bytes=3000)
        async with running(backend.producer([topic])) as producer:
            assert await sent(producer, topic, values(b"before")) is None
            for _ in range(3):
                noise = b"".join(n.to_bytes(4) for n in range(7**5, 7**5 * 3, 7))[:9000]  # hard to compress
                failure = await sent(producer, topic, values(noise))
                assert isinstance(failure, PoisonedError)
                assert failure.reason is DeadLetterReason.TOO_LARGE
            assert await sent(producer, topic, values(b"after")) is None
            assert await sent(producer, topic, values(b"and on")) is None
        assert await backend.read(topic) == values(b"before", b"after", b"and on")

    async def test_a_right_to_write_that_is_lost_is_refused_and_comes_back(self, backend: Backend) -> None:
        topic, other = await backend.topic(), await backend.topic()
        async with running(backend.producer([topic, other])) as producer:
            assert await sent(producer, topic, values(b"before")) is None
            await backend.forbid(topic)
            assert isinstance(await sent(producer, topic, values(b"refused")), RefusedError)
            assert await sent(producer, other, values(b"beside")) is None
            await backend.forbid(topic, forbidden=False)
            async with asyncio.timeout(DEADLINE_S):  # a broker's cache of rights is renewed soon, not at once
                while await sent(producer, topic, values(b"after")) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert await backend.read(topic) == values(b"before", b"after")

    # --- metadata

    async def test_the_topics_it_was_made_with_are_known_once_it_has_started(self, backend: Backend) -> None:
        topic = await backend.topic(3)
        async with running(backend.producer([topic])) as producer:
            assert producer.partition_count(topic) == 3
            assert [producer.has_leader(topic, n) for n in range(4)] == [True, True, True, False]
            assert producer.partition_count(f"{topic}-missing") is None
            assert producer.metadata_refreshed_ns() > 0

    async def test_a_topic_watched_later_becomes_known(self, backend: Backend) -> None:
        first, later = await backend.topic(), await backend.topic(2)
        async with running(backend.producer([first])) as producer:
            assert producer.partition_count(later) is None
            producer.watch_topic(later)
            producer.watch_topic(later)  # again changes nothing
            await until(lambda: producer.partition_count(later) == 2, "watched")
            assert await sent(producer, later, values(b"x"), 1) is None
            assert producer.partition_count(first) == 1  # and the others stay known

    async def test_metadata_is_renewed_by_itself_and_when_asked(self, backend: Backend) -> None:
        topic = await backend.topic()
        async with running(backend.producer([topic])) as producer:
            first = producer.metadata_refreshed_ns()
            assert await producer.refresh_metadata()
            second = producer.metadata_refreshed_ns()
            assert second > first
            await backend.grow(topic, 2)
            await until(lambda: producer.partition_count(topic) == 2, "seen after metadata_max_age")
            assert producer.metadata_refreshed_ns() > second

    # --- ends

    async def test_after_the_close_nothing_is_taken_and_nothing_waits(self, backend: Backend) -> None:
        topic = await backend.topic()
        async with running(backend.producer([topic])) as producer:
            batch = fill(producer.create_batch(compressed=True), values(b"x"))
        with pytest.raises(IncarnationError):
            producer.send(topic, 0, batch)
        async with asyncio.timeout(DEADLINE_S):
            assert not await producer.refresh_metadata()
            await producer.close(patience_s=1)  # again changes nothing
        assert producer.create_batch(compressed=True).size() < 100  # the data path may be filling while it is replaced
        assert producer.records(batch) == values(b"x")
        assert await backend.read(topic) == []

    async def test_one_that_never_started_can_be_closed(self, backend: Backend) -> None:
        await backend.producer().close(patience_s=1)

    async def test_a_broker_that_is_not_there_is_unreachable(self, backend: Backend) -> None:
        producer = backend.nowhere()
        with pytest.raises(UnreachableError):
            await producer.start()
        await producer.close(patience_s=1)

    async def test_a_frozen_kafka_answers_nothing_until_it_thaws_and_then_everything(self, backend: Backend) -> None:
        topic = await backend.topic()
        async with running(backend.producer([topic], request_timeout=timedelta(minutes=1))) as producer:
            assert await sent(producer, topic, values(b"before")) is None
            backend.freeze()
            try:
                answer = producer.send(topic, 0, fill(producer.create_batch(compressed=True), values(b"frozen")))
                done, _ = await asyncio.wait([answer], timeout=1)
                assert not done
            finally:
                backend.thaw()
            async with asyncio.timeout(DEADLINE_S):
                await answer
            assert producer.failure(answer) is None
            assert await sent(producer, topic, values(b"after")) is None
        assert await backend.read(topic) == values(b"before", b"frozen", b"after")

    async def test_a_frozen_kafka_does_not_hold_up_the_close(self, backend: Backend) -> None:
        topic = await backend.topic()
        producer = backend.producer([topic])
        async with running(producer):
            backend.freeze()
            try:
                answer = producer.send(topic, 0, fill(producer.create_batch(compressed=True), values(b"x")))
                await asyncio.wait([answer], timeout=0.2)
                begun = time.monotonic()
                await producer.close(patience_s=1)
                assert time.monotonic() - begun < 10
                assert not answer.done()
            finally:
                backend.thaw()
