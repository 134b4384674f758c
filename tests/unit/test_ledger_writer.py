"""The ledger topic is written beside the data path: in order, to the end, and never in its way."""

import asyncio
import itertools
import json
import time

import pytest
from structlog.testing import capture_logs

from bridge import wire
from bridge.errors import BridgeError, IncarnationError, PoisonedError
from bridge.ledger import LedgerSnapshot
from bridge.ledger_topic.intervals import Entry, EntryKey, Interval
from bridge.ledger_topic.records import Author, PartitionRecord, WorkerRecord, decode, partition_records, worker_record
from bridge.ports import StoredRecord
from config.errors import ExitStatus
from tests.kinds import is_a
from tests.unit.fake_kafka import FakeKafka
from tests.unit.ledger_path import GATEWAY, INTERVAL_MS, LEDGER, FakeLog, LedgerPath, ledger_partition, ledger_records
from tests.unit.manual_time import in_manual_time


def workers(kafka: FakeKafka) -> list[WorkerRecord]:
    return [record for record in ledger_records(kafka) if isinstance(record, WorkerRecord)]


def partitions(kafka: FakeKafka) -> list[PartitionRecord]:
    return [record for record in ledger_records(kafka) if isinstance(record, PartitionRecord)]


async def test_a_life_from_its_first_record_to_its_last() -> None:
    async with LedgerPath(before=("earlier", False)) as path:
        began_ms = path.writer._author.started_ms
        await path.until(lambda: not path.writer.waiting, "the first record does not wait for an interval's end")
        (first,) = workers(path.kafka)
        assert (first.state, first.number, first.entries, first.started_ms) == ("started", 0, 0, began_ms)
        assert (first.previous_life, first.previous_clean) == ("earlier", False)
        await path.deliver("t", 7)
        await path.deliver("t", 2, partition=1)
        await path.interval()
        await path.interval()
        await path.deliver("t", 1)
    assert path.written is True
    await asyncio.sleep(10 * 60)
    assert not path.writer.waiting, "no interval begins after the last"
    states = [(one.number, one.state, one.entries, one.acknowledged) for one in workers(path.kafka)]
    assert states == [(0, "started", 0, 0), (1, "running", 2, 9), (2, "running", 0, 9), (3, "stopped", 1, 10)]
    account = [
        (one.number, one.partition, one.records, one.first_offset, one.last_offset) for one in partitions(path.kafka)
    ]
    assert sorted(account) == [(1, 0, 7, 0, 6), (1, 1, 2, 0, 1), (3, 0, 1, 7, 7)]
    last = workers(path.kafka)[-1]
    assert last.terms == {"received": 10, "delivered": 10} | dict.fromkeys(
        ("recovered", "filtered", "dead_lettered", "copies", "in_flight", "returned", "lost"), 0
    )
    assert last.imbalance == 0


async def test_intervals_end_at_full_minutes_of_the_wall_clock_and_leave_no_time_out() -> None:
    async with LedgerPath() as path:
        for _ in range(3):
            await path.interval()
    times = [(one.from_ms, one.to_ms) for one in workers(path.kafka)]
    assert all(to_ms % INTERVAL_MS == 0 for _, to_ms in times[1:-1])
    assert len(times) == 5
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(times))


async def test_the_records_are_as_the_schema_says_and_keyed_so_that_a_key_is_in_order() -> None:
    async with LedgerPath() as path:
        await path.deliver_interval("t", 3)
    fields = {kind: {f.name for f in wire.LEDGER_FIELDS if f.of in ("both", kind)} for kind in ("partition", "worker")}
    for number, partition in enumerate(path.kafka.topics[LEDGER].partitions):
        for record in partition.log:
            document = json.loads(record.value or b"")
            assert document.keys() == fields[document["kind"]]
            key = f"{GATEWAY}/0"
            if document["kind"] == "partition":
                key += f"/{document['route']}/{document['topic']}/{document['partition']}"
            assert record.key == key.encode()
            assert ledger_partition(record.key) == number


