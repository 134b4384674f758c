"""What is wrong with the speed of messages: slow ways, a budget that burns, too little CPU.

The alerts of the same names ask the same of the same counters, over the last five minutes and longer; what they would
say is said here first, as far as this process has lived through it.
"""

from __future__ import annotations

__all__ = ["PRESSURE", "pace_problems"]

from typing import TYPE_CHECKING, Final

from gateway.base.problem import Problem
from gateway.health.model import END_TO_END, OBJECTIVE_S, PRODUCE, SECOND_NS, SLOW_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.base.problem import Severity
    from gateway.health.model import BudgetView, CpuView, HealthSnapshot, PaceView

SHARE: Final = 0.01  # more than one in a hundred: the p99 is above the limit
LASTED_NS: Final = 400 * SECOND_NS  # a single break is forgotten by then, and the alert waits for 600 s
OBJECTIVE: Final = 0.001
# How many times too fast, over a long span and a short one in minutes, and from how many late messages on: as in
# deploy/prometheus/rules/gateway-slo.yml.
BURNS: Final[tuple[tuple[Severity, float, int, int, int], ...]] = (
    ("critical", 14.4, 60, 5, 60),
    ("critical", 6, 360, 30, 60),
    ("warning", 3, 1440, 120, 360),
    ("warning", 1, 4320, 360, 360),
)
LATE: Final = 10
STARVED: Final = 0.25
PRESSURE: Final = 0.5


def pace_problems(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """In no order."""
    produce = [way for way in snapshot.ways if way.id == PRODUCE and _slow(way)]
    for way in produce:
        text = f"Kafka took longer than {SLOW_S[way.id]:g} s to acknowledge {_most(way)}."
        check = "gateway doctor --only kafka measures each broker. The slow one's disk, its followers, the network."
        yield Problem("produce-latency-high", "warning", text, check)
    for way in snapshot.ways:
        if way.id == END_TO_END and _slow(way):
            text = f"{_most(way)} of route {way.route} took longer than {SLOW_S[way.id]:g} s from MQTT to Kafka."
            check = (
                "Kafka is slow (produce-latency-high)."
                if produce
                else "Is a spool being replayed? Then wait. Else CPU (cpu-starved), interceptors, full windows."
            )
            yield Problem("end-to-end-latency-high", "warning", text[:1].upper() + text[1:], check, way.route)
    yield from _about_budget({one.minutes: one for one in snapshot.budget}, snapshot.workers)
    yield from _about_cpu(snapshot.cpu)


def _slow(way: PaceView) -> bool:
    """Slow now; or for so long that a single break does not explain it, as the alert asks."""
    return way.now > SHARE or (way.lately > SHARE and way.lasted_ns >= LASTED_NS)


def _most(way: PaceView) -> str:
    if way.now > SHARE:
        return f"{_percent(way.now)} of the messages of the last 20 s"
    return f"{_percent(way.lately)} of the messages of the last 5 minutes"


def _about_budget(spans: dict[int, BudgetView], workers: int) -> Iterator[Problem]:
    for severity, factor, long, short, counted in BURNS:
        if not {long, short, counted} <= spans.keys():
            continue  # this life is not as old
        limit = factor * OBJECTIVE
        # All workers together are over a limit only when one is over its part of it.
        if spans[long].share > limit and spans[short].share > limit and spans[counted].late * workers > LATE:
            text = (
                f"{_percent(spans[long].share)} of the messages of the last {_span(long)} took longer than"
                f" {OBJECTIVE_S:g} s from MQTT to Kafka, and {_percent(spans[short].share)} of the last {_span(short)}."
            )
            check = "What else is listed here says why. The objective is 0.1 % a month (docs/monitoring.md)."
            yield Problem("latency-budget-burns", severity, text, check)
            return


def _about_cpu(cpu: CpuView) -> Iterator[Problem]:
    check = "Raise the container's CPU limit, give the machine less to do, or run fewer workers than it has CPUs."
    if cpu.throttled > STARVED:
        text = f"The container was stopped for {_percent(cpu.throttled)} of the last minute: its CPU quota is used up."
    elif cpu.waited is not None and cpu.waited > STARVED:
        text = (
            f"The process waited for a CPU for {_percent(cpu.waited)} of the last minute (pressure:"
            f" {_percent(cpu.pressure)})."
        )
    elif cpu.waited is None and cpu.pressure > PRESSURE:
        text = f"For {_percent(cpu.pressure)} of the last minute somebody waited for a CPU (PSI)."
    else:
        return
    yield Problem("cpu-starved", "warning", text, check)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def _span(minutes: int) -> str:
    return f"{minutes} minutes" if minutes < 60 else "hour" if minutes == 60 else f"{minutes // 60} hours"
