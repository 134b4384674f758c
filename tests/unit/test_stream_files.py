"""``gateway stream status`` and ``reset`` on files as Spark and Delta write them, and the lock of a checkpoint."""

import argparse
import fcntl
import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from config import process_lock
from config.errors import ConfigError
from config.settings import Settings, StreamSettings
from config.tables.stream_jobs import LakeSettings
from gateway.admin.model import Offsets, TopicPartition
from gateway.cli import stream_files
from gateway.cli.main import main
from streaming.lake.delta_files import read_table
from streaming.lake.storage import LocalFolder, is_local, location
from streaming.runtime import job_lock
from streaming.runtime.checkpoint_log import read_progress
from streaming.upkeep import reset
from streaming.upkeep.reset import plan
from streaming.upkeep.status import collect, from_json
from tests.command_line import Cli
from tests.kinds import there
from tests.scripts import loaded_after

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


def add(path: str, rows: int | None, size: int = 100) -> dict[str, Any]:
    stats = None if rows is None else json.dumps({"numRecords": rows})
    of_file = {"partitionValues": {}, "modificationTime": 1, "dataChange": True, "stats": stats}
    return {"add": {"path": path, "size": size, **of_file}}


_SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
_TABLE: tuple[dict[str, Any], ...] = (
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {
        "metaData": {
            "id": "4f1", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(_SCHEMA),
            "partitionColumns": [], "configuration": {},
        }
    },
)  # fmt: skip


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    told = {"commitInfo": {"timestamp": 1_700_000_000_000 + version * 1000}}
    lines = [told, *(_TABLE if version == 0 else ()), *actions]
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, lines)) + "\n")


@pytest.fixture
def stream(tmp_path: Path) -> StreamSettings:
    return StreamSettings(checkpoint=tmp_path / "checkpoints", lake=LakeSettings(path=tmp_path / "lake"))


def words(stream: StreamSettings) -> list[str]:
    return ["--checkpoint", str(stream.checkpoint), "--lake", str(stream.lake.path)]


def test_what_counts_is_the_last_finished_batch(tmp_path: Path) -> None:
    for number in range(9, 12):  # 10 is after 9, though not by the alphabet
        batch(tmp_path / "silver", number, {"t": {"0": number, "1": 5}}, watermark_ms=77)
    batch(tmp_path / "silver", 12, {"t": {"0": 99, "1": 5}}, finished=False)
    found = read_progress(LocalFolder(str(tmp_path)), "silver")
    assert (found.batch, found.unfinished_batch, found.watermark_ms) == (11, 12, 77)
    assert found.offsets == {"t": {"0": 11, "1": 5}}
    assert found.finished_at_s is not None


def test_two_sources_and_a_table(tmp_path: Path) -> None:
    batch(tmp_path / "audit", 0, {"t": {"0": 1}}, None, {"ledger": {"0": 2}}, DELTA)
    found = read_progress(LocalFolder(str(tmp_path)), "audit")
    assert found.offsets == {"t": {"0": 1}, "ledger": {"0": 2}}
    assert found.tables_read == {"4f1": 6}, "before the first file of version 7"
    assert found.watermark_ms is None
    batch(tmp_path / "audit", 1, DELTA | {"index": 3})
    assert read_progress(LocalFolder(str(tmp_path)), "audit").tables_read == {"4f1": 6}, "within version 7"
    batch(tmp_path / "audit", 2, DELTA | {"index": 3, "isStartingVersion": True})
    assert read_progress(LocalFolder(str(tmp_path)), "audit").tables_read == {}, "versions up to 7 were there before"


def test_before_the_first_batch(tmp_path: Path) -> None:
    batch(tmp_path / "gold", 0, DELTA, finished=False)
    found = read_progress(LocalFolder(str(tmp_path)), "gold")
    assert (found.batch, found.unfinished_batch, found.offsets) == (None, 0, {})


def test_a_table_is_what_its_log_adds_and_does_not_remove(tmp_path: Path) -> None:
    commit(tmp_path / "silver", 0, add("a", 10), add("b", 20))
    removed = {"remove": {"path": "a", "dataChange": True, "deletionTimestamp": 1}}
    commit(tmp_path / "silver", 1, removed, add("c", 9, size=50))
    found = there(read_table(LocalFolder(str(tmp_path)), "silver"))
    assert (found.rows, found.files, found.bytes, found.version) == (29, 2, 150, 1)
    assert found.written_at_s == 1_700_000_001


