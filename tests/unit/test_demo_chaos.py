"""The demo's faults: when they come, what is done at each, what is seen of the spool, and how all of it is told."""

import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.devices.account import Tally
from gateway.devices.outbox import DeviceLedger
from gateway.local.demo import faults as faults_module
from gateway.local.demo.account import examine
from gateway.local.demo.chaos import (
    MIN_DURATION_S,
    ChaosPlan,
    ChaosResult,
    ChaosState,
    Fault,
    FaultKind,
    PlainCounts,
    SpoolTrace,
    render_chaos,
)
from gateway.local.demo.faults import Faults
from gateway.local.demo.services import DemoError, Services
from gateway.local.demo.show.scrape import WorkerFacts, read_counts, read_worker
from gateway.local.demo.show.state import DemoState, GatewayCounts, GatewayLives, Step, StepState, WitnessCounts
from gateway.local.demo.show.view import PlainView, View, draw, status_line
from tests.terminal import picture
from tests.waiting import until

# ── the plan ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.floats(MIN_DURATION_S, 86_400.0))
def test_the_faults_come_one_after_the_other_and_end_before_the_run(duration_s: float) -> None:
    plan = ChaosPlan.for_duration(duration_s)
    assert plan.kill_s == pytest.approx(duration_s / 3)
    assert plan.freeze_s == pytest.approx(duration_s / 2)
    assert plan.kill_s + 3.0 < plan.freeze_s, "a killed gateway takes two seconds to come back"
    assert plan.freeze_s + 3.0 < plan.kill_frozen_s < plan.freeze_s + plan.frozen_for_s, "the spool begins after 1 s"
    assert plan.freeze_s + plan.frozen_for_s + 3.0 < duration_s
    assert plan.frozen_for_s < 40.0, "the plain bridge's producer gives up after 40 s, and would lose by that"


# ── the spool's trace ────────────────────────────────────────────────────────────────────────────────────────────────


def trace_of(*messages: int) -> SpoolTrace:
    trace = SpoolTrace()
    for second, count in enumerate(messages):
        trace.add(float(second), count, 100 * count)
    return trace


def test_a_trace_keeps_the_rise_and_the_drain_and_not_the_hours_between() -> None:
    trace = trace_of(*[0] * 50, 10, 40, 30, *[0] * 50)
    assert [(s.at_s, s.messages) for s in trace.samples] == [(49, 0), (50, 10), (51, 40), (52, 30), (53, 0)]
    assert (trace.most_messages, trace.most_bytes, trace.last.messages) == (40, 4000, 0)


def test_empty_is_what_was_seen_empty_after_the_moment() -> None:
    trace = trace_of(0, 10, 0, 20, 20, 0)
    assert trace.emptied_s(0.0) == 0
    assert trace.emptied_s(2.5) == 5
    assert trace.emptied_s(5.5) is None
    assert trace_of(0, 5, 5).emptied_s(1.0) is None


def test_bars_rise_and_fall_and_there_are_none_of_nothing() -> None:
    assert trace_of(0, 0).bars() == ""
    assert trace_of(0, 1, 50, 100, 50, 0).bars() == "▁▂▅█▅▁"
    assert len(trace_of(*range(100)).bars()) == 24


# ── what is told ─────────────────────────────────────────────────────────────────────────────────────────────────────

LEDGER = {"pump": DeviceLedger(10)}


def chaos_state() -> ChaosState:
    """Everything has happened: a kill, a freeze of 6 s from 10 s on, a kill within, and an empty spool at the end."""
    chaos = ChaosState(ChaosPlan.for_duration(20.0), spool=trace_of(*[0] * 12, 100, 200, 300, 300, 150, 0, 0))
    chaos.faults = [
        Fault(FaultKind.KILLED, 6.667, 2.04),
        Fault(FaultKind.FROZEN, 10.0, 6.02),
        Fault(FaultKind.KILLED, 14.0, 2.5, while_frozen=True),
    ]
    chaos.plain = PlainCounts(running=True, received=3_900, delivered=3_400, in_memory=500)
    return chaos


def result_of(*numbers: int) -> ChaosResult:
    tally: Tally[str] = Tally()
    for number in numbers:
        tally.add("pump", number)
    return ChaosResult(chaos_state(), examine("plain_bridge", tally, LEDGER, ordered=True))


