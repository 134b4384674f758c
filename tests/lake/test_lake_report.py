"""The report of the lake: what the tables hold is on the page, and what is not there is said."""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import DoubleType, StructField

from config.errors import ConfigError
from config.settings import Settings, StreamSettings
from config.stream_jobs import LakeSettings
from streaming import report
from streaming.anomalies import ANOMALIES
from streaming.audit_transforms import AUDIT, AUDIT_PARTITIONS
from streaming.devices import DEVICE_EVENTS, DEVICES
from streaming.lake import DeltaTable
from streaming.report_lake import read_lake
from streaming.report_page import render
from streaming.silver_schema import PARTITIONS, QUARANTINE, QUARANTINE_PARTITIONS, silver_schema

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BEGIN = datetime(2026, 11, 21, 8, tzinfo=UTC)
SCHEMA = silver_schema([StructField("temperature", DoubleType()), StructField("humidity", DoubleType())])


def settings(folder: Path) -> Settings:
    return Settings(stream=StreamSettings(lake=LakeSettings(path=folder / "lake")))


def fill(spark: SparkSession, stream: StreamSettings) -> None:
    """1,000 readings of two devices, one an hour late; 30 anomalous ones in 3 runs; 5 records in quarantine."""
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
         1 + at % 10, moment, moment, moment.date())
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


def test_what_the_tables_hold_is_on_the_page_and_what_is_missing_is_said(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings(tmp_path)
    fill(spark, chosen.stream)
    found = read_lake(spark, chosen.stream, "here", units={"temperature": "°C"})
    values = {one.label: (one.value, one.bad) for one in found.findings}
    assert values == {
        "readings": ("1,000", False),
        "devices": ("2", False),
        "late by more than 5 min": ("50.0%", False),
        "anomalies": ("3", True),
        "in quarantine": ("5", True),
    }
    assert found.lateness is not None
    assert dict(zip(found.lateness.ranges, found.lateness.counts, strict=True)) == {
        **dict.fromkeys(found.lateness.ranges, 0),
        "under 1 s": 500,
        "1 h to 1 day": 500,
    }
    (signal,) = found.signals
    assert (signal.device, signal.name, signal.unit, signal.alerts) == ("room-0", "temperature", "°C", 3)
    assert len(signal.points) <= 400
    assert (signal.points[0][1], signal.points[-1][3]) == (20.0, 20.998)
    assert len(signal.marks) == 30
    assert {one.label for one in found.throughput} == {"room", "hall"}
    total = sum(rate * found.throughput_s for one in found.throughput for _, rate in one.points)
    assert 950 <= total <= 1000, "all but the last, unfinished stretch"
    assert set(found.absent) == {"devices.device_events", "devices.devices", "lost.devices", "lost.audit"}
    assert "gateway stream devices writes it" in found.absent["devices.devices"]

    page = tmp_path / "out" / "page.html"
    told = Namespace(file=str(page), begin="2026-11-21T08:00", end="2026-11-21T08:05", device="room-0")
    assert report.run(spark, chosen, told) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    assert "Readings received from 2026-11-21 08:00 to 2026-11-21 08:04" in text
    assert "room-0: temperature" in text
    assert "room-1" not in text
    assert list(page.parent.iterdir()) == [page], "no draft is left"


def fill_devices(spark: SparkSession, stream: StreamSettings) -> None:
    """Of three devices one is offline, and one has lost seven readings; one minute of two is out of balance."""
    devices = DeltaTable(spark, stream, "devices")
    devices.create(DEVICES)
    rows = []
    for name, state, missing in (("room-0", "online", 0), ("room-1", "offline", 0), ("room-2", "online", 7)):
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


def test_devices_their_events_and_the_audit_are_on_the_page(spark: SparkSession, tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    fill(spark, chosen.stream)
    fill_devices(spark, chosen.stream)
    found = read_lake(spark, chosen.stream, "here", units={})
    assert not {"devices.device_events", "devices.devices", "lost.devices", "lost.audit"} & set(found.absent)
    values = {one.label: (one.value, one.bad) for one in found.findings}
    assert values["offline"] == ("1", True)
    assert values["missing numbers"] == ("7", True)
    assert values["ledger differences"] == ("1", True)
    assert found.health is not None
    assert found.health.states == {"online": 2, "offline": 1}
    assert found.health.offenders is not None
    assert [row[0] for row in found.health.offenders.rows] == ["room-1", "room-2"], "those to look at, the worst first"
    assert found.health.events is not None
    assert sum(count for points in found.health.events.stacks.values() for _, count in points) == 3
    assert found.lost is not None
    assert found.lost.rows == [("room-2", None, 7, 1)]
    assert found.audit is not None
    assert found.audit.rows == [("edge", "telemetry", "t", 0, "2026-11-21 08:01", 100, 99, 1, 0)]
    text = render(found)
    for said in ("3 devices: 2 online, 1 offline.", "Sequence numbers that never came", "ledger against Kafka"):
        assert said in text


def test_an_empty_lake_is_a_page_that_says_so_and_status_4(spark: SparkSession, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    nothing = Namespace(file=str(page), begin=None, end=None, device=None)
    assert report.run(spark, settings(tmp_path), nothing) == 4
    assert "There is no table silver yet: gateway stream silver writes it." in page.read_text()


@pytest.mark.parametrize(
    ("begin", "end", "says"),
    [("yesterday", None, "--from 'yesterday' is no time"), ("2026-11-22", "2026-11-21", "--from is not before --to")],
)
def test_times_that_are_none_are_refused(begin: str, end: str | None, says: str, tmp_path: Path) -> None:
    told = Namespace(file=str(tmp_path / "page.html"), begin=begin, end=end, device=None)
    with pytest.raises(ConfigError, match=says):
        report.run(None, settings(tmp_path), told)  # type: ignore[arg-type]
