"""``gateway stream status`` and ``reset`` on files as Spark and Delta write them, and the lock of a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from config.errors import ConfigError
from config.settings import StreamSettings
from config.stream_jobs import LakeSettings
from gateway.cli.main import main
from streaming import job_lock
from streaming.checkpoint_log import read_progress
from streaming.delta_log import read_table
from streaming.files import LocalFolder, is_local
from streaming.reset import plan
from streaming.status import collect, from_json, to_json

if TYPE_CHECKING:
    from pathlib import Path

DELTA = {"sourceVersion": 1, "reservoirId": "4f1", "reservoirVersion": 7, "index": -1, "isStartingVersion": False}


def batch(folder: Path, number: int, *places: Any, finished: bool = True, watermark_ms: int = 0) -> None:
    """One batch in a checkpoint, as Spark 4.2 writes it."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id":"a-b"}')
    head = json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": 1, "conf": {}})
    lines = ["v1", head, *("-" if place is None else json.dumps(place) for place in places)]
    (folder / "offsets" / str(number)).write_text("\n".join(lines))
    if finished:
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def add(path: str, rows: int | None, size: int = 100, deleted: int = 0) -> dict[str, Any]:
    action: dict[str, Any] = {"path": path, "size": size, "stats": None}
    if rows is not None:
        action["stats"] = json.dumps({"numRecords": rows})
    if deleted:
        action["deletionVector"] = {"cardinality": deleted, "pathOrInlineDv": "v", "offset": 1}
    return {"add": action}


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    lines = [{"commitInfo": {"timestamp": 1_700_000_000_000 + version * 1000}}, *actions]
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, lines)) + "\n")


@pytest.fixture
def stream(tmp_path: Path) -> StreamSettings:
    return StreamSettings(
        checkpoint=tmp_path / "checkpoints", output=tmp_path / "telemetry", quarantine=tmp_path / "quarantine",
        lake=LakeSettings(path=tmp_path / "lake"),
    )  # fmt: skip


def words(stream: StreamSettings) -> list[str]:
    return ["--checkpoint", str(stream.checkpoint), "--lake", str(stream.lake.path)]


def test_what_counts_is_the_last_finished_batch(tmp_path: Path) -> None:
    for number in range(9, 12):  # 10 is after 9, though not by the alphabet
        batch(tmp_path / "silver", number, {"t": {"0": number, "1": 5}}, watermark_ms=77)
    batch(tmp_path / "silver", 12, {"t": {"0": 99, "1": 5}}, finished=False)
    found = read_progress(LocalFolder(str(tmp_path)), "silver")
    assert (found.batch, found.planned, found.watermark_ms) == (11, 12, 77)
    assert found.offsets == {"t": {"0": 11, "1": 5}}
    assert found.finished_at_s is not None


def test_two_sources_and_a_table(tmp_path: Path) -> None:
    batch(tmp_path / "audit", 0, {"t": {"0": 1}}, None, {"ledger": {"0": 2}}, DELTA)
    found = read_progress(LocalFolder(str(tmp_path)), "audit")
    assert found.offsets == {"t": {"0": 1}, "ledger": {"0": 2}}
    assert found.tables == {"4f1": 6}, "before the first file of version 7"
    assert found.watermark_ms is None


def test_before_the_first_batch(tmp_path: Path) -> None:
    batch(tmp_path / "gold", 0, DELTA, finished=False)
    found = read_progress(LocalFolder(str(tmp_path)), "gold")
    assert (found.batch, found.planned, found.offsets) == (None, 0, {})


def test_a_table_is_what_its_log_adds_and_does_not_remove(tmp_path: Path) -> None:
    commit(tmp_path / "silver", 0, add("a", 10), add("b", 20))
    commit(tmp_path / "silver", 1, {"remove": {"path": "a"}}, add("c", 9, size=50, deleted=2))
    found = read_table(LocalFolder(str(tmp_path)), "silver")
    assert found is not None
    assert (found.rows, found.files, found.bytes, found.version) == (27, 2, 150, 1)
    assert found.written_at_s == 1_700_000_001


