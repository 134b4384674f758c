"""Waits double, stay under their cap, are spread there too, and start over after a stable time only."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.backoff import Backoff, KafkaPauses

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def make(jitter: float = 0.2, seed: int = 1) -> Backoff:
    return Backoff(SECOND // 2, 30 * SECOND, jitter, rng=random.Random(seed))


def test_a_broker_away_for_days_costs_nothing() -> None:
    backoff = make(jitter=0)
    for _ in range(100_000):
        wait = backoff.next_ns(0)
    assert wait == 30 * SECOND


@given(st.integers(1, 10**12), st.integers(0, 10**13), st.floats(0, 0.99), st.integers(0, 100), st.integers(0, 2**32))
def test_no_wait_is_beyond_its_bounds(initial: int, more: int, jitter: float, attempts: int, seed: int) -> None:
    cap = initial + more
    backoff = Backoff(initial, cap, jitter, rng=random.Random(seed))
    middle = int(cap / (1 + jitter))
    for attempt in range(attempts + 1):
        wait = backoff.next_ns(attempt)
        expected = min(initial * 2**attempt, middle)
        assert 1 <= wait <= cap
        assert int(expected * (1 - jitter)) - 1 <= wait <= expected * (1 + jitter) + 1


def test_waits_are_spread_at_the_cap_too() -> None:
    waits = []
    for seed in range(500):
        backoff = make(seed=seed)
        for _ in range(12):
            wait = backoff.next_ns(0)
        waits.append(wait)
    assert min(waits) < 20.5 * SECOND
    assert max(waits) > 29.5 * SECOND
    assert max(waits) <= 30 * SECOND
    assert len(set(waits)) > 490


def test_a_stable_time_starts_over() -> None:
    backoff = make(jitter=0)
    for _ in range(5):
        backoff.next_ns(0)
    backoff.started(10 * SECOND)
    assert backoff.next_ns(10 * SECOND + MINUTE) == SECOND // 2


def test_one_stable_time_counts_once() -> None:
    backoff = make(jitter=0)
    backoff.started(0)
    backoff.next_ns(2 * MINUTE)
    assert backoff.next_ns(10 * MINUTE) == SECOND  # the attempt after it failed at once: that is no second stable time


def test_a_connection_that_breaks_too_soon_does_not_start_over() -> None:
    backoff = make(jitter=0)
    now = 0
    waits = []
    for _ in range(6):
        backoff.started(now)
        now += MINUTE - 1
        waits.append(backoff.next_ns(now) / SECOND)
    assert waits == [0.5, 1, 2, 4, 8, 16]


def test_reset_starts_over_at_once() -> None:
    backoff = make(jitter=0)
    backoff.next_ns(0)
    backoff.next_ns(0)
    backoff.started(0)
    backoff.reset()
    assert backoff.attempts == 0
    assert [backoff.next_ns(2 * MINUTE), backoff.next_ns(2 * MINUTE)] == [SECOND // 2, SECOND]


def test_the_same_seed_gives_the_same_waits() -> None:
    one, two = make(seed=7), make(seed=7)
    assert [one.next_ns(0) for _ in range(10)] == [two.next_ns(0) for _ in range(10)]


@pytest.mark.parametrize(
    ("initial", "cap", "jitter"), [(0, 1, 0.1), (2, 1, 0.1), (-1, 1, 0.1), (1, 1, 1.0), (1, 1, -0.1)]
)
def test_a_policy_that_makes_no_sense_is_refused(initial: int, cap: int, jitter: float) -> None:
    with pytest.raises(ValueError, match="backoff"):
        Backoff(initial, cap, jitter)


@pytest.mark.parametrize("first_ms", [1, 100, 5000, 60_000])
def test_pauses_towards_kafka_begin_with_the_setting_and_end_with_their_purpose(first_ms: int) -> None:
    first_ns = first_ms * 1_000_000
    pauses = KafkaPauses(first_ns)
    for pause, longest_ns in ((pauses.resend_ns, SECOND), (pauses.reconnect_ns, SECOND), (pauses.hold_ns, 10 * SECOND)):
        longest_ns = max(longest_ns, first_ns)
        for number in range(100):
            assert (
                0.66 * min(first_ns << number, longest_ns)
                <= pause(number)
                <= min(1.2 * (first_ns << number), longest_ns)
            )
