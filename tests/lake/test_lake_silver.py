"""The job ``silver``: every reading once, whatever came twice, late, with a wrong clock or broken."""

import json
import shutil
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError
from config.settings import Settings
from streaming import jvm, lake_tables
from streaming.decoding.device_schemas import load_device_schemas
from streaming.lake.columns import columns
from streaming.lake.delta_upkeep import DeltaUpkeep
from streaming.lake.forgotten import Forgotten
from streaming.lake.lake import DeltaTable
from streaming.options import process_arguments
from streaming.progress import BatchEvent
from streaming.silver import job as silver
from streaming.silver.reach import is_new
from streaming.silver.rows import enriched, firsts, readings, rejects, repeated_ids
from streaming.silver.schema import silver_schema
from streaming.silver.tables import SilverTables
from streaming.upkeep import backfill, replay
from tests.lake.silver_support import (
    DAY_MS,
    KAFKA,
    NOON_MS,
    Sent,
    batch_of,
    expected_rows,
    found_rows,
    run,
    schema_folder,
    settings,
    silver_lines,
)

YEAR_2036_MS = 2_085_000_000_000


def traffic() -> list[list[Sent]]:
    """Three batches. Offsets count on; a copy has all that its original has, but offset and time of receipt."""

    def reading(offset: int, seq: int, *, late_ms: int = 0, device: str = "sensor-1", ahead_ms: int = 0) -> Sent:
        ts = NOON_MS + seq * 1000 + ahead_ms
        return Sent(offset, NOON_MS + seq * 1000 + 50 + late_ms, device, seq, ts, f"{device}-{seq}")

    first = [
        *(reading(n, n) for n in range(20)),
        reading(20, 7, late_ms=3),  # a copy in the same batch
        reading(21, 1, device="clock-2036", ahead_ms=YEAR_2036_MS - NOON_MS),
        # Six minutes ahead, six minutes before midnight: on the day before, for its copy comes after midnight.
        reading(22, 2, device="clock-6", late_ms=DAY_MS // 2 - 360_000, ahead_ms=DAY_MS // 2),
        Sent(23, NOON_MS, "honest", 1, NOON_MS, None, values={"temperature": 20.0}),
        Sent(24, NOON_MS, "honest", 1, NOON_MS, None, values={"temperature": 20.0}),  # equal, and not the same
        Sent(25, NOON_MS, "delivery", 1, NOON_MS, "gw-1-77", "delivery"),
        Sent(26, NOON_MS, raw=b'{"device":"sensor-1",'),
        Sent(27, NOON_MS, raw=b""),
    ]
    second = [
        *(reading(30 + n, 20 + n) for n in range(10)),
        reading(40, 3, late_ms=3_600_000),  # a copy of the batch before
        reading(41, 1, device="clock-2036", ahead_ms=YEAR_2036_MS - NOON_MS, late_ms=90_000),
        reading(42, 2, device="clock-6", late_ms=DAY_MS // 2 + 60_000, ahead_ms=DAY_MS // 2),
        Sent(43, NOON_MS, "delivery", 1, NOON_MS, "gw-1-77", "delivery"),  # another delivery may have any id
        # A counter that began again: the same id, another time.
        Sent(44, NOON_MS + 5_000, "sensor-1", 3, NOON_MS + 4_321, "sensor-1-3"),
        # The same characters, cut differently.
        Sent(45, NOON_MS, "a", 1, NOON_MS, "b:c"),
        Sent(46, NOON_MS, "a:b", 1, NOON_MS, "c"),
        Sent(47, NOON_MS, "sensor-1", 1, raw=b"[1,2]"),
    ]
    third = [
        *(reading(50 + n, n - 300_000, late_ms=300_000_000, device="offline-site") for n in range(5)),
        reading(55, 0, late_ms=3 * DAY_MS),
        reading(56, 29, late_ms=3 * DAY_MS),
    ]
    return [first, second, third]


def test_the_table_is_what_plain_python_makes_of_the_records(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = tmp_path / "registry.csv"
    registry.write_text("device, Type,SITE ,floor\nsensor-1,thermostat,plant,2\nhonest,,campus,1\nsensor-1,,plant,3\n")
    chosen = settings(tmp_path, registry=registry)
    batches = traffic()
    for sent in batches:
        batch_of(spark, tmp_path, sent)

    events = run(spark, tmp_path, chosen)

    expected = expected_rows([it for sent in batches for it in sent], {"sensor-1": "plant", "honest": "campus"})
    assert found_rows(spark, chosen) == expected

    def aside() -> list[tuple[Any, ...]]:
        bad = lake_tables.silver_quarantine(spark, chosen.stream).select("kafka_offset", "reason", "value").collect()
        return sorted((it.kafka_offset, it.reason, bytes(it.value)) for it in bad)

    rejected = [(26, "not_json", b'{"device":"sensor-1",'), (27, "empty", b""), (47, "not_an_object", b"[1,2]")]
    assert aside() == rejected
    told = [event for event in events if isinstance(event, BatchEvent)]
    assert [(it.rows, it.quarantined) for it in told] == [(28, 2), (18, 1), (7, 0)]
    gateways = lake_tables.silver(spark, chosen.stream).select("gateway", "mqtt_topic", "temperature").distinct()
    assert {it.gateway for it in gateways.collect()} == {"gw-1"}

    # Everything once more, from a checkpoint that begins anew: nothing is added. Times are too many to be sliced.
    monkeypatch.setattr("streaming.silver.tables._MOST_SLICES", 1)
    (tmp_path / "checkpoints").rename(tmp_path / "put-aside")
    run(spark, tmp_path, chosen)
    assert found_rows(spark, chosen) == expected
    assert aside() == rejected


def test_the_lowest_offset_of_a_partition_stays_wherever_batches_end(spark: SparkSession, tmp_path: Path) -> None:
    """Each copy was received before the one with the lower offset."""
    chosen = settings(tmp_path)

    def copies(device: str, first: int) -> list[Sent]:
        offsets = range(first, first + 6, 2)
        return [Sent(n, NOON_MS - n, device, seq=1, ts=NOON_MS, message_id="id-1") for n in offsets]

    divided, together = copies("divided", 0), copies("together", 6)
    batch_of(spark, tmp_path, [divided[0], *together])
    batch_of(spark, tmp_path, divided[1:])
    run(spark, tmp_path, chosen)
    found = lake_tables.silver(spark, chosen.stream).collect()
    assert sorted((it.device, it.kafka_offset) for it in found) == [("divided", 0), ("together", 6)]


def plain(offset: int, **more: Any) -> Sent:
    """A reading without an id: nobody but who reads its place again brings it twice."""
    return Sent(offset, NOON_MS + offset, seq=offset, ts=NOON_MS + offset, **more)


def operations(spark: SparkSession, chosen: Settings) -> list[str]:
    table = DeltaTable(spark, chosen.stream, "silver")
    return [row.operation for row in spark.sql(f"DESCRIBE HISTORY {table.sql_name}").orderBy("version").collect()]


def test_readings_that_silver_cannot_have_are_appended_while_they_are_decoded(
    spark: SparkSession, tmp_path: Path
) -> None:
    chosen = settings(tmp_path)
    twice = {"message_id": "id-1", "kind": "device"}
    batches = [
        [plain(0), plain(1)],
        [plain(2), plain(3)],
        [plain(4), plain(5, raw=b"{"), plain(6), replace(plain(7), **twice)],
        [plain(8), replace(plain(7), **twice, received_ms=NOON_MS + 9)],
        [plain(10), plain(11), plain(12, device="1\u00e9")],  # a number, for all that the first look can tell
        [plain(14), plain(15)],
    ]
    batches[3][1] = replace(batches[3][1], offset=9)
    for sent in batches:
        batch_of(spark, tmp_path, sent)
    events = [it for it in run(spark, tmp_path, chosen) if isinstance(it, BatchEvent)]

    assert found_rows(spark, chosen) == expected_rows([it for sent in batches for it in sent])
    assert operations(spark, chosen) == [
        "CREATE TABLE",
        "WRITE",
        "WRITE",
        *("WRITE", "MERGE"),
        "WRITE",  # a copy alone leaves no commit
        *("WRITE", "MERGE"),
        "WRITE",
    ]
    assert [(it.rows, it.quarantined) for it in events] == [(2, 0), (2, 0), (4, 1), (2, 0), (3, 0), (2, 0)]
    note = json.loads((tmp_path / "lake" / "silver.reach.json").read_text())
    assert [of["0"] for of in note["offsets"].values()] == [13], "who takes the note over looks that reading up"
    assert lake_tables.silver_quarantine(spark, chosen.stream).count() == 1


def test_a_partition_behind_others_of_many_is_not_taken_for_read(spark: SparkSession) -> None:
    offsets = {"t": {str(number): number for number in range(0, 400, 2)}}
    columns = "string(NULL) message_id", "'t' kafka_topic", "int(id) kafka_partition", "id - id % 4 kafka_offset"
    found = spark.range(410).selectExpr(*columns).where(is_new(offsets)).select("kafka_partition").collect()
    assert [it.kafka_partition for it in found] == [n for n in range(410) if n % 4 != 2 or n >= 400]


def test_that_a_table_is_empty_is_known_by_its_checksum(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaTable(spark, settings(tmp_path).stream, "silver")
    table.create(spark.range(0).schema)
    assert table.is_empty()
    table.append(spark.range(1), query="silver", batch=0)
    assert not table.is_empty()
    table.replace(spark.range(0))
    assert table.is_empty()
    for checksum in Path(table.url, "_delta_log").glob("*.crc"):
        checksum.unlink()
    jvm.java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    assert not table.is_empty(), "nothing is known"
    table.append(spark.range(1), query="silver", batch=1)
    assert not table.is_empty()


def test_what_came_before_a_device_was_forgotten_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    batches = [
        [plain(0), plain(1, device="gone"), plain(2, raw=b"{")],
        [plain(3), plain(4, device="gone"), plain(5, device="gone")],
    ]
    for sent in batches:
        batch_of(spark, tmp_path, sent)
    Forgotten(spark, chosen.stream).add("gone", datetime.fromtimestamp((NOON_MS + 4) / 1000, UTC))
    run(spark, tmp_path, chosen)
    left = [it for sent in batches for it in sent if it.offset not in (1, 4)]
    assert found_rows(spark, chosen) == expected_rows(left)
    assert lake_tables.silver_quarantine(spark, chosen.stream).count() == 1, "of nobody knows whom"
    records = spark.createDataFrame([it.record() for sent in batches for it in sent], KAFKA)
    by_tools = silver.registered_rows(records, chosen, load_device_schemas(chosen.stream.silver.schemas))
    assert sorted(row.kafka_offset for row in by_tools.select("kafka_offset").collect()) == [0, 2, 3, 5]


def test_a_repeated_batch_and_an_older_checkpoint_append_nothing_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(tmp_path)
    batches = [[plain(2 * number), plain(2 * number + 1)] for number in range(4)]
    for sent in batches[:2]:
        batch_of(spark, tmp_path, sent)
    append = SilverTables.append

    def killed(self: SilverTables, new: DataFrame, writer: str, batch: int) -> None:
        append(self, new, writer, batch)
        if batch == 1:
            raise OSError("the power went after the append")

    with monkeypatch.context() as patch:
        patch.setattr(SilverTables, "append", killed)
        with pytest.raises(Exception, match="the power went"):
            run(spark, tmp_path, chosen)
    assert found_rows(spark, chosen) == expected_rows([*batches[0], *batches[1]])
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "backup")
    batch_of(spark, tmp_path, batches[2])
    run(spark, tmp_path, chosen)
    assert found_rows(spark, chosen) == expected_rows([it for sent in batches[:3] for it in sent])

    # The checkpoint as it was before: its batches have numbers that the table knows, and other rows.
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "backup").rename(tmp_path / "checkpoints")
    (plan,) = (tmp_path / "checkpoints" / "silver" / "offsets").glob("1")
    plan.unlink()  # as if it had not been planned yet
    (tmp_path / "checkpoints" / "silver" / "offsets" / ".1.crc").unlink(missing_ok=True)
    batch_of(spark, tmp_path, batches[3])
    run(spark, tmp_path, chosen)
    assert found_rows(spark, chosen) == expected_rows([it for sent in batches for it in sent])


def test_what_a_tool_has_inserted_before_the_job_reads_it_is_looked_up(spark: SparkSession, tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    batches = [[plain(2 * number), plain(2 * number + 1)] for number in range(4)]
    batch_of(spark, tmp_path, batches[0])
    run(spark, tmp_path, chosen)

    schemas = load_device_schemas(chosen.stream.silver.schemas)
    early = spark.createDataFrame([plain(3).record(), plain(4).record()], KAFKA)
    rows = silver.registered_rows(early, chosen, schemas).localCheckpoint()
    tables = SilverTables(spark, chosen.stream, schemas.columns)
    brought = tables.arrivals(rows)
    assert (tables.insert(rows, brought), tables.insert(rows, brought)) == (2, 0)

    for sent in batches[1:]:
        batch_of(spark, tmp_path, sent)
    run(spark, tmp_path, chosen)
    assert found_rows(spark, chosen) == expected_rows([it for sent in batches for it in sent])
    assert operations(spark, chosen)[-1] == "WRITE", "the last batch is beyond what the tool brought"


def test_a_crash_between_the_tables_leaves_neither_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(tmp_path)
    first, *_ = traffic()
    batch_of(spark, tmp_path, first)
    reject = SilverTables.reject

    def before(*_: object, **__: object) -> None:
        raise OSError("the power went before the quarantine was written")

    def after(self: SilverTables, *given: object, **named: object) -> None:
        reject(self, *given, **named)  # type: ignore[arg-type]
        raise OSError("the power went after the quarantine was written")

    for broken in (before, after):
        with monkeypatch.context() as patch:
            patch.setattr(SilverTables, "reject", broken)
            with pytest.raises(Exception, match="the power went"):
                run(spark, tmp_path, chosen)
        assert found_rows(spark, chosen) == expected_rows(first)
    run(spark, tmp_path, chosen)

    assert found_rows(spark, chosen) == expected_rows(first)
    assert lake_tables.silver_quarantine(spark, chosen.stream).count() == 2


def probe(offset: int, received_ms: int = NOON_MS, **values: Any) -> Sent:
    return Sent(offset, received_ms, "probe-1", offset, NOON_MS + offset, f"id-{offset}", values=values)


def replayed(spark: SparkSession, chosen: Settings, *words: str) -> int:
    return replay.run(spark, chosen, process_arguments("replay", words))


def test_schemas_grow_at_a_restart_and_replay_moves_what_is_good_by_now(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings(tmp_path, schemas=schema_folder(tmp_path / "schemas", level="integer"))
    with pytest.raises(ConfigError, match="There is no table silver_quarantine at "):
        replayed(spark, chosen)
    batch_of(
        spark,
        tmp_path,
        [probe(0, level=5), probe(1, level=2.5), probe(2, NOON_MS + DAY_MS, level=3.5), probe(3, level="x")],
    )
    run(spark, tmp_path, chosen)
    schema_folder(tmp_path / "schemas", level="number", depth="number")
    batch_of(spark, tmp_path, [probe(4, level=7.25, depth=1.5), probe(0, level=5)])
    run(spark, tmp_path, chosen)

    def levels() -> list[tuple[Any, ...]]:
        return sorted(
            tuple(row) for row in lake_tables.silver(spark, chosen.stream).select("seq", "level", "depth").collect()
        )

    def aside() -> list[int]:
        found = lake_tables.silver_quarantine(spark, chosen.stream).select("kafka_offset").collect()
        return sorted(row.kafka_offset for row in found)

    assert dict(lake_tables.silver(spark, chosen.stream).dtypes)["level"] == "double"
    assert levels() == [(0, 5.0, None), (4, 7.25, 1.5)]
    assert aside() == [1, 2, 3]

    assert replayed(spark, chosen, "--dry-run") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["reason", "records", "good", "now"],
        ["wrong_type", "3", "2"],
        ["all", "3", "2"],
        ["Nothing", "was", "changed", "(--dry-run)."],
    ]
    assert replayed(spark, chosen, "--reason", "empty") == 4
    assert replayed(spark, chosen, "--topic", "another") == 4
    with pytest.raises(SystemExit):
        replayed(spark, chosen, "--from", "yesterday")
    assert "'yesterday' is no time" in capsys.readouterr().err
    capsys.readouterr()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SilverTables, "_release", killed)
        with pytest.raises(KeyboardInterrupt):
            replayed(spark, chosen, "--to", "2026-11-21")
    assert (levels(), aside()) == ([(0, 5.0, None), (1, 2.5, None), (4, 7.25, 1.5)], [1, 2, 3])
    assert replayed(spark, chosen, "--limit", "1", "--to", "2026-11-21") == 0
    assert "1 moved to silver, 1 of them were in silver already; 0 stay" in capsys.readouterr().out
    assert aside() == [2, 3]
    assert replayed(spark, chosen, "--from", "2026-11-21T01:00:00+01:00") == 0
    assert "1 moved to silver; 0 stay in quarantine." in capsys.readouterr().out
    assert (levels(), aside()) == ([(0, 5.0, None), (1, 2.5, None), (2, 3.5, None), (4, 7.25, 1.5)], [3])

    schema_folder(tmp_path / "schemas", level="string", depth="number")
    with pytest.raises(ConfigError, match=r"The signal level is string .* is double(?s:.*)another name in the schema"):
        run(spark, tmp_path, chosen)


@pytest.mark.parametrize("again", ["reset", "backfill"])
def test_with_corrected_schemas_a_record_that_is_read_again_is_in_one_table_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """The time is another field's now, ``level`` may be a fraction, and ``mode`` has to be a text."""
    chosen = settings(tmp_path, schemas=schema_folder(tmp_path / "schemas", at="integer", level="integer"))
    values = [{}, {}, {}, {"level": 1.5}, {"mode": 5}]
    sent = [plain(offset, values={"at": NOON_MS + 9 * DAY_MS, **more}) for offset, more in enumerate(values)]
    sent[2] = replace(sent[2], message_id="id-1")
    sent.append(replace(sent[2], offset=6, received_ms=NOON_MS + 6))  # its copy
    batch_of(spark, tmp_path, sent)
    run(spark, tmp_path, chosen)

    schema_folder(tmp_path / "schemas", at="integer", level="number", mode="string")
    (tmp_path / "schemas" / "schemas.toml").write_text('[types.thermostat]\ntime = "at"\n')
    if again == "reset":
        shutil.rmtree(tmp_path / "checkpoints")
        run(spark, tmp_path, chosen)
    else:
        records = spark.createDataFrame([it.record() for it in sent], KAFKA)
        monkeypatch.setattr(backfill, "records_between", lambda *_: ([{"bronze": records}], []))
        words = ["--from", "2026-11-20", "--to", "2026-11-21"]
        assert backfill.run(spark, chosen, process_arguments("backfill", words)) == 0
    kept = lake_tables.silver(spark, chosen.stream).selectExpr("kafka_offset", "unix_millis(device_time)").collect()
    moved = NOON_MS + 9 * DAY_MS
    assert sorted(map(tuple, kept)) == [*((n, NOON_MS + n) for n in (0, 1, 2)), (3, moved), (4, NOON_MS + 4)]
    assert lake_tables.silver_quarantine(spark, chosen.stream).isEmpty()


def test_a_job_killed_before_its_first_commit_makes_its_tables(spark: SparkSession, tmp_path: Path) -> None:
    """The log's folder is made before the first commit is in it: nobody takes that for a table."""
    chosen = settings(tmp_path)
    for name in ("bronze", "silver", "silver_quarantine", "gold"):
        log = tmp_path / "lake" / name / "_delta_log"
        log.mkdir(parents=True)
        if name in ("silver", "gold"):
            (log / ".0.json.tmp").write_text('{"commitInfo":')
        assert not DeltaTable(spark, chosen.stream, name).exists()
    with pytest.raises(ConfigError, match="There is no table silver"):
        lake_tables.silver(spark, chosen.stream)
    sent = [Sent(n, NOON_MS, seq=n, ts=NOON_MS + n, message_id=f"id-{n}") for n in range(3)]
    batch_of(spark, tmp_path, sent)
    run(spark, tmp_path, chosen)
    assert found_rows(spark, chosen) == expected_rows(sent)
    assert all(DeltaTable(spark, chosen.stream, name).exists() for name in ("silver", "silver_quarantine"))


def test_small_files_are_put_together_on_the_way(spark: SparkSession, tmp_path: Path) -> None:
    sent = [Sent(n, NOON_MS + n * 1000, seq=n, ts=NOON_MS + n * 1000) for n in range(5)]
    for it in sent:
        batch_of(spark, tmp_path, [it])
    chosen = settings(tmp_path)
    least = "spark.databricks.delta.autoCompact.minNumFiles"
    usual = spark.conf.get(least)
    assert usual == "16"
    spark.conf.set(least, "3")  # which fewer batches have
    try:
        run(spark, tmp_path, chosen)
    finally:
        spark.conf.set(least, usual)

    assert operations(spark, chosen) == ["CREATE TABLE", *["WRITE"] * 3, "OPTIMIZE", *["WRITE"] * 2, "OPTIMIZE"]
    assert len(lake_tables.silver(spark, chosen.stream).inputFiles()) == 1
    assert found_rows(spark, chosen) == expected_rows(sent)


def test_files_put_together_beside_the_running_job_take_no_row_and_bring_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All batches are of one minute and repeat each other, so each MERGE reads files that may go meanwhile."""
    sent: list[Sent] = []

    def five_batches() -> None:
        for number in range(len(sent) // 10, len(sent) // 10 + 5):
            # Of ten readings the batch before had five.
            ids = range(number * 5, number * 5 + 10)
            batch = [
                Sent(number * 10 + n, NOON_MS + number, f"sensor-{it}", it, NOON_MS + it, f"id-{it}")
                for n, it in enumerate(ids)
            ]
            batch_of(spark, tmp_path, batch)
            sent.extend(batch)

    chosen = settings(tmp_path)
    upkeep = DeltaUpkeep(spark.newSession(), DeltaTable(spark, chosen.stream, "silver"))
    ended = threading.Event()
    replaced: list[int] = []
    failures: list[Exception] = []

    def put_together() -> None:
        day = datetime.fromtimestamp(NOON_MS / 1000, UTC).date()
        first_commit = tmp_path / "lake" / "silver" / "_delta_log" / f"{0:020}.json"
        while not ended.wait(0.3):  # without a rest it takes the batches longer, and each still meets some
            try:
                if first_commit.exists():
                    replaced.append(upkeep.optimize(day, 1 << 30)[0])
            except Exception as error:  # noqa: BLE001 (the main thread tells)
                failures.append(error)
                return

    beside = threading.Thread(target=put_together)
    beside.start()
    try:
        while not any(replaced) and not failures and len(sent) < 300:
            five_batches()
            run(spark, tmp_path, chosen)
    finally:
        ended.set()
        beside.join()
    assert not failures
    assert any(replaced)
    assert found_rows(spark, chosen) == expected_rows(sent)


def test_files_that_can_hold_no_original_are_not_opened(spark: SparkSession, tmp_path: Path) -> None:
    """A file whose range of device times holds none of the batch's may be anywhere, even gone."""
    chosen = settings(tmp_path)

    def reading(offset: int, seq: int, received_ms: int, ts: int) -> Sent:
        return Sent(offset, received_ms, "sensor-1", seq, ts, f"id-{seq}")

    early, noon = NOON_MS - 7_200_000, NOON_MS
    batch_of(spark, tmp_path, [reading(n, n, early + n, early + n) for n in range(4)])
    batch_of(
        spark, tmp_path, [reading(9, 9, noon, YEAR_2036_MS), *(reading(n, n, noon + n, noon + n) for n in (10, 11))]
    )
    run(spark, tmp_path, chosen)
    days = sorted((tmp_path / "lake" / "silver").glob("event_date=*/clock_ahead=false/*.parquet"))
    assert len(days) == 2, "one file of each batch; the wrong clock is apart"
    gone = next(
        it for it in days if spark.read.parquet(str(it)).where(f"unix_millis(device_time) = {early}").count() == 1
    )
    gone.unlink()
    spark.catalog.refreshByPath(str(tmp_path / "lake" / "silver"))

    late = noon + 3 * DAY_MS
    # Copies of both kinds, a new reading, and another wrong clock.
    batch_of(
        spark,
        tmp_path,
        [
            reading(20, 10, late, noon + 10),
            reading(21, 9, late, YEAR_2036_MS),
            reading(22, 22, late, late),
            reading(23, 23, late, YEAR_2036_MS + 1),
        ],
    )
    (event,) = [it for it in run(spark, tmp_path, chosen) if isinstance(it, BatchEvent)]
    assert event.rows == 4
    kept = (
        lake_tables.silver(spark, chosen.stream)
        .where("device_time >= TIMESTAMP '2026-11-20 12:00:00'")
        .select("seq")
        .collect()
    )
    assert sorted(row.seq for row in kept) == [9, 10, 11, 22, 23]


def with_beacons(tmp_path: Path) -> Settings:
    """Settings with a second type, ``beacon``, without a clock."""
    folder = schema_folder(tmp_path / "schemas", temperature="number")
    (folder / "schemas.toml").write_text(
        'other_types = "quarantine"\n[types.thermostat]\n[types.beacon]\ntime = { received = true }\n'
    )
    shutil.copy(folder / "thermostat.json", folder / "beacon.json")
    return settings(tmp_path, schemas=folder)


def test_without_a_clock_an_id_that_comes_again_much_later_is_another_reading(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A device's counter begins anew, and a backlog has weeks of it in one batch, also of readings that are there."""
    chosen = with_beacons(tmp_path)

    def kept(*batches: list[tuple[int, str]]) -> list[int]:
        for batch in batches:
            sent = [Sent(2 * day, NOON_MS + day * DAY_MS, seq=day, message_id=own, type="beacon") for day, own in batch]
            batch_of(spark, tmp_path, sent)
        run(spark, tmp_path, chosen)
        return sorted(it.seq for it in lake_tables.silver(spark, chosen.stream).select("seq").collect())

    assert kept([(0, "1"), (6, "1"), (20, "1")], [(12, "1"), (14, "1"), (22, "2")]) == [0, 12, 20, 22]
    shutil.rmtree(tmp_path / "checkpoints")
    assert kept([(20, "1"), (26, "1"), (40, "1")]) == [0, 12, 20, 22, 40]


def test_a_late_reading_and_one_without_a_clock_open_no_files_of_other_devices(
    spark: SparkSession, tmp_path: Path
) -> None:
    chosen = with_beacons(tmp_path)
    old = NOON_MS - 3 * DAY_MS

    def reading(device: str, seq: int, at: int, received: int, kind: str = "thermostat") -> Sent:
        return Sent(1000 * "abc".find(device) + received % 997, received, device, seq, at, f"{seq}", type=kind)

    for device, kind in (("a", "thermostat"), ("b", "thermostat"), ("c", "beacon")):
        batch_of(spark, tmp_path, [reading(device, n, old + n, old + n, kind) for n in range(4)])
    run(spark, tmp_path, chosen)
    for it in (tmp_path / "lake" / "silver").glob("event_date=*/clock_ahead=false/*.parquet"):
        if spark.read.parquet(str(it)).where("device = 'a'").count():
            it.unlink()
    spark.catalog.refreshByPath(str(tmp_path / "lake" / "silver"))

    now = [reading("d", 100 + n, NOON_MS + n, NOON_MS + n) for n in range(300)]
    copies = [reading("b", 2, old + 2, NOON_MS), reading("c", 3, NOON_MS, NOON_MS + 1, "beacon")]
    batch_of(spark, tmp_path, [*now, *copies, reading("b", 9, old + 2, NOON_MS + 2)])
    (event,) = [it for it in run(spark, tmp_path, chosen) if isinstance(it, BatchEvent)]
    assert event.rows == 303
    kept = lake_tables.silver(spark, chosen.stream).where("device > 'a'").groupBy("device").count()
    assert {it.device: it["count"] for it in kept.collect()} == {"b": 5, "c": 4, "d": 300}


MESSAGES = st.lists(
    st.builds(
        Sent,
        offset=st.just(0),
        received_ms=st.integers(0, 3).map(lambda n: NOON_MS + n * 60_000),
        device=st.sampled_from(["a", "a:b", "ü"]),
        seq=st.integers(0, 2),
        ts=st.sampled_from([0, NOON_MS, NOON_MS + 300_000, NOON_MS + 300_001, YEAR_2036_MS, 253_402_300_799_999]),
        message_id=st.sampled_from([None, "", "1", "b:1"]),
        kind=st.sampled_from(["device", "delivery"]),
        raw=st.sampled_from([None, None, None, b"", b"{}", b"\xff"]),
    ),
    max_size=30,
)


@given(MESSAGES)
@hypothesis_settings(max_examples=3, deadline=None)
def test_every_record_is_a_reading_once_or_a_reject(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, given_messages: list[Sent]
) -> None:
    sent = [replace(it, offset=n) for n, it in enumerate(given_messages)]
    lowest: dict[tuple[object, ...], int] = {}
    for it in sent:
        if it.raw is None and it.kind == "device":
            lowest.setdefault((it.device, it.ts, it.message_id, it.offset % 2), it.offset)
    # Who comes first is the original: of a partition the lowest offset, of these the earliest received.
    sent.sort(
        key=lambda it: (
            lowest.get((it.device, it.ts, it.message_id, it.offset % 2), it.offset) < it.offset,
            it.received_ms,
            it.offset % 2,
            it.offset,
        )
    )
    folder = tmp_path_factory.mktemp("schemas")
    schemas = load_device_schemas(schema_folder(folder, temperature="number"))
    records = spark.createDataFrame([it.record() for it in sent], KAFKA)
    rows = silver.registered_rows(records, Settings(), schemas).localCheckpoint()
    new = readings(rows)
    found = firsts(new, repeated_ids(new), 0)

    assert silver_lines(found) == expected_rows(sent)
    assert found.columns == [name for name in silver_schema(schemas.columns).names if name != "ingested_at"]
    assert sorted(it.kafka_offset for it in rejects(rows).collect()) == sorted(
        it.offset for it in sent if it.raw is not None
    )


def test_a_signal_that_is_written_in_another_case_stays_the_same_column(spark: SparkSession, tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    SilverTables(spark, chosen.stream, columns("Temperature double"))
    schemas = load_device_schemas(tmp_path / "schemas")
    tables = SilverTables(spark, chosen.stream, schemas.columns)
    records = spark.createDataFrame([plain(0).record()], KAFKA)
    tables.append(silver.registered_rows(records, chosen, schemas), "test", 0)
    assert [it.Temperature for it in tables.silver.read().collect()] == [21.5]


def test_a_copy_takes_no_reading_of_a_topic_made_anew_along(spark: SparkSession, tmp_path: Path) -> None:
    """A day of bronze can have two records at one place, which a backfill reads together."""
    sent = [Sent(offset, NOON_MS + at, ts=NOON_MS, message_id=own) for at, (offset, own) in
            enumerate([(0, "id-1"), (2, "id-1"), (2, "id-2")])]  # fmt: skip
    schemas = load_device_schemas(schema_folder(tmp_path, temperature="number"))
    records = spark.createDataFrame([it.record() for it in sent], KAFKA)
    new = readings(silver.registered_rows(records, Settings(), schemas).localCheckpoint())
    assert silver_lines(firsts(new, repeated_ids(new), 0)) == expected_rows(sent)


@pytest.mark.parametrize(("devices", "join"), [(1_000, "BroadcastHashJoin"), (400_000, "SortMergeJoin")])
def test_only_a_small_registry_is_sent_to_every_executor(spark: SparkSession, devices: int, join: str) -> None:
    """Ten million devices would not fit beside the batch."""
    text = F.format_string("%030d", "id").alias("device")
    registry = spark.range(devices).select(text, F.lit("room").alias("type"), F.lit("oslo").alias("site")).persist()
    try:
        assert registry.count() == devices
        rows = spark.range(10).select(text, F.lit("").alias("type"), F.lit(None).cast("string").alias("site"))
        placed = enriched(rows, registry)
        plan = placed._jdf.queryExecution().executedPlan().toString()
        assert placed.where("site = 'oslo'").count() == 10
    finally:
        registry.unpersist()
    assert join in plan, plan
