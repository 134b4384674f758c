"""What a checkpoint's note refuses, takes and tells."""

import importlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from config.errors import ConfigError
from config.settings import Settings, StreamSettings
from streaming import jvm
from streaming.bronze.job import GAPS
from streaming.devices.job import DEVICE_EVENTS
from streaming.errors import StreamError
from streaming.job import JobContext
from streaming.lake.columns import columns
from streaming.lake.lake import DeltaTable, retried
from streaming.lake.storage import Folder, LocalFolder
from streaming.options import LAKE_JOBS
from streaming.runtime import job_lock
from streaming.runtime.checkpoint import VERSION, prepare_checkpoint
from streaming.silver.tables import SilverTables
from streaming.upkeep.reset import plan
from tests.waiting import wait_until

FIXED = {"state": 1, "stream.shuffle_partitions": 2}


@pytest.fixture
def begun(spark: SparkSession, tmp_path: Path) -> Iterator[StreamSettings]:
    """A checkpoint that a query has begun, with a state and topics."""
    stream = StreamSettings(checkpoint=tmp_path)
    prepare_checkpoint(spark, stream, "silver", FIXED, topics=["a", "b"])
    (tmp_path / "silver").mkdir()
    (tmp_path / "silver" / "metadata").write_text('{"id":"1"}')
    yield stream
    job_lock.let_go(str(tmp_path), "silver")


def note(stream: StreamSettings) -> dict[str, object]:
    found: dict[str, object] = json.loads((stream.checkpoint / "silver.json").read_text())
    return found


def test_what_the_state_depends_on_cannot_be_changed_under_it(spark: SparkSession, begun: StreamSettings) -> None:
    before = note(begun)
    for changed in ({"state": 2, "stream.shuffle_partitions": 2}, {"state": 1, "stream.shuffle_partitions": 4}):
        with pytest.raises(ConfigError, match=r"is now \d, was \d\. .*gateway stream reset silver"):
            prepare_checkpoint(spark, begun, "silver", changed)
    assert note(begun) == before
    prepare_checkpoint(spark, begun, "silver", FIXED)
    assert note(begun) == before, "what is not told stays"


def test_a_note_that_is_written_anew_is_there_at_every_moment(spark: SparkSession, tmp_path: Path) -> None:
    """A reader, and a process that is killed at any step, finds the old text or the new one."""
    folder, looked = Folder(spark, str(tmp_path)), LocalFolder(str(tmp_path))
    folder.write_text("note.json", "0")
    (tmp_path / ".note.json.crc").write_bytes(b"crc\0\0\0\2\0\0\0\0\0")  # an older version left one of other text
    seen: set[str | None] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add(looked.read_text("note.json"))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(1, 100):
            folder.write_text("note.json", str(number))
            if number % 33 == 0:
                wait_until(partial(seen.__contains__, str(number)), "the reader has found it")
    finally:
        done.set()
        reader.join()
    assert None not in seen
    assert folder.read_text("note.json") == "99"
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".crc"] == ["note.json"], "no draft is left"


def test_a_note_on_another_file_system_is_replaced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.lake.storage.is_local", lambda _url: False)
    folder = Folder(spark, str(tmp_path))
    for text in ("first", "second"):
        folder.write_text("note.json", text)
        assert folder.read_text("note.json") == text
    assert {path.name for path in tmp_path.iterdir()} <= {"note.json", ".note.json.crc"}


def test_settings_may_change_until_the_query_has_begun(spark: SparkSession, tmp_path: Path) -> None:
    stream = StreamSettings(checkpoint=tmp_path)
    prepare_checkpoint(spark, stream, "silver", {"state": 1})
    assert prepare_checkpoint(spark, stream, "silver", {"state": 2}).url == str(tmp_path / "silver")
    job_lock.let_go(str(tmp_path), "silver")


def test_a_newer_versions_and_another_querys_checkpoint_are_refused(spark: SparkSession, begun: StreamSettings) -> None:
    file = begun.checkpoint / "silver.json"
    file.write_text(json.dumps({"version": VERSION + 1, "query": "silver"}))
    with pytest.raises(ConfigError, match="newer version"):
        prepare_checkpoint(spark, begun, "silver")
    file.write_text(json.dumps({"version": VERSION, "query": "gold"}))
    with pytest.raises(ConfigError, match="belongs to the query gold, not to silver"):
        prepare_checkpoint(spark, begun, "silver")


def test_a_damaged_note_and_a_folder_that_cannot_be_are_sentences(spark: SparkSession, begun: StreamSettings) -> None:
    (begun.checkpoint / "silver.json").write_text('{"version": 1, "que')
    with pytest.raises(ConfigError, match=r"silver\.json is damaged: .* gateway stream reset silver"):
        prepare_checkpoint(spark, begun, "silver")
    below_a_file = StreamSettings(checkpoint=begun.checkpoint / "silver.json" / "checkpoints")
    with pytest.raises(ConfigError, match="cannot be written"):
        prepare_checkpoint(spark, below_a_file, "silver")


