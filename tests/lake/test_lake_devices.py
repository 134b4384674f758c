"""The job ``devices`` on Spark: from a Delta silver and Kafka's records to its tables, over restarts."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import DoubleType, StructField

from config.errors import ConfigError
from config.settings import Settings
from streaming import lake_tables
from streaming.devices import job as devices
from streaming.devices.packing import DEVICES
from streaming.job import JobContext
from streaming.lake.lake import DeltaTable
from streaming.silver.schema import silver_schema
from tests.chaos.harness import FULL

pytestmark = pytest.mark.slow

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
RECORD = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " headers array<struct<key: string, value: binary>>"
)
SILVER = silver_schema([StructField("temperature", DoubleType())])
PATIENCE_S = 400  # a batch takes seconds, and minutes where others want all cores


class Lake:
    """A silver that grows, Kafka's records as files, and the job that reads both until it has all."""

    def __init__(self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.folder = spark, folder
        self.settings = Settings(
            stream={
                "lake": {"path": folder / "lake"},
                "checkpoint": folder / "checkpoints",
                "available_now": True,
                "devices": {"shards": 2, "presence_topics": ["devices.presence"], "gateway_after": "3m"},
            }
        )
        self.silver = DeltaTable(spark, self.settings.stream, "silver")
        (folder / "records").mkdir()
        monkeypatch.setattr(devices, "read_records", self._records)
        monkeypatch.setattr(devices, "require_same_topics", lambda *_, **__: None)  # there is no Kafka to be asked

    def _records(self, spark: SparkSession, *_: Any, **__: Any) -> DataFrame:
        return spark.readStream.schema(RECORD).parquet(str(self.folder / "records"))

    def readings(self, *rows: tuple[str, int, int], gateway: str = "edge") -> None:
        """Device, sequence number, and minute of its reception, which is also its time."""
        self.silver.create(SILVER)
        made = []
        for device, seq, minute in rows:
            at = T0 + timedelta(minutes=minute)
            row = dict.fromkeys(SILVER.names)
            row |= {"device": device, "type": "pump", "seq": seq, "temperature": float(seq), "gateway": gateway}
            row |= {"device_time": at, "event_time": at, "received_at": at, "record_id": f"{device}-{seq}"}
            made.append(tuple(row.values()))
        self.spark.createDataFrame(made, SILVER).coalesce(1).write.format("delta").mode("append").save(self.silver.url)

    def records(self, *rows: tuple[str, str, dict[str, Any], int]) -> None:
        """Topic, key, value and minute."""
        made = [
            (key.encode(), json.dumps(value).encode(), topic, 0, 0, T0 + timedelta(minutes=minute), [])
            for topic, key, value, minute in rows
        ]
        frame = self.spark.createDataFrame(made, RECORD).coalesce(1)
        frame.write.mode("append").parquet(str(self.folder / "records"))

    def beats(self, minutes: range, *, gateway: str = "edge") -> None:
        start_ms = int(T0.timestamp() * 1000)
        self.records(
            *(
                ("gateway-ledger", f"{gateway}/0", {
                    "v": 1, "kind": "worker", "gateway": gateway, "worker": 0, "life": "a", "state": "running",
                    "from_ms": start_ms + (minute - 1) * 60_000, "to_ms": start_ms + minute * 60_000,
                    "acknowledged": minute + 1000,
                }, minute)
                for minute in minutes
            )
        )  # fmt: skip

    def run(self) -> None:
        query = devices.start(self.spark, self.settings, JobContext(lambda _: None))
        try:
            assert query.awaitTermination(PATIENCE_S), "the job did not end"
        finally:
            query.stop()

    def table(self) -> dict[str, Row]:
        return {row.device: row for row in lake_tables.devices(self.spark, self.settings.stream).collect()}

    def events(self) -> list[tuple[str, str | None, str | None]]:
        rows = lake_tables.device_events(self.spark, self.settings.stream).where("event <> 'first_seen'").collect()
        return sorted((row.event, row.device, row.gateway) for row in rows)


@pytest.fixture
def make_lake(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Lake]:
    return lambda: Lake(spark, tmp_path, monkeypatch)


@pytest.mark.skipif(not FULL, reason="takes minutes: CHAOS=full")
def test_devices_over_restarts_an_outage_and_a_batch_that_is_run_again(
    make_lake: Callable[[], Lake], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake()
    lake.readings(("a", 0, 0), ("b", 0, 0), ("c", 0, 0))
    lake.readings(*(("c", minute, minute) for minute in range(1, 6)), gateway="other")
    lake.beats(range(6))
    lake.beats(range(6), gateway="other")
    lake.run()
    assert {name: row.state for name, row in lake.table().items()} == {"a": "online", "b": "online", "c": "online"}
    assert lake.events() == []

    # Gateway edge is down from minute 5 on; Spark is down all that time, and reads it in one go.
    lake.readings(*(("c", minute, minute) for minute in range(6, 20)), gateway="other")
    lake.beats(range(6, 20), gateway="other")
    lake.records(("devices.presence", "d", {"status": "online"}, 7), ("devices.presence", "d", {"state": "offline"}, 9))

    # The first try fails after it has written, as a kill between the write and Spark's commit would have it.
    write = devices._write

    def write_and_fail(changes: DataFrame, batch: int, **of: Any) -> None:
        write(changes, batch, **of)
        raise RuntimeError("killed")

    monkeypatch.setattr(devices, "_write", write_and_fail)
    with pytest.raises(Exception, match="killed"):
        lake.run()
    monkeypatch.setattr(devices, "_write", write)
    before = lake.events()
    lake.run()
    assert lake.events() == before == [("gateway_lost", None, "edge"), ("offline", "d", None)]
    table = lake.table()
    assert {name: row.state for name, row in table.items()} == {
        "a": "unknown", "b": "unknown", "c": "online", "d": "offline",
    }  # fmt: skip

    # It returns; a sends on, b has lost two readings and sends on.
    lake.readings(("a", 1, 20), ("a", 2, 21), ("b", 3, 20))
    lake.beats(range(20, 22))
    lake.beats(range(20, 22), gateway="other")
    lake.run()
    assert lake.events() == sorted([*before, ("gateway_back", None, "edge"), ("gap", "b", "edge")])
    table = lake.table()
    a, b = table["a"], table["b"]
    assert (a.state, a.seq_last, a.gaps, a.missing, a.transitions) == ("online", 2, 0, 0, 0)
    assert (b.state, b.seq_last, b.gaps, b.missing, b["missing_ranges"][0].low) == ("online", 3, 1, 2, 1)
    assert (a["values"], a["last_seen"].replace(tzinfo=UTC)) == ({"temperature": 2.0}, T0 + timedelta(minutes=21))

    # The state is there to be asked.
    url = f"{lake.settings.stream.checkpoint}/devices"
    state = spark.read.format("statestore").option("stateVarName", "devices").load(url)
    lines = [line for row in state.select("user_map_value.lines").collect() for line in row.lines.split("\n")]
    assert {json.loads(name): json.loads(device)[3] for name, device in (line.split("\t") for line in lines)} == {
        "a": "online", "b": "online", "c": "online", "d": "offline",
    }  # fmt: skip

    # Small files are put together on the way: maintain leaves a table without days alone while its job runs.
    lake.readings(("a", 3, 22))
    fewest = spark.conf.get("spark.databricks.delta.autoCompact.minNumFiles")
    spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    try:
        lake.run()
    finally:
        spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", fewest)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{lake.settings.stream.lake.path}/devices`").collect()
    assert [row.operation for row in history][:2] == ["OPTIMIZE", "MERGE"]
    assert lake.table()["a"].seq_last == 3

    other = lake.settings.model_copy(
        update={
            "stream": lake.settings.stream.model_copy(
                update={"devices": lake.settings.stream.devices.model_copy(update={"shards": 3})}
            )
        }
    )
    with pytest.raises(ConfigError, match=r"stream\.devices\.shards"):
        devices.start(spark, other, JobContext(lambda _: None))


@pytest.mark.skipif(not FULL, reason="takes minutes: CHAOS=full")
def test_a_silence_of_everything_is_noticed_while_no_batch_has_data(
    make_lake: Callable[[], Lake], spark: SparkSession
) -> None:
    """The timers: nothing comes any more, of nobody."""
    lake = make_lake()
    lake.settings = Settings(
        stream={
            "lake": {"path": lake.folder / "lake"},
            "checkpoint": lake.folder / "checkpoints",
            "trigger": "1s",
            "devices": {"shards": 1, "offline_after": "2s", "heartbeats": False},
        }
    )
    lake.readings(("a", 0, 0))
    query = devices.start(spark, lake.settings, JobContext(lambda _: None))
    try:
        deadline = time.monotonic() + PATIENCE_S
        while [row.state for row in lake.table().values()] != ["unknown"]:
            assert query.exception() is None
            assert time.monotonic() < deadline, "nobody noticed"
            query.awaitTermination(1)
    finally:
        query.stop()
    assert lake.events() == [("gateway_lost", None, "edge")]


def test_a_batch_changes_its_devices_and_opens_no_files_of_others(
    make_lake: Callable[[], Lake], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file has ten names, the odd ones at its ends."""
    stream = make_lake().settings.stream
    table = DeltaTable(spark, stream, "devices")
    table.create(DEVICES, delta_enableDeletionVectors="true")
    odd = ["", "'", "Z", "ß", "é\\", "\U0001f600", "\ue000", "${spark.app.name}", "a" * 40]
    names = sorted([*odd, *(f"d{number:02}" for number in range(51))], key=str.encode)

    def rows(changes: list[tuple[str, int, bool]]) -> DataFrame:
        made = spark.createDataFrame(changes, "device string, batch long, gone boolean")
        lacking = [F.lit(None).cast(it.dataType).alias(it.name) for it in DEVICES if it.name not in made.columns]
        return made.select("*", *lacking).select(*DEVICES.names, "gone")

    for at in range(0, len(names), 10):
        few = rows([(name, 1, False) for name in names[at : at + 10]])
        few.drop("gone").coalesce(1).write.format("delta").mode("append").save(table.url)
    opened: list[int] = []
    sent: list[str | None] = []
    merge = DeltaTable.merge

    def seen(self: DeltaTable, rows: DataFrame, same: str, *clauses: str) -> Row:
        sent.append(spark.conf.get(devices._BROADCAST))
        ranges = same.removeprefix("t.device = s.device AND ")
        opened.append(len(self.read().alias("t").where(ranges).inputFiles()))
        return merge(self, rows, same, *clauses)

    monkeypatch.setattr(DeltaTable, "merge", seen)
    monkeypatch.setattr(devices, "_MOST_SENT", 50)
    limit = spark.conf.get(devices._BROADCAST)
    for batch, changed in ((2, names[9:11]), (3, ["${spark.app.name}"]), (4, names)):
        its = [*changed, f"new {batch}"]
        devices._merge(table, rows([(name, batch, False) for name in its]), len(its))
        found = [(row.device, row.batch) for row in table.read().collect()]
        assert len(dict(found)) == len(found), "a device is there twice"
        assert {name for name, at in found if at == batch} == {*changed, f"new {batch}"}
    assert sent == [limit, limit, "-1"], "60 devices are not sent to every task"
    assert spark.conf.get(devices._BROADCAST) == limit
    assert opened[0] <= 3, "of six files, two with the devices and one around the new name"
    devices._merge(table, rows([("a" * 40, 5, True)]), 1)
    assert sorted(row.device for row in table.read().collect()) == sorted(
        [*(name for name in names if name != "a" * 40), "new 2", "new 3", "new 4"]
    )


def test_a_key_that_is_no_text_or_a_time_that_is_none_names_no_device(spark: SparkSession) -> None:
    """Rows go to Python as Arrow, where bytes that are no UTF-8 end the process, and the batch with it, each time."""
    rows = [
        (bytes([0xFF, 1]), b'{"clientid": "a", "status": "online"}', "devices.presence", 0, 0, T0, []),
        (b"b", b"online", "devices.presence", 0, 1, T0, [("gateway.device", bytes([0xFE]))]),
    ]
    records = spark.createDataFrame(rows, RECORD)
    late = records.withColumn("timestamp", F.timestamp_millis(F.lit(253_402_300_800_000)))  # no moment of Python's
    found = devices.presence(records.union(late), "gateway-ledger", 2).toArrow().to_pylist()
    assert sorted(row["device"] for row in found) == ["a", "b"]


def test_without_silver_the_job_says_what_to_run(make_lake: Callable[[], Lake], spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="gateway stream silver"):
        devices.start(spark, make_lake().settings, JobContext(lambda _: None))
