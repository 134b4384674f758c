"""The lines a Spark job prints: whoever reads them gets what was written, and nothing from other lines."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from streaming.progress import (
    BatchEvent,
    Event,
    FailedEvent,
    MeasurementSummary,
    StartedEvent,
    StoppedEvent,
    WindowEvent,
    format_line,
    parse,
)

EVENTS: list[Event] = [
    StartedEvent(queries=("ingest", "windows"), master="local[2]", application="local-1", startup_s=8.25),
    BatchEvent(
        query="ingest",
        batch=17,
        rows=1000,
        quarantined=3,
        late=0,
        rows_per_s=812.5,
        duration_ms=1230,
        end_offsets={"telemetry": {"0": 512, "11": 488}},
        watermark_ms=None,
        at_ms=1_795_220_571_116,
    ),
    WindowEvent(
        query="windows",
        batch=4,
        start_ms=1_795_220_530_000,
        end_ms=1_795_220_540_000,
        type="Wärmepumpe",
        rows=20,
        measurements={
            "temperature": MeasurementSummary(count=20, mean=19.98, min=10.7, max=29.1),
            "voltage": MeasurementSummary(count=2, mean=None, min=1e308, max=1e308),
        },
    ),
    StoppedEvent(reason="signal SIGTERM", batches={"ingest": 17, "windows": 16}),
    FailedEvent(query=None, error='Kafka cannot be reached at "127.0.0.1:9092"\nsecond line'),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event)
def test_an_event_survives_the_way_through_a_line(event: Event) -> None:
    line = format_line(event)
    assert "\n" not in line
    assert parse(line) == event
    assert parse(line + "\n") == event


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event)
def test_a_line_is_an_object_that_names_its_kind(event: Event) -> None:
    assert json.loads(format_line(event))["event"] == event.event


@pytest.mark.parametrize(
    "line",
    [
        "",
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "17",
        "null",
        "[]",
        '"batch"',
        "{}",
        '{"event":"batch"}',
        '{"event":"batch","query":"ingest","unheard_of":1}',
        '{"event":"celebration"}',
        '{"event":["batch"]}',
        '{"event":"window","measurements":3}',
        '{"event":"window","measurements":{"temperature":{"count":1}}}',
        '{"event":"started","queries":1}',
        '{"event":"batch","query":',
    ],
)
def test_a_line_that_holds_no_event_is_passed_over(line: str) -> None:
    assert parse(line) is None


def test_a_number_json_does_not_have_is_never_written() -> None:
    event = WindowEvent("windows", 1, 0, 1, "t", 1, {"t": MeasurementSummary(1, float("inf"), 0.0, 0.0)})
    with pytest.raises(ValueError, match="not JSON compliant"):
        format_line(event)


@pytest.mark.parametrize("module", ["progress", "options", "kafka", "errors"])
def test_what_starts_a_job_or_reads_its_lines_needs_no_spark(module: str) -> None:
    code = f"import streaming.{module}, sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pyspark", "py4j", "paho", "aiokafka"} & set(ran.stdout.split())