def test_a_damaged_log_is_told_and_the_other_tables_are_shown(stream: StreamSettings, cli: Cli) -> None:
    commit(stream.lake.path / "silver", 1, {"add": 3})
    commit(stream.lake.path / "gold", 0, add("a", 10))
    said = cli("stream", "status", *words(stream), "--offline")
    assert "silver: the table cannot be read" in said.err
    assert "gold" in said.out


@pytest.mark.parametrize("text", ['{"topics": [', '["a"]', ""])
def test_a_damaged_note_is_told_and_the_rest_is_shown(stream: StreamSettings, cli: Cli, text: str) -> None:
    batch(stream.checkpoint / "gold", 0, DELTA)
    (stream.checkpoint / "gold.json").write_text(text)
    shown = cli("stream", "status", *words(stream), "--offline")
    assert "gold.json is damaged" in " ".join(shown.err.split())
    assert "tables in" in shown.out


def test_a_log_without_a_commit_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "silver" / "_delta_log").mkdir(parents=True)
    assert read_table(LocalFolder(str(tmp_path)), "silver") is None, "its job was killed before the first commit"


def test_rows_are_not_guessed(tmp_path: Path) -> None:
    commit(tmp_path / "silver", 0, add("a", 10), add("b", None))
    assert there(read_table(LocalFolder(str(tmp_path)), "silver")).rows is None
    assert read_table(LocalFolder(str(tmp_path)), "gold") is None


def test_what_silver_and_forget_keep_beside_the_tables_is_no_table(stream: StreamSettings) -> None:
    commit(stream.lake.path / "silver", 0, add("a", 10))
    for name, text in (("silver.lock", ""), ("silver.reach.json", "{}"), ("forgotten/5e88-1", "")):
        (stream.lake.path / name).parent.mkdir(exist_ok=True)
        (stream.lake.path / name).write_text(text)
    assert [one.table for one in collect(stream).tables] == ["silver"]


def test_status_for_machines(stream: StreamSettings, cli: Cli) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}}, DELTA)
    commit(stream.lake.path / "silver", 0, add("a", 10))
    document = json.loads(cli("stream", "status", *words(stream), "--offline", "--json").out)
    (query,), (table,) = document["queries"], document["tables"]
    assert (query["query"], query["batch"], query["running"], query["behind"]) == ("silver", 3, None, None)
    assert query["offsets"] == {"t": {"0": 11}}
    assert (table["table"], table["rows"], table["version"]) == ("silver", 10, 0)


def test_the_status_goes_through_json(stream: StreamSettings) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}}, DELTA)
    commit(stream.lake.path / "silver", 0, add("a", 10))
    found = collect(stream)
    assert [one.query for one in found.queries] == ["silver"]
    assert from_json(json.dumps(asdict(found))) == found


def test_status_for_people(stream: StreamSettings, cli: Cli) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}})
    batch(stream.checkpoint / "silver", 4, {"t": {"0": 30}}, finished=False)
    commit(stream.lake.path / "silver", 0, add("a", 10))
    batch(stream.checkpoint / "gold", 1)
    (stream.checkpoint / "gold" / "offsets" / "1").write_text("v1\n{broken")
    said = cli("stream", "status", *words(stream), "--offline")
    assert "silver" in said.out
    assert "batch 4; it is repeated" in said.err
    assert "gold: the checkpoint cannot be read" in said.err


def test_what_runs_on_another_file_system_is_not_known(
    stream: StreamSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}}, finished=False)
    found = collect(stream)
    stream_files._show(found, {})
    out, err = capsys.readouterr()
    assert (" no " in out, "silver was ended inside batch 3" in err) == (True, True)
    stream_files._show(replace(found, checkpoint="s3a://bucket/checkpoint"), {})
    out, err = capsys.readouterr()
    assert (" no " in out, err) == (False, "")


def test_status_of_nothing(stream: StreamSettings, cli: Cli) -> None:
    cli("stream", "status", *words(stream), "--offline", status=4)


def test_a_kafka_that_is_not_there_costs_the_lag_alone(stream: StreamSettings, cli: Cli, tmp_path: Path) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}})
    config = tmp_path / "gateway.toml"
    config.write_text('[kafka]\nbootstrap_servers = ["127.0.0.1:1"]\n')
    said = cli("stream", "status", "--config", config, *words(stream), "--json")
    assert json.loads(said.out)["queries"][0]["behind"] is None
    assert "--offline" in said.err