def test_a_file_that_gets_a_deletion_vector_stays(tmp_path: Path) -> None:
    commit(tmp_path / "silver", 0, add("a", 10))
    commit(tmp_path / "silver", 1, add("a", 10, deleted=3), {"remove": {"path": "a"}})  # in the order Delta writes them
    found = read_table(LocalFolder(str(tmp_path)), "silver")
    assert found is not None
    assert (found.rows, found.files) == (7, 1)


def test_a_snapshot_stands_for_older_commits(tmp_path: Path) -> None:
    log = tmp_path / "silver" / "_delta_log"
    for version in (10, 11):
        commit(tmp_path / "silver", version, add("late" if version == 11 else "not-again", 5))
    rows = [{**add("a", 10)}, {"add": None}, {**add("b", 20)}]
    for row in rows:
        if row["add"] is not None:
            row["add"]["deletionVector"] = None
    parquet.write_table(pa.Table.from_pylist(rows), log / f"{10:020}.checkpoint.parquet")
    found = read_table(LocalFolder(str(tmp_path)), "silver")
    assert found is not None
    assert (found.rows, found.files, found.version) == (35, 3, 11), "commit 10 is in the snapshot"


def test_a_log_without_a_commit_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "silver" / "_delta_log").mkdir(parents=True)
    assert read_table(LocalFolder(str(tmp_path)), "silver") is None, "its job was killed before the first commit"


def test_rows_are_not_guessed(tmp_path: Path) -> None:
    commit(tmp_path / "silver", 0, add("a", 10), add("b", None))
    found = read_table(LocalFolder(str(tmp_path)), "silver")
    assert found is not None
    assert found.rows is None
    (tmp_path / "bronze" / "day=1").mkdir(parents=True)
    (tmp_path / "bronze" / "day=1" / "x.parquet").write_bytes(b"1234")
    plain = read_table(LocalFolder(str(tmp_path)), "bronze")
    assert plain is not None
    assert (plain.kind, plain.rows, plain.files, plain.bytes) == ("parquet", None, 1, 4)
    assert read_table(LocalFolder(str(tmp_path)), "gold") is None


def test_the_status_goes_through_json(stream: StreamSettings) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}}, DELTA)
    commit(stream.lake.path / "silver", 0, add("a", 10))
    found = collect(stream)
    assert [one.query for one in found.queries] == ["silver"]
    assert from_json(to_json(found)) == found


def test_status_for_machines(stream: StreamSettings, capsys: pytest.CaptureFixture[str]) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}})
    commit(stream.lake.path / "silver", 0, add("a", 10))
    assert main(["stream", "status", *words(stream), "--offline", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (query,), (table,) = document["queries"], document["tables"]
    assert (query["query"], query["batch"], query["running"], query["behind"]) == ("silver", 3, None, None)
    assert query["offsets"] == {"t": {"0": 11}}
    assert (table["table"], table["rows"], table["version"]) == ("silver", 10, 0)


def test_status_for_people(stream: StreamSettings, capsys: pytest.CaptureFixture[str]) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}})
    batch(stream.checkpoint / "silver", 4, {"t": {"0": 30}}, finished=False)
    commit(stream.lake.path / "silver", 0, add("a", 10))
    (stream.checkpoint / "gold").mkdir()
    (stream.checkpoint / "gold" / "metadata").write_text("{}")
    (stream.checkpoint / "gold" / "commits").mkdir()
    (stream.checkpoint / "gold" / "commits" / "1").write_text("v1\n{}")
    (stream.checkpoint / "gold" / "offsets").mkdir()
    (stream.checkpoint / "gold" / "offsets" / "1").write_text("v1\n{broken")
    assert main(["stream", "status", *words(stream), "--offline"]) == 0
    said = capsys.readouterr()
    assert "silver" in said.out
    assert "batch 4; it is repeated" in said.err
    assert "gold: the checkpoint cannot be read" in said.err


def test_status_of_nothing(stream: StreamSettings) -> None:
    assert main(["stream", "status", *words(stream), "--offline"]) == 4


