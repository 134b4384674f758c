"""``gateway stream maintain`` and ``gateway stream forget``: what they change, and what they must not."""

from __future__ import annotations

import argparse
import hashlib
import re
import threading
import time
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError, ExitStatus
from config.settings import Settings, StreamSettings
from config.stream_jobs import BronzeSettings, LakeSettings, RetentionSettings
from streaming import delta_upkeep, forget, job_lock, lake_tables, maintain, parquet_days
from streaming.bronze_table import BRONZE, bronze_table
from streaming.delta_upkeep import DeltaUpkeep, retried
from streaming.forgotten import Forgotten
from streaming.lake import DeltaTable
from streaming.silver_schema import PARTITIONS, QUARANTINE, QUARANTINE_PARTITIONS, silver_schema
from streaming.swap import can_exchange, exchange, local_path
from tests.chaos.harness import in_full_form

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

TODAY = datetime.now(UTC).date()
OLD = TODAY - timedelta(days=10)
YESTERDAY = TODAY - timedelta(days=1)
NAME = "o'brien \\ sensor"
"""What SQL would trip over, if it were not quoted."""


def settings(folder: Path, kind: str = "parquet", **lake: Any) -> Settings:
    stream = StreamSettings(
        checkpoint=folder / "checkpoints",
        output=folder / "telemetry",
        quarantine=folder / "quarantine",
        lake=LakeSettings(path=folder / "lake", **lake),
        bronze=BronzeSettings.model_validate({"format": kind}),
    )
    return Settings(stream=stream)


def record(
    offset: int, day: date, *, device: str = "other", payload: str | None = None, header: str | None = None,
    topic: str = "t",
) -> tuple[Any, ...]:  # fmt: skip
    at = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    value = f'{{"device": "{device}"}}' if payload is None else payload
    headers = None if header is None else [("gateway.device", header.encode())]
    return (b"k", value.encode(), 0, offset, at, 0, headers, day, topic)


def write_bronze(spark: SparkSession, chosen: Settings, batches: Iterable[Iterable[tuple[Any, ...]]]) -> None:
    table = bronze_table(spark, chosen.stream)
    columns = BRONZE.fieldNames()[:-1]
    number = -1
    for number, rows in enumerate(batches):
        frame = spark.createDataFrame([(*row, number) for row in rows], BRONZE).select(*columns)
        table.write(frame, number)
    commits = chosen.stream.checkpoint / "bronze" / "commits"
    commits.mkdir(parents=True, exist_ok=True)
    (commits / str(number)).write_text("v1\n{}")


def offsets(spark: SparkSession, chosen: Settings) -> list[int]:
    return sorted(row.offset for row in lake_tables.bronze(spark, chosen.stream).select("offset").collect())


def files(folder: Path) -> int:
    return sum(1 for it in folder.glob("**/*.parquet") if not any(part.startswith(".") for part in it.parts))


