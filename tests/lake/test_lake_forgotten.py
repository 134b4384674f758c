"""What is left of a device that was forgotten in the states of other jobs does not come back."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from config.settings import StreamSettings
from streaming.devices import job as devices
from streaming.devices.packing import OUTPUT
from streaming.lake.forgotten import Forgotten

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)


@pytest.fixture
def forgotten(spark: SparkSession, tmp_path: Path) -> Forgotten:
    return Forgotten(spark, StreamSettings(lake={"path": tmp_path}))


def snapshot(last_seen: int | None, reason: str, since: int, **times: int) -> tuple[Any, ...]:
    values = {name: float(at) for name, at in times.items()}
    return ("pump", None, "offline", reason, since, last_seen, last_seen, values, times, 1, 0, 0, [], 0, 0, 0, 1, False)


def test_of_a_device_not_heard_since_nothing_is_said_and_of_another_what_is_new(
    spark: SparkSession, forgotten: Forgotten
) -> None:
    before, after = AT_MS - 60_000, AT_MS + 60_000
    for name in ("silent", "heard", "born"):
        forgotten.add(name, AT - timedelta(days=1))
        forgotten.add(name, AT)  # the last time counts
    told = {
        "silent": snapshot(before, "silence", after, t=before),
        "heard": snapshot(after, "reading", after, t=after, h=before),
        "born": snapshot(None, "birth", after),
        "other": snapshot(before, "silence", after, t=before),
    }
    rows = [("device", None, None, name, "edge", None, it) for name, it in told.items()]
    rows += [("event", at, "offline", name, "edge", "", None) for name in (*told, None) for at in (before, after)]
    marked = forgotten.marked(spark.createDataFrame(rows, OUTPUT))
    assert marked is not None
    found = devices.without_forgotten(marked).collect()
    values = {row.device: row.snapshot and row.snapshot["values"] for row in found if row.kind == "device"}
    assert values == {"silent": None, "heard": {"t": float(after)}, "born": {}, "other": {"t": float(before)}}
    events = [row.device for row in found if row.kind == "event"]
    assert sorted(events, key=str) == [None, None, "born", "heard", "other", "other"], "nothing from before"
    times = [row.snapshot.value_times for row in found if row.kind == "device" and row.device == "heard"]
    assert times == [{"t": after}]


def test_a_silence_of_a_forgotten_device_is_none(spark: SparkSession, forgotten: Forgotten) -> None:
    forgotten.add("d", AT)
    names = "device string, received_at timestamp, kind string"
    rows = [("d", AT - timedelta(hours=1), "silence"), ("d", AT + timedelta(hours=1), "spike"), ("e", AT, "silence")]
    found = forgotten.without(spark.createDataFrame(rows, names)).collect()
    assert sorted((row.device, row.kind) for row in found) == [("d", "spike"), ("e", "silence")]


def test_notes_hold_no_name_and_end(spark: SparkSession, forgotten: Forgotten, tmp_path: Path) -> None:
    assert forgotten.marked(spark.range(1).selectExpr("'d' AS device")) is None
    forgotten.add("sensor-7 ü/..", AT)
    files = [path.name for path in (tmp_path / "forgotten").iterdir()]
    assert files
    assert not [name for name in files if "sensor" in name]
    assert list(forgotten.moments().values()) == [AT_MS]
    forgotten.let_go(AT)
    assert forgotten.moments()
    forgotten.let_go(AT + timedelta(seconds=1))
    assert forgotten.moments() == {}
