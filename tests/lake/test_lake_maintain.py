"""``gateway stream maintain`` and ``gateway stream forget``: what they change, and what they must not."""

import argparse
import fcntl
import hashlib
import re
import time
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError, ExitStatus
from config.settings import Settings, StreamSettings
from config.tables.stream_jobs import LakeSettings, RetentionSettings, SilverSettings
from streaming import jvm, lake_tables
from streaming.bronze.job import BRONZE, BRONZE_PARTITIONS
from streaming.devices.packing import DEVICES
from streaming.lake.delta_upkeep import DeltaUpkeep, FileRange, loose
from streaming.lake.forgotten import Forgotten
from streaming.lake.lake import DeltaTable, retried
from streaming.runtime import job_lock
from streaming.silver.schema import PARTITIONS, QUARANTINE, QUARANTINE_PARTITIONS, silver_schema
from streaming.upkeep import forget, maintain
from tests.chaos.harness import in_full_form

TODAY = datetime.now(UTC).date()
OLD = TODAY - timedelta(days=10)
YESTERDAY = TODAY - timedelta(days=1)
NAME = "o'brien \\ ${spark.app.name} sensor"
"""What SQL would trip over, if it were not quoted."""


def settings(folder: Path, **lake: Any) -> Settings:
    return Settings(
        stream=StreamSettings(checkpoint=folder / "checkpoints", lake=LakeSettings(path=folder / "lake", **lake))
    )


def record(
    offset: int, day: date, *, device: str = "other", payload: str | None = None, header: str | None = None,
    topic: str = "t",
) -> tuple[Any, ...]:  # fmt: skip
    at = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    value = f'{{"device": "{device}"}}' if payload is None else payload
    headers = None if header is None else [("gateway.device", header.encode())]
    return (b"k", value.encode(), 0, offset, at, 0, headers, day, topic)


def write_bronze(spark: SparkSession, chosen: Settings, batches: Iterable[Iterable[tuple[Any, ...]]]) -> None:
    table = DeltaTable(spark, chosen.stream, "bronze")
    table.create(BRONZE, BRONZE_PARTITIONS)
    for number, rows in enumerate(batches):
        frame = spark.createDataFrame([(*row, number) for row in rows], BRONZE)
        table.append(frame, query="bronze", batch=number)


def offsets(spark: SparkSession, chosen: Settings) -> list[int]:
    return sorted(row.offset for row in lake_tables.bronze(spark, chosen.stream).select("offset").collect())


def files(folder: Path) -> int:
    return sum(1 for it in folder.glob("**/*.parquet") if not any(part.startswith(".") for part in it.parts))


def told(*, device: str | None = None, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"dry_run": False, "table": None, "now": False, "device": device, **more})