async def test_a_route_that_stops_being_tagged_is_not_for_the_interval_under_way() -> None:
    async with LedgerPath() as path:
        await path.deliver_interval("t", 1)
        await path.deliver("t", 1)
        path.writer.adopt(frozenset())
        await path.deliver("t", 1, tagged=False)
        await path.interval()
    written = [json.loads(record.value or b"") for part in path.kafka.topics[LEDGER].partitions for record in part.log]
    assert [one["tagged"] for one in written if one["kind"] == "partition"] == [True, False]


async def test_while_kafka_is_frozen_the_intervals_wait_and_the_path_owes_them_nothing() -> None:
    async with LedgerPath() as path:
        await path.deliver("t", 5)
        path.kafka.freeze()
        await asyncio.sleep(10 * 60)
        assert path.writer.waiting >= 9
        assert path.held == 0, "its records are no messages"
        path.kafka.thaw()
        await path.deliver("t", 5)
        await path.until(lambda: not path.writer.waiting, "written")
    numbers = [one.number for one in workers(path.kafka)]
    assert numbers == list(range(len(numbers)))
    assert sum(one.records for one in partitions(path.kafka)) == 10


async def test_a_ledger_topic_that_takes_nothing_holds_up_neither_messages_nor_the_stop_and_memory_is_bounded() -> None:
    kafka = FakeKafka("t", 2)
    kafka.topic(LEDGER, 1, refused=True)
    path = LedgerPath(kafka)
    async with path:
        for _ in range(130):
            await path.deliver("t", 1)
            await asyncio.sleep(60)
        assert len(path.owner.released) == 130
        assert path.writer.waiting == 61, "sixty, and the one that is tried"
        assert not path.renewals, "that it is refused is no fault of the producer"
        began_s = asyncio.get_running_loop().time()
        assert await path.writer.stop(time.monotonic_ns() + 100_000_000) is False
        assert asyncio.get_running_loop().time() - began_s <= 0.1
        path._crashed = True
    assert not kafka.topics[LEDGER].records()


async def test_what_waited_too_long_is_put_together_and_still_complete() -> None:
    kafka = FakeKafka("t", 2)
    ledger = kafka.topic(LEDGER, 1, refused=True)
    async with LedgerPath(kafka) as path:
        for _ in range(130):
            await path.deliver("t", 1)
            await asyncio.sleep(60)
        ledger.refused = False
        await path.until(lambda: not path.writer.waiting, "written")
    assert sum(one.records for one in partitions(kafka)) == 130
    found = [
        offset for one in partitions(kafka) for first, count in one.runs or () for offset in range(first, first + count)
    ]
    assert sorted(found) == list(range(130))
    times = [(one.from_ms, one.to_ms) for one in workers(kafka)]
    assert max(end - begin for begin, end in times) > 60 * 60_000
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(times))


async def test_a_ledger_topic_made_anew_with_fewer_partitions_is_written() -> None:
    """As an operator makes it whose single replicas died with their broker."""
    kafka = FakeKafka("t", 2)
    for partition in kafka.topic(LEDGER, 12).partitions:
        partition.has_leader = False
    async with LedgerPath(kafka) as path:
        await path.deliver("t", 7)
        await asyncio.sleep(90)
        assert path.writer.waiting >= 2
        kafka.topic(LEDGER, 1)
        await path.until(lambda: not path.writer.waiting, "written")
    assert (await FakeLog(kafka).verify()).exit_status is ExitStatus.OK
    assert sum(one.records for one in partitions(kafka)) == 7


async def test_a_lost_answer_means_the_same_record_again_with_its_own_number() -> None:
    async with LedgerPath() as path:
        await path.until(lambda: not path.writer.waiting, "begun")
        losing = True
        path.kafka.lose = lambda: losing
        await asyncio.sleep(61)  # the interval is written, but nobody says so
        losing = False
        path.sender.renew("a test")
        await path.until(lambda: not path.writer.waiting and path.sender.producer.started, "written")
        await path.interval()
    numbers = [one.number for one in workers(path.kafka)]
    assert numbers == sorted(numbers)
    assert numbers.count(1) == 2
    assert set(numbers) == set(range(max(numbers) + 1))