def told(*, device: str | None = None, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"dry_run": False, "table": None, "now": False, "device": device, **more})


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_small_files_of_past_days_become_one_and_old_days_go(
    spark: SparkSession, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings(tmp_path, kind, compact_after=timedelta(0), retention=RetentionSettings(bronze=timedelta(days=5)))
    lots = [[record(10 * at, YESTERDAY), record(10 * at + 1, TODAY), record(10 * at + 2, OLD)] for at in range(3)]
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
    for line in (dry, done):
        assert re.search(rf"bronze +compacted +{YESTERDAY}", line), line
        assert re.search(r"bronze +deleted", line), line
        assert str(TODAY) not in line, "today is still being written"
    current = DeltaUpkeep(spark, DeltaTable(spark, chosen.stream, "bronze")).days(1 << 30) if kind == "delta" else []
    if kind == "delta":
        assert {it.day: it.files for it in current}[YESTERDAY] == 1
    else:
        assert files(day) == 1
        assert not (tmp_path / "lake" / "bronze" / f"ingest_date={OLD}").exists()
        assert not [it for it in (tmp_path / "lake" / "bronze").iterdir() if it.name.startswith(".")]
        assert maintain.run(spark, chosen, told()) == ExitStatus.OK
        assert "compacted" not in capsys.readouterr().out, "what is done is not done again"


def test_a_batch_that_may_be_repeated_and_one_that_comes_meanwhile_keep_their_rows(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(tmp_path, compact_after=timedelta(0))
    write_bronze(spark, chosen, [[record(at, YESTERDAY)] for at in range(4)])
    commits = tmp_path / "checkpoints" / "bronze" / "commits"
    (commits / "3").rename(commits / "2")
    maintain.run(spark, chosen, told())
    assert "batch 3 is not committed" in capsys.readouterr().out
    (commits / "3").write_text("v1\n{}")

    def late(one: Path, other: Path) -> None:
        # Between the reading of the day and the exchange, by the job.
        rows = spark.createDataFrame([(*record(9, YESTERDAY), 9)], BRONZE).drop("batch")
        bronze_table(spark, chosen.stream).write(rows, 9)
        exchange(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(parquet_days, "exchange", late)
        maintain.run(spark, chosen, told())
    assert offsets(spark, chosen) == [0, 1, 2, 3, 9]

    def cut_off(*_: object) -> None:
        raise OSError("killed")

    (commits / "9").write_text("v1\n{}")
    with monkeypatch.context() as patch:
        patch.setattr(parquet_days.ParquetDays, "_discard", cut_off)
        write_more = [[record(20 + at, YESTERDAY)] for at in range(3)]
        for number, rows in enumerate(write_more, 5):
            frame = spark.createDataFrame([(*row, number) for row in rows], BRONZE).drop("batch")
            bronze_table(spark, chosen.stream).write(frame, number)
        assert maintain.run(spark, chosen, told()) == ExitStatus.INCOMPLETE
    assert offsets(spark, chosen) == [0, 1, 2, 3, 9, 20, 21, 22], "killed after the exchange: nothing twice"
    maintain.run(spark, chosen, told())
    assert offsets(spark, chosen) == [0, 1, 2, 3, 9, 20, 21, 22]
    assert not [it for it in (tmp_path / "lake" / "bronze").iterdir() if it.name.startswith(".")]


def test_a_reader_finds_each_row_once_at_any_moment(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, name in ((one, "old"), (other, "new")):
        folder.mkdir()
        (folder / name).touch()
    assert can_exchange(tmp_path)
    wrong: list[list[str]] = []
    over = threading.Event()

    def reading() -> None:
        while not over.is_set():
            found = [it.name for it in one.iterdir()]
            if len(found) != 1:
                wrong.append(found)

    reader = threading.Thread(target=reading)
    reader.start()
    for _ in range(2_000):
        exchange(one, other)
    over.set()
    reader.join()
    assert not wrong
    assert [it.name for it in one.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("url", "path"),
    [("/a b/c", "/a b/c"), ("file:///a%20b/c", "/a b/c"), ("file:/a/c", "/a/c"), ("s3a://bucket/lake", None)],
)
def test_what_is_on_this_machine(url: str, path: str | None) -> None:
    assert (None if local_path(url) is None else str(local_path(url))) == path


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


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_device_is_forgotten_in_every_table_and_only_that_device(
    spark: SparkSession, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings(tmp_path, kind)
    quoted = NAME.replace("\\", "\\\\")
    write_bronze(
        spark,
        chosen,
        [
            [record(0, YESTERDAY), record(1, YESTERDAY, payload=f'{{"device": "{quoted}"}}')],
            [record(2, TODAY, payload="\x00 no json", header=NAME), record(3, TODAY, payload="\x00 no json")],
            [record(4, TODAY, payload="\x01 what only a schema reads"), record(5, TODAY, header="other")],
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
    aside.append(spark.createDataFrame(bad, QUARANTINE), query="test", batch=0)

    now = kind == "delta"
    if not now:
        assert forget.run(spark, chosen, told(device=NAME, dry_run=True)) == ExitStatus.OK
        assert len(offsets(spark, chosen)) == 7
        assert re.search(r"^silver +2$", capsys.readouterr().out, re.MULTILINE)
        assert not Forgotten(spark, chosen.stream).moments(), "a dry run notes nothing"
    begun_ms = time.time_ns() // 1_000_000
    assert forget.run(spark, chosen, told(device=NAME, now=now)) == ExitStatus.OK
    ((noted, noted_ms),) = Forgotten(spark, chosen.stream).moments().items()
    assert noted == hashlib.sha256(NAME.encode()).hexdigest()
    assert begun_ms <= noted_ms <= time.time_ns() // 1_000_000

    shown = capsys.readouterr().out
    assert re.search(r"^bronze +4 +0$", shown, re.MULTILINE), shown
    assert re.search(r"^silver +2 +0$", shown, re.MULTILINE), shown
    assert re.search(r"^silver_quarantine +1 +0$", shown, re.MULTILINE), shown
    assert offsets(spark, chosen) == [0, 3, 5]
    assert [row.device for row in silver.read().collect()] == ["other", "other"]
    assert aside.read().count() == 1
    if not now:
        there = b"".join(it.read_bytes() for it in (tmp_path / "lake" / "bronze").rglob("*") if it.is_file())
        assert b"o'brien" not in there, "no file has it any more"
        return
    for table in ("bronze", "silver", "silver_quarantine"):
        left = spark.read.parquet(*map(str, (tmp_path / "lake" / table).rglob("*.parquet")))
        text = left.select(F.to_json(F.struct(*left.columns)).alias("row")).collect()
        assert not [row for row in text if "brien" in row.row], f"a file of {table} has it still"


def test_what_cannot_be_forgotten_ends_with_a_status_of_its_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings(tmp_path)
    write_bronze(spark, chosen, [[record(0, TODAY, device="d")]])

    def full(*_: object) -> int:
        raise OSError("No space left on device")

    monkeypatch.setattr(forget, "remove_rows", full)
    assert forget.run(spark, chosen, told(device="d")) == ExitStatus.INCOMPLETE
    assert "bronze may still have rows of d: No space left on device" in capsys.readouterr().err
    assert Forgotten(spark, chosen.stream).moments(), "the note comes before the rows go"
    monkeypatch.setattr(job_lock, "holder", lambda _url, job: "process 17 on edge" if job == "gold" else None)
    with pytest.raises(ConfigError, match="The job gold runs"):
        forget.run(spark, chosen, told(device="d"))
    with pytest.raises(ConfigError, match="stop gold"):
        forget.run(spark, chosen, told(device="d", now=True))


def test_a_conflict_is_tried_again_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_upkeep.time, "sleep", lambda _: None)
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
    chosen = settings(tmp_path, "delta", catalog="spark_catalog.default", compact_after=timedelta(0))
    try:
        write_bronze(spark, chosen, [[record(at, YESTERDAY)] for at in range(2)])
        assert spark.table("spark_catalog.default.bronze").count() == 2
        assert maintain.run(spark, chosen, told()) == ExitStatus.OK
        assert forget.run(spark, chosen, told(device="other")) == ExitStatus.OK
        assert spark.table("spark_catalog.default.bronze").count() == 0
    finally:
        spark.sql("DROP TABLE IF EXISTS spark_catalog.default.bronze")
