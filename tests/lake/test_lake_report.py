"""The report of the lake: what the tables hold is on the page, and what is not there is said."""

import os
import shutil
import time
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import DoubleType, StructField

from config.errors import ConfigError
from config.settings import Settings, StreamSettings
from config.tables.stream_jobs import LakeSettings, RetentionSettings
from streaming.anomalies.processor import ANOMALIES
from streaming.audit.transforms import AUDIT, AUDIT_PARTITIONS
from streaming.bronze.job import BRONZE, GAPS
from streaming.devices.job import DEVICE_EVENTS
from streaming.devices.packing import DEVICES
from streaming.lake.lake import DeltaTable
from streaming.report import lake as report
from streaming.report.lake import read_lake
from streaming.report.page import Figure, Finding, Report, Table, moment, render
from streaming.report.plots import Bars, Histogram, Lines, Signal
from streaming.silver.schema import PARTITIONS, QUARANTINE, QUARANTINE_PARTITIONS, silver_schema

BEGIN = datetime(2026, 11, 21, 8, tzinfo=UTC)
SCHEMA = silver_schema([StructField("temperature", DoubleType()), StructField("humidity", DoubleType())])


T = TypeVar("T")


def shown(report: Report, name: str, kind: type[T]) -> T:
    """What a figure of the report shows."""
    figure = report.parts[name]
    assert isinstance(figure, Figure)
    assert isinstance(figure.shown, kind)
    return figure.shown


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def settings(folder: Path) -> Settings:
    return Settings(stream=StreamSettings(checkpoint=folder / "checkpoint", lake=LakeSettings(path=folder / "lake")))


def fill(spark: SparkSession, stream: StreamSettings) -> None:
    """1,000 readings of two devices, one an hour late; 30 anomalous ones; 5 records in quarantine."""
    rows = []
    for at in range(1000):
        device, moment = f"room-{at % 2}", BEGIN + timedelta(seconds=at)
        values: dict[str, Any] = {
            "device": device,
            "type": "room" if at % 2 else "hall",
            "seq": at // 2,
            "device_time": moment,
            "event_time": moment,
            "clock_ahead": False,
            "received_at": moment + timedelta(hours=1 if device == "room-1" else 0),
            "record_id": str(at),
            "event_date": moment.date(),
            "temperature": 20.0 + at / 1000,
        }
        rows.append(tuple(values.get(name) for name in SCHEMA.names))
    silver = DeltaTable(spark, stream, "silver")
    silver.create(SCHEMA, PARTITIONS)
    spark.createDataFrame(rows, SCHEMA).coalesce(1).write.format("delta").mode("append").save(silver.url)
    moments = [BEGIN + timedelta(seconds=20 * at) for at in range(30)]
    alerts = [
        (str(at), "room-0", "hall", "temperature", "outlier", "warning", moment, 30.0, 7.0 + at, 20.0, 0.1,
         1, moment, moment, moment.date())
        for at, moment in enumerate(moments)
    ]  # fmt: skip
    anomalies = DeltaTable(spark, stream, "anomalies")
    anomalies.create(ANOMALIES)
    spark.createDataFrame(alerts, ANOMALIES).coalesce(1).write.format("delta").mode("append").save(anomalies.url)
    bad = [
        ("not_json", None, None, b"{", None, "telemetry", 0, at, moments[at], BEGIN.date(), BEGIN) for at in range(5)
    ]
    quarantine = DeltaTable(spark, stream, "silver_quarantine")
    quarantine.create(QUARANTINE, QUARANTINE_PARTITIONS)
    spark.createDataFrame(bad, QUARANTINE).coalesce(1).write.format("delta").mode("append").save(quarantine.url)


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    fill(spark, settings(folder).stream)
    return folder / "lake"


@pytest.fixture
def chosen(filled: Path, tmp_path: Path) -> Settings:
    """Those of a lake of the test's own that is filled."""
    shutil.copytree(filled, tmp_path / "lake")
    return settings(tmp_path)


def judge(spark: SparkSession, stream: StreamSettings, job: str, batches: int = 100) -> None:
    """The job's checkpoint as it is once the job has read all of silver, or is killed after some files of it."""

    def write(_rows: DataFrame, batch: int) -> None:
        if batch == batches:
            raise RuntimeError("killed")

    silver = DeltaTable(spark, stream, "silver").read_stream(maxFilesPerTrigger="1")
    writer = silver.writeStream.queryName(job).option("checkpointLocation", str(stream.checkpoint / job))
    writer.trigger(availableNow=True).foreachBatch(write).start().awaitTermination()