def test_people_read_what_was_done_and_that_the_plain_bridge_lost() -> None:
    text = render_chaos(result_of(0, 1, 2, 5, 5))
    assert max(map(len, text.splitlines())) <= 80
    for expected in (
        "6.7 s  both bridges killed (kill -9); the gateway back after 2.0 s",
        "10.0 s  Kafka frozen (SIGSTOP) for 6.0 s",
        "14.0 s  both killed again, with Kafka frozen; the gateway back after 2.5 s",
        "held up to 300 messages (30 kB)",
        "It was empty 1.0 s after Kafka went on.",
        "missing 6, duplicates 1",
        "PLAIN BRIDGE LOST 6 messages",
        "paho acknowledges a message when the callback returns",
    ):
        assert expected in text


def test_a_plain_bridge_that_was_lucky_is_not_said_to_lose() -> None:
    text = render_chaos(result_of(*range(10)))
    assert "LOST" not in text
    assert "It lost nothing this time" in text


def test_a_spool_that_is_not_empty_and_a_run_without_faults_are_told() -> None:
    result = result_of(*range(10))
    result.state.spool.add(19.0, 7, 700)
    assert "It holds 7 at the end." in render_chaos(result)
    idle = ChaosResult(ChaosState(ChaosPlan.for_duration(20.0)), result.plain)
    assert "nothing: it was ended before" in render_chaos(idle)
    assert "was not needed" in render_chaos(idle)
    assert "lost nothing" not in render_chaos(idle), "nothing was done to it"


def test_programs_read_faults_spool_and_plain_bridge() -> None:
    document = json.loads(json.dumps(result_of(0, 1, 2, 5, 5).as_json()))
    assert document["faults"] == [
        {"fault": "bridges_killed", "at_s": 6.7, "lasted_s": 2.0},
        {"fault": "kafka_frozen", "at_s": 10.0, "lasted_s": 6.0},
        {"fault": "bridges_killed", "at_s": 14.0, "lasted_s": 2.5},
    ]
    assert document["plain_bridge"] == {"kafka": 5, "duplicates": 1, "missing": 6}
    spool = document["spool"]
    assert (spool["most_messages"], spool["left_messages"], spool["drained_after_s"]) == (300, 0, 1.0)
    assert spool["samples"][:2] == [[11.0, 0, 0], [12.0, 100, 10_000]]
    assert spool["samples"][-1] == [17.0, 0, 0]


def view_state() -> DemoState:
    state = DemoState(devices=200, with_spark=True, duration_s=20.0, chaos=chaos_state(), headline="messages flow")
    for key in ("kafka", "mqtt", "gateway", "devices", "spark", "plain"):
        state.steps[key] = Step(key, StepState.READY, "127.0.0.1:29490, up after 8.2 s")
    state.flow_started_s, state.published, state.acknowledged = 100.0, 123_450, 123_450
    state.gateway = GatewayCounts(received=123_440, unacked=10, in_flight=12)
    state.witness = WitnessCounts(ends={0: 60_000, 1: 63_400}, recent_p50_ms=6_123, recent_p99_ms=12_211)
    return state


def test_the_picture_with_faults_fits_a_small_terminal() -> None:
    state = view_state()
    state.chaos.spool.add(19.0, 12_345, 3_200_000)
    state.steps["kafka"].trouble = "frozen (SIGSTOP): connections stay open, and nothing answers"
    text = picture(draw(state, 116.0))
    lines = text.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert "…" not in text, "something was cut off"
    for expected in (
        "✗ kafka   frozen (SIGSTOP)",
        "in the spool   12,345              3 MB on disk ▁",
        "10 s Kafka frozen (SIGSTOP) for 6.0 s",
    ):
        assert expected in text


def test_a_spool_that_has_drained_shows_what_it_held() -> None:
    assert "held up to 300 ▁" in picture(draw(view_state(), 116.0))


def test_plain_lines_tell_the_spool_and_the_plain_bridges_memory() -> None:
    state = view_state()
    assert "gateway's spool: empty; plain bridge: 500 of 3,900 in its memory alone" in status_line(state)
    state.chaos.spool.add(19.0, 12, 3_000)
    assert "gateway's spool: 12 messages, 3 kB;" in status_line(state)


