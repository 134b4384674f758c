"""What must not stand still, or grow, while the spool is at work: reading, replays, a retirement, the alarm."""

import asyncio

import pytest

from bridge.errors import PoisonedError, RefusedError
from bridge.produce.batch import Span
from bridge.produce.parking import mark_unfinished
from bridge.produce.spooler import WRITE_BYTES
from bridge.wire import DeadLetterReason
from gateway.mqtt.flow import Flow
from tests.unit.data_path import DEAD_LETTERS, value_of
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import in_manual_time
from tests.unit.spool_path import S, SpoolPath, numbers


class FlowingPath(SpoolPath):
    """With the flow that pauses reading when memory is full."""

    flow: Flow

    def completed(self, span: Span) -> None:
        super().completed(span)
        delivered = self.ledger.delivered, self.ledger.dead_lettered, self.ledger.filtered
        owed, span.owed = span.owed, []
        self.flow.completed(span)
        span.owed = owed
        self.ledger.delivered, self.ledger.dead_lettered, self.ledger.filtered = delivered


async def test_reading_goes_on_when_what_filled_memory_was_on_disk_already() -> None:
    """The batches under way fill half of memory, the disk has them, so every span has completed: only Kafka's answers
    free the bytes, and no span completes with them."""
    kafka = FakeKafka("t", 4)
    async with FlowingPath(kafka) as path:
        flow = path.flow = Flow(
            path.accumulator, path.sender, path.ledger, linger_ns=1, pacing_ns=1_000_000, memory_bytes=20_000
        )
        kafka.freeze()
        for partition in range(4):
            path.append(path.slot("t", partition), value_of(partition, 6_000))
        path.flush()
        flow.took(0, 0, pressed=False)
        assert flow.paused
        await path.until(lambda: len(path.owner.released) == 4, "by the disk", within_s=3)
        assert flow.paused
        kafka.thaw()
        await path.drained()
        assert not flow.paused, "nothing is held, and nothing is read"
        assert path.accumulator.freed is None, "a flow that reads need not be told"
        flow.close()


async def test_a_retirement_waits_for_records_of_unfinished_messages_too() -> None:
    """One message, two records in two partitions; it is counted with the second, and the first one's row with none."""
    kafka, topic = FakeKafka.with_topic(2, led=False)
    async with SpoolPath(kafka) as path:
        path.accumulator.now_ns = path.clock_ns()
        first, last = path.slot("t", 0), path.slot("t", 1)
        path.accumulator.append(first, timestamp=7, key=None, value=b"0", headers=[])
        mark_unfinished(first)
        path.append(last, b"1")
        path.flush()
        await path.until(lambda: len(path.owner.released) == 1, "by the disk and by Kafka", within_s=3)
        assert path.disk.batches() == 1
        drained = asyncio.create_task(path.spooler.drained())
        await asyncio.sleep(1)
        assert not drained.done(), "its first record is on this disk alone"
        topic.partitions[0].has_leader = True
        await drained
        assert sorted(numbers(kafka)) == [0, 1]
        assert path.disk.batches() == 0


async def test_the_alarm_of_a_full_spool_ends_with_the_outage() -> None:
    async with SpoolPath(max_bytes=3500) as path:
        path.kafka.freeze()
        path.send(value_of(0, 2000))
        await path.until(lambda: len(path.owner.released) == 1, "by the disk", within_s=3)
        path.send(value_of(1, 2000))
        await asyncio.sleep(1)
        assert path.spooler.problem
        path.kafka.thaw()
        await path.drained()
        assert path.spooler.spooling() == {}
        assert path.spooler.problem is None