def lose_a_file_of_the_day_before(spark: SparkSession, stream: StreamSettings) -> None:
    """Silver's log has a file more, in the same partition, which is gone: who opens it fails."""
    silver = DeltaTable(spark, stream, "silver")
    kept = {*Path(silver.url).rglob("*.parquet")}
    earlier = silver.read().limit(1).withColumn("received_at", F.expr("received_at - INTERVAL 1 DAY"))
    earlier.write.format("delta").mode("append").save(silver.url)
    for file in {*Path(silver.url).rglob("*.parquet")} - kept:
        file.unlink()


def test_what_the_tables_hold_is_on_the_page_and_what_is_missing_is_said(
    spark: SparkSession, chosen: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_lake(spark, chosen.stream)
    values = {one.label: (one.value, one.bad) for one in found.findings}
    assert values == {
        "readings": ("1,000", False),
        "devices": ("2", False),
        "late by more than 5 min": ("50.0%", False),
        "anomalies": ("30", True),
        "in quarantine": ("5", True),
    }
    lateness = shown(found, "late.lateness", Histogram).counts
    assert lateness == {**dict.fromkeys(lateness, 0), "under 1 s": 500, "1 h to 1 day": 500}
    assert [name for name in found.parts if name.startswith("signals")] == ["signals.0", "signals.anomalies"]
    title, look_for, _ = found.parts["signals.0"]
    assert (title, look_for.partition(".")[0]) == ("room-0: temperature", "Anomalous 30 times")
    signal = shown(found, "signals.0", Signal)
    assert signal.label == "temperature (°C)"
    assert len(signal.points) <= 400
    assert (signal.points[0][1], signal.points[-1][3]) == (20.0, 20.998)
    assert len(signal.marks) == 30
    lines = shown(found, "throughput.readings", Lines).lines
    assert set(lines) == {"room", "hall"}
    (first, _), (second, _) = lines["room"][:2]
    total = sum(rate for points in lines.values() for _, rate in points) * (second - first)
    assert 950 <= total <= 1000, "all but the last, unfinished stretch"
    assert set(found.absent) == {
        "devices.device_events",
        "devices.devices",
        "lost.bronze_gaps",
        "lost.devices",
        "lost.audit",
        "signals.left",
    }
    assert "gateway stream devices writes it" in found.absent["devices.devices"]

    lose_a_file_of_the_day_before(spark, chosen.stream)
    page = tmp_path / "out" / "page.html"
    told = Namespace(file=page, since_ms=ms(BEGIN), until_ms=ms(BEGIN + timedelta(minutes=5)), device="room-0")
    assert report.run(spark, chosen, told) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    assert "Readings received from 2026-11-21 08:00 to 2026-11-21 08:04" in text
    assert "room-0: temperature" in text
    assert "room-1" not in text
    for bound in (
        "Only the device room-0.",
        "Quarantine, ledger and losses in Kafka are those of all devices.",
        "are the newest that there are.",
    ):
        assert escape(bound, quote=False) in text
    assert list(page.parent.iterdir()) == [page], "no draft is left"


def fill_devices(spark: SparkSession, stream: StreamSettings) -> None:
    """Of three devices one is offline and has lost all that can be, one has lost seven readings; one minute of two is
    out of balance."""
    devices = DeltaTable(spark, stream, "devices")
    devices.create(DEVICES)
    rows = []
    for name, state, missing in (("room-0", "online", 0), ("room-1", "offline", 2**63 - 1), ("room-2", "online", 7)):
        values = {"device": name, "type": "room", "state": state, "last_seen": BEGIN, "gaps": min(missing, 1)}
        values |= {"missing": missing, "transitions": 3, "flapping": False, "batch": 1}
        rows.append(tuple(values.get(column) for column in DEVICES.names))
    spark.createDataFrame(rows, DEVICES).write.format("delta").mode("append").save(devices.url)
    events = DeltaTable(spark, stream, "device_events")
    events.create(DEVICE_EVENTS)
    told = [(BEGIN + timedelta(minutes=at), "offline", "room-1", "edge", "silence", 1) for at in range(3)]
    spark.createDataFrame(told, DEVICE_EVENTS).write.format("delta").mode("append").save(events.url)
    audit = DeltaTable(spark, stream, "audit")
    audit.create(AUDIT, AUDIT_PARTITIONS)
    judged = [
        (BEGIN.date(), BEGIN + timedelta(minutes=at), "edge", "telemetry", "t", 0, 100, 100 - at, at, 0, 0, 0,
         "missing" if at else "balanced", BEGIN)
        for at in range(2)
    ]  # fmt: skip
    spark.createDataFrame(judged, AUDIT).write.format("delta").mode("append").save(audit.url)


def test_devices_their_events_and_the_audit_are_on_the_page(spark: SparkSession, chosen: Settings) -> None:
    fill_devices(spark, chosen.stream)
    found = read_lake(spark, chosen.stream)
    assert not {"devices.device_events", "devices.devices", "lost.devices", "lost.audit"} & set(found.absent)
    assert found.absent["lost.audit_left"] == (
        "Not judged: 32 minutes with readings, from 2026-11-21 08:02 to 2026-11-21 09:16 UTC."
    )
    of_one = read_lake(spark, chosen.stream, device="room-0").absent["lost.audit_left"]
    assert of_one == found.absent["lost.audit_left"], "the ledger is that of all devices"
    audited = DeltaTable(spark, chosen.stream, "audit").read()
    assert "only silver or bronze" in (report._left_by_audit(audited, None) or "")
    values = {one.label: (one.value, one.bad) for one in found.findings}
    assert values["offline"] == ("1", True)
    assert values["missing numbers"] == (f"{2**63 + 6:,}", True)
    assert values["ledger differences"] == ("1", True)
    offenders = shown(found, "devices.offenders", Table).rows
    assert [row[0] for row in offenders] == ["room-1", "room-2"], "those to look at, the worst first"
    stacks = shown(found, "devices.events", Bars).stacks
    assert sum(count for points in stacks.values() for _, count in points) == 3
    assert shown(found, "lost.numbers", Table).rows == [("room-1", None, 2**63 - 1, 1), ("room-2", None, 7, 1)]
    audit = shown(found, "lost.audit", Table).rows
    assert audit == [("edge", "telemetry", "t", 0, "2026-11-21 08:01", 100, 99, 1, 0)]
    text = render(found)
    for said in ("3 devices: 2 online, 1 offline.", "Sequence numbers that never came", "ledger against Kafka"):
        assert said in text


def test_what_no_job_has_looked_at_is_not_judged(spark: SparkSession, chosen: Settings) -> None:
    """A table without a row of loss says nothing of what its job has not read."""
    stream = chosen.stream
    for name, schema in (("devices", DEVICES), ("device_events", DEVICE_EVENTS), ("audit", AUDIT)):
        DeltaTable(spark, stream, name).create(schema)
    DeltaTable(spark, stream, "anomalies").replace(spark.createDataFrame([], ANOMALIES))
    found = read_lake(spark, stream)
    values = {one.label: one.value for one in found.findings}
    assert {values[name] for name in ("anomalies", "missing numbers", "ledger differences")} == {"not judged"}
    text = render(found)
    assert "Not judged: the job devices has not finished its first batch." in text
    assert "Not judged: the job anomalies has not finished its first batch." in text
    assert "Not judged: the table audit has no minute of this time." in text
    assert "gateway stream status counts them" in text
    assert "agree" not in text

    row = {"device": "room-0", "state": "online", "missing": 0, "gaps": 0, "seq_last": 499}
    spark.createDataFrame([tuple(row.get(name) for name in DEVICES.names)], DEVICES).write.format("delta").mode(
        "append"
    ).save(DeltaTable(spark, stream, "devices").url)
    for job in ("devices", "anomalies"):
        judge(spark, stream, job)
    found = read_lake(spark, stream)
    values = {one.label: one.value for one in found.findings}
    assert (values["offline"], values["anomalies"], values["missing numbers"]) == ("0", "0", "0")
    assert not {"devices.left", "signals.left", "lost.left"} & set(found.absent)
    assert found.absent["lost.devices"] == (
        "Of 1 devices 1 number their messages, and none of these has a gap of more than 60 s."
    )
    of_nobody = read_lake(spark, stream, device="romo-0")
    assert of_nobody.absent["signals.left"] == "Not judged: silver has no readings of this time."
    # What retention took nobody knows any more, unless it is asked for what came since.
    DeltaTable(spark, stream, "silver_quarantine").delete("true")
    kept = RetentionSettings(anomalies=timedelta(days=1), silver_quarantine=timedelta(days=1))
    short = stream.model_copy(update={"lake": stream.lake.model_copy(update={"retention": kept})})
    found = read_lake(spark, short)
    assert Finding("anomalies", "not judged") in found.findings
    assert "(stream.lake.retention.silver_quarantine)" in found.absent["lost.silver_quarantine"]
    found = read_lake(spark, short, since_s=time.time() - 3600)
    assert "retention" not in found.absent["signals.left"]
    assert found.absent["lost.silver_quarantine"] == "No record of this time is in quarantine."
    # Silver has nothing new, for all has stopped. Which devices fell silent since, nobody has looked at.
    os.utime(stream.checkpoint / "devices" / "commits" / "0", (BEGIN.timestamp(), BEGIN.timestamp()))
    found = read_lake(spark, stream)
    assert Finding("offline", "not judged") in found.findings
    assert found.absent["devices.left"].endswith("finished its last batch at 2026-11-21 08:00 UTC.")

    silver = DeltaTable(spark, stream, "silver")
    silver.read().limit(1).write.format("delta").mode("append").save(silver.url)
    judged = [
        (BEGIN.date(), BEGIN + timedelta(minutes=at), "edge", "telemetry", "t", 0, 100, 100 - unread, 0, 0, 0, unread,
         "open" if unread else "balanced", BEGIN)
        for at, unread in ((0, 0), (1, 0), (2, 60), (2, 0))
    ]  # fmt: skip
    audit = DeltaTable(spark, stream, "audit")
    spark.createDataFrame(judged, AUDIT).write.format("delta").mode("append").save(audit.url)
    found = read_lake(spark, stream)
    values = {one.label: one.value for one in found.findings}
    assert {values[name] for name in ("offline", "anomalies", "missing numbers")} == {"not judged"}
    assert "The job devices has read up to version 1." in found.absent["lost.left"]
    assert "lost.devices" not in found.absent, "a gap may be in what it has not read"
    assert "60 acknowledged records that the audit has not read yet" in found.absent["lost.audit_left"]
    assert found.absent["lost.audit"] == (
        "The gateway's ledger and Kafka agree in all 2 minutes of this time that were judged."
    )


def test_of_a_table_that_is_read_in_part_nothing_is_judged(spark: SparkSession, chosen: Settings) -> None:
    """A job takes a table in pieces. It is not at a version before it has all of its files."""
    stream, silver = chosen.stream, DeltaTable(spark, chosen.stream, "silver")
    DeltaTable(spark, stream, "devices").create(DEVICES)
    for days in (1, 2):
        row = silver.read().limit(1).withColumn("event_date", F.expr(f"event_date - {days}"))
        row.write.format("delta").mode("append").save(silver.url)
    with pytest.raises(Exception, match="killed"):
        judge(spark, stream, "devices", batches=2)
    assert "has not read yet what this table silver had" in read_lake(spark, stream).absent["lost.left"]
    judge(spark, stream, "devices")
    assert "none numbers its messages" in read_lake(spark, stream).absent["lost.left"]

    silver.read().write.format("delta").mode("append").save(silver.url)
    with pytest.raises(Exception, match="killed"):
        judge(spark, stream, "devices", batches=4)
    left = read_lake(spark, stream).absent["lost.left"]
    assert left == "Not judged: 1 commit of silver. The job devices has read up to version 3."

    # Of commits that the log keeps no more nobody knows whether they brought readings.
    for _ in range(2):
        spark.sql(f"ALTER TABLE {silver.sql_name} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    for version in range(6):
        (Path(silver.url) / "_delta_log" / f"{version:020}.json").unlink()
    (Path(silver.url) / "_delta_log" / f"{0:020}.json").write_text("what all jobs have read is not looked at")
    assert "2 commits" in read_lake(spark, stream).absent["lost.left"]


def test_what_kafka_no_longer_had_is_on_the_page(spark: SparkSession, tmp_path: Path) -> None:
    stream = settings(tmp_path).stream
    assert read_lake(spark, stream).absent["lost.bronze_gaps"].startswith("Not judged: what Kafka deletes")
    DeltaTable(spark, stream, "bronze").create(BRONZE)
    assert "has not finished its first batch" in read_lake(spark, stream).absent["lost.bronze_gaps"]
    later = BEGIN + timedelta(minutes=1)
    gaps = DeltaTable(spark, stream, "bronze_gaps")
    gaps.create(GAPS)
    ranges = [("t", 0, 100, 1249, "deleted", BEGIN, 7), ("t", 1, 5, None, "gone", later, 8)]
    spark.createDataFrame(ranges, GAPS).write.format("delta").mode("append").save(gaps.url)
    found = read_lake(spark, stream)
    assert [(one.value, one.bad) for one in found.findings] == [("1,151 or more", True)]
    assert shown(found, "lost.deleted", Table).rows == [
        ("t", 1, 5, None, "gone", "2026-11-21 08:01:00"),
        ("t", 0, 100, 1249, "deleted", "2026-11-21 08:00:00"),
    ]
    text = render(found)
    assert "Records that Kafka no longer had when bronze read on" in text
    assert "bronze has met no record" not in text
    found = read_lake(spark, stream, until_s=later.timestamp())
    assert [one.value for one in found.findings] == ["1,150"]


def test_of_a_time_in_which_bronze_did_not_look_no_loss_is_not_said(spark: SparkSession, tmp_path: Path) -> None:
    stream = settings(tmp_path).stream
    DeltaTable(spark, stream, "bronze").create(BRONZE)
    began_s = time.time()
    for kind in ("offsets", "commits"):
        (stream.checkpoint / "bronze" / kind).mkdir(parents=True)
        (stream.checkpoint / "bronze" / kind / "0").write_text("v1\n{}")
    os.utime(stream.checkpoint / "bronze" / "commits" / "0", (began_s + 3600, began_s + 3600))

    def said(since_s: float | None, until_s: float | None) -> str:
        return read_lake(spark, stream, since_s=since_s, until_s=until_s).absent["lost.bronze_gaps"]

    end = moment(began_s + 3600)
    assert f"to {end} UTC bronze has met no record" in said(None, None)
    assert f"From {moment(began_s + 60)} to {end} UTC" in said(began_s + 60, began_s + 7200)
    for without in ((began_s - 7200, began_s - 60), (began_s + 4000, None)):
        assert f"finished its last batch at {end} UTC" in said(*without)
    gaps = [("t", 0, 100, 1249, "deleted", datetime.fromtimestamp(began_s + 1800, UTC), 0)]
    DeltaTable(spark, stream, "bronze_gaps").replace(spark.createDataFrame(gaps, GAPS))
    assert said(began_s + 60, began_s + 600).startswith("Not judged: what bronze met after this time")
    assert "no record" in said(began_s + 2000, began_s + 2600)


def test_devices_are_counted_and_not_estimated(spark: SparkSession, tmp_path: Path) -> None:
    """As many devices as Spark's estimate gets wrong, and a reading of each."""
    stream = settings(tmp_path).stream
    silver = DeltaTable(spark, stream, "silver")
    silver.create(SCHEMA, PARTITIONS)
    known = {"device": F.format_string("oslo-thermostat-%04d", F.col("id")), "record_id": F.expr("string(id)")}
    moments = dict.fromkeys(("device_time", "event_time", "received_at"), F.lit(BEGIN))
    dates = {"event_date": F.lit(BEGIN.date()), "clock_ahead": F.lit(False)}
    rows = spark.range(1000).withColumns(known | moments | dates).drop("id")
    assert rows.agg(F.approx_count_distinct("device", 0.01)).collect() != [(1000,)]
    rows.write.format("delta").mode("append").save(silver.url)
    assert {one.label: one.value for one in read_lake(spark, stream).findings}["devices"] == "1,000"


def test_a_time_after_the_year_9999_is_drawn(spark: SparkSession, chosen: Settings) -> None:
    quarantine = DeltaTable(spark, chosen.stream, "silver_quarantine")
    late = quarantine.read().limit(1).withColumn("kafka_time", F.timestamp_millis(F.lit(1 << 50)))
    late.write.format("delta").mode("append").save(quarantine.url)
    found = read_lake(spark, chosen.stream)
    assert Finding("in quarantine", "6", bad=True) in found.findings
    assert "not_json" in render(found)


def test_an_empty_lake_is_a_page_that_says_so_and_status_4(spark: SparkSession, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    nothing = Namespace(file=page, since_ms=None, until_ms=None, device=None)
    assert report.run(spark, settings(tmp_path), nothing) == 4
    assert "There is no table silver yet: gateway stream silver writes it." in page.read_text()


def test_a_stretch_that_ends_before_it_begins_is_refused(tmp_path: Path) -> None:
    told = Namespace(file=tmp_path / "page.html", since_ms=ms(BEGIN), until_ms=ms(BEGIN) - 1, device=None)
    with pytest.raises(ConfigError, match="--from is not before --to"):
        report.run(None, settings(tmp_path), told)  # type: ignore[arg-type]
