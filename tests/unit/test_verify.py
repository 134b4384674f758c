"""`gateway verify` notices one record too few and one too many, and says what it cannot know."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from bridge.commands.reading import BadCommandError
from bridge.dead_letters.reading import LoggedRecord
from bridge.dead_letters.reading import Place as LogPlace
from bridge.ledger import LedgerSnapshot
from bridge.ledger_topic.intervals import Interval, SessionLoss
from bridge.ledger_topic.records import Author, PartitionRecord, State, WorkerRecord, decode, worker_record
from bridge.ports import StoredRecord
from bridge.wire import DeadLetterReason
from config.errors import ExitStatus
from config.settings import DeadLetterSettings, Settings
from gateway.cli.records.verify_text import as_document, as_text
from gateway.cli.table import as_json
from gateway.components.command_letters import CommandDeadLetters
from gateway.tools.verify.before import Before
from gateway.tools.verify.check import Span, Verdict
from gateway.tools.verify.lives import Lives, Window
from gateway.tools.verify.log import FoundRecord, PartitionView, TopicView
from gateway.tools.verify.place import Place, PlaceResult
from gateway.tools.verify.reader import KafkaReader
from tests.unit.fake_kafka import FakeKafka, FakePartition
from tests.unit.ledger_path import LEDGER, TAG, FakeLog, LedgerPath
from tests.unit.manual_time import in_manual_time

DAY_MS = 86_400_000


def place(verdict: Verdict, topic: str = "t", partition: int = 0) -> PlaceResult:
    (found,) = [one for one in verdict.places if (one.topic, one.partition) == (topic, partition)]
    assert found.acknowledged == (found.found + found.missing + found.expired + found.compacted + found.unjudged)
    return found


def records(log: FakeLog, partition: int = 0) -> list[StoredRecord]:
    return log.kafka.topics["t"].partitions[partition].log


async def delivered() -> FakeLog:
    """A whole life that delivered ten messages to one partition, in two intervals."""
    async with LedgerPath(FakeKafka("t", 2)) as path:
        await path.deliver_interval("t", 5)
        await path.deliver("t", 5)
    assert path.written
    return FakeLog(path.kafka)


def foreign() -> StoredRecord:
    return StoredRecord(1_000_000, b"k", b"foreign", [])


async def between_others(*, listed: bool = True) -> FakeLog:
    """Twenty messages, with the record of another writer before every second one."""
    kafka, topic = FakeKafka.with_topic(2)
    with pytest.MonkeyPatch.context() as patch:
        if not listed:
            patch.setattr("bridge.ledger_topic.intervals.MAX_RUNS", 2)
        async with LedgerPath(kafka) as path:
            for _ in range(10):
                topic.partitions[0].log.append(foreign())
                await path.deliver("t", 2)
    return FakeLog(kafka)


# --- all is well ---


async def test_all_there() -> None:
    verdict = await (await delivered()).verify()
    assert verdict.exit_status is ExitStatus.OK
    result = place(verdict)
    assert (result.state, result.acknowledged, result.found, result.messages) == ("ok", 10, 10, 10)
    assert result.routes == {"route": 10}
    (life,) = verdict.lives
    assert life.ending(verdict.now_ms) == "stopped"
    assert life.last is not None
    assert verdict.to_ms == life.last.to_ms
    assert "Everything that the ledger has as acknowledged is in Kafka" in as_text(verdict)
    assert json.loads(as_json(as_document(verdict)))["status"] == 0


async def test_a_gateway_without_a_message_has_lost_nothing() -> None:
    async with LedgerPath() as path:
        await path.interval()
    assert (await FakeLog(path.kafka).verify()).exit_status is ExitStatus.OK


async def test_other_writers_between_ours_are_neither_ours_nor_missing() -> None:
    log = await between_others()
    records(log).append(foreign())
    result = place(await log.verify())
    assert (result.state, result.acknowledged, result.found, result.surplus) == ("ok", 20, 20, 0)


async def test_a_worker_that_runs_has_an_open_interval() -> None:
    async with LedgerPath() as path:
        await path.deliver_interval("t", 4)
        await path.deliver("t", 3)
        verdict = await FakeLog(path.kafka).verify()
        assert verdict.exit_status is ExitStatus.OK
        assert (place(verdict).acknowledged, place(verdict).open, place(verdict).surplus) == (4, 3, 0)
        assert verdict.lives[0].ending(verdict.now_ms) == "running"
        later = await FakeLog(path.kafka).verify(now_ms=verdict.now_ms + 300_000)
        assert later.exit_status is ExitStatus.UNJUDGED
        assert "worker 0, life life: no word since" in later.unjudged[0]


async def test_a_worker_that_runs_on_after_the_span_is_not_silent() -> None:
    async with LedgerPath() as path:
        await path.deliver_interval("t", 4)
        until_ms = path.now_ms()
        for _ in range(5):
            await path.interval()
        verdict = await FakeLog(path.kafka).verify(span=Span(None, until_ms))
        assert place(verdict).acknowledged == 4
        assert "; running; counted until" in as_text(verdict)


@pytest.mark.parametrize(
    ("settings", "explains"), [({"retention_ms": DAY_MS}, False), ({"by_size": True}, True), ({"known": False}, True)]
)
async def test_an_empty_ledger_partition_explains_no_hole_of_today(settings: dict[str, Any], explains: bool) -> None:
    """As a route that is gone leaves it: its keys were the only ones there."""

    class Reader(KafkaReader):
        def __init__(self) -> None:
            self._consumer = Mock()

        async def topic(self, name: str) -> TopicView:
            return TopicView({0: PartitionView(0, 5), 1: PartitionView(7, 7)}, **settings)

    now_ms = time.time_ns() // 1_000_000
    horizon_ms = await Reader().ledger_horizon_ms("ledger")
    assert (horizon_ms > now_ms) is explains
    assert horizon_ms > now_ms - DAY_MS, "what retention may have taken is no hole"


# --- one too few ---


async def test_one_record_deleted_from_the_middle() -> None:
    log = await delivered()
    log.deleted = {("t", 0, 4)}
    verdict = await log.verify()
    assert verdict.exit_status is ExitStatus.MISSING_MESSAGES
    result = place(verdict)
    assert (result.state, result.missing, result.absent) == ("missing", 1, [(4, 5)])
    text = as_text(verdict)
    assert "t/0: no record at offsets 4." in text
    assert "MISSING: t/0: 1 of 10 acknowledged records are missing." in text


async def test_a_copy_does_not_make_up_for_a_record_that_is_missing() -> None:
    """As counting alone would have it: ten acknowledged, ten there."""
    log = await delivered()
    records(log).append(replace(records(log)[7], timestamp_ms=0))
    log.deleted = {("t", 0, 4)}
    result = place(await log.verify())
    assert (result.state, result.found, result.missing, result.surplus) == ("missing", 9, 1, 1)


async def test_the_last_records_lost_with_an_unclean_leader() -> None:
    log = await delivered()
    del records(log)[8:]
    verdict = await log.verify()
    assert place(verdict).missing == 2
    assert "log ends before offsets it has acknowledged" in as_text(verdict)
    records(log).clear()
    assert place(await log.verify()).missing == 10


async def test_lost_records_whose_offsets_others_have_taken() -> None:
    log = await delivered()
    records(log)[8:] = [foreign(), foreign(), foreign()]
    verdict = await log.verify()
    assert (place(verdict).missing, place(verdict).found) == (2, 8)
    assert "hold records of somebody else" in as_text(verdict)


async def test_records_deleted_before_retention_would_have() -> None:
    log = await delivered()
    log.starts["t", 0] = 3
    verdict = await log.verify()
    assert (place(verdict).missing, place(verdict).expired) == (3, 0)
    assert "removed sooner than retention says" in as_text(verdict)


async def test_a_topic_that_is_gone_and_one_made_anew() -> None:
    log = await delivered()
    log.kafka.topics.pop("t")
    verdict = await log.verify()
    assert (place(verdict).missing, verdict.exit_status) == (10, ExitStatus.MISSING_MESSAGES)
    assert "no such topic" in as_text(verdict)
    log.kafka.topic("t", 2)
    async with LedgerPath(log.kafka, "second") as path:
        await path.deliver("t", 4)
    result = place(await log.verify())
    assert (result.acknowledged, result.found, result.missing) == (14, 4, 10)


# --- one too many ---


async def test_copies_are_surplus_and_no_error() -> None:
    kafka, topic = FakeKafka.with_topic(2)
    async with LedgerPath(kafka) as path:
        await path.deliver("t", 5)
        kafka.lose = lambda: True
        path.send(b"copied", headers=list(TAG), timestamp=path.now_ms())
        await asyncio.sleep(1)
        kafka.lose = lambda: False
        path.sender.renew("so that it is sent again")
        await path.drained()
        await path.interval()
        await asyncio.sleep(600)
    assert len(topic.records()) == 7
    verdict = await FakeLog(kafka).verify()
    result = place(verdict)
    assert (result.state, result.acknowledged, result.found, result.surplus) == ("surplus", 6, 6, 1)
    assert verdict.exit_status is ExitStatus.OK


async def test_a_batch_counted_twice_in_the_account() -> None:
    async with LedgerPath() as path:
        await path.deliver("t", 5)
        stored = path.intervals.stored

        def twice(*arguments: object) -> None:
            stored(*arguments)  # type: ignore[arg-type]
            stored(*arguments)  # type: ignore[arg-type]

        path.intervals.stored = twice  # type: ignore[method-assign]
        await path.deliver("t", 1)
    verdict = await FakeLog(path.kafka).verify()
    assert verdict.exit_status is ExitStatus.MISSING_MESSAGES
    assert place(verdict).missing == 1
    assert "acknowledged twice" in as_text(verdict)


# --- inside the gateway ---


@pytest.mark.parametrize(("copies", "words"), [(0, "1 messages are missing"), (2, "1 messages were counted twice")])
async def test_a_record_skipped_or_doubled_on_the_way(copies: int, words: str) -> None:
    """The account of the gateway does not balance, and says so to whoever verifies, though Kafka has what it took."""

    kafka = FakeKafka("t", 2)
    kafka.fault = lambda record: copies if record.value == b"3" else 1
    async with LedgerPath(kafka) as path:
        for number in range(6):
            path.send(b"%d" % number, headers=list(TAG), timestamp=path.now_ms())
        path.balanced = lambda: True  # type: ignore[method-assign]
        await path.until(lambda: len(path.owner.released) == 6, "acknowledged")
        assert path.ledger.imbalance() == 1 - copies
        await path.interval()
    verdict = await FakeLog(kafka).verify()
    assert verdict.exit_status is ExitStatus.MISSING_MESSAGES
    assert place(verdict).missing == 0
    assert words in as_text(verdict)


async def test_messages_that_a_disk_lost_are_a_deficit() -> None:
    async with LedgerPath() as path:
        await path.deliver("t", 2)
        path.ledger.recovered += 3
        path.ledger.lost += 3
    verdict = await FakeLog(path.kafka).verify()
    assert verdict.exit_status is ExitStatus.MISSING_MESSAGES
    assert "a disk lost 3 messages" in as_text(verdict)


# --- what cannot be known ---


async def test_what_retention_took_is_expired_not_missing() -> None:
    log = await delivered()
    log.starts["t", 0] = 3
    later_ms = round(asyncio.get_running_loop().time() * 1000) + 8 * DAY_MS
    verdict = await log.verify(now_ms=later_ms)
    assert verdict.exit_status is ExitStatus.OK
    assert (place(verdict).state, place(verdict).expired, place(verdict).found) == ("expired", 3, 7)
    log.starts["t", 0] = 10
    assert (await log.verify(now_ms=later_ms)).exit_status is ExitStatus.UNJUDGED, "nothing is left to compare with"
    async with LedgerPath(log.kafka, "second", before=("life", True)) as path:
        await path.deliver("t", 4, partition=1)
    assert (await log.verify(now_ms=later_ms)).exit_status is ExitStatus.OK, "another partition has something left"


@pytest.mark.parametrize(("settings", "expired"), [
    ({"retention_ms": DAY_MS}, False),
    ({"retention_ms": None}, False),
    ({"retention_ms": None, "by_size": True}, True),
    ({"retention_ms": 1, "deletes": False, "compacted": True}, False),
    ({"known": False}, True),
])  # fmt: skip
async def test_only_what_the_topics_settings_explain_has_expired(settings: dict[str, object], expired: bool) -> None:
    log = await delivered()
    log.starts["t", 0] = 2
    log.settings["t"] = settings
    assert place(await log.verify()).expired == (2 if expired else 0)


async def read_during_retention(log: FakeLog, start: int) -> PlaceResult:
    """Retention takes the records before ``start`` once the verification has seen the topic."""
    view = await log.topic("t")

    async def as_before(name: str) -> object:
        log.starts["t", 0] = start
        return view

    log.topic = as_before  # type: ignore[method-assign, assignment]
    return place(await log.verify())


async def test_retention_that_goes_on_while_the_topic_is_read() -> None:
    log = await delivered()
    log.deleted = {("t", 0, 6)}
    result = await read_during_retention(log, 4)
    assert (result.expired, result.missing, result.found, result.absent) == (4, 1, 5, [(6, 7)])


async def test_retention_takes_more_ranges_than_are_kept_for_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tools.verify.place._ABSENT_RANGES", 3)
    log = await between_others()
    log.deleted = {("t", 0, 20), ("t", 0, 23)}
    result = await read_during_retention(log, 20)
    assert (result.expired, result.missing, result.found) == (13, 2, 5)
    assert result.absent == [(20, 21), (23, 24)]


async def test_retention_takes_some_of_the_offsets_that_were_not_listed() -> None:
    result = await read_during_retention(await between_others(listed=False), 4)
    assert (result.state, result.unjudged, result.missing, result.found) == ("unjudged", 2, 0, 18)


async def test_compaction_leaves_gaps_but_takes_nothing_from_the_end() -> None:
    log = await delivered()
    log.settings["t"] = {"compacted": True, "deletes": False}
    log.deleted = {("t", 0, 2), ("t", 0, 5)}
    result = place(await log.verify())
    assert (result.state, result.compacted, result.missing, result.found) == ("compacted", 2, 0, 8)
    del records(log)[9:]
    result = place(await log.verify())
    assert (result.state, result.compacted, result.missing) == ("missing", 2, 1)


async def test_compaction_takes_offsets_that_were_not_listed() -> None:
    log = await between_others(listed=False)
    log.settings["t"] = {"compacted": True, "deletes": False}
    log.deleted = {("t", 0, 4)}
    result = place(await log.verify())
    assert (result.state, result.compacted, result.found) == ("compacted", 1, 19)
    del records(log)[29:]
    assert place(await log.verify()).state == "missing"


async def test_without_the_header_offsets_alone_decide_and_that_is_said() -> None:
    async with LedgerPath() as path:
        path.writer._plan = replace(path.writer._plan, tagged=frozenset())
        await path.deliver("t", 5, tagged=False)
        path.kafka.topics["t"].partitions[0].log.append(foreign())
        await path.deliver("t", 5, tagged=False)
    log = FakeLog(path.kafka)
    verdict = await log.verify()
    assert (place(verdict).state, place(verdict).found, place(verdict).surplus) == ("ok", 10, 0)
    assert "records of other writers cannot be told apart" in as_text(verdict)
    (total,) = (row for row in as_text(replace(verdict, places=verdict.places * 2)).splitlines() if row[:4] == "all ")
    assert total.split() == ["all", "-", "20", "20", "0", "?", "?", "0"], "no sum of what is not known"
    log.deleted = {("t", 0, 5)}
    assert place(await log.verify()).missing == 0, "the foreign record"
    log.deleted = {("t", 0, 6)}
    assert place(await log.verify()).missing == 1


async def test_what_a_crashed_life_acknowledged_last_is_unaccounted_not_lost() -> None:
    kafka = FakeKafka("t", 2)
    async with LedgerPath(kafka, "first") as path:
        await path.deliver_interval("t", 5)
        await path.deliver("t", 3)
        path.crash()
    async with LedgerPath(kafka, "second", before=("first", False)) as path:
        await path.deliver("t", 4)
    verdict = await FakeLog(kafka).verify()
    assert verdict.exit_status is ExitStatus.OK
    result = place(verdict)
    assert (result.state, result.acknowledged, result.found, result.open) == ("open", 9, 9, 3)
    assert [life.ending(verdict.now_ms) for life in verdict.lives] == ["crashed", "stopped"]
    assert "unaccounted for, not lost" in as_text(verdict)


async def test_no_account_no_verdict() -> None:
    kafka = FakeKafka()
    kafka.topic(LEDGER)
    verdict = await FakeLog(kafka).verify()
    assert verdict.exit_status is ExitStatus.UNJUDGED == 6
    assert "no record of gateway 'gw' in the span" in as_text(verdict)


async def test_an_account_with_a_hole_is_no_account() -> None:
    log = await delivered()
    rows = {
        (LEDGER, number, offset): record.value or b""
        for number, partition in enumerate(log.kafka.topics[LEDGER].partitions)
        for offset, record in enumerate(partition.log)
    }
    for row, value in rows.items():
        log.deleted = {row}
        verdict = await log.verify()
        document = json.loads(value)
        if document["kind"] == "worker" and document["state"] == "stopped":
            continue  # the last word: what lies before it is complete
        assert verdict.exit_status is ExitStatus.UNJUDGED, document
        assert "the ledger itself is incomplete" in as_text(verdict)
    for number in (b"0", b"1"):
        log.deleted = {row for row, value in rows.items() if b'"number":%b,' % number in value}
        assert (await log.verify()).exit_status is ExitStatus.UNJUDGED, f"nothing is left of interval {number!r}"


def test_what_a_life_before_the_span_acknowledged_last_is_open() -> None:
    def add(lives: Lives, author: Author, state: State, from_ms: int, to_ms: int) -> None:
        interval = Interval(from_ms, to_ms, {}, LedgerSnapshot(*[0] * 9), 0)
        record = decode(worker_record(author, 0, interval, state, 0)[1])
        assert isinstance(record, WorkerRecord)
        lives.add_worker(record)

    second = Author("gw", 0, "second", 500_000, "first", False)
    lives = Lives(60_000, 0)
    add(lives, second, "started", 500_000, 700_000)
    assert lives.windows(800_000) == [Window(0, 500_000), Window(700_000, 800_000)]
    (life,) = lives.sorted()
    assert [life.ending(now_ms) for now_ms in (1_300_000, 1_300_001)] == ["running", "silent"], "after three intervals"
    add(lives, Author("gw", 0, "first", 100_000), "running", 100_000, 400_000)
    assert lives.windows(800_000) == [Window(400_000, 500_000), Window(700_000, 800_000)]


async def test_an_account_of_which_retention_took_the_beginning_has_no_hole() -> None:
    """Retention takes of one partition more than of another."""
    kafka = FakeKafka("t", 4)
    async with LedgerPath(kafka) as path:
        for _ in range(3):
            for partition in range(4):
                await path.deliver("t", 1, partition=partition)
            await path.interval()
    for number, partition in enumerate(kafka.topics[LEDGER].partitions):
        for start in range(1, len(partition.log) + 1):
            log = FakeLog(kafka)
            log.starts[LEDGER, number] = start
            verdict = await log.verify()
            assert verdict.exit_status is ExitStatus.OK, (number, start, verdict.unjudged)


async def test_an_interval_that_a_step_of_the_clock_put_outside_of_the_span_is_no_hole() -> None:
    kafka = FakeKafka()
    log = kafka.topic(LEDGER).partitions[0].log
    for number, to_ms in enumerate((60_000, 120_000, 180_000, 110_000, 170_000)):
        interval = Interval(to_ms - 60_000, to_ms, {}, LedgerSnapshot(*[0] * 9), 0)
        key, value = worker_record(Author("gw", 0, "life", 1), number, interval, "running" if number else "started", 0)
        log.append(StoredRecord(to_ms, key, value, []))
    verdict = await FakeLog(kafka).verify(span=Span(until_ms=150_000))
    assert (verdict.exit_status, verdict.unjudged) == (ExitStatus.OK, [])


async def test_what_was_written_twice_counts_once() -> None:
    log = await delivered()
    for partition in log.kafka.topics[LEDGER].partitions:
        partition.log[:] = [record for record in partition.log for _ in range(2)]
    verdict = await log.verify()
    assert verdict.exit_status is ExitStatus.OK
    assert place(verdict).acknowledged == 10


async def test_dead_letters_in_the_routes_former_topic_are_counted_beside_its_records() -> None:
    """After a reload, both may be in one interval, under one key."""
    async with LedgerPath(FakeKafka("t", 1)) as path:
        await path.deliver("t", 2)
        dead = path.accumulator.slot(path.route, 1, "t", 0, dead_letter=True)
        path.append(dead, b"bad", headers=list(TAG), timestamp=path.now_ms())
        path.flush()
        await path.drained()
    verdict = await FakeLog(path.kafka).verify()
    assert verdict.exit_status is ExitStatus.OK, verdict.unjudged
    assert place(verdict).found == 3


async def test_dead_letters_of_commands_are_in_the_account() -> None:
    """They have the gateway's header: in no account, the audit would report each of them."""
    kafka = FakeKafka("t", 1)
    kafka.topic("bad", 1)
    async with LedgerPath(kafka) as path:
        done = asyncio.Event()
        letters = CommandDeadLetters(
            Settings(instance="gw", dead_letter=DeadLetterSettings(topic="bad")), "switches", broken=pytest.fail,
            producer=lambda: path.sender.producer, renew=pytest.fail, noted=lambda *_: None,
            written=lambda offset, size, _reason: path.intervals.letter_stored("switches", "bad", 0, offset, size),
        )  # fmt: skip
        record = LoggedRecord(LogPlace("commands", 0, 0), path.now_ms(), b"lamp", b"on", [])
        letters.bury(record, BadCommandError(DeadLetterReason.INVALID_RECORD, "It is none."), done.set)
        await done.wait()
    verdict = await FakeLog(kafka).verify()
    assert verdict.exit_status is ExitStatus.OK, verdict.unjudged
    found = place(verdict, "bad")
    assert (found.found, found.messages, found.surplus, found.open) == (1, 0, 0, 0)


