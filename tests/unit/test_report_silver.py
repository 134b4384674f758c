"""The report from silver, its quarantine and the alerts, without Spark; and the one that the demo ends with."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from gateway.local.demo import result as demo_result
from gateway.local.demo.result import write_report
from streaming.report import silver
from streaming.report.silver import read_silver

BEGIN_US = 1_795_248_000_000_000
_MOMENT = pa.timestamp("us", tz="UTC")
SILVER = pa.schema(
    [("device", pa.string()), ("type", pa.string()), ("seq", pa.int64()), ("device_time", _MOMENT),
     ("event_time", _MOMENT), ("temperature", pa.float64()), ("rssi", pa.int64()), ("message_id", pa.string()),
     ("kafka_offset", pa.int64()), ("received_at", _MOMENT), ("heating", pa.float64())]
)  # fmt: skip
ANOMALIES = pa.schema(
    [("device", pa.string()), ("signal", pa.string()), ("kind", pa.string()), ("score", pa.float64()),
     ("event_time", _MOMENT), ("value", pa.float64())]
)  # fmt: skip
QUARANTINE = pa.schema([("reason", pa.string()), ("value", pa.binary()), ("kafka_time", _MOMENT)])


def readings() -> Iterator[dict[str, Any]]:
    """Two devices, 100 seconds; one reading is wrong, three are missing, one came twice, one device is 10 s late."""
    random_ = random.Random(1)
    for second in range(100):
        for number in range(2):
            if number == 0 and second in {40, 41, 60}:
                continue
            moment = BEGIN_US + second * 1_000_000
            row = {
                "device": f"room-{number}",
                "type": ("hall", "room")[number],
                "seq": second,
                "device_time": moment,
                "event_time": moment,
                "temperature": 90.0 if (number, second) == (1, 70) else 20.0 + random_.gauss(0, 0.1),
                "rssi": None if number else -60,
                "heating": 0.0 if second == 90 else 1.0,
                "kafka_offset": 2 * second + number,
                "received_at": moment + (10_000_000 if number else 2_000),
            }
            yield row
            if (number, second) == (0, 50):
                yield row


def write(folder: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    write_deltalake(folder, pa.Table.from_pylist(rows, schema=schema))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "lake" / "silver", list(readings()), SILVER)
    outlier = {"device": "room-1", "signal": "temperature", "kind": "outlier", "score": 7.0, "value": 90.0}
    alerts = [
        {**outlier, "event_time": BEGIN_US + 70_000_000},
        {"device": "gone", "kind": "silence", "score": 5.0, "event_time": BEGIN_US},
    ]
    write(tmp_path / "lake" / "anomalies", alerts, ANOMALIES)
    return tmp_path


def test_what_the_tables_hold_is_counted(root: Path) -> None:
    bad = [{"reason": "not_json", "value": b"{", "kafka_time": BEGIN_US + at} for at in range(4)]
    write(root / "lake" / "silver_quarantine", bad, QUARANTINE)
    found = read_silver(root / "lake", "here")
    assert {one.label: one.value for one in found.findings} == {
        "readings": "198",
        "devices": "2",
        "alerts": "2",
        "in quarantine": "4",
        "missing numbers": "3",
        "sent twice": "1",
        "late by more than 5 min": "0.0%",
    }
    assert found.lost is not None
    assert found.lost.rows == [("room-0", 3, "40 to 41, 60")]
    (signal,) = found.signals
    assert (signal.device, signal.name, signal.unit) == ("room-1", "temperature", "°C")
    assert [(mark.value, mark.kind) for mark in signal.marks] == [(90.0, "outlier")]
    assert found.anomalies is not None
    assert [row[:4] for row in found.anomalies.rows] == [
        ("gone", "", "silence", 1),
        ("room-1", "temperature", "outlier", 1),
    ]
    assert found.offenders is not None
    assert [row[0] for row in found.offenders.rows] == ["room-0", "room-1"], "of those that silver has"
    assert found.lateness is not None
    assert list(found.lateness.values()) == [0, 98, 0, 100, 0, 0, 0, 0]
    assert found.quarantine is not None
    assert [count for _, count in found.quarantine.stacks["not_json"]] == [4.0]
    assert found.throughput is not None
    assert sum(rate for _, rate in found.throughput.stacks["hall"]) * found.throughput.width_s == 98


def test_of_too_many_readings_the_newest_are_taken_and_that_is_said(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silver, "MOST_ROWS", 50)
    found = read_silver(root / "lake", "here")
    assert found.findings[0].value == "50"
    assert found.begin_s is not None
    assert found.begin_s > BEGIN_US / 1e6 + 50
    assert found.bounds[-1] == "Older readings than the newest 50."


def test_readings_that_no_job_has_looked_at_are_not_judged(root: Path) -> None:
    shutil.rmtree(root / "lake" / "anomalies")
    found = read_silver(root / "lake", "here")
    assert {one.value for one in found.findings if one.label == "alerts"} == {"not judged"}
    assert found.absent["signals.alerts"].startswith("The readings were not judged")
    assert [signal.device for signal in found.signals] == ["room-1", "room-0"], "one of each is drawn"


def test_tables_that_are_not_there_are_said(tmp_path: Path) -> None:
    found = read_silver(tmp_path / "lake", "here")
    assert found.begin_s is None
    assert found.absent["throughput"] == f"There are no readings in {tmp_path / 'lake'}."
    assert found.absent["lost.quarantine"] == "No record is in quarantine."


def test_the_demos_report_goes_into_the_kept_folder_else_into_the_cache(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_CACHE", str(tmp_path / "cache"))
    warned: list[str] = []
    cached = write_report(root, None, warned.append)
    assert cached == tmp_path / "cache" / "demo-report.html"
    assert "room-1: temperature" in cached.read_text()
    kept = write_report(root, root, warned.append)
    assert kept == root / "demo-report.html"
    assert warned == []


def test_a_report_that_cannot_be_made_is_a_warning_and_no_failure_of_the_demo(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = root / "file"
    in_the_way.write_text("")
    monkeypatch.setattr(demo_result, "cache_directory", lambda: in_the_way)
    warned: list[str] = []
    assert write_report(root, None, warned.append) is None
    (warning,) = warned
    assert warning.startswith("There is no report: The report cannot be written to ")