class _Kafka:
    """Kafka's administration of one topic: of partition 0 the first ten records are deleted."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self, names: list[str]) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, partitions=[SimpleNamespace(number=it) for it in (0, 1)]) for name in names]

    def log_starts(self, places: list[TopicPartition]) -> Offsets:
        return Offsets({place: (10, 0)[place.partition] for place in places})

    def log_ends(self, places: list[TopicPartition]) -> Offsets:
        return Offsets({place: (30, 5)[place.partition] for place in places})


def test_before_its_first_commit_a_query_has_all_before_it_that_kafka_holds(
    stream: StreamSettings, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admin.kafka.KafkaAdmin", _Kafka)
    batch(stream.checkpoint / "silver", 0, {"t": {"0": 30, "1": 5}}, finished=False)
    batch(stream.checkpoint / "bronze", 3, {"t": {"0": 28}})
    for query in ("silver", "bronze"):
        (stream.checkpoint / f"{query}.json").write_text('{"version":1,"topics":["t"]}')
    shown = cli("stream", "status", *words(stream), "--json").out
    found = {one["query"]: one for one in json.loads(shown)["queries"]}
    assert (found["silver"]["batch"], found["silver"]["behind"]) == (None, 25)
    assert found["silver"]["ends"] == {"t": {"0": 30, "1": 5}}
    assert found["bronze"]["behind"] == 2 + 5, "a partition that it has not met is read from its beginning"
    assert re.search(r"silver +t +0 +10 +30 +20\n", cli("stream", "status", *words(stream)).out)


def test_what_kafka_does_not_tell_of_a_partition_is_not_taken_for_read(
    stream: StreamSettings, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admin.kafka.KafkaAdmin", _Kafka)
    batch(stream.checkpoint / "bronze", 3, {"t": {"0": 30, "1": 5, "2": 7}})
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 30, "1": 400}})
    shown = cli("stream", "status", *words(stream), "--json").out
    found = {one["query"]: one["behind"] for one in json.loads(shown)["queries"]}
    assert found == {"bronze": None, "silver": None}, "partition 2 has no leader, and 1 was made anew"


def test_without_the_package_that_reads_tables_it_is_said_what_to_install(
    stream: StreamSettings, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    absent = {"deltalake", "pyarrow"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in absent else found(name))
    assert "not installed: deltalake, pyarrow" in cli("stream", "status", *words(stream), "--offline", status=78).err


def test_status_loads_no_spark(stream: StreamSettings) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}})
    asked = ["stream", "status", *words(stream), "--offline"]
    loaded = loaded_after(f"from gateway.cli.main import main; assert main({asked!r}) == 0")
    assert not {"pyspark", "py4j", "pandas"} & loaded


def test_reset_puts_aside_and_deletes_nothing(stream: StreamSettings, cli: Cli) -> None:
    batch(stream.checkpoint / "silver", 3, {"t": {"0": 11}})
    (stream.checkpoint / "silver.json").write_text('{"version":1}')
    commit(stream.lake.path / "silver", 0, add("a", 10))
    assert "silver and its quarantine stay" in cli("stream", "reset", "silver", *words(stream), "--yes").out
    assert not (stream.checkpoint / "silver").exists()
    assert not (stream.checkpoint / "silver.json").exists()
    (kept,) = stream.checkpoint.glob("silver.reset-*Z")
    assert (kept / "commits" / "3").exists()
    assert (stream.lake.path / "silver").exists(), "MERGE inserts nothing twice"
    assert [one.query for one in collect(stream).queries] == []
    cli("stream", "reset", "silver", *words(stream), "--yes", status=4)


def test_tables_that_would_be_doubled_go_with_the_checkpoint(stream: StreamSettings) -> None:
    batch(stream.checkpoint / "bronze", 0, {"t": {"0": 11}})
    (stream.lake.path / "bronze").mkdir(parents=True)
    assert [(move.folder.url, move.name) for move in plan(stream, "bronze", 0)] == [
        (str(stream.lake.path), "bronze"),
        (str(stream.checkpoint), "bronze"),
    ], "the table first"


def test_a_job_that_begins_before_the_answer_keeps_its_tables(stream: StreamSettings) -> None:
    batch(stream.checkpoint / "bronze", 0, {"t": {"0": 11}})
    with (stream.checkpoint / "bronze.lock").open("a") as lock:
        answer = lambda: fcntl.flock(lock, fcntl.LOCK_EX) is None  # noqa: E731 (the job starts, then comes the yes)
        with pytest.raises(ConfigError, match="in use by"):
            reset.carry_out(stream, "bronze", LocalFolder, dry_run=False, agreed=answer)
    assert (stream.checkpoint / "bronze").exists()


def test_a_reset_says_that_forgotten_devices_come_back(stream: StreamSettings, cli: Cli) -> None:
    (stream.lake.path / "forgotten").mkdir(parents=True)
    for note in ("ab-1", ".ab-1.crc", "ab-2", "cd-3"):
        (stream.lake.path / "forgotten" / note).touch()
    for job, where in (("bronze", "bronze"), ("silver", "the quarantine, if they are bad,")):
        batch(stream.checkpoint / job, 0, {"t": {"0": 11}})
        told = cli("stream", "reset", job, *words(stream), "--dry-run").err
        assert f"of forgotten devices (2) will be in {where} again" in told


def test_a_look_by_spark_asks_nothing_and_changes_nothing(
    stream: StreamSettings, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def command(arguments: argparse.Namespace) -> Any:
        asked.append(arguments)
        return [sys.executable, "-c", "print('looked')"], dict(os.environ)

    monkeypatch.setattr("gateway.cli.stream._command", command)
    elsewhere = ["--checkpoint", "s3a://bucket/checkpoints", "--lake", "s3a://bucket/lake"]
    assert main(["stream", "reset", "gold", *elsewhere, "--dry-run"]) == 0
    assert capfd.readouterr().out == "looked\n"
    monkeypatch.setattr(reset, "Folder", lambda _spark, url: LocalFolder(url))
    batch(stream.checkpoint / "gold", 0, DELTA)
    assert reset.run(None, Settings(stream=stream), asked[0]) == 0  # type: ignore[arg-type]
    assert "gold.reset-" in capfd.readouterr().out
    assert (stream.checkpoint / "gold").exists()


@pytest.mark.parametrize(("option", "status", "says"), [(["--dry-run"], 0, "gold.reset-"), ([], 2, "--yes")])
def test_a_look_or_a_reset_without_a_yes_changes_nothing(
    stream: StreamSettings, cli: Cli, option: list[str], status: int, says: str
) -> None:
    batch(stream.checkpoint / "gold", 0, DELTA)
    assert says in "".join(cli("stream", "reset", "gold", *words(stream), *option, status=status))
    assert (stream.checkpoint / "gold").exists()


@pytest.mark.parametrize("url", ["/data/lake", "s3a://bucket/lake", "hdfs://name:8020/lake", "file:///data/lake"])
def test_folders_are_told_to_spark_as_they_were_written(url: str) -> None:
    assert location(LakeSettings(path=url).path) == url


def test_a_relative_folder_is_relative_to_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert location(LakeSettings().path) == str(tmp_path / "data" / "lake")


HOLD = """
    import sys
    from streaming.runtime import job_lock
    job_lock.hold(sys.argv[1], "silver")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_and_a_dead_one_is_not_waited_for(stream: StreamSettings, cli: Cli) -> None:
    url = str(stream.checkpoint)
    batch(stream.checkpoint / "silver", 0, {"t": {"0": 11}})
    command = [sys.executable, "-c", textwrap.dedent(HOLD), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"in use by process {other.pid} on "):
            job_lock.hold(url, "silver")
        job_lock.hold(url, "gold")  # another query
        job_lock.let_go(url, "gold")
        assert (collect(stream).queries[0].running or "").startswith(f"process {other.pid} on ")
        assert "Stop it first" in cli("stream", "reset", "silver", *words(stream), "--yes", status=78).err
        other.kill()
    assert job_lock.holder(url, "silver") is None
    job_lock.hold(url, "silver")
    job_lock.hold(url, "silver")  # again in one process: a query that is started anew
    assert job_lock.holder(url, "silver") is not None
    job_lock.let_go(url, "silver")
    assert job_lock.holder(url, "silver") is None


def test_a_job_starts_while_another_process_looks_whose_the_lock_is(
    stream: StreamSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``holder`` has a shared lock for an instant: the job waits for it, and is not refused."""
    url = str(stream.checkpoint)
    job_lock.hold(url, "silver")
    job_lock.let_go(url, "silver")
    looking = os.open(stream.checkpoint / "silver.lock", os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(process_lock, "time", SimpleNamespace(sleep=lambda _: os.close(looking)))
    job_lock.hold(url, "silver")
    job_lock.let_go(url, "silver")


@pytest.mark.parametrize(("url", "local"), [
    ("/a/b", True), ("a/b", True), ("file:///a", True), ("s3a://bucket/a", False), ("hdfs://n:9000/a", False),
])  # fmt: skip
def test_which_folders_are_here(url: str, *, local: bool) -> None:
    assert is_local(url) is local


def test_a_url_of_this_machine_is_its_path(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("found")
    assert LocalFolder(f"file://{tmp_path}").read_text("x") == "found"