@pytest.mark.parametrize("more", range(1, 9))
async def test_an_account_goes_on_when_the_ledger_topic_gets_partitions(more: int) -> None:
    """A key then goes on in another partition, which may be read before the one it began in."""
    kafka = FakeKafka("t")
    async with LedgerPath(kafka) as path:
        for _ in range(3):
            await path.deliver_interval("t", 2)
        kafka.topics[LEDGER].partitions += [FakePartition() for _ in range(more)]
        await path.deliver_interval("t", 2)
        await path.deliver("t", 2)
    verdict = await FakeLog(kafka).verify()
    assert verdict.exit_status is ExitStatus.OK, as_text(verdict)
    assert place(verdict).found == 10


async def test_a_partition_without_a_leader_is_not_judged_and_the_others_are() -> None:
    async with LedgerPath() as path:
        await path.deliver("t", 4)
        await path.deliver("t", 5, partition=1)
    log = FakeLog(path.kafka)
    log.leaderless = {("t", 1)}
    verdict = await log.verify()
    assert verdict.exit_status is ExitStatus.UNJUDGED
    assert (place(verdict).state, place(verdict, partition=1).state) == ("ok", "unjudged")
    assert place(verdict, partition=1).unjudged == 5
    assert "t/1: it has no leader, so its records cannot be read now." in as_text(verdict)


