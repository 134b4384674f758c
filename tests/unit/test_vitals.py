"""What is looked at once a second: lengths without our own standstill, rates, and quantiles of the last minute."""

import math
import time
from bisect import bisect_left
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.instruments import Histogram
from gateway.base.vitals import LATENCIES, Lasting, Rates, Stalls, Vitals, Window, quantile
from tests.kinds import there
from tests.waiting import until

SECOND = 1_000_000_000
BOUNDS_NS = tuple(round(bound * SECOND) for bound in LATENCIES)


def test_what_the_loop_stood_still_counts_for_no_silence() -> None:
    stalls = Stalls()
    stalls.tick(10 * SECOND, 11 * SECOND)
    stalls.tick(11 * SECOND, 12 * SECOND)
    assert stalls.since(SECOND, 11 * SECOND) == 0
    stalls.tick(20 * SECOND, 21 * SECOND)
    assert stalls.since(SECOND, 20 * SECOND) == 8 * SECOND
    assert stalls.since(20 * SECOND, 21 * SECOND) == 0
    assert stalls.blocked(20 * SECOND) == (1, 8 * SECOND)
    assert stalls.blocked(81 * SECOND) == (0, 0)


def test_a_standstill_that_is_not_over_counts_as_well() -> None:
    stalls = Stalls()
    stalls.tick(10 * SECOND, 11 * SECOND)
    assert stalls.since(9 * SECOND, 31 * SECOND) == 20 * SECOND
    assert stalls.since(30 * SECOND, 31 * SECOND) == SECOND, "never more than the time itself"


def test_a_length_begins_when_it_was_first_seen_and_ends_when_it_is_not() -> None:
    lasting, stalls = Lasting(), Stalls()
    lasting.look(["a"], 1 * SECOND)
    lasting.look(["a", "b"], 2 * SECOND)
    assert lasting.lengths(5 * SECOND, stalls) == {"a": 4 * SECOND, "b": 3 * SECOND}
    lasting.look(["b"], 5 * SECOND)
    lasting.look(["a", "b"], 6 * SECOND)
    assert lasting.lengths(6 * SECOND, stalls) == {"a": 0, "b": 4 * SECOND}


def test_rates_are_of_the_last_ten_seconds() -> None:
    count = 0.0
    rates = Rates(lambda: {"n": count})
    assert rates.per_second(0) == {"n": 0.0}
    for second in range(60):
        rates.look(second * SECOND)
        count += 100 if second < 30 else 500
    assert rates.per_second(60 * SECOND) == {"n": 500.0}
    assert rates.growth() == {"n": 5500.0}


def test_a_quantile_of_the_last_minute_forgets_what_was_before() -> None:
    histogram = Histogram(BOUNDS_NS)
    window = Window(lambda: [histogram])
    assert quantile(window.counts(), LATENCIES, 0.5) is None
    for turn in range(30):
        window.look()
        histogram.observe_many(5 * SECOND if turn < 10 else 3_000_000, 100)
    assert 0.0025 < there(quantile(window.counts(), LATENCIES, 0.99)) <= 0.005


@given(st.lists(st.integers(0, 200 * SECOND), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[int], share: float) -> None:
    histogram = Histogram(BOUNDS_NS)
    for value in values:
        histogram.observe(value)
    found = there(quantile(histogram.counts(), LATENCIES, share))
    true_ns = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    place = bisect_left(BOUNDS_NS, true_ns)
    lower = 0.0 if place == 0 else LATENCIES[place - 1]
    upper = LATENCIES[min(place, len(LATENCIES) - 1)]
    if place == len(LATENCIES):
        lower = upper
    assert lower - 1e-9 <= found <= upper + 1e-9


async def looks(vitals: Vitals, seen: Callable[[], bool]) -> None:
    await vitals.start()
    try:
        await until(seen, "it was looked at")
    finally:
        await vitals.stop(time.monotonic_ns())


async def test_everything_is_looked_at_when_it_starts_and_nothing_after_the_stop() -> None:
    seen: list[str] = []
    vitals = Vitals(pytest.fail)
    vitals.looks.append(lambda _now: seen.append("second"))
    vitals.seldom.append(lambda: seen.append("five"))
    vitals.minutely.append(lambda _now: seen.append("minute"))
    await looks(vitals, lambda: len(seen) >= 4)
    assert seen[:4] == ["second", "five", "minute", "second"]


async def test_a_defect_in_a_look_is_told() -> None:
    failures: list[BaseException] = []

    def broken(_now_ns: int) -> None:
        raise RuntimeError("a defect")

    vitals = Vitals(failures.append)
    vitals.looks.append(broken)
    await looks(vitals, lambda: bool(failures))
    assert str(failures[0]) == "a defect"