async def test_a_record_that_is_refused_for_good_is_said_and_the_others_are_written() -> None:
    kafka = FakeKafka("t", 2)

    def reject(records: list[StoredRecord]) -> BridgeError | None:
        bad = [one for one in records if b'"topic":"t","partition":1,' in (one.value or b"")]
        return PoisonedError("too large") if bad else None

    kafka.topic(LEDGER, 1, reject=reject)
    async with LedgerPath(kafka) as path:
        await path.deliver("t", 3, partition=0)
        await path.deliver("t", 4, partition=1)
        await path.interval()
    assert [(one.partition, one.records) for one in partitions(kafka)] == [(0, 3)]
    assert [one.unwritten for one in workers(kafka)] == [0, 1, 1]
    assert "worker 0, life life: Kafka refused 1 ledger records" in (await FakeLog(kafka).verify()).unjudged


async def test_a_defect_is_said_at_once_and_not_first_at_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    path = LedgerPath()
    monkeypatch.setattr(path.writer, "_write", None)
    with capture_logs() as lines:
        async with path:
            await path.deliver("t", 1)
            assert [line["event"] for line in lines if line["log_level"] == "error"] == ["ledger_broken"]
            path.crash()


async def test_a_producer_that_is_spoiled_for_the_ledger_alone_is_replaced_but_not_over_and_over() -> None:
    kafka = FakeKafka("t", 2)
    broken = True
    kafka.topic(LEDGER, 1, reject=lambda _records: IncarnationError("OutOfOrderSequenceNumber") if broken else None)
    async with LedgerPath(kafka) as path:
        await path.until(lambda: path.renewals, "another producer is asked for")
        await asyncio.sleep(300)
        await path.deliver("t", 3)
        assert len(path.renewals) == 1
        assert path.observer.incarnations == [1, 2]
        broken = False
        await asyncio.sleep(600)
        await path.until(lambda: not path.writer.waiting, "written")
    assert sum(one.records for one in partitions(kafka)) == 3


def test_a_record_of_a_version_that_knew_no_copies_is_read() -> None:
    author = Author("gw", 0, "life", 0)
    interval = Interval(0, 60_000, {}, LedgerSnapshot(9, 0, 5, 0, 0, 4, 0, 0, 0), 5)
    _, value = worker_record(author, 0, interval, "running", 0)
    record = is_a(WorkerRecord, decode(value))
    assert record.terms["copies"] == 4
    document = json.loads(value)
    del document["copies"]
    assert is_a(WorkerRecord, decode(json.dumps(document).encode())).terms == record.terms | {"copies": 0}


def test_records_without_an_offset_have_no_bounds() -> None:
    entry = Entry()
    entry.begin_run(-1, 2)
    interval = Interval(0, 60_000, {EntryKey("a", "t", 0, dead_letter=False): entry}, LedgerSnapshot(*[0] * 9), 2)
    ((_, value),) = partition_records(Author("gw", 0, "life", 0), 0, interval, ())
    record = is_a(PartitionRecord, decode(value))
    assert (record.first_offset, record.last_offset, record.runs, record.unlocated) == (None, None, [], 2)


def test_what_is_no_ledger_record_is_said_to_be_none() -> None:
    from bridge.ledger_topic.records import LedgerRecordError

    for value in (None, b"", b"{}", b"[]", b'{"v":1,"kind":"partition"}', b'{"v":"x"}', b"\xff"):
        with pytest.raises(LedgerRecordError, match="no record of a ledger"):
            decode(value)
    with pytest.raises(LedgerRecordError, match="version 2"):
        decode(b'{"v":2,"kind":"partition"}')


in_manual_time(globals())