async def test_a_partition_that_loses_its_leader_while_it_is_read_is_not_judged() -> None:
    log = await delivered()
    read = log.records

    async def cut_short(topic: str, partition: int, first: int, end: int) -> AsyncIterator[list[FoundRecord]]:
        async for found in read(topic, partition, first, end):
            yield found
            log.leaderless.add((topic, partition))
            return

    log.records = cut_short  # type: ignore[method-assign]
    log.starts["t", 0] = 2
    verdict = await log.verify()
    assert verdict.exit_status is ExitStatus.UNJUDGED
    assert (place(verdict).unjudged, place(verdict).missing, place(verdict).absent) == (10, 0, [])


async def test_an_account_of_which_a_part_has_no_leader_is_not_judged() -> None:
    log = await delivered()
    for number in range(3):
        log.leaderless = {(LEDGER, number)}
        verdict = await log.verify()
        assert verdict.exit_status is ExitStatus.UNJUDGED, number
        assert f"partition {number} of the ledger topic has no leader" in as_text(verdict)


async def test_other_gateways_and_strangers_on_the_ledger_topic() -> None:
    log = await delivered()
    ledger = log.kafka.topics[LEDGER].partitions[0].log
    ledger += [StoredRecord(0, b"other/0", b"not even JSON", []), StoredRecord(0, None, b"x", [])]
    assert (await log.verify()).exit_status is ExitStatus.OK
    ledger.append(StoredRecord(0, b"gw/0", b"not even JSON", []))
    verdict = await log.verify()
    assert verdict.exit_status is ExitStatus.UNJUDGED
    assert "1 ledger records cannot be read" in as_text(verdict)