async def test_the_alarm_goes_on_while_one_partition_still_needs_the_disk() -> None:
    kafka = FakeKafka()
    one, other = kafka.topic("t", 2).partitions
    one.has_leader = other.has_leader = False
    async with SpoolPath(kafka) as path:
        path.spool.fails = lambda: True
        for partition in range(2):
            path.append(path.slot("t", partition), value_of(partition))
        path.flush()
        await path.until(lambda: path.spooler.problem is not None, "the disk fails", within_s=5)
        other.has_leader = True
        await path.until(lambda: path.spooler.spooling() == {"t": [0]}, "the other goes on", within_s=5)
        assert path.spooler.problem is not None
        one.has_leader = True
        await path.drained()
        assert path.spooler.problem is None, "nobody asks the disk any more"


async def test_a_batch_that_would_fit_does_not_overtake_one_that_does_not() -> None:
    async with SpoolPath(led=False, max_bytes=5500) as path:
        for number, size in ((0, 2000), (1, 3000), (2, 10)):
            path.append(path.slot("t"), value_of(number, size))
            path.accumulator.make_due(path.slot("t"))
        path.flush()
        await asyncio.sleep(3)
        assert path.disk.messages == 1
        path.topic.partitions[0].has_leader = True
        await path.drained()
        assert numbers(path.kafka) == [0, 1, 2]


async def test_batches_of_a_write_that_failed_keep_their_order() -> None:
    async with SpoolPath(led=False) as path:
        path.spool.fails = lambda: True
        for number in range(4):
            path.append(path.slot("t"), value_of(number))
            path.accumulator.make_due(path.slot("t"))
        path.flush()
        await path.until(lambda: path.spooler.problem is not None, "the disk fails", within_s=5)
        path.spool.fails = lambda: False
        await path.until(lambda: path.disk.messages == 4, "the disk is well", within_s=5)
        path.topic.partitions[0].has_leader = True
        await path.drained()
        assert numbers(path.kafka) == list(range(4))


async def test_records_without_a_key_go_round_a_partition_that_is_spooled() -> None:
    kafka, topic = FakeKafka.with_topic(2, led=False)
    async with SpoolPath(kafka) as path:
        path.feed(0, 1)
        await path.until(lambda: path.disk.messages == 1, "spooled", within_s=5)
        slot = path.accumulator.keyless_slot(path.route, 1, "t", 2)
        for number in range(1, 5):
            path.append(slot, value_of(number), key=None)
            path.flush()
            await asyncio.sleep(0.1)
        assert path.disk.messages == 1
        assert numbers(kafka) == [1, 2, 3, 4]
        topic.partitions[0].has_leader = True
        await path.drained()


