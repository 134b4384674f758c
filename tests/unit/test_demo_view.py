"""What people see: it fits a terminal of 80 by 24, says what goes on, and goes to standard error only."""

import contextlib
import io

import pytest
from rich.console import Console

from gateway.local.demo.show.state import DemoState, GatewayCounts, SparkCounts, Step, StepState, Window, WitnessCounts
from gateway.local.demo.show.view import LiveView, PlainView, draw, status_line
from tests.terminal import Terminal, picture


@pytest.fixture
def state() -> DemoState:
    """The fullest picture there is."""
    state = DemoState(
        devices=200, with_spark=True, duration_s=60.0, headline="the gateway takes in what is left, and drains"
    )
    state.steps = {
        "kafka": Step("Kafka", StepState.READY, "127.0.0.1:29490, up after 8.2 s"),
        "mqtt": Step("MQTT broker", StepState.READY, "127.0.0.1:18830, up after 2.0 s"),
        "gateway": Step("gateway", StepState.READY, "http://127.0.0.1:26676/metrics, up after 1.9 s"),
        "devices": Step("devices", StepState.READY, "200 of 200 connected, 1 messages a second each"),
        "spark": Step("Spark", StepState.READY, "running after 14.2 s"),
    }
    state.flow_started_s = 100.0
    state.connected, state.acknowledged = 200, 123_450
    state.gateway = GatewayCounts(received=123_440, unacked=10, in_flight=12)
    state.witness = WitnessCounts(ends={0: 60_000, 1: 63_400}, recent_p50_ms=6, recent_p99_ms=23)
    means = dict.fromkeys(("temperature", "humidity", "voltage", "rssi", "power"), 20.3)
    state.windows = tuple(
        Window(start_ms, start_ms + 10_000, kind, 660, means)
        for start_ms in (1_790_000_010_000, 1_790_000_000_000)
        for kind in ("meter", "pump", "thermostat")
    )
    state.spark = SparkCounts(True, 12, 100_000, 0, 1_530, {0: 50_000, 1: 50_000})
    for second in range(6):
        state.published = 123_000 + 200 * second
        state.update_rates(100.0 + second)
    return state


def test_the_fullest_picture_fits_a_small_terminal(state: DemoState) -> None:
    lines = picture(draw(state, 134.0)).splitlines()
    assert len(lines) < 24
    assert all("…" not in line for line in lines), "something was cut off"
    assert max(map(len, lines)) <= 80


def test_every_number_people_look_for_is_there(state: DemoState) -> None:
    text = picture(draw(state, 134.0))
    for expected in (
        "34 s of 60 s",
        "the gateway takes in what is left, and drains",
        "124,000         200  by 200 connected devices",
        "12 in flight, 10 unacknowledged",
        "from device: p50 6 ms, p99 23 ms",
        "23,400 behind, batch 12 took 1.5 s",
        "thermostat          660         20.3      20.3     20.3  20.3",
    ):
        assert expected in text


def test_a_download_shows_how_far_it_is(state: DemoState) -> None:
    state.steps["kafka"] = Step("Kafka", StepState.WORKING, "of 44 MB, Kafka broker", share=0.25)
    assert "██████░░░░░░░░░░░░░░░░░░  25% of 44 MB, Kafka broker" in picture(draw(state, 134.0))


def test_nothing_is_known_yet_and_nothing_breaks() -> None:
    state = DemoState(devices=1, with_spark=False, duration_s=5.0)
    assert "messages" not in picture(draw(state, 134.0))
    state.flow_started_s = 130.0
    text = picture(draw(state, 134.0))
    assert "Spark" not in text
    assert "silver" not in text
    assert "p50 -, p99 -" in text


def test_the_status_line_says_where_spark_is(state: DemoState) -> None:
    assert "Spark wrote 100,000 rows, 23,400 behind" in status_line(state)
    state.spark = SparkCounts()
    assert "Spark is starting" in status_line(state)
    state.with_spark = False
    assert "Spark" not in status_line(state)


def test_plain_lines_come_now_and_then_while_messages_flow(state: DemoState) -> None:
    stream = io.StringIO()
    view = PlainView(state, stream)
    view.start()
    view.note("two\nlines")
    view.refresh()
    view.refresh()
    lines = stream.getvalue().splitlines()
    assert [line.split("] ", 1)[1] for line in lines[:2]] == ["two", "lines"]
    assert len(lines) == 3
    assert "published 124,000 (200/s)" in lines[2]


def test_plain_lines_go_on_while_spark_is_waited_for(state: DemoState) -> None:
    state.flow_ended_s = 160.0
    stream = io.StringIO()
    PlainView(state, stream).refresh()
    assert stream.getvalue() == ""
    state.catching_up = True
    PlainView(state, stream).refresh()
    assert stream.getvalue().endswith("Spark wrote 100,000 rows, 23,400 behind\n")


class GoneTerminal(Terminal):
    """What a terminal that was closed does."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_stops_nothing(state: DemoState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", GoneTerminal())
    for view in (LiveView(state), PlainView(state, GoneTerminal())):
        with contextlib.suppress(OSError):  # it was there when the demo began
            view.start()
        view.note("a note")
        view.warn("a warning")
        view.refresh()
        view.stop()


def test_the_live_view_writes_to_standard_error_only(state: DemoState, capsys: pytest.CaptureFixture[str]) -> None:
    view = LiveView(state)
    view.start()
    view.refresh()
    view.warn("a [warning]")
    view.stop()
    view.stop()
    out, err = capsys.readouterr()
    assert out == ""
    assert "a [warning]" in err


def test_a_warning_above_the_picture_leaves_it_as_it_is(state: DemoState) -> None:
    view, file = LiveView(state), io.StringIO()
    view._console = Console(file=file, force_terminal=True, width=80, color_system=None)
    view.start()
    view.warn("a [warning]")
    view.stop()
    assert "a [warning]" in file.getvalue()
    assert "[dim]" not in file.getvalue(), "the picture is drawn by the same call"
