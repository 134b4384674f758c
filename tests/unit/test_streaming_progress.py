"""The lines a Spark job prints: whoever reads them gets what was written, and nothing from other lines."""

import json

import pytest

from streaming.progress import BatchEvent, Event, FailedEvent, StartedEvent, StoppedEvent, format_line, parse

EVENTS: list[Event] = [
    StartedEvent(queries=("silver", "gold"), master="local[2]", application="local-1", startup_s=8.25),
    BatchEvent(
        query="silver", batch=17, rows=1000, quarantined=3, late=0, rows_per_s=812.5, duration_ms=1230,
        end_offsets={"telemetry": {"0": 512, "11": 488}}, watermark_ms=None, at_ms=1_795_220_571_116,
    ),
    StoppedEvent(reason="signal SIGTERM", batches={"silver": 17, "gold": 16}),
    FailedEvent(query=None, error='Kafka cannot be reached at "127.0.0.1:9092"\nsecond line'),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event)
def test_an_event_survives_the_way_through_a_line(event: Event) -> None:
    line = format_line(event)
    assert "\n" not in line
    assert json.loads(line)["event"] == event.event
    assert parse(line) == parse(line + "\n") == event


@pytest.mark.parametrize("line", [
    "", "WARNING: Using incubator modules: jdk.incubator.vector", "17", "null", "[]", '"batch"', "{}",
    '{"event":"batch"}', '{"event":"batch","query":"silver","unheard_of":1}', '{"event":"celebration"}',
    '{"event":["batch"]}', '{"event":"started","queries":1}', '{"event":"batch","query":',
])  # fmt: skip
def test_a_line_that_holds_no_event_is_passed_over(line: str) -> None:
    assert parse(line) is None


def test_a_number_json_does_not_have_is_never_written() -> None:
    event = StartedEvent(queries=("silver",), master="local[2]", application="local-1", startup_s=float("inf"))
    with pytest.raises(ValueError, match="not JSON compliant"):
        format_line(event)