def test_a_kafka_that_is_not_there_costs_the_lag_alone(
    stream: StreamSettings, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}})
    config = tmp_path / "gateway.toml"
    config.write_text('[kafka]\nbootstrap_servers = ["127.0.0.1:1"]\n')
    assert main(["stream", "status", "--config", str(config), *words(stream), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["queries"][0]["behind"] is None
    assert "--offline" in said.err


def test_status_loads_no_spark(stream: StreamSettings) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}})
    code = f"""
        import sys
        from gateway.cli.main import main
        assert main(["stream", "status", *{words(stream)!r}, "--offline"]) == 0
        assert not {{"pyspark", "py4j", "pandas"}} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True)


def test_reset_puts_aside_and_deletes_nothing(stream: StreamSettings, capsys: pytest.CaptureFixture[str]) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}})
    (stream.checkpoint / "silver.json").write_text('{"version":1}')
    commit(stream.lake.path / "silver", 0, add("a", 10))
    assert main(["stream", "reset", "silver", *words(stream), "--yes"]) == 0
    said = capsys.readouterr().out
    assert "silver stays" in said
    assert not (stream.checkpoint / "silver").exists()
    assert not (stream.checkpoint / "silver.json").exists()
    (kept,) = stream.checkpoint.glob("silver.reset-*Z")
    assert (kept / "commits" / "3").exists()
    assert (stream.lake.path / "silver").exists(), "MERGE inserts nothing twice"
    assert [one.query for one in collect(stream).queries] == []
    assert main(["stream", "reset", "silver", *words(stream), "--yes"]) == 4


def test_tables_that_would_be_doubled_go_with_the_checkpoint(stream: StreamSettings) -> None:
    batch(stream.checkpoint / "bronze", 0, {"t": {"0": 11}})
    (stream.lake.path / "bronze").mkdir(parents=True)
    batch(stream.checkpoint / "ingest", 0, {"t": {"0": 11}})
    batch(stream.checkpoint / "windows", 0, {"t": {"0": 11}})
    for name in ("telemetry", "windows"):
        (stream.output.parent / name).mkdir()
    assert {move.name for move in plan(stream, "bronze", 0).moves} == {"bronze"}
    assert len(plan(stream, "bronze", 0).moves) == 2
    assert sorted(move.name for move in plan(stream, "ingest", 0).moves) == [
        "ingest", "telemetry", "windows", "windows",
    ]  # fmt: skip


def test_a_look_changes_nothing(stream: StreamSettings, capsys: pytest.CaptureFixture[str]) -> None:
    batch(stream.checkpoint / "gold", 0, DELTA)
    assert main(["stream", "reset", "gold", *words(stream), "--dry-run"]) == 0
    assert "gold.reset-" in capsys.readouterr().out
    assert (stream.checkpoint / "gold").exists()


def test_without_a_yes_nothing_is_done(stream: StreamSettings, capsys: pytest.CaptureFixture[str]) -> None:
    batch(stream.checkpoint / "gold", 0, DELTA)
    assert main(["stream", "reset", "gold", *words(stream)]) == 2
    assert "--yes" in capsys.readouterr().err
    assert (stream.checkpoint / "gold").exists()


HOLD = """
    import sys
    from streaming import job_lock
    job_lock.hold(sys.argv[1], "silver")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_and_a_dead_one_is_not_waited_for(
    stream: StreamSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(stream.checkpoint)
    batch(stream.checkpoint / "silver", 0, {"t": {"0": 11}})
    command = [sys.executable, "-c", textwrap.dedent(HOLD), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"in use by process {other.pid} on "):
            job_lock.hold(url, "silver")
        job_lock.hold(url, "gold")  # another query
        job_lock.let_go(url, "gold")
        assert (collect(stream).queries[0].process or "").startswith(f"process {other.pid} on ")
        assert main(["stream", "reset", "silver", *words(stream), "--yes"]) == 78
        assert "Stop it first" in capsys.readouterr().err
        other.kill()
    assert job_lock.holder(url, "silver") is None
    job_lock.hold(url, "silver")
    job_lock.hold(url, "silver")  # again in one process: a query that is started anew
    assert job_lock.holder(url, "silver") is not None
    job_lock.let_go(url, "silver")
    assert job_lock.holder(url, "silver") is None


@pytest.mark.parametrize(
    ("url", "local"),
    [("/a/b", True), ("a/b", True), ("file:///a", True), ("s3a://bucket/a", False), ("hdfs://n:9000/a", False)],
)
def test_which_folders_are_here(url: str, *, local: bool) -> None:
    assert is_local(url) is local


def test_a_url_of_this_machine_is_its_path(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("found")
    assert LocalFolder(f"file://{tmp_path}").read_text("x") == "found"