def test_plain_lines_come_faster_while_the_spool_holds_something(monkeypatch: pytest.MonkeyPatch) -> None:
    state, stream, now_s = view_state(), io.StringIO(), 1000.0
    monkeypatch.setattr("gateway.local.demo.show.view.time.monotonic", lambda: now_s)
    view = PlainView(state, stream)

    def lines_within(seconds: float) -> int:
        nonlocal now_s
        before = stream.getvalue().count("published")
        for _ in range(int(seconds * 4)):
            now_s += 0.25
            view.refresh()
        return stream.getvalue().count("published") - before

    assert lines_within(20.0) == 4
    state.chaos.spool.add(19.0, 12, 3_000)
    now_s += 5.0
    assert lines_within(10.0) == 10


# ── what is read ─────────────────────────────────────────────────────────────────────────────────────────────────────

PAGE = """\
# TYPE gateway_worker_up gauge
gateway_worker_up{worker="0"} 1
# TYPE gateway_worker_restarts_total counter
gateway_worker_restarts_total{worker="0"} 2
# TYPE gateway_mqtt_messages_received_total counter
gateway_mqtt_messages_received_total{worker="0",route="telemetry",qos="1"} 41
# TYPE gateway_spool_messages gauge
gateway_spool_messages{worker="0"} 17
# TYPE gateway_spool_bytes gauge
gateway_spool_bytes{worker="0"} 1700
"""


def test_a_supervised_worker_is_read_through_its_label() -> None:
    counts = read_counts(PAGE)
    assert counts == GatewayCounts(received=41, spool_messages=17, spool_bytes=1700, restarts=2, up=True)


def test_a_worker_that_is_down_is_not_one_that_has_received_nothing() -> None:
    page = 'gateway_worker_up{worker="0"} 0\ngateway_worker_restarts_total{worker="0"} 1\n'
    assert not read_counts(page).up
    assert read_counts("").up, "without a supervisor nobody says so"


def test_counters_add_up_over_lives_and_gauges_are_as_they_are() -> None:
    lives = GatewayLives()
    lives.total(GatewayCounts(received=100, unacked=7, spool_messages=3))
    lives.total(GatewayCounts(received=150, unacked=9, spool_messages=50))
    after = lives.total(GatewayCounts(received=5, unacked=1, spool_messages=50, restarts=1))
    assert (after.received, after.unacked, after.spool_messages) == (155, 1, 50)
    assert lives.total(GatewayCounts(received=20, restarts=1)).received == 170
    assert lives.total(GatewayCounts(received=300, restarts=2)).received == 470, (
        "more than before, and yet another life"
    )


@pytest.mark.parametrize(("worker", "facts"), [
    ({"pid": 7, "sessions": [{"subscribed": True}, {"subscribed": True}]}, WorkerFacts(7, serves=True)),
    ({"pid": 7, "sessions": [{"subscribed": True}, {"subscribed": False}]}, WorkerFacts(7, serves=False)),
    ({"pid": 7, "sessions": []}, WorkerFacts(7, serves=False)),
    ({"pid": None, "up": False}, WorkerFacts(None, serves=False)),
])  # fmt: skip
def test_a_worker_serves_when_it_has_all_its_sessions(worker: dict[str, Any], facts: WorkerFacts) -> None:
    assert read_worker(json.dumps({"workers": [worker]})) == facts


# ── what is done ─────────────────────────────────────────────────────────────────────────────────────────────────────


class FakeServices:
    """Notes what is done to it. A killed worker is back when somebody has looked twice."""

    bootstrap, mqtt_port = "127.0.0.1:9092", 1883

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: list[str] = []
        self.comes_back = True
        self._looks = 0

    async def kill_worker(self) -> int:
        self.done.append("kill")
        self._looks = 0
        return 7

    async def worker_serves(self, *, other_than: int) -> bool:
        assert other_than == 7
        self._looks += 1
        return self.comes_back and self._looks > 2

    async def freeze_kafka(self) -> None:
        self.done.append("freeze")

    async def thaw_kafka(self) -> None:
        self.done.append("thaw")


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServices:
    services, plain = FakeServices(tmp_path), AsyncMock(check=Mock())
    plain.kill.side_effect = lambda: services.done.append("kill plain")
    plain.abandon.side_effect = lambda: services.done.append("abandon plain")
    monkeypatch.setattr(faults_module, "PlainBridge", lambda *_: plain)
    return services