def test_no_job_goes_on_without_its_table(spark: SparkSession, tmp_path: Path) -> None:
    stream = StreamSettings(topics=["t"], checkpoint=tmp_path / "checkpoints", lake={"path": tmp_path / "lake"})
    for job in LAKE_JOBS:  # silver first: the others read it
        commits = stream.checkpoint / job / "commits"
        commits.mkdir(parents=True)
        (commits / "0").write_text("v1\n{}")
        start = importlib.import_module(f"streaming.{job}.job").start
        try:
            with pytest.raises(ConfigError, match=f"there is no table at .*/{job}: .* gateway stream reset {job}"):
                start(spark, Settings(stream=stream), JobContext(lambda _: None))
        finally:
            job_lock.let_go(str(stream.checkpoint), job)
        if job == "silver":
            DeltaTable(spark, stream, job).create(GAPS)


def test_rows_of_another_checkpoint_are_not_doubled(spark: SparkSession, tmp_path: Path) -> None:
    stream = StreamSettings(checkpoint=tmp_path / "checkpoints", lake={"path": tmp_path / "lake"})
    events = DeltaTable(spark, stream, "device_events")
    events.create(DEVICE_EVENTS)
    prepare_checkpoint(spark, stream, "devices", doubled="device_events")
    spark.createDataFrame([(None, "offline", "d", "g", None, 1)], DEVICE_EVENTS).write.format("delta").mode(
        "append"
    ).save(events.url)
    with pytest.raises(ConfigError, match="written a second time"):
        prepare_checkpoint(spark, stream, "devices", doubled="device_events")
    job_lock.let_go(str(stream.checkpoint), "devices")


def test_an_older_copy_of_a_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Delta leaves out a batch whose number it knows, and its rows are others than those of the batch it has."""
    gaps = DeltaTable(spark, StreamSettings(lake={"path": tmp_path / "lake"}), "bronze_gaps")
    gaps.create(GAPS)
    rows = spark.createDataFrame([("t", 0, 1, 2, "deleted", None, 1)], GAPS)
    for batch in (3, 4, 4):  # the last one is repeated after a crash
        gaps.append(rows, query="bronze", batch=batch)
    with pytest.raises(StreamError, match="has batch 4 of bronze, and the checkpoint is at batch 3"):
        gaps.append(rows, query="bronze", batch=3)
    assert gaps.read().count() == 2


def test_two_programs_may_make_a_table_at_once_and_widen_it(spark: SparkSession, tmp_path: Path) -> None:
    def make(lake: Path, signals: str, begin: threading.Barrier) -> None:
        session = spark.newSession()
        begin.wait()
        SilverTables(session, StreamSettings(lake={"path": lake}), columns(signals))

    with ThreadPoolExecutor(2) as threads:
        for number in range(4):
            for signals in ("a double", "a double, b double", "a double, b double, c double"):
                begin = threading.Barrier(2)
                for done in [threads.submit(make, tmp_path / str(number), signals, begin) for _ in range(2)]:
                    done.result()


def test_a_batch_is_appended_without_reading_the_log_for_its_mark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta's own writer has a Spark job read it each time. So do we where there is no checksum beside a commit. Of two
    that append a batch at once, one does."""
    table = DeltaTable(spark, StreamSettings(lake={"path": tmp_path}), "bronze_gaps")
    table.create(GAPS)
    rows = spark.createDataFrame([("t", 0, 1, 2, "deleted", None, 1)], GAPS)

    def append(batch: int) -> bool:
        before = jvm.delta_snapshot(spark, table.url)
        table.append(rows, query="bronze", batch=batch)
        return bool(before.stateReconstructionTriggered())

    assert [append(batch) for batch in range(3)] == [False] * 3
    (tmp_path / "bronze_gaps" / "_delta_log" / f"{3:020}.crc").unlink()
    jvm.java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    assert append(3)
    assert table.last_batch("bronze") == 3

    mark = jvm.delta_mark

    def other_first(snapshot: Any, writer: str) -> int:
        monkeypatch.setattr(jvm, "delta_mark", mark)
        table.append(rows, query="bronze", batch=4)
        return mark(snapshot, writer)

    monkeypatch.setattr(jvm, "delta_mark", other_first)
    retried(lambda: table.append(rows, query="bronze", batch=4))
    assert table.read().count() == 5


def test_a_query_begins_anew_after_a_reset(spark: SparkSession, begun: StreamSettings) -> None:
    job_lock.let_go(str(begun.checkpoint), "silver")
    for move in plan(begun, "silver", 0):
        move.folder.rename(move.name, move.to)
    assert sorted(path.name for path in begun.checkpoint.iterdir() if "silver" in path.name) == [
        "silver.lock", "silver.reset-19700101T000000Z",
        "silver.reset-19700101T000000Z.json",
    ]  # fmt: skip
    prepare_checkpoint(spark, begun, "silver", {"state": 2})
    (begun.checkpoint / "silver").mkdir()
    (begun.checkpoint / "silver" / "metadata").write_text('{"id":"2"}')
    prepare_checkpoint(spark, begun, "silver", {"state": 2})
    assert note(begun)["state"] == 2


def test_topics_that_come_and_go_are_told_once(
    spark: SparkSession, begun: StreamSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_checkpoint(spark, begun, "silver", topics=["b", "c"])
    said = capsys.readouterr().err
    assert "silver reads c from now on, from the oldest record" in said
    assert "silver does not read a any more" in said
    prepare_checkpoint(spark, begun, "silver", topics=["c", "b"])
    assert capsys.readouterr().err == ""
