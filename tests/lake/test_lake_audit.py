"""The audit against a count offset by offset, and with real Kafka: lost, unaccounted for, and put right later."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from bridge.wire import DLQ_ROUTE, GATEWAY_ID
from config.settings import Settings
from gateway.local.embedded.kafka import KafkaCluster
from streaming import lake_tables
from streaming.audit import job as audit
from streaming.audit import transforms as audit_transforms
from streaming.audit.transforms import ENTRIES, EXTENTS, SEEN
from streaming.job import JobContext
from streaming.kafka.admin import Place
from streaming.lake.delta_upkeep import DeltaUpkeep
from streaming.lake.lake import layers
from streaming.progress import ImbalanceEvent
from streaming.runtime.checkpoint import prepare_checkpoint
from tests.chaos.harness import FULL

BEGIN = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
EARLIEST, READ_TO, LATEST = 10, 130, 140
RECORD = (
    "topic string, partition int, offset long, timestamp timestamp, value binary,"
    " headers array<struct<key: string, value: binary>>"
)
READ: Final = {("t", 0): 100, ("u", 0): 0}
ROUTES = {"g1": "telemetry", "g2": "events"}


def entry(gateway: str, number: int, offsets: set[int], *, tagged: bool = True, dead: bool = False) -> dict[str, Any]:
    """A ledger record of the ``number``th minute, as a row of ENTRIES and as JSON."""
    runs = [[first, 1] for first in sorted(offsets)]
    begin = round((BEGIN + timedelta(minutes=number)).timestamp() * 1000)
    return {
        "gateway": gateway, "worker": 0, "life": f"life-{gateway}", "number": number, "from_ms": begin,
        "to_ms": begin + 60_000, "route": ROUTES[gateway], "topic": "t", "partition": 0, "dead_letter": dead,
        "tagged": tagged, "records": len(offsets), "unlocated": 0, "first_offset": min(offsets, default=None),
        "last_offset": max(offsets, default=None), "runs": runs,
    }  # fmt: skip


def test_each_offset_is_judged_as_a_count_one_by_one_does(spark: SparkSession) -> None:
    """Two gateways in turn in one partition, with copies of entries, losses, leftovers of a crash, and retention."""
    chance = random.Random(5)
    records = {}  # offset -> (gateway, minute), of what was read
    accounts: dict[tuple[str, int], set[int]] = {}
    wanted: Counter[tuple[str, str, int, str]] = Counter()  # by gateway, route, minute and word
    for offset in range(LATEST + 5):
        gateway = chance.choice(("g1", "g2"))
        minute, written = offset // 30, (offset + 3) // 30
        named, there = chance.random() < 0.9, chance.random() < 0.9
        if (EARLIEST + 5 <= offset < READ_TO and there) or offset in {3, 4}:  # 3 and 4 were read before they expired
            records[offset] = (gateway, minute)
        if named:
            accounts.setdefault((gateway, written), set()).add(offset)
        what = "missing"
        if offset in records:
            what = "matched" if named else "unaccounted"
        elif offset < EARLIEST:
            what = "expired"
        elif READ_TO <= offset < LATEST:
            what = "open"
        if named or offset in records:
            wanted[gateway, ROUTES[gateway], minute if offset in records else written, what] += 1
    ledger = [entry(gateway, number, offsets) for (gateway, number), offsets in accounts.items()]
    seen = [
        ("t", 0, gateway, None, BEGIN + timedelta(minutes=minute), offset, 1, BEGIN)
        for offset, (gateway, minute) in records.items()
    ]
    rows = (
        audit_transforms.judged(
            spark.createDataFrame(seen, SEEN),
            spark.createDataFrame([(*it.values(), BEGIN) for it in [*ledger, *ledger[:2]]], ENTRIES),
            spark.createDataFrame([("t", 0, EARLIEST, READ_TO, LATEST, 0)], EXTENTS),
        )
        .selectExpr("*", f"(unix_seconds(minute) - {round(BEGIN.timestamp())}) div 60 AS number")
        .collect()
    )
    got: Counter[tuple[str, str, int, str]] = Counter()
    for row in rows:
        assert (
            row["acknowledged"] == row["present"] - row["unaccounted"] + row["missing"] + row["expired"] + row["open"]
        )
        worst = next((word for word in ("missing", "unaccounted", "open", "expired") if row[word]), "balanced")
        assert row["state"] == worst
        counts = {name: row[name] for name in ("missing", "unaccounted", "open", "expired")}
        for word, count in {**counts, "matched": row["present"] - row["unaccounted"]}.items():
            got[row["gateway"], row["route"], row["number"], word] += count
    assert +got == wanted
    assert {key[3] for key in wanted} == {"matched", "missing", "unaccounted", "open", "expired"}, "all of it occurs"


def test_without_the_header_offsets_are_looked_up_all_the_same(spark: SparkSession) -> None:
    """Nobody's records are taken for those of the route that writes no header; a range that was not listed offset by
    offset counts what lies in it."""
    listed = entry("g1", 0, {20, 21, 22}, tagged=False)
    whole = entry("g2", 0, {30, 35}) | {"runs": None}
    seen = [("t", 0, None, None, BEGIN, 20, 2, BEGIN), ("t", 0, "g2", None, BEGIN, 30, 1, BEGIN)]
    rows = audit_transforms.judged(
        spark.createDataFrame(seen, SEEN),
        spark.createDataFrame([(*it.values(), BEGIN) for it in (listed, whole)], ENTRIES),
        spark.createDataFrame([("t", 0, 0, 100, 100, 0)], EXTENTS),
    )
    found = {
        row["gateway"]: (row["acknowledged"], row["present"], row["missing"], row["state"]) for row in rows.collect()
    }
    assert found == {"g1": (3, 2, 1, "missing"), "g2": (2, 1, 1, "missing")}


def test_an_entry_whose_numbers_cannot_be_is_left_out(spark: SparkSession) -> None:
    """It would end the job, each time: with 2^46 pieces of a run, or a sum beyond 64 bits."""
    good, most = entry("g1", 0, {20}) | {"v": 1, "kind": "partition"}, 2**63 - 1
    bad = [
        {"runs": [[0, 1 << 62]]}, {"runs": [[most, 5]]}, {"runs": [[5, -9]]}, {"runs": None, "last_offset": most},
        {"runs": None, "first_offset": -most, "last_offset": most}, {"to_ms": most}, {"from_ms": most},
        {"records": most}, {"unlocated": -most},
    ]  # fmt: skip
    values = [json.dumps(good | it).encode() for it in ({}, {"runs": None}, {"first_offset": None}, *bad)]
    records = spark.createDataFrame([("l", 0, at, BEGIN, value, []) for at, value in enumerate(values)], RECORD)
    ledger = audit_transforms.entries(audit_transforms.slim(records, "l"), "l")
    assert ledger.count() == 3
    seen = spark.createDataFrame([("t", 0, "g1", None, BEGIN, 20, 1, BEGIN)], SEEN)
    extents = spark.createDataFrame([("t", 0, 0, 100, 100, 0)], EXTENTS)
    told = ledger.selectExpr("*", "now() AS read_at")
    (row,) = audit_transforms.judged(seen, told, extents).collect()
    assert (row["acknowledged"], row["state"]) == (1, "balanced")


@pytest.mark.parametrize(("read_after_h", "wanted"), [
    (2, [(1, 0, "missing"), (0, 1, "unaccounted")]),
    (0, [(1, 1, "balanced")]),  # LogAppendTime of a broker whose clock is ahead
])  # fmt: skip
def test_a_record_is_not_in_an_entry_of_long_before(
    spark: SparkSession, read_after_h: int, wanted: list[tuple[int, int, str]]
) -> None:
    """The topic was deleted and made anew since: its offsets began anew."""
    later, read_at = BEGIN + timedelta(hours=2), BEGIN + timedelta(hours=read_after_h)
    rows = audit_transforms.judged(
        spark.createDataFrame([("t", 0, "g1", None, later, 20, 1, read_at)], SEEN),
        spark.createDataFrame([(*entry("g1", 0, {20}).values(), later)], ENTRIES),
        spark.createDataFrame([("t", 0, 0, 100, 100, 0)], EXTENTS),
    )
    found = [(row["acknowledged"], row["present"], row["state"]) for row in rows.orderBy("minute").collect()]
    assert found == wanted


class Kafka:
    """Two topics, of which ``t`` has been read to offset 100."""

    ids: Final = {"t": "one", "u": "one"}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: self.ids[topic] for topic in topics}

    def earliest(self, places: Iterable[Place]) -> dict[Place, int]:
        return dict.fromkeys(places, 0)

    def latest(self, places: Iterable[Place]) -> dict[Place, int]:
        return {place: 100 if place[0] == "t" else 0 for place in places}


@pytest.fixture
def auditor(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> audit._Auditor:
    """Of a topic of which it has read two records, three minutes before they were acknowledged by the gateway's clock,
    as was a third one."""
    paths = {"lake": {"path": tmp_path / "lake"}, "checkpoint": tmp_path / "checkpoints"}
    settings = Settings(stream={**paths, "audit": {"keep": "1h"}})
    made = audit._Auditor(
        spark, settings, JobContext(lambda _: None), prepare_checkpoint(spark, settings.stream, "audit")
    )
    monkeypatch.setattr(made, "_kafka", Kafka())
    monkeypatch.setattr(made, "_read_to", lambda *_: READ)
    read_at = BEGIN - timedelta(minutes=3)
    ledger = [entry("g1", 0, {0, 1}), entry("g1", 1, {2})]
    made._seen.append(spark.createDataFrame([("t", 0, "g1", None, BEGIN, 0, 2, read_at)], SEEN), query="test", batch=0)
    made._entries.append(
        spark.createDataFrame([(*it.values(), read_at) for it in ledger], ENTRIES), query="test", batch=0
    )
    return made


def states_after(
    auditor: audit._Auditor, spark: SparkSession, minutes: int, read: Mapping[Place, int] = READ
) -> list[str]:
    auditor._note_ids({topic for topic, _ in read})
    auditor._judge(spark, 1, BEGIN + timedelta(minutes=minutes), read)
    return [row.state for row in auditor._audit.read().orderBy("minute").collect()]


def test_at_the_end_of_keep_a_clock_that_is_ahead_makes_no_record_missing(
    spark: SparkSession, auditor: audit._Auditor
) -> None:
    for minutes in (30, 59):
        assert states_after(auditor, spark, minutes) == ["balanced", "missing"]


def test_a_longer_keep_takes_nothing_back(
    spark: SparkSession, auditor: audit._Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was judged by has been deleted."""
    assert states_after(auditor, spark, 30) == ["balanced", "missing"]
    auditor._purged_s = -inf
    states_after(auditor, spark, 200)
    assert auditor._entries.read().isEmpty()
    stream = auditor._settings.stream
    longer = stream.model_copy(update={"audit": stream.audit.model_copy(update={"keep": timedelta(days=1)})})
    restarted = audit._Auditor(spark, Settings(stream=longer), auditor._context, auditor._checkpoint)
    monkeypatch.setattr(restarted, "_kafka", Kafka())
    assert states_after(restarted, spark, 201) == ["balanced", "missing"]