def test_small_files_of_past_days_become_one_and_old_days_go(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(tmp_path, compact_after=timedelta(0), retention=RetentionSettings(bronze=timedelta(days=5)))
    now = datetime.now(UTC)
    today = now.date()  # midnight may have passed since the module was imported

    class Still(datetime):  # and may pass during the test
        @classmethod
        def now(cls, _tz: object = None) -> datetime:  # type: ignore[override]
            return now

    monkeypatch.setattr(maintain, "datetime", Still)
    lots = [[record(10 * at, YESTERDAY), record(10 * at + 1, today), record(10 * at + 2, OLD)] for at in range(3)]
    write_bronze(spark, chosen, lots)
    day = tmp_path / "lake" / "bronze" / f"ingest_date={YESTERDAY}"
    before = files(day)
    assert before >= 3

    assert maintain.run(spark, chosen, told(dry_run=True)) == ExitStatus.OK
    assert len(offsets(spark, chosen)) == 9
    assert files(day) == before, "a dry run changes nothing"
    dry = capsys.readouterr().out
    assert maintain.run(spark, chosen, told()) == ExitStatus.OK
    done = capsys.readouterr().out

    assert offsets(spark, chosen) == sorted(10 * at + second for at in range(3) for second in (0, 1))
    assert DeltaTable(spark, chosen.stream, "bronze").whole_since() == today - timedelta(days=5)
    for line in (dry, done):
        assert re.search(rf"bronze +compacted +{YESTERDAY}", line), line
        assert re.search(r"bronze +deleted", line), line
        assert str(today) not in line, "today is still being written"
    current = DeltaUpkeep(spark, DeltaTable(spark, chosen.stream, "bronze")).days(1 << 30)
    assert {it.day: it.files for it in current}[YESTERDAY] == 1
    assert maintain.run(spark, chosen, told()) == ExitStatus.OK
    assert capsys.readouterr().out.splitlines()[1:] == ["Nothing is due in bronze."], "what is done is not done again"


def silver_rows(spark: SparkSession, devices: Iterable[tuple[str, int]]) -> DataFrame:
    at = datetime(YESTERDAY.year, YESTERDAY.month, YESTERDAY.day, 12, tzinfo=UTC)
    times = dict.fromkeys(("device_time", "event_time", "received_at", "ingested_at"), at)
    rows: list[dict[str, Any]] = [
        {
            **times,
            "device": device,
            "clock_ahead": False,
            "record_id": f"t/0/{offset}",
            "kafka_topic": "t",
            "kafka_partition": 0,
            "kafka_offset": offset,
            "event_date": YESTERDAY,
        }
        for device, offset in devices
    ]
    return spark.createDataFrame(rows, silver_schema([]))


def test_a_device_is_forgotten_in_every_table_and_only_that_device(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    (schemas / "schemas.toml").write_text('[types.boiler]\nmqtt_topics = ["b/+"]\ndevice = { mqtt_topic = 1 }\n')
    (schemas / "boiler.json").write_text('{"type": "object", "properties": {"ts": {"type": "integer"}}}')
    chosen = settings(tmp_path)
    silver_settings = chosen.stream.silver.model_copy(update={"schemas": schemas})
    chosen = Settings(stream=chosen.stream.model_copy(update={"silver": silver_settings}))
    quoted = NAME.replace("\\", "\\\\")
    write_bronze(
        spark,
        chosen,
        [
            [record(0, YESTERDAY), record(1, YESTERDAY, payload=f'{{"device": "{quoted}"}}')],
            [record(2, TODAY, payload="\x00 no json", header=NAME), record(3, TODAY, payload="\x00 no json")],
            [record(4, YESTERDAY, payload="\x01 what only a schema reads"), record(5, TODAY, header="other")],
            [record(4, TODAY, payload="\x01 the same, of another device, once the topic was made anew")],
            [record(6, TODAY, payload=f'{{"device": "{quoted}"}}')],
        ],
    )
    silver = DeltaTable(spark, chosen.stream, "silver")
    silver.create(silver_schema([]), PARTITIONS)
    silver.append(silver_rows(spark, [("other", 0), (NAME, 1), (NAME, 4), ("other", 5)]), query="test", batch=0)
    aside = DeltaTable(spark, chosen.stream, "silver_quarantine")
    aside.create(QUARANTINE, QUARANTINE_PARTITIONS)
    at = datetime.now(UTC)
    bad = [
        ("not_json", None, b"k", b"\x00", [("gateway.device", device.encode())], "t", 0, offset, at, TODAY, at)
        for device, offset in ((NAME, 2), ("other", 3))
    ]
    bad += [
        ("missing_field", "ts", b"b", b"{}", [("mqtt.topic", f"b/{device}".encode())], "t", 0, offset, at, TODAY, at)
        for device, offset in ((NAME, 7), ("other", 8))
    ]
    aside.append(spark.createDataFrame(bad, QUARANTINE), query="test", batch=0)

    assert forget.run(spark, chosen, told(device=NAME, dry_run=True)) == ExitStatus.OK
    assert len(offsets(spark, chosen)) == 8
    assert re.search(r"^silver +2$", capsys.readouterr().out, re.MULTILINE)
    assert not Forgotten(spark, chosen.stream).moments(), "a dry run notes nothing"
    begun_ms = time.time_ns() // 1_000_000
    assert forget.run(spark, chosen, told(device=NAME, now=True)) == ExitStatus.OK
    ((noted, noted_ms),) = Forgotten(spark, chosen.stream).moments().items()
    assert noted == hashlib.sha256(NAME.encode()).hexdigest()
    assert begun_ms <= noted_ms <= time.time_ns() // 1_000_000

    shown = capsys.readouterr().out
    assert re.search(r"^bronze +4 +0$", shown, re.MULTILINE), shown
    assert re.search(r"^silver +2 +0$", shown, re.MULTILINE), shown
    assert re.search(r"^silver_quarantine +2 +0$", shown, re.MULTILINE), shown
    assert offsets(spark, chosen) == [0, 3, 4, 5]
    assert [row.device for row in silver.read().collect()] == ["other", "other"]
    assert sorted(row.kafka_offset for row in aside.read().collect()) == [3, 8]
    for table in ("bronze", "silver", "silver_quarantine"):
        left = spark.read.parquet(*map(str, (tmp_path / "lake" / table).rglob("*.parquet")))
        text = left.select(F.to_json(F.struct(*left.columns)).alias("row")).collect()
        assert not [row for row in text if "brien" in row.row], f"a file of {table} has it still"


def test_a_batch_that_knows_nothing_of_the_forgotten_device_is_awaited(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(tmp_path)
    write_bronze(spark, chosen, [[record(0, TODAY, device="d")]])
    silver, job = DeltaTable(spark, chosen.stream, "silver"), tmp_path / "checkpoints" / "silver"
    silver.create(silver_schema([]), PARTITIONS)
    job_lock.hold(str(tmp_path / "checkpoints"), "silver")
    for name in ("offsets", "commits"):
        (job / name).mkdir(parents=True)
    (job / "offsets" / "0").touch()

    def end_of_batch(_seconds: float) -> None:
        assert Forgotten(spark, chosen.stream).moments(), "the next batch knows"
        silver.append(silver_rows(spark, [("other", 0), ("d", 1)]), query="silver", batch=0)
        (job / "commits" / "0").touch()

    monkeypatch.setattr(forget, "time", SimpleNamespace(sleep=end_of_batch))
    try:
        assert forget.run(spark, chosen, told(device="d")) == ExitStatus.OK
    finally:
        job_lock.let_go(str(tmp_path / "checkpoints"), "silver")
    assert (job / "commits" / "0").exists()
    assert [row.device for row in silver.read().collect()] == ["other"]


def test_what_cannot_be_forgotten_ends_with_a_status_of_its_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings(tmp_path)
    write_bronze(spark, chosen, [[record(0, TODAY, device="d")]])
    silver = DeltaTable(spark, chosen.stream, "silver")
    silver.create(silver_schema([]), PARTITIONS)
    silver.append(silver_rows(spark, [("d", 0)]), query="test", batch=0)
    delete = DeltaTable.delete

    def full(table: DeltaTable, condition: str) -> int:
        if "headers" in condition:  # bronze's
            raise OSError("No space left on device")
        return delete(table, condition)

    monkeypatch.setattr(DeltaTable, "delete", full)
    assert forget.run(spark, chosen, told(device="d")) == ExitStatus.INCOMPLETE
    assert "bronze may still have rows of d: No space left on device" in capsys.readouterr().err
    assert Forgotten(spark, chosen.stream).moments(), "the note comes before the rows go"
    assert silver.read().count() == 1, "by it the rest is found"
    with (tmp_path / "checkpoints" / "forget.lock").open("a") as backfill:
        fcntl.flock(backfill, fcntl.LOCK_SH)
        with pytest.raises(ConfigError, match="in use by"):
            forget.run(spark, chosen, told(device="d"))
    monkeypatch.setattr(job_lock, "holder", lambda _url, job: "process 17 on edge" if job == "gold" else None)
    with pytest.raises(ConfigError, match="The job gold runs"):
        forget.run(spark, chosen, told(device="d"))
    with pytest.raises(ConfigError, match="stop gold"):
        forget.run(spark, chosen, told(device="d", now=True))


def test_rows_that_a_run_cut_off_or_the_job_only_marked_as_deleted_leave_their_files_with_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(tmp_path)
    devices = DeltaTable(spark, chosen.stream, "devices")
    devices.create(DEVICES, delta_enableDeletionVectors="true")
    rows = spark.createDataFrame([(name, *[None] * (len(DEVICES) - 1)) for name in ("d", "other", "e")], DEVICES)
    devices.append(rows.coalesce(1), query="test", batch=0)

    def marked() -> list[bool]:
        """Whether each file of the table has rows that are only marked as deleted."""
        return [row.deletionVector is not None for row in jvm.delta_files(spark, devices.url).collect()]

    with monkeypatch.context() as cut_off:
        cut_off.delattr(DeltaUpkeep, "purge")
        assert forget.run(spark, chosen, told(device="d")) == ExitStatus.INCOMPLETE
    assert forget.run(spark, chosen, told(device="d")) == ExitStatus.OK
    assert marked() == [False], "VACUUM would leave the file for ever"
    devices.delete("device = 'other'")  # as the job does, after ``forget_after`` or once it has seen the note
    assert forget.run(spark, chosen, told(device="other")) == ExitStatus.OK
    assert not any(marked())


def test_a_job_that_has_begun_no_batch_needs_no_file_of_silver(spark: SparkSession, tmp_path: Path) -> None:
    chosen, gold = settings(tmp_path), tmp_path / "checkpoints" / "gold"
    DeltaTable(spark, chosen.stream, "silver").create(silver_schema([]), PARTITIONS)
    write_bronze(spark, chosen, [[record(0, TODAY, device="d")]])
    gold.mkdir(parents=True)
    (gold / "metadata").write_text("{}")
    assert forget.run(spark, chosen, told(device="d", now=True)) == ExitStatus.OK
    (gold / "offsets").mkdir()
    (gold / "offsets" / "0").touch()
    with pytest.raises(ConfigError, match="has not finished its first batch"):
        forget.run(spark, chosen, told(device="d", now=True))


def test_a_day_after_the_year_9999_leaves_the_others_their_upkeep(spark: SparkSession, tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    table = DeltaTable(spark, chosen.stream, "bronze")
    days = spark.range(2).select("id", F.to_date(F.timestamp_millis(F.col("id") * (1 << 50))).alias("ingest_date"))
    for _ in range(2):
        days.write.format("delta").mode("append").partitionBy("ingest_date").save(table.url)
    assert maintain.run(spark, chosen, told()) == ExitStatus.OK
    assert [it.day for it in DeltaUpkeep(spark, table).days(1 << 20)] == [date(1970, 1, 1), date.max]


def test_a_row_is_kept_as_long_as_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    chosen = settings(tmp_path, retention=RetentionSettings(bronze=timedelta(hours=36)))
    write_bronze(spark, chosen, [[record(0, date(2026, 3, 1)), record(1, date(2026, 2, 28))]])
    table, now = DeltaTable(spark, chosen.stream, "bronze"), datetime(2026, 3, 3, 2, tzinfo=UTC)
    done = maintain.due(spark, chosen.stream, table, now, dry_run=True)
    assert ("deleted", "1 rows before 2026-03-01") in done


def test_nothing_is_said_to_be_forgotten_or_kept_up_where_nothing_was_found(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings(tmp_path)
    silver = SilverSettings(registry=tmp_path / "lake" / "registry")  # where a Delta table could be
    chosen = Settings(stream=chosen.stream.model_copy(update={"silver": silver}))
    with pytest.raises(ConfigError, match="so nothing was looked at"):
        forget.run(spark, chosen, told(device="d"))
    assert not Forgotten(spark, chosen.stream).moments()
    assert maintain.run(spark, chosen, told()) == ExitStatus.NOT_FOUND
    write_bronze(spark, chosen, [[record(0, TODAY, device="d")]])
    capsys.readouterr()
    assert forget.run(spark, chosen, told(device="D")) == ExitStatus.OK
    said = capsys.readouterr()
    assert "No table has a row of 'D'" in said.err
    assert f"the registry {tmp_path}/lake/registry, which stream.silver.registry names" in said.out


def test_a_conflict_is_tried_again_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.lake.lake.time.sleep", lambda _: None)
    answers: list[Exception | int] = [RuntimeError("[DELTA_CONCURRENT_APPEND] another came first"), 7]

    def commit() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert retried(commit) == 7
    answers[:] = [RuntimeError("no such table"), 7]
    with pytest.raises(RuntimeError, match="no such table"):
        retried(commit)
    answers[:] = [RuntimeError("ConcurrentDeleteReadException")] * 3
    with pytest.raises(RuntimeError, match="ConcurrentDeleteRead"):
        retried(commit, attempts=3)


@in_full_form
def test_tables_of_a_catalog_are_kept_up_and_read_by_their_names(spark: SparkSession, tmp_path: Path) -> None:
    chosen = settings(tmp_path, catalog="spark_catalog.default", compact_after=timedelta(0))
    try:
        write_bronze(spark, chosen, [[record(at, YESTERDAY)] for at in range(2)])
        assert spark.table("spark_catalog.default.bronze").count() == 2
        assert maintain.run(spark, chosen, told()) == ExitStatus.OK
        assert forget.run(spark, chosen, told(device="other")) == ExitStatus.OK
        assert spark.table("spark_catalog.default.bronze").count() == 0
    finally:
        spark.sql("DROP TABLE IF EXISTS spark_catalog.default.bronze")


def test_a_day_of_silver_is_sorted_by_device(spark: SparkSession, tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    table = DeltaTable(spark, chosen.stream, "silver")
    table.create(silver_schema(()), PARTITIONS, delta_dataSkippingStatsColumns="device")
    rows = spark.range(4000).selectExpr(
        "concat('d', lpad(string(id % 1000), 4, '0')) AS device", "string(id) AS record_id",
        f"DATE '{OLD}' AS event_date", "false AS clock_ahead", "sha2(string(id), 256) AS message_id",
    )  # fmt: skip
    rows.repartition(6).write.format("delta").mode("append").save(table.url)
    upkeep = DeltaUpkeep(spark, table)
    (day,) = upkeep.days(0)
    size = day.size // 4
    assert [(it.day, it.files, it.unsorted) for it in upkeep.days(size, "device")] == [(OLD, 6, True)]

    before = sorted(row.record_id for row in table.read().select("record_id").collect())
    removed, added = upkeep.optimize(OLD, size, "device")
    assert (removed, added > 2) == (6, True)
    assert not any(it.unsorted for it in upkeep.days(size, "device"))
    assert sorted(row.record_id for row in table.read().select("record_id").collect()) == before
    one = table.read().where("device = 'd0001'").select(F.input_file_name().alias("file")).distinct().count()
    assert one == 1


def test_files_are_loose_that_reach_into_much_of_the_others() -> None:
    apart = [FileRange(100, f"d{n}", f"d{n + 1}") for n in range(5)]
    assert loose(apart) == 0
    assert loose([*apart, FileRange(3, "a", "z")]) == 3
    assert loose([FileRange(100, "a", "z")] * 3) == 300
    assert loose([FileRange(100, "x" * 40, "x" * 41)] * 3) == 0, "Delta keeps 32 characters"
