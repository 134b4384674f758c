"""The status as read from the files of real checkpoints and Delta tables, against what Spark says of them."""

import argparse
import queue
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StringType, StructType

from config.settings import Settings, StreamSettings
from config.tables.stream_jobs import LakeSettings
from streaming import jvm
from streaming.job import Job, JobContext
from streaming.kafka.source import trigger
from streaming.lake.lake import DeltaTable
from streaming.lake.storage import Folder, LocalFolder
from streaming.metrics import StreamMetrics
from streaming.progress import Event
from streaming.runtime.queries import run_queries
from streaming.upkeep import status
from streaming.upkeep.status import collect, from_json
from tests.waiting import DEADLINE_S

COLUMNS = StructType().add("id", LongType()).add("device", StringType())


def settings_for(folder: Path) -> Settings:
    return Settings(
        stream=StreamSettings(
            checkpoint=folder / "checkpoints", lake=LakeSettings(path=folder / "lake"), available_now=True
        )
    )


def follower(table: DeltaTable) -> Job:
    """A query that reads a table a file at a time, and keeps nothing."""

    def start(_spark: SparkSession, settings: Settings, _context: JobContext) -> StreamingQuery:
        query: StreamingQuery = (
            table.read_stream(maxFilesPerTrigger="1")
            .writeStream.queryName("follower")
            .option("checkpointLocation", str(settings.stream.checkpoint / "follower"))
            .trigger(**trigger(settings.stream))
            .format("noop")
            .start()
        )
        return query

    return start


def test_a_table_and_its_reader_are_told_from_their_files(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(tmp_path)
    stream = settings.stream
    table = DeltaTable(spark, stream, "silver")
    table.create(COLUMNS, delta_enableDeletionVectors="true", delta_checkpointInterval="3")
    for number in range(4):
        rows = spark.range(number * 10, number * 10 + 10, 1, 1).selectExpr("id", "'a' AS device")
        table.append(rows, query="writer", batch=number)

    events: list[Event] = []
    context = JobContext(events.append)
    run_queries(spark, settings, [follower(table)], context, queue.SimpleQueue())
    batches = [event for event in events if event.event == "batch"]
    assert [event.rows for event in batches if event.rows] == [10, 10, 10, 10], "a file a batch, and then it ends"  # type: ignore[union-attr]
    assert all(not event.end_offsets for event in batches), "a table is no topic"  # type: ignore[union-attr]
    assert _value(context.metrics, "gateway_stream_rows_total") == 40

    (query,) = collect(stream).queries
    assert (query.query, query.running, query.problem) == ("follower", None, None)
    assert query.progress.batch == batches[-1].batch  # type: ignore[union-attr]
    assert list(query.progress.tables_read.values()) == [4]

    spark.sql(f"DELETE FROM {table.sql_name} WHERE id IN (1, 2, 33)")
    spark.sql(f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')")
    for number in range(4, 8):
        rows = spark.range(number * 10, number * 10 + 10, 1, 1).selectExpr("id", "'a' AS device")
        table.append(rows, query="writer", batch=number)
    assert list((tmp_path / "lake" / "silver" / "_delta_log").glob("*.checkpoint.*-*.*")), "a V2 checkpoint"
    status.run(spark, settings, argparse.Namespace())
    for found in (collect(stream), from_json(capsys.readouterr().out.splitlines()[-1])):
        (facts,) = found.tables
        assert facts.rows == table.read().count() == 77
        detail = spark.sql(f"DESCRIBE DETAIL {table.sql_name}").first()
        assert detail is not None
        assert (facts.files, facts.bytes) == (detail["numFiles"], detail["sizeInBytes"])
        history = spark.sql(f"DESCRIBE HISTORY {table.sql_name} LIMIT 1").first()
        assert history is not None
        assert facts.version == history["version"]
        assert facts.written_at_s is not None
        # Spark tells when the file was written, and the commit itself when it was made, a moment before.
        assert -1 < history["timestamp"].timestamp() - facts.written_at_s < DEADLINE_S


def test_spark_s_folders_say_the_same_as_the_systems(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").write_bytes(b"12345")
    mine, sparks = LocalFolder(str(tmp_path)), Folder(spark, str(tmp_path))
    assert mine.names("a") == sparks.names("a") == ["b"]
    assert mine.names("none") == sparks.names("none") == []
    assert mine.size("a") == sparks.size("a") == 5
    assert mine.size("none") == sparks.size("none") == 0
    assert abs(mine.modified_s("a/b/x") - sparks.modified_s("a/b/x")) < 1
    sparks.rename("a", "c")
    assert not mine.exists("a")
    assert mine.exists("c/b/x")


def test_the_jvm_is_asked_for_classes_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a package, ``org.apache``, it looks into every jar, and finds nothing."""
    client = spark._jvm._gateway_client
    asked: list[str] = []
    ask = client.send_command

    def noting(command: str, *arguments: Any, **options: Any) -> Any:
        asked.append(command)
        return ask(command, *arguments, **options)

    monkeypatch.setattr(client, "send_command", noting)
    assert not Folder(spark, str(tmp_path)).exists("none")
    assert jvm.delta_mark(jvm.delta_snapshot(spark, str(tmp_path)), "nobody") == -1
    names = {command.split("\n")[2] for command in asked if command.startswith("r\nu\n")}
    assert {name.rpartition(".")[2] for name in names} == {"Path", "Option", "DeltaLog"}, names


def _value(metrics: StreamMetrics, name: str) -> float:
    return next(
        sample.value for family in metrics.registry.collect() for sample in family.samples if sample.name == name
    )
