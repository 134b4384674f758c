"""What goes to the spool and when, and that it comes back in order: on a Kafka and a disk in memory."""

import asyncio
import gc

import pytest
from structlog.testing import capture_logs

from bridge.errors import BridgeError, IncarnationError, PoisonedError, RefusedError
from bridge.ports import StoredRecord
from bridge.produce.spool_replay import SMALL_BYTES, Replayed
from bridge.wire import DeadLetterReason
from tests.unit.data_path import DEAD_LETTERS, value_of
from tests.unit.fake_kafka import DOWN, FakeKafka, FakeProducer
from tests.unit.fake_spool import FakeDisk
from tests.unit.manual_time import in_manual_time
from tests.unit.spool_path import SpoolPath, numbers


async def test_a_frozen_kafka_is_spooled_after_a_second_acknowledged_and_delivered_in_order() -> None:
    async with SpoolPath() as path:
        await path.fed(0, 5)
        path.kafka.freeze()
        under_way = path.feed(5, 5)
        await asyncio.sleep(0.5)
        behind = path.feed(10, 5)
        await asyncio.sleep(0.3)
        assert len(path.owner.released) == 5, "nothing is spooled before its time"
        await path.until(lambda: len(path.owner.released) == 15, "acknowledged by the disk", within_s=1)
        assert path.owner.released[5:] == under_way + behind
        assert path.disk.messages == 10
        assert path.held == 10
        assert path.accumulator.buffered_bytes > 0, "the batch under way is the producer's still"
        await path.fed(15, 5, within_s=0.05)
        path.kafka.thaw()
        await path.drained()
        assert numbers(path.kafka) == list(range(20)), "the late answer takes its batch off the disk: no copy"
        assert path.disk.batches() == 0
        path.feed(20, 5)
        await path.drained()
        assert path.spool.appends == 2, "once drained, nothing goes through the disk"
        assert path.ledger.delivered == 25


async def test_what_is_spooled_goes_before_what_comes_while_it_is_replayed() -> None:
    async with SpoolPath(FakeKafka("t", batch_bytes=400)) as path:
        path.topic.partitions[0].has_leader = False
        await path.sender.producer.refresh_metadata()
        count = 0
        for _ in range(40):
            path.feed(count, 7)
            count += 7
            await asyncio.sleep(0.1)
        assert path.held == count == path.disk.messages
        path.topic.partitions[0].has_leader = True
        for _ in range(200):
            path.feed(count, 7)
            count += 7
            await asyncio.sleep(0.02)
            assert path.balanced()
        await path.drained()
        assert numbers(path.kafka) == list(range(count))
        assert path.accumulator.partitions.queue("t", 0).backlog is None, "live traffic did not keep it spooling"


async def test_what_went_through_the_disk_does_not_wait_for_the_collector() -> None:
    async with SpoolPath(FakeKafka("t", batch_bytes=400)) as path:
        gc.collect()
        gc.disable()
        elsewhere = alive(Replayed)  # what a test before this one left, a failed one with its frames above all
        try:
            path.topic.partitions[0].has_leader = False
            await path.feed_slowly(0, 70, 7, every_s=0.3)
            assert path.held == 70 == path.disk.messages
            assert alive(Replayed) > elsewhere, "the first stayed in memory"
            path.topic.partitions[0].has_leader = True
            await path.drained()
            assert alive(Replayed) <= elsewhere + 1, "that of the batch whose deadline was looked at last"
        finally:
            gc.enable()


def alive(kind: type) -> int:
    return sum(type(one) is kind for one in gc.get_objects())


async def test_small_batches_of_two_qualities_that_came_in_turn_are_put_together() -> None:
    async with SpoolPath(led=False) as path:
        slots = [path.accumulator.slot("r", qos, "t", 0) for qos in (1, 2)]
        for number in range(200):
            path.append(slots[number % 2], value_of(number))
            path.flush()
            await asyncio.sleep(0.05)
        await path.until(lambda: path.disk.messages == 200, "all is on the disk")
        assert path.disk.batches() > 100
        sent: list[int] = []
        path.topic.reject = lambda records: sent.append(len(records))
        path.topic.partitions[0].has_leader = True
        await path.drained()
        assert sum(sent) == 200
        assert len(sent) < 10
        for of_one in (0, 1):
            assert [number for number in numbers(path.kafka) if number % 2 == of_one] == list(range(of_one, 200, 2))