def test_what_was_missing_of_a_topic_that_is_gone_stays_so(spark: SparkSession, auditor: audit._Auditor) -> None:
    assert states_after(auditor, spark, 30) == ["balanced", "missing"]
    for left in ({("u", 0): 0}, {}):
        assert states_after(auditor, spark, 31, left) == ["balanced", "missing"]


@pytest.mark.parametrize("last", [1, -2])  # -2: by the gateway's clock all of its entries are from after the deletion
def test_records_of_a_topic_that_was_deleted_are_not_those_of_the_new_one(
    spark: SparkSession, auditor: audit._Auditor, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Both have the offsets 0 to 2. Of the new one only the first is there."""

    def note(number: int, first: int, batch: int, read: int) -> None:
        at, read_at = (BEGIN + timedelta(minutes=it) for it in (number, read))
        auditor._seen.append(
            spark.createDataFrame([("t", 0, "g1", None, at, first, 1, read_at)], SEEN), query="test", batch=batch
        )

    note(1, 2, 1, last)
    assert states_after(auditor, spark, 30) == ["balanced", "balanced"]
    monkeypatch.setitem(Kafka.ids, "t", "another")
    auditor._note_ids({"t"})
    note(10, 0, 2, 10)
    read_at = BEGIN + timedelta(minutes=11)
    anew = spark.createDataFrame([(*entry("g1", 10, {0, 1, 2}).values(), read_at)], ENTRIES)
    auditor._entries.append(anew, query="test", batch=1)
    assert states_after(auditor, spark, 30) == ["balanced", "balanced", "missing"]
    counts = auditor._audit.read().orderBy("minute").select("acknowledged", "present", "missing").collect()
    assert counts == [(2, 2, 0), (1, 1, 0), (3, 1, 2)]


def test_what_it_keeps_is_few_files_and_maintain_prunes_them(spark: SparkSession, auditor: audit._Auditor) -> None:
    few = "spark.databricks.delta.autoCompact.minNumFiles"
    usual = spark.conf.get(few)
    auditor._checkpoint.__dict__["id"] = "c"
    record = spark.createDataFrame([("t", 0, 2, BEGIN, None, [])], RECORD)
    try:
        spark.conf.set(few, "2")
        auditor.write(record, 1)
    finally:
        spark.conf.set(few, usual)
        spark.conf.unset("spark.databricks.delta.autoCompact.enabled")  # a job's own session ends with it
    tables = layers(spark, auditor._settings.stream)
    assert {"audit", "audit_seen", "audit_ledger"} <= tables.keys()
    assert [day.files for day in DeltaUpkeep(spark, tables["audit_seen"]).days(1)] == [1]


def produce(kafka: KafkaCluster, topic: str, values: list[bytes], *headers: tuple[str, bytes], at_ms: int = 0) -> None:
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value, b"k", 0, timestamp=at_ms, headers=list(headers),
                         on_delivery=lambda error, _: failed.append(error) if error else None)  # fmt: skip
    assert producer.flush(30) == 0
    assert not failed


@pytest.mark.skipif(not FULL, reason="takes minutes: CHAOS=full")
async def test_what_was_said_is_revised_when_the_ledger_comes_late(
    spark: SparkSession, kafka: KafkaCluster, make_topic: Any, tmp_path: Path
) -> None:
    topic, ledger, dead = await make_topic(partitions=1), await make_topic(partitions=1), await make_topic(partitions=1)
    now_ms = round(datetime.now(UTC).timestamp() * 1000) // 60_000 * 60_000 - 300_000
    stream = {
        "lake": {"path": str(tmp_path / "lake")}, "checkpoint": str(tmp_path / "checkpoints"), "topics": [topic],
        "available_now": True, "audit": {"settle": "1m"},
    }  # fmt: skip
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap_servers": [kafka.bootstrap]}, "ledger": {"topic": ledger},
            "dead_letter": {"topic": dead}, "stream": stream,
        }
    )  # fmt: skip
    events: list[Any] = []

    def audited() -> dict[str, tuple[Any, ...]]:
        context = JobContext(events.append)
        audit.start(spark, settings, context).awaitTermination()
        page = {sample.name: sample.value for family in context.metrics.registry.collect() for sample in family.samples
                if sample.labels.get("query") == "audit"}  # fmt: skip
        names = ("route", "acknowledged", "present", "missing", "unaccounted", "state")
        rows = lake_tables.audit(spark, settings.stream).collect()
        assert page["gateway_stream_audit_missing_records"] == sum(row["missing"] for row in rows)
        assert page["gateway_stream_audit_unaccounted_records"] == sum(row["unaccounted"] for row in rows)
        return {row["topic"]: tuple(row[name] for name in names) for row in rows}

    def write(number: int, offsets: set[int], topic: str = topic, *, is_dead: bool = False) -> None:
        it = entry("g1", number, offsets, dead=is_dead) | {"v": 1, "kind": "partition", "topic": topic}
        it |= {"from_ms": now_ms, "to_ms": now_ms + 60_000}
        produce(kafka, ledger, [json.dumps(it).encode()], at_ms=now_ms)

    produce(kafka, topic, [b"x"] * 10, (GATEWAY_ID, b"g1"), at_ms=now_ms + 1000)
    produce(kafka, dead, [b"x"] * 2, (GATEWAY_ID, b"g1"), (DLQ_ROUTE, b"telemetry"), at_ms=now_ms + 1000)
    produce(kafka, ledger, [b"no record", b'{"v": 99, "kind": "partition"}'], at_ms=now_ms)
    write(0, {0, 1, 2, 3})
    write(0, {0, 1, 2, 3})
    first = audited()
    assert first == {topic: ("telemetry", 4, 10, 0, 6, "unaccounted"), dead: ("telemetry", 0, 2, 0, 2, "unaccounted")}
    write(1, set(range(4, 12)))
    write(1, {0, 1}, dead, is_dead=True)
    assert audited() == {topic: ("telemetry", 12, 10, 2, 0, "missing"), dead: ("telemetry", 2, 2, 0, 0, "balanced")}
    told = [(it.topic, it.missing, it.unaccounted) for it in events if isinstance(it, ImbalanceEvent)]
    assert sorted(told) == sorted([(topic, 0, 6), (dead, 0, 2), (topic, 2, 0)])
