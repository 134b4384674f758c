"""The breaker opens after failures in a row, lets one probe through when it is due, and believes nothing stale."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.backends.breaker import Breaker, BreakerState, Ticket

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN
SECOND = 1_000_000_000


def make(failures: int = 3, initial_ns: int = SECOND, max_ns: int = 8 * SECOND) -> Breaker:
    return Breaker(failures=failures, retry_initial_ns=initial_ns, retry_max_ns=max_ns, rng=random.Random(5))


def leave(breaker: Breaker) -> Ticket:
    ticket = breaker.admit()
    assert ticket is not None, "the breaker refuses"
    return ticket


def opened(now_ns: int = 0) -> Breaker:
    breaker = make()
    for _ in range(3):
        breaker.failed(leave(breaker), now_ns)
    assert breaker.state is OPEN
    return breaker


def probe(breaker: Breaker) -> Ticket:
    ticket = breaker.admit_probe(breaker.retry_at_ns)
    assert ticket is not None, "the probe is due and refused"
    return ticket


def test_failures_in_a_row_open_it_and_only_the_last_says_so() -> None:
    breaker = make(failures=3)
    assert [breaker.failed(leave(breaker), now) for now in range(3)] == [False, False, True]
    assert breaker.state is OPEN
    assert breaker.admit() is None


def test_a_success_in_between_starts_the_count_again() -> None:
    breaker = make(failures=3)
    for _ in range(10):
        breaker.failed(leave(breaker), 0)
        breaker.failed(leave(breaker), 0)
        assert not breaker.succeeded(leave(breaker), 0), "it was closed all along"
    assert breaker.state is CLOSED
    assert breaker.failures == 0


def test_a_question_given_up_counts_for_nothing() -> None:
    breaker = make(failures=3)
    breaker.failed(leave(breaker), 0)
    breaker.failed(leave(breaker), 0)
    breaker.dropped(leave(breaker), 0)
    assert (breaker.state, breaker.failures) == (CLOSED, 2)
    breaker.failed(leave(breaker), 0)
    assert breaker.state is OPEN


def test_no_probe_before_it_is_due_and_then_one_at_a_time() -> None:
    breaker = opened(now_ns=100)
    due = breaker.retry_at_ns
    assert 100 < due <= 100 + 2 * SECOND
    assert breaker.admit_probe(due - 1) is None
    assert breaker.state is OPEN
    assert breaker.admit_probe(due) is not None
    assert breaker.state is HALF_OPEN
    assert breaker.admit_probe(due + 10**12) is None, "two probes at a time"
    assert breaker.admit() is None, "an ordinary question while one probe is under way"


def test_a_probe_given_up_is_due_again_after_a_wait() -> None:
    breaker = opened()
    now = breaker.retry_at_ns
    breaker.dropped(probe(breaker), now)
    assert breaker.state is OPEN
    assert breaker.retry_at_ns > now
    assert breaker.succeeded(probe(breaker), breaker.retry_at_ns)


def test_probes_that_fail_wait_longer_and_longer_up_to_the_cap() -> None:
    breaker = opened()
    waits = []
    for _ in range(8):
        now = breaker.retry_at_ns
        assert breaker.failed(probe(breaker), now)
        assert breaker.state is OPEN
        waits.append(breaker.retry_at_ns - now)
    assert waits[0] < waits[1] < waits[2]
    assert all(wait <= 8 * SECOND for wait in waits)
    assert waits[-1] > 4 * SECOND
    assert breaker.failures == 11


def test_outcomes_of_questions_from_before_it_opened_say_nothing() -> None:
    breaker = make(failures=3)
    early = [leave(breaker) for _ in range(30)]
    for ticket in early[:3]:
        breaker.failed(ticket, 0)
    due = breaker.retry_at_ns
    for ticket in early[3:10]:
        assert not breaker.failed(ticket, 5)
    assert not breaker.succeeded(early[10], 5)
    breaker.dropped(early[11], 5)
    assert (breaker.state, breaker.retry_at_ns, breaker.failures) == (OPEN, due, 3)
    ticket = probe(breaker)
    assert not breaker.failed(early[12], due)
    breaker.dropped(early[13], due)
    assert not breaker.succeeded(early[14], due)
    assert breaker.state is HALF_OPEN, "an old outcome was taken for the probe's"
    assert breaker.succeeded(ticket, due)
    assert not breaker.failed(early[15], due)
    assert breaker.failures == 0


def test_the_outcome_of_an_earlier_probe_is_not_taken_for_this_one() -> None:
    breaker = opened()
    first = probe(breaker)
    breaker.dropped(first, breaker.retry_at_ns)
    second = probe(breaker)
    assert not breaker.succeeded(first, breaker.retry_at_ns)
    assert breaker.state is HALF_OPEN
    assert breaker.succeeded(second, breaker.retry_at_ns)


def test_a_waiting_question_learns_that_it_is_not_worth_asking_any_more() -> None:
    breaker = make(failures=1)
    waiting = leave(breaker)
    assert breaker.holds(waiting)
    breaker.failed(leave(breaker), 0)
    assert not breaker.holds(waiting)
    breaker.succeeded(probe(breaker), breaker.retry_at_ns)
    assert not breaker.holds(waiting), "it was admitted in another period"


def test_it_can_be_tripped_at_once() -> None:
    breaker = make(failures=3)
    breaker.trip(0)
    assert breaker.state is OPEN
    due = breaker.retry_at_ns
    breaker.trip(due)
    assert breaker.retry_at_ns == due, "open already"
    ticket = probe(breaker)
    breaker.trip(due)
    assert breaker.state is HALF_OPEN
    assert breaker.succeeded(ticket, due)


def test_a_backend_that_breaks_again_soon_is_probed_where_the_waits_were() -> None:
    breaker = make(failures=1, initial_ns=SECOND, max_ns=64 * SECOND)
    now = 0
    breaker.failed(leave(breaker), now)
    for _ in range(4):
        now = breaker.retry_at_ns
        breaker.failed(probe(breaker), now)
    now = breaker.retry_at_ns
    breaker.succeeded(probe(breaker), now)
    breaker.failed(leave(breaker), now + SECOND)
    assert breaker.retry_at_ns - (now + SECOND) > 16 * SECOND
    now = breaker.retry_at_ns
    breaker.succeeded(probe(breaker), now)
    breaker.failed(leave(breaker), now + 3600 * SECOND)
    assert breaker.retry_at_ns - (now + 3600 * SECOND) <= 2 * SECOND, "an hour of peace was not honoured"


@pytest.mark.parametrize(("failures", "initial", "cap"), [(0, 1, 1), (-1, 1, 1), (1, 0, 1), (1, 2, 1)])
def test_policies_that_make_no_sense_are_refused(failures: int, initial: int, cap: int) -> None:
    with pytest.raises(ValueError, match=r"a breaker opens|a backoff needs"):
        Breaker(failures=failures, retry_initial_ns=initial, retry_max_ns=cap)


EVENTS = st.lists(st.tuples(st.sampled_from(["ask", "good", "bad", "drop", "probe", "wait"]), st.integers(0, 40)))


@given(EVENTS, st.integers(1, 4))
def test_whatever_happens_one_probe_at_a_time_and_never_stuck(events: list[tuple[str, int]], failures: int) -> None:
    breaker = make(failures=failures)
    now, tickets, probing = 0, deque[Ticket](), None
    for kind, number in events:
        if kind == "wait":
            now += number * SECOND // 4
        elif kind == "ask":
            ticket = breaker.admit()
            assert (ticket is not None) == (breaker.state is CLOSED)
            if ticket is not None:
                tickets.append(ticket)
        elif kind == "probe":
            state, due = breaker.state, breaker.retry_at_ns
            ticket = breaker.admit_probe(now)
            assert (ticket is not None) == (state is OPEN and now >= due)
            if ticket is not None:
                tickets.append(ticket)
                probing = ticket
        elif tickets:
            tickets.rotate(number)
            ticket = tickets.popleft()
            before = breaker.state
            outcome = {"good": breaker.succeeded, "bad": breaker.failed, "drop": breaker.dropped}[kind]
            outcome(ticket, now)
            if before is not CLOSED and breaker.state is not before:
                assert ticket == probing, "an outcome that was not the probe's changed the state"
        assert breaker.failures < failures or breaker.state is not CLOSED
    if breaker.state is HALF_OPEN:
        assert probing is not None
        breaker.dropped(probing, now)
    if breaker.state is OPEN:
        breaker.succeeded(probe(breaker), now)
    assert breaker.state is CLOSED, "no way back from here"