async def test_a_large_batch_is_sent_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are copied: no record of it is read, and none is written again."""
    kafka, topic = FakeKafka.with_topic(led=False, batch_bytes=1 << 20)
    async with SpoolPath(kafka) as path:
        for number in range(3):
            path.append(path.slot("t"), value_of(number, SMALL_BYTES))
            path.flush()
            await path.until(lambda: path.disk.messages == path.ledger.received, "it is on the disk")
        monkeypatch.delattr(FakeProducer, "records")
        topic.partitions[0].has_leader = True
        await path.drained()
        assert numbers(kafka) == [0, 1, 2]


async def test_a_crash_in_the_middle_of_a_replay_repeats_and_loses_nothing() -> None:
    kafka, topic = FakeKafka.with_topic(batch_bytes=300, led=False)
    disk = FakeDisk()
    async with SpoolPath(kafka, disk) as path:
        await path.feed_slowly(0, 200, 4, every_s=0.1)
        await path.until(lambda: len(path.owner.released) == 200, "acknowledged")
        topic.partitions[0].has_leader = True
        while len(topic.values()) < 50:  # noqa: ASYNC110 - jumping time: a step is a step of the simulation
            await asyncio.sleep(0.001)
        assert len(topic.values()) < 150, "it is in the middle"
        await path.crash()
    async with SpoolPath(kafka, disk) as again:
        await again.drained()
    assert list(dict.fromkeys(numbers(kafka))) == list(range(200))
    assert len(numbers(kafka)) <= 200 + 40, "copies of what was under way alone"


async def test_an_incarnation_that_fails_leaves_its_batch_to_the_disk() -> None:
    kafka = FakeKafka()
    fails = [IncarnationError("x")] * 3
    kafka.topic("t", reject=lambda _records: fails.pop() if fails else None)
    kafka.latency_s = lambda: 3.0
    async with SpoolPath(kafka) as path:
        await path.fed(0, 10, within_s=2)
        assert path.disk.messages == 10
        path.feed(10, 10)
        await path.drained()
        assert numbers(kafka) == list(range(20))
        assert path.disk.batches() == 0
        assert path.ledger.delivered == 20


async def test_a_poisoned_record_that_comes_back_from_the_disk_is_dead_lettered_alone() -> None:
    kafka, topic = FakeKafka.with_topic()

    def reject(records: list[StoredRecord]) -> BridgeError | None:
        if any(record.value == value_of(3) for record in records):
            return PoisonedError("no", DeadLetterReason.INVALID_RECORD)
        return None

    topic.reject = reject
    topic.partitions[0].has_leader = False
    disk = FakeDisk()
    async with SpoolPath(kafka, disk) as path:
        await path.fed(0, 10)
        await path.crash()
    topic.partitions[0].has_leader = True
    async with SpoolPath(kafka, disk) as path:
        await path.drained()
        assert numbers(kafka) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert numbers(kafka, DEAD_LETTERS) == [3]
        assert path.dead == [DeadLetterReason.INVALID_RECORD]
        assert (path.ledger.recovered, path.ledger.delivered, path.ledger.dead_lettered) == (10, 9, 1)
        assert disk.batches() == 0


async def test_a_dead_letter_of_a_spooled_record_may_be_spooled_itself() -> None:
    kafka, topic = FakeKafka.with_topic()
    dead = kafka.topic(DEAD_LETTERS)
    dead.partitions[0].has_leader = False
    topic.reject = lambda _records: PoisonedError("no", DeadLetterReason.INVALID_RECORD)
    topic.partitions[0].has_leader = False
    async with SpoolPath(kafka) as path:
        await path.fed(0, 3)
        topic.partitions[0].has_leader = True
        await path.until(lambda: path.spool.waiting(DEAD_LETTERS, 0) > 0 and not path.spool.waiting("t", 0), "moved")
        assert path.held == 3
        dead.partitions[0].has_leader = True
        await path.drained()
        assert path.ledger.dead_lettered == 3
        assert numbers(kafka, DEAD_LETTERS) == [0, 1, 2]


async def test_a_full_spool_holds_back_and_goes_on_when_there_is_room() -> None:
    async with SpoolPath(led=False, max_bytes=4000) as path:
        await path.feed_slowly(0, 300, 3, every_s=0.05)
        taken = len(path.owner.released)
        assert 0 < taken < 300
        assert path.disk.bytes <= 4000
        assert path.spooler.problem
        assert path.spooler.full
        assert path.held == 300
        path.topic.partitions[0].has_leader = True
        await path.drained()
        assert not path.spooler.full
        assert numbers(path.kafka) == list(range(300))
        assert len(path.owner.released) == 300


async def test_a_disk_that_fails_acknowledges_nothing_and_is_tried_again() -> None:
    async with SpoolPath() as path:
        path.spool.fails = lambda: True
        path.kafka.freeze()
        path.feed(0, 5)
        await asyncio.sleep(4)
        path.feed(5, 5)
        assert path.owner.released == []
        assert "No space left" in (path.spooler.problem or "")
        assert 2 <= path.spool.appends <= 5, "once a second"
        path.spool.fails = lambda: False
        await path.until(lambda: len(path.owner.released) == 10, "by the disk", within_s=2)
        assert path.spooler.problem is None
        path.kafka.thaw()
        await path.drained()
        assert numbers(path.kafka) == list(range(10))


async def test_what_the_disk_destroys_is_lost_and_said_to_be() -> None:
    kafka, topic = FakeKafka.with_topic(led=False)
    disk = FakeDisk()
    async with SpoolPath(kafka, disk) as path:
        await path.feed_slowly(0, 30, 3, every_s=0.3)
        await path.until(lambda: len(path.owner.released) == 30, "by the disk")
        middle = sorted(disk.rows["t", 0])[4]
        gone = disk.destroy("t", 0, middle)
        topic.partitions[0].has_leader = True
        await path.drained()
        assert path.ledger.lost == gone
        assert len(numbers(kafka)) == 30 - gone
        assert numbers(kafka) == sorted(numbers(kafka))


async def test_a_disk_that_cannot_be_read_for_a_while_is_asked_again() -> None:
    async with SpoolPath(led=False) as path:
        await path.feed_slowly(0, 30, 3, every_s=0.3)
        await path.until(lambda: len(path.owner.released) == 30, "by the disk")
        path.spool.fails = lambda: True
        path.topic.partitions[0].has_leader = True
        await asyncio.sleep(4)
        assert path.topic.values() == []
        path.spool.fails = lambda: False
        with capture_logs() as said:
            await path.drained(within_s=5)
        assert numbers(path.kafka) == list(range(30))
        assert not [line for line in said if line["event"] == "spool_lost"], "every batch is counted out as it is read"


async def test_what_is_on_disk_and_not_yet_known_to_be_is_not_read_back() -> None:
    """The second batch is durable, its writer has not heard of it, and the first is read back: were the second taken
    along, it would be counted as on disk afterwards, looked for, and called lost."""
    async with SpoolPath(led=False) as path:
        await path.fed(0, 3)
        path.spool.latency_s = lambda: 12.0
        path.feed(3, 3)
        await path.until(lambda: path.disk.messages == 6, "durable", within_s=13)
        assert len(path.owner.released) == 3, "its writer does not know"
        path.spool.latency_s = lambda: 0.1
        path.topic.partitions[0].has_leader = True
        await path.until(lambda: numbers(path.kafka) == [0, 1, 2], "the first", within_s=2)
        assert len(path.owner.released) == 3
        await path.drained()
        assert numbers(path.kafka) == list(range(6))
        assert path.ledger.lost == 0


async def test_a_retirement_ends_when_the_rest_is_lost() -> None:
    async with SpoolPath(led=False) as path:
        await path.fed(0, 3)
        path.disk.destroy("t", 0, min(path.disk.rows["t", 0]))
        drained = asyncio.create_task(path.spooler.drained())
        path.topic.partitions[0].has_leader = True
        await path.until(lambda: path.ledger.lost == 3, "lost")
        await asyncio.wait_for(drained, 1)


async def test_batches_a_disk_no_longer_has_at_all_are_lost_too() -> None:
    async with SpoolPath(led=False) as path:
        await path.feed_slowly(0, 30, 3, every_s=0.3)
        await path.until(lambda: len(path.owner.released) == 30, "by the disk")
        gone = [path.disk.rows["t", 0].pop(number).messages for number in sorted(path.disk.rows["t", 0])[-3:]]
        path.topic.partitions[0].has_leader = True
        await path.drained()
        assert path.ledger.lost == sum(gone)


async def test_with_after_zero_everything_goes_through_the_disk() -> None:
    async with SpoolPath(after_ns=0) as path:
        path.kafka.freeze()
        await path.fed(0, 5, within_s=0.05)
        path.kafka.thaw()
        await path.feed_slowly(5, 105, 5, every_s=0.01)
        await path.drained()
        assert numbers(path.kafka) == list(range(105))
        assert path.spool.appends > 15


async def test_with_acknowledge_never_only_what_nobody_acknowledges_is_spooled() -> None:
    async with SpoolPath(led=False, acknowledges=False) as path:
        path.feed(0, 5)
        for number in range(100, 110):
            path.append(path.slot("t", qos=0), value_of(number))
        path.flush()
        await asyncio.sleep(5)
        assert path.owner.released == []
        assert path.disk.messages == 10
        path.topic.partitions[0].has_leader = True
        await path.drained()
        assert sorted(numbers(path.kafka)) == [*range(5), *range(100, 110)]
        assert [number for number in numbers(path.kafka) if number < 100] == list(range(5))


async def test_with_acknowledge_never_a_partition_without_qos_0_is_not_spooled() -> None:
    kafka = FakeKafka()
    kafka.topic("t").partitions[0].has_leader = False
    async with SpoolPath(kafka, acknowledges=False) as path:
        path.feed(0, 5)
        await asyncio.sleep(5)
        assert path.spooler.spooling() == {}


@pytest.mark.parametrize("takes", [True, False])
async def test_what_an_earlier_run_acknowledged_goes_before_what_only_kafka_acknowledges(*, takes: bool) -> None:
    """``spool.acknowledge`` has become ``never`` between the two."""
    kafka, topic = FakeKafka.with_topic(batch_bytes=200, led=False)
    async with SpoolPath(kafka) as path:
        await path.fed(0, 50)
        await path.crash()
    topic.partitions[0].has_leader = True
    async with SpoolPath(kafka, path.disk, acknowledges=False, takes=takes) as path:
        await path.feed_slowly(50, 100, 5, every_s=0.001)
        await path.drained()
        assert list(dict.fromkeys(numbers(kafka))) == list(range(100))


async def test_a_partition_that_goes_on_slowly_is_not_spooled() -> None:
    """What waits is older than ``after``, but Kafka takes a batch twice a second."""
    kafka = FakeKafka("t", batch_bytes=100)
    kafka.latency_s = lambda: 0.5
    async with SpoolPath(kafka) as path:
        path.feed(0, 40)
        await path.drained()
        assert len(path.observer.offsets) > 5
        assert path.spool.appends == 0


async def test_nothing_is_written_once_it_is_closed() -> None:
    async with SpoolPath() as path:
        path.kafka.freeze()
        await path.fed(0, 5, within_s=2)
        await path.spooler.close()
        path.feed(5, 5)
        await asyncio.sleep(3)
        assert (path.spool.appends, len(path.owner.released)) == (1, 5)


async def test_reading_back_does_not_wait_for_kafkas_answers() -> None:
    """Each read and each answer takes as long as the other: done in turns, it would take twice as long."""
    kafka, topic = FakeKafka.with_topic(batch_bytes=100_000, led=False)
    async with SpoolPath(kafka) as path:
        for number in range(120):
            path.send(value_of(number, 90_000))
        await path.until(lambda: len(path.owner.released) == 120, "by the disk")
        path.spool.latency_s = lambda: 0.2
        kafka.latency_s = lambda: 0.2
        topic.partitions[0].has_leader = True
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await path.drained()
        assert loop.time() - began_s < 1.3 * 120 * 0.2


async def test_replay_keeps_to_its_rate() -> None:
    kafka, topic = FakeKafka.with_topic(batch_bytes=1000, led=False)
    async with SpoolPath(kafka, replay_bytes_per_s=2000) as path:
        for number in range(60):
            path.send(value_of(number, 100))
        await path.until(lambda: len(path.owner.released) == 60, "by the disk")
        size = path.disk.bytes
        assert size > 6000
        topic.partitions[0].has_leader = True
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await path.drained()
        assert loop.time() - began_s == pytest.approx(size / 2000, rel=0.3)


async def test_a_kafka_that_is_away_when_its_producer_is_replaced_is_spooled() -> None:
    kafka = FakeKafka("t", request_timeout_s=1.0)
    async with SpoolPath(kafka) as path:
        path.feed(0, 5)
        await path.drained()
        kafka.unreachable = DOWN
        kafka.freeze()
        await path.feed_slowly(5, 50, 5, every_s=30)
        assert len(path.owner.released) == 50
        kafka.unreachable = None
        kafka.thaw()
        await path.drained()
        assert list(dict.fromkeys(numbers(kafka))) == list(range(50))


@pytest.mark.parametrize("disk_fails", [False, True])
@pytest.mark.parametrize("answer", ["stored", "refused", "poisoned", "replaced"])
async def test_kafka_answers_while_the_disk_is_writing_what_is_under_way(answer: str, disk_fails: bool) -> None:
    """The batch under way is written to the disk, Kafka's answer is faster, and nothing else of the partition waits:
    its end of spooling comes before the end of the write."""

    kafka = FakeKafka()
    refuses = False
    poison = PoisonedError("no", DeadLetterReason.INVALID_RECORD)
    topic = kafka.topic("t", reject=lambda records: _verdict(records) if refuses else None)

    def _verdict(records: list[StoredRecord]) -> BridgeError | None:
        if answer == "refused":
            return RefusedError("not yours")
        if answer == "replaced":
            return IncarnationError("unknown producer")
        return poison if any(record.value == value_of(7) for record in records) else None

    async with SpoolPath(kafka) as path:
        await path.fed(0, 5)
        path.spool.latency_s = lambda: 0.8
        path.spool.fails = lambda: disk_fails
        kafka.freeze()
        path.feed(5, 5)
        await path.until(lambda: path.spool.appends > 0, "the disk is writing")
        refuses = answer != "stored"
        kafka.thaw()
        path.feed(10, 5)
        await asyncio.sleep(5)
        assert path.balanced(), path.ledger
        refuses = answer == "poisoned"
        path.spool.fails = lambda: False
        await path.drained(within_s=60)
        assert not path.disk.messages
    got = numbers(kafka)
    bad = [7] if answer == "poisoned" else []
    assert got == [n for n in range(15) if n not in bad], "in order, nothing missing, nothing twice"
    assert [int(value or b"") for value in kafka.topics[DEAD_LETTERS].values()] == bad
    assert len(topic.values()) == len(got)


@pytest.mark.parametrize("after_ns", [0, 1_000_000_000])
async def test_switched_off_it_takes_nothing_and_delivers_what_it_has(after_ns: int) -> None:
    kafka, topic = FakeKafka.with_topic(led=False)
    disk = FakeDisk()
    async with SpoolPath(kafka, disk) as path:
        await path.fed(0, 10)
        await path.crash()
    async with SpoolPath(kafka, disk, after_ns=after_ns, takes=False) as path:
        path.feed(10, 10)
        await asyncio.sleep(5)
        assert path.owner.released == []
        assert (path.disk.messages, path.spool.appends) == (10, 0)
        topic.partitions[0].has_leader = True
        await path.drained()
        path.feed(20, 10)
        await path.drained()
        assert numbers(kafka) == list(range(30))
        assert path.spool.appends == 0


async def test_what_waits_for_its_dead_letters_is_not_read_again_by_the_next_outage() -> None:
    """Its row is on the disk until then. Read again, it came twice, and as many of the new rows were not read."""
    async with SpoolPath() as path:
        path.kafka.freeze()
        await path.fed(0, 3)
        (span,) = path.spooler.replay._spans
        span.pending += 1  # as a dead letter does that Kafka has not taken yet
        path.kafka.thaw()
        queue = path.accumulator.partitions.queue("t", 0)
        await path.until(lambda: queue.backlog is None, "the outage is over")
        await path.fed(3, 1)
        assert path.disk.batches() == 1
        queue.not_before_ns = path.clock_ns() + 3600 * 10**9  # after a refusal: nothing is under way
        for number in range(4, 8):
            path.feed(number, 1)
        await path.until(lambda: len(path.owner.released) == 8, "by the disk")
        queue.not_before_ns = 0
        path.sender.resume(queue)
        await path.until(lambda: len(numbers(path.kafka)) >= 8, "delivered")
        assert numbers(path.kafka) == list(range(8))
        assert path.ledger.imbalance() == 0
        path.spooler.replay.settle(span)
        await path.drained()
        assert path.disk.batches() == 0


in_manual_time(globals())
