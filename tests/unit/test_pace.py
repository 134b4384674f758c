"""Slow ways, a budget that burns, too little CPU: named on the page whenever the alerts would fire."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import RouteSettings, Settings
from gateway.base.metrics import Metrics
from gateway.base.problem import Problem
from gateway.base.process.machine_facts import CpuWaits
from gateway.base.vitals import LATENCIES, Vitals, quantile
from gateway.health import pace
from gateway.health.measured import PRESSURE, STARVED
from gateway.health.model import END_TO_END, OBJECTIVE_S, PRODUCE, SLOW_S, CpuView
from gateway.health.pace import Pace, above
from gateway.health.pace_verdicts import BURNS, OBJECTIVE, SHARE
from gateway.health.verdicts import problems
from tests.monitoring import rules
from tests.unit.test_health import LIMITS, WELL, S


class Rig:
    """A worker's counters, and what looks at them every five seconds, on a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000 * S
        self.waits = CpuWaits(0.0, 0.0, 0.0)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(pace, "cpu_waits", lambda: self.waits)
        routes = ("a", "b")
        made = tuple(RouteSettings(name=name, filters=(f"{name}/#",), topic="orders") for name in routes)
        self.metrics = Metrics(Settings(routes=made))
        self.vitals = Vitals(lambda error: pytest.fail(str(error)))
        self.pace = Pace(self.metrics, routes, self.vitals)
        self.looks = 0

    def pass_by(
        self, seconds: int, *, each_s: float = 0.0, late_s: float = 0.0, late: int = 0, route: str = "a"
    ) -> None:
        """A hundred messages every five seconds that take ``each_s``, ``late`` of them ``late_s``."""
        for _ in range(seconds // 5):
            for rarely in self.vitals.seldom:
                rarely()
            if self.looks % 12 == 0:
                for look in self.vitals.minutely:
                    look(self.now_ns)
            self.looks += 1
            self.now_ns += 5 * S
            histogram = self.metrics.end_to_end_seconds.child(route)
            if each_s:
                histogram.observe_many(round(each_s * S), 100 - late)
            if late:
                histogram.observe_many(round(late_s * S), late)

    def problems(self, workers: int = 1) -> list[Problem]:
        views = {"ways": self.pace.ways(self.now_ns), "budget": self.pace.budget(), "cpu": self.pace.cpu()}
        return list(problems(replace(WELL, workers=workers, **views), LIMITS))  # type: ignore[arg-type]

    def ids(self) -> list[tuple[str, str, str]]:
        return [(problem.id, problem.severity, problem.subject) for problem in self.problems()]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


SLOW = ("end-to-end-latency-high", "warning")


def test_a_slow_route_is_named_at_once_and_the_others_are_not(rig: Rig) -> None:
    rig.pass_by(60, each_s=0.01)
    rig.pass_by(60, each_s=0.01, route="b")
    assert rig.ids() == []
    rig.pass_by(10, each_s=0.01, late_s=9.8, late=20)
    assert rig.ids() == [(*SLOW, "a")]
    [problem] = rig.problems()
    assert re.fullmatch(
        r"\d+(\.\d)? % of the messages of the last 20 s of route a took longer than 2 s .*", problem.text
    )


def test_one_break_is_told_while_it_lasts_and_not_five_minutes_longer(rig: Rig) -> None:
    """An election: two seconds and more for what came meanwhile."""
    rig.pass_by(300, each_s=0.01)
    rig.pass_by(5, each_s=4.0)
    assert rig.ids() == [(*SLOW, "a")]
    rig.pass_by(30, each_s=0.01)
    assert rig.ids() == []
    for _ in range(70):
        rig.pass_by(5, each_s=0.01)
        assert rig.ids() == [], "it is still among the last five minutes"


def test_what_is_late_now_and_then_is_told_before_the_alert_comes(rig: Rig) -> None:
    """A message in two minutes and a half: the p99 over five minutes is above the limit all the time."""
    for second in range(0, 1200, 5):
        late = second % 150 == 0
        rig.pass_by(5, each_s=9.8 if late else 0.0)
        if second > 600:  # the alert's ``for``
            assert (*SLOW, "a") in rig.ids(), f"all is well, it says, after {second} s"


def test_slow_answers_of_kafka_have_their_own_name_and_are_the_first_to_look_at(rig: Rig) -> None:
    rig.pass_by(60, each_s=0.01)
    rig.metrics.kafka_produce_seconds.child().observe_many(3 * S, 50)
    rig.pass_by(5, each_s=3.0)
    assert {one[0] for one in rig.ids()} == {"produce-latency-high", "end-to-end-latency-high"}
    assert "produce-latency-high" in next(one.check for one in rig.problems() if one.id == END_TO_END)


def test_a_budget_that_burns_is_told_as_the_alert_tells_it(rig: Rig) -> None:
    """Two in a hundred later than the objective, for an hour: below what makes the p99 slow would be one."""
    rig.pass_by(3300, each_s=0.01)
    assert rig.ids() == []
    rig.pass_by(3600, each_s=0.01, late_s=3.0, late=2)
    assert ("latency-budget-burns", "critical", "") in rig.ids()
    rig.pass_by(420, each_s=0.01)
    assert "latency-budget-burns" not in {one[0] for one in rig.ids()}, "the short span says that it is over"


def test_days_are_looked_back_at_where_hours_do_not_show_it(rig: Rig) -> None:
    """Four in a thousand, for two days: nobody need get up."""
    for _ in range(2 * 24 * 60 // 5):
        rig.pass_by(295, each_s=0.01)
        rig.pass_by(5, each_s=0.01, late_s=3.0, late=24)
    found = [one for one in rig.ids() if one[0] == "latency-budget-burns"]
    assert found == [("latency-budget-burns", "warning", "")]


def test_few_late_messages_of_a_quiet_night_burn_no_budget(rig: Rig) -> None:
    late = rig.metrics.end_to_end_seconds.child("a")
    for _ in range(8):
        rig.pass_by(600)
        late.observe(3 * S)
    assert "latency-budget-burns" not in {problem.id for problem in rig.problems()}
    of_four = {problem.id for problem in rig.problems(workers=4)}
    assert "latency-budget-burns" in of_four, "the alert adds up what four workers have"


@pytest.mark.parametrize(("waits", "said"), [
    (CpuWaits(12.0, 0.0, 55.0), None),
    (CpuWaits(30.0, 0.0, 55.0), "waited for a CPU for 50 % of the last minute (pressure: 92 %)"),
    (CpuWaits(0.5, 24.0, 55.0), "stopped for 40 % of the last minute"),
    (CpuWaits(None, 0.0, 24.0), None),
    (CpuWaits(None, 0.0, 55.0), "For 92 % of the last minute some process waited for a CPU"),
])  # fmt: skip
def test_a_process_without_cpu_says_so(rig: Rig, waits: CpuWaits, said: str | None) -> None:
    def waited(second: int) -> CpuWaits:
        return CpuWaits(*(None if each is None else each * second / 60 for each in waits))

    for second in range(0, 120, 5):
        rig.waits = waited(second)
        rig.pass_by(5)
    rig.waits = waited(120)
    found = rig.problems()
    assert [problem.id for problem in found] == ([] if said is None else ["cpu-starved"])
    assert said is None or said in found[0].text


def test_a_gateway_that_nobody_uses_has_nothing_to_say(rig: Rig) -> None:
    rig.pass_by(600)
    assert rig.ids() == []
    assert rig.pace.ways(rig.now_ns) == ()
    assert rig.pace.cpu() == CpuView(0.0, 0.0, 0.0)


# --- page and alerts say the same -----------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 1000), min_size=len(LATENCIES) + 1, max_size=len(LATENCIES) + 1),
    st.sampled_from(sorted(SLOW_S.values())),
)
def test_more_than_one_in_a_hundred_is_what_the_p99_says(counts: Sequence[int], limit_s: float) -> None:
    """Prometheus' histogram_quantile, as ``quantile`` has it."""
    if not sum(counts):
        return
    p99 = quantile(counts, LATENCIES, 1 - SHARE)
    assert p99 is not None
    share = above(counts, LATENCIES, limit_s) / sum(counts)
    if abs(share - SHARE) > 1e-9:
        assert (p99 > limit_s) == (share > SHARE)


def expressions(alert: str) -> list[tuple[str, str]]:
    return [(one["expr"], one["labels"]["severity"]) for one in rules("alert") if one["alert"] == alert]


def test_limits_are_those_of_the_alerts() -> None:
    for alert, kind in (("GatewayProduceLatencyHigh", PRODUCE), ("GatewayEndToEndLatencyHigh", END_TO_END)):
        [(expression, _)] = expressions(alert)
        assert float(expression.rpartition(">")[2]) == SLOW_S[kind]
        assert f"histogram_quantile({1 - SHARE:g}," in expression
    [(starved, _)] = expressions("GatewayCpuStarved")
    assert [float(found) for found in re.findall(r"> (0\.\d+)", starved)] == [STARVED, PRESSURE]
    assert OBJECTIVE_S in LATENCIES


def test_the_budget_is_the_alerts() -> None:
    spans = {"5m": 5, "30m": 30, "1h": 60, "2h": 120, "6h": 360, "1d": 1440, "3d": 4320}
    asked = set()
    for expression, severity in expressions("GatewayLatencyBudgetBurns"):
        counted = re.search(r"count\[(\w+)\]", expression)
        assert counted
        for long, factor, short in re.findall(r"rate(\w+) > ([\d.]+) \* 0\.001 and \S+rate(\w+) >", expression):
            asked.add((severity, float(factor), spans[long], spans[short], spans[counted[1]]))
    assert asked == set(BURNS)
    assert OBJECTIVE == 0.001