async def test_a_span_reads_no_more_than_it_needs() -> None:
    kafka = FakeKafka("t", 2)
    ends = []
    async with LedgerPath(kafka) as path:
        for _ in range(10):
            await path.deliver_interval("t", 10)
            ends.append(path.now_ms() // 60_000 * 60_000)
    log = FakeLog(kafka)
    verdict = await log.verify(span=Span(ends[3], ends[5]))
    assert (place(verdict).acknowledged, log.read) == (20, 20)
    assert verdict.exit_status is ExitStatus.OK
    log.deleted = {("t", 0, 45)}
    assert (await log.verify(span=Span(ends[3], ends[5]))).exit_status is ExitStatus.MISSING_MESSAGES
    assert (await log.verify(span=Span(ends[4]))).exit_status is ExitStatus.OK


async def test_offsets_that_were_not_listed_are_judged_by_their_number() -> None:
    kafka_log = await between_others(listed=False)
    result = place(await kafka_log.verify())
    assert (result.state, result.acknowledged, result.found) == ("ok", 20, 20)
    kafka_log.deleted = {("t", 0, 4)}
    assert place(await kafka_log.verify()).missing == 1


async def test_a_batch_that_kafka_acknowledged_without_an_offset() -> None:
    async with LedgerPath() as path:
        await path.deliver("t", 5)
        stored = path.intervals.stored
        path.intervals.stored = lambda batch, partition, _offset: stored(batch, partition, -1)  # type: ignore[method-assign]
        await path.deliver("t", 1)
        path.intervals.stored = stored  # type: ignore[method-assign]
        await path.deliver("t", 5)
    log = FakeLog(path.kafka)
    verdict = await log.verify()
    assert (place(verdict).state, place(verdict).found) == ("ok", 11)
    log.deleted = {("t", 0, 5)}
    verdict = await log.verify()
    assert (place(verdict).unjudged, verdict.exit_status) == (1, ExitStatus.UNJUDGED)


async def test_memory_is_bounded_and_a_shorter_span_is_the_way_out() -> None:
    from gateway.tools.verify.check import TooMuchError

    kafka, topic = FakeKafka.with_topic(2)
    async with LedgerPath(kafka) as path:
        for _ in range(30):
            topic.partitions[0].log.append(foreign())
            await path.deliver_interval("t", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.tools.verify.check.MAX_RUNS", 30)
        assert (await FakeLog(kafka).verify()).exit_status is ExitStatus.OK
        patch.setattr("gateway.tools.verify.check.MAX_RUNS", 29)
        with pytest.raises(TooMuchError, match="--last"):
            await FakeLog(kafka).verify()


# --- one partition ---


def listed(*runs: tuple[int, int], unlocated: int = 0, tagged: bool = True, dead: bool = False) -> PartitionRecord:
    """What was acknowledged, as runs of offsets: first and count."""
    count = sum(count for _, count in runs) + unlocated
    return PartitionRecord(
        "gw", 0, "life", 0, 0, 0, "route", "t", 0, dead, tagged, count, count, 0, None, None, list(runs), unlocated
    )


def unlisted(low: int, high: int, count: int, *, unlocated: int = 0, tagged: bool = True) -> PartitionRecord:
    """The same with the lowest and the highest offset alone."""
    records = replace(listed(unlocated=count + unlocated, tagged=tagged), runs=None, unlocated=unlocated)
    return replace(records, first_offset=low, last_offset=high)


@pytest.mark.parametrize(("records", "start", "ours", "expected"), [
    ([unlisted(0, 4, 3, tagged=False)], 0, "-----", {"found": 3}),
    ([unlisted(0, 4, 5, tagged=False)], 0, "-----....", {"found": 5}),
    ([unlisted(0, 5, 3)], 0, "++++++", {"found": 3, "surplus": 3}),
    ([unlisted(0, 1, 2)], 0, "++---+", {"found": 2, "surplus": 1}),
    ([unlisted(3, 5, 2)], 3, "...+-+", {"found": 2}),
    ([unlisted(2, 5, 2)], 3, "...+-+", {"unjudged": 2, "surplus": 0}),
    ([unlisted(0, 3, 3, unlocated=1)], 0, "+-++", {"found": 3, "unjudged": 1}),
    ([listed((0, 2), unlocated=2)], 0, "+++ooo", {"found": 4, "open": 2}),
    ([listed((0, 2), unlocated=5)], 0, "+++oo-", {"found": 5, "unjudged": 2}),
    ([listed((0, 5)), listed((3, 5))], 0, "++++++++", {"found": 8, "missing": 2}),
    ([listed((0, 2), tagged=False), listed((2, 2))], 0, "--++", {"found": 4, "tagged": False}),
    ([listed((0, 2), dead=True), listed((2, 2))], 0, "++++", {"found": 4, "dead_letter": True}),
])  # fmt: skip
def test_a_partition_is_judged(records: list[PartitionRecord], start: int, ours: str, expected: dict[str, int]) -> None:
    """``ours``: + is a record of ours, o one of the open interval, - another writer's, . none."""
    topic = TopicView({0: PartitionView(start, len(ours))})
    one = Place("t", 0, topic, now_ms=0)
    for record in records:
        one.add(record)
    comparison = one.compare([Window(1_000_000, 1_000_000)])
    first, end = one.span(to_end=True) or (0, 0)
    there = [(n, sign) for n, sign in enumerate(ours) if first <= n < end and sign != "."]
    comparison.show([FoundRecord(n, 1_000_000 if sign == "o" else 0, sign != "-") for n, sign in there])
    result = one.settle(comparison, start)
    counts = {name: getattr(result, name) for name in ("found", "missing", "unjudged", "surplus", "open")}
    defaults = {**dict.fromkeys(counts, 0), "tagged": records[0].tagged, "dead_letter": False}
    assert {**counts, "tagged": result.tagged, "dead_letter": result.dead_letter} == {**defaults, **expected}


# --- sessions that the broker lost ---


async def test_a_session_that_was_lost_is_not_judged_and_said_once() -> None:
    """Twice in one interval, and once more by the life that follows a crash."""
    async with LedgerPath() as path:
        await path.deliver("t", 4)
        first = SessionLoss("0", "gw-0-0", None, path.now_ms())
        path.intervals.session_lost(first)
        path.intervals.session_lost(SessionLoss("0", "gw-0-0", path.now_ms() + 1, path.now_ms() + 5000))
        await path.interval()
        path.crash()
    async with LedgerPath(path.kafka, "next", before=("life", False)) as path:
        path.intervals.session_lost(first)
        await path.interval()
    verdict = await FakeLog(path.kafka).verify()
    assert verdict.exit_status is ExitStatus.UNJUDGED
    assert not verdict.missing
    assert len(verdict.losses) == 2
    text = as_text(verdict, Before())
    assert text.count("(gw-0-0): a session was lost, its contents are unknown") == 2
    assert text.index("away for an unknown time") < text.index("away since")
    assert "Everything that the ledger has as acknowledged is in Kafka" not in text
    document = json.loads(as_json(as_document(verdict)))
    assert [loss["left_ms"] is None for loss in document["lost_sessions"]] == [True, False]
    assert place(verdict).found == 4


async def test_a_session_lost_outside_the_span_is_nobodys_concern() -> None:
    async with LedgerPath() as path:
        await path.deliver("t", 1)
        path.intervals.session_lost(SessionLoss("0", "gw-0-0", None, path.now_ms()))
        await path.interval()
        since_ms = path.now_ms()
        await path.deliver_interval("t", 1)
    assert (await FakeLog(path.kafka).verify(span=Span(since_ms))).exit_status is ExitStatus.OK


in_manual_time(globals())
