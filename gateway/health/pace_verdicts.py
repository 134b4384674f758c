"""Problems of the speed of messages: slow ways, a latency budget used up too fast, too little CPU.

The alerts of these names use the same counters over five minutes and longer. A problem here comes first, as far as this
process is old enough.
"""

from collections.abc import Iterator
from typing import Final

from gateway.base.problem import Problem, Severity
from gateway.health.measured import cpu_starved, percent
from gateway.health.model import (
    END_TO_END,
    OBJECTIVE_S,
    PRODUCE,
    SECOND_NS,
    SLOW_S,
    BudgetView,
    HealthSnapshot,
    PaceView,
)

SHARE: Final = 0.01  # a larger share means that the p99 is above the limit
LASTED_NS: Final = 400 * SECOND_NS  # longer than the effect of one break; the alert waits for 600 s
OBJECTIVE: Final = 0.001
# Severity, burn rate, the long and the short span in minutes, and the span that needs LATE late messages, as in
# deploy/prometheus/rules/gateway-slo.yml.
BURNS: Final[tuple[tuple[Severity, float, int, int, int], ...]] = (
    ("critical", 14.4, 60, 5, 60),
    ("critical", 6, 360, 30, 60),
    ("warning", 3, 1440, 120, 360),
    ("warning", 1, 4320, 360, 360),
)
LATE: Final = 10


def pace_problems(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """Problems of speed, in no order."""
    produce = [way for way in snapshot.ways if way.id == PRODUCE and _slow(way)]
    for way in produce:
        text = f"Kafka took longer than {SLOW_S[way.id]:g} s to acknowledge {_most(way)}."
        check = "gateway doctor --only kafka measures each broker. Check disk and network of the slow one."
        yield Problem("produce-latency-high", "warning", text, check)
    for way in snapshot.ways:
        if way.id == END_TO_END and _slow(way):
            text = f"{_most(way)} of route {way.route} took longer than {SLOW_S[way.id]:g} s from MQTT to Kafka."
            check = (
                "Kafka is slow (produce-latency-high)."
                if produce
                else "During a replay of the spool, wait. Otherwise: CPU (cpu-starved), interceptors, full windows."
            )
            yield Problem("end-to-end-latency-high", "warning", text[:1].upper() + text[1:], check, way.route)
    yield from _about_budget({one.minutes: one for one in snapshot.budget}, snapshot.workers)
    if starved := cpu_starved(snapshot.cpu):
        yield starved


def _slow(way: PaceView) -> bool:
    """Whether it is slow now, or longer than after a single break, as in the alert."""
    return way.now > SHARE or (way.lately > SHARE and way.lasted_ns >= LASTED_NS)


def _most(way: PaceView) -> str:
    if way.now > SHARE:
        return f"{percent(way.now)} of the messages of the last 20 s"
    return f"{percent(way.lately)} of the messages of the last 5 minutes"


def _about_budget(spans: dict[int, BudgetView], workers: int) -> Iterator[Problem]:
    """The worst burn of the budget for late messages, if one; ``spans`` are counts by length in minutes."""
    for severity, factor, long, short, counted in BURNS:
        if not {long, short, counted} <= spans.keys():
            continue  # the process is younger
        limit = factor * OBJECTIVE
        # All workers together are over a limit only when one is over its part of it.
        if spans[long].share > limit and spans[short].share > limit and spans[counted].late * workers > LATE:
            text = (
                f"{percent(spans[long].share)} of the messages of the last {_span(long)} took longer than"
                f" {OBJECTIVE_S:g} s from MQTT to Kafka, and {percent(spans[short].share)} of the last {_span(short)}."
            )
            check = "The other problems here name the cause. The objective is 0.1 % a month (docs/monitoring.md)."
            yield Problem("latency-budget-burns", severity, text, check)
            return


def _span(minutes: int) -> str:
    return f"{minutes} minutes" if minutes < 60 else "hour" if minutes == 60 else f"{minutes // 60} hours"