async def begin(
    services: FakeServices, plan: ChaosPlan, spark: Step | None = None
) -> tuple[Faults, ChaosState, list[str]]:
    told: list[str] = []
    view = cast("View", SimpleNamespace(note=told.append, warn=told.append))
    state = DemoState(devices=1, with_spark=False, duration_s=1.0, chaos=ChaosState(plan))
    state.steps = {key: Step(key) for key in ("kafka", "gateway", "plain")}
    if spark is not None:
        state.steps["spark"] = spark
    faults = Faults(cast("Services", services), state, view)
    await faults.start_plain()
    state.flow_started_s = time.monotonic()
    faults.begin()
    return faults, state.chaos, told


async def test_both_bridges_get_the_same_at_the_planned_times(services: FakeServices) -> None:
    faults, chaos, told = await begin(services, ChaosPlan(0.05, 0.5, 0.6, 0.7))
    await until(lambda: len(chaos.faults) == 3 and all(fault.over_s for fault in chaos.faults))
    await faults.calm()
    assert services.done == ["kill", "kill plain", "freeze", "kill", "kill plain", "thaw"]
    at_s = [fault.at_s for fault in chaos.faults]
    assert at_s[0] >= 0.05
    assert at_s[1] >= 0.5
    assert at_s[2] >= 0.7
    assert [fault.while_frozen for fault in chaos.faults] == [False, False, True]
    assert chaos.faults[1].over_s >= 0.6
    assert sum(line.startswith("fault: ") for line in told) == 6, "each is told when it begins and when it is over"


async def test_kafka_is_frozen_once_spark_runs(services: FakeServices) -> None:
    spark = Step("Spark", StepState.WORKING)
    faults, chaos, _ = await begin(services, ChaosPlan(0.0, 0.0, 0.3, 0.1), spark)
    await until(lambda: len(chaos.faults) == 1 and chaos.faults[0].over_s is not None, "killed and back")
    runs_s, spark.state = faults._now_s(), StepState.READY
    await until(lambda: services.done[-1:] == ["thaw"], "frozen, and thawed")
    _killed, frozen, killed_again = chaos.faults
    assert frozen.at_s >= runs_s
    assert killed_again.at_s - frozen.at_s >= 0.1
    await faults.calm()


async def test_without_spark_running_before_the_end_kafka_is_not_frozen(services: FakeServices) -> None:
    faults, chaos, _ = await begin(services, ChaosPlan(0.0, 0.0, 600.0, 500.0), Step("Spark", StepState.WORKING))
    await until(lambda: len(chaos.faults) == 1, "killed")
    await faults.calm()
    assert "freeze" not in services.done


async def test_a_run_that_is_ended_while_kafka_is_frozen_lets_it_go_on(services: FakeServices) -> None:
    faults, chaos, _ = await begin(services, ChaosPlan(0.0, 0.0, 600.0, 500.0))
    await until(lambda: "freeze" in services.done)
    await faults.calm()
    assert services.done[-1] == "thaw"
    assert chaos.thawed_s() is not None
    faults.check()


async def test_a_run_that_is_ended_before_any_fault_has_none(services: FakeServices) -> None:
    faults, chaos, _ = await begin(services, ChaosPlan(600.0, 900.0, 8.0, 904.0))
    await faults.calm()
    assert (services.done, chaos.faults, chaos.killed) == ([], [], False)


async def test_a_run_that_is_given_up_while_kafka_is_frozen_lets_it_go_on(services: FakeServices) -> None:
    faults, _, _ = await begin(services, ChaosPlan(0.0, 0.0, 600.0, 0.0))
    await until(lambda: services.done.count("kill") == 2)
    await faults.abandon()
    assert services.done[-2:] == ["thaw", "abandon plain"]


async def test_a_gateway_that_stays_away_fails_the_run(services: FakeServices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_module, "_BACK_S", 0.2)
    services.comes_back = False
    faults, _, _ = await begin(services, ChaosPlan(0.0, 600.0, 8.0, 604.0))

    def failed() -> bool:
        try:
            faults.check()
        except DemoError as error:
            assert "did not come back" in str(error)  # noqa: PT017 - it is awaited, not raised here
            return True
        return False

    await until(failed)