async def test_one_write_is_of_bounded_size() -> None:
    kafka = FakeKafka(batch_bytes=WRITE_BYTES)
    kafka.topic("t").partitions[0].has_leader = False
    async with SpoolPath(kafka) as path:
        for number in range(4):
            path.append(path.slot("t"), value_of(number, WRITE_BYTES // 2 - 5000))
            path.accumulator.make_due(path.slot("t"))
        path.flush()
        await path.until(lambda: len(path.owner.released) == 4, "by the disk", within_s=3)
        assert path.spool.appends == 2


@pytest.mark.parametrize("patience_s", [0.0, 1.0])
async def test_what_is_answered_while_it_closes_is_removed_and_nothing_afterwards(patience_s: float) -> None:
    async with SpoolPath(led=False) as path:
        await path.fed(0, 5, within_s=3)
        path.kafka.latency_s = lambda: 0.5
        path.topic.partitions[0].has_leader = True
        await path.until(lambda: path.accumulator.partitions.queue("t", 0).in_flight is not None, "under way")
        await path.spooler.close(patience_s=patience_s)
        rows = path.disk.batches()
        assert rows == (0 if patience_s else 1)
        await asyncio.sleep(2)
        assert numbers(path.kafka) == list(range(5))
        assert path.disk.batches() == rows, "the store may be closed by now"


async def test_a_batch_larger_than_one_write_is_spooled_by_itself() -> None:
    kafka = FakeKafka(batch_bytes=WRITE_BYTES + 5000)
    kafka.topic("t").partitions[0].has_leader = False
    async with SpoolPath(kafka) as path:
        path.feed(0, 2)
        await asyncio.sleep(2)
        path.send(value_of(2, WRITE_BYTES + 1))
        await path.fed(3, 2, within_s=3)
        assert path.disk.messages == 5
        kafka.topics["t"].partitions[0].has_leader = True
        await path.drained()
        assert numbers(kafka) == list(range(5))


async def test_a_replay_whose_dead_letters_nobody_takes_does_not_fill_memory() -> None:
    """All that is on disk is poisoned, Kafka does not take dead letters, and the disk has no room for them."""
    kafka, topic = FakeKafka.with_topic(2, batch_bytes=100_000)
    dead = kafka.topic(DEAD_LETTERS)
    topic.partitions[0].has_leader = topic.partitions[1].has_leader = False
    async with SpoolPath(kafka) as path:
        for number in range(150):
            path.send(value_of(number, 90_000))
            await asyncio.sleep(0.02)
        await path.until(lambda: len(path.owner.released) == 150, "by the disk", within_s=3)
        for number in range(5000, 5005):
            path.send(value_of(number, 90_000), "t", 1)
            await asyncio.sleep(0.02)
        await path.until(lambda: len(path.owner.released) == 155, "by the disk", within_s=3)
        path.spool.max_bytes = path.disk.bytes
        topic.reject = lambda records: (
            None if (records[0].value or b"").startswith(b"500") else PoisonedError("no", DeadLetterReason.TOO_LARGE)
        )
        dead.refused = True
        topic.partitions[0].has_leader = topic.partitions[1].has_leader = True
        await asyncio.sleep(60)
        assert path.spooler.accumulator.buffered_bytes < 6_000_000
        assert len(topic.partitions[1].log) == 5, "another partition's backlog is read on"
        assert path.held == 150
        dead.refused = False
        await path.drained(within_s=3000)
        assert path.ledger.dead_lettered == 150
        assert path.disk.batches() == 0


async def test_what_only_kafka_acknowledges_gets_its_turn_where_all_else_goes_through_the_disk() -> None:
    async with SpoolPath(after_ns=0, acknowledges=False) as path:
        waited = path.append(path.slot("t", qos=1), value_of(1_000_000))
        for number in range(3000):
            path.accumulator.now_ns = path.clock_ns()
            path.ledger.received += 1
            path.accumulator.append(path.slot("t", qos=0), timestamp=7, key=b"k", value=value_of(number), headers=[])
            path.flush()
            await asyncio.sleep(0.001)
            if path.owner.released:
                break
        assert path.owner.released == [waited]
        await path.drained()


async def test_what_is_on_disk_gets_its_turn_beside_what_only_kafka_acknowledges() -> None:
    kafka, topic = FakeKafka.with_topic(batch_bytes=200, led=False)
    async with SpoolPath(kafka, acknowledges=False) as path:
        for number in range(50):
            path.append(path.slot("t", qos=0), value_of(number))
            path.append(path.slot("t", qos=1), value_of(1000 + number))
            path.flush()
            await asyncio.sleep(0.1)
        topic.partitions[0].has_leader = True
        count = 1050
        while len(topic.values()) < 150:
            for _ in range(2):
                path.append(path.slot("t", qos=1), value_of(count))
                path.flush()
                count += 1
            await asyncio.sleep(0.005)
        assert sum(number < 50 for number in numbers(kafka)) > 20
        await path.drained()
        assert sorted(numbers(kafka)) == [*range(50), *range(1000, count)]


@pytest.mark.parametrize("after_ns", [0, S])
async def test_a_refused_partition_is_spooled_in_order_while_it_is_tried(after_ns: int) -> None:
    async with SpoolPath(after_ns=after_ns) as path:
        path.topic.reject = lambda _records: RefusedError("not authorised")
        await path.feed_slowly(0, 100, 5, every_s=0.2)
        await path.until(lambda: len(path.owner.released) == 100, "by the disk")
        path.topic.reject = None
        await path.drained()
        assert numbers(path.kafka) == list(range(100))


in_manual_time(globals())
