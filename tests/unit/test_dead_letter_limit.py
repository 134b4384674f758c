"""The ceiling on dead letters stops what is over it, and nothing that is under it, whatever comes when."""

from bisect import bisect_left
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.dead_letters.limit import STEPS, DeadLetterLimit, Excess
from config.settings import DeadLetterSettings

SECOND = 1_000_000_000
LIMIT = DeadLetterLimit(
    max_per_second=100, max_share=0.01, over_ns=60 * SECOND, min_messages=1000, retry_after_ns=300 * SECOND
)


class Feed:
    """A route whose messages come one by one; it ticks twice a second, as the worker does."""

    def __init__(self, limit: DeadLetterLimit) -> None:
        self.now_ns = self.ticked_ns = 5 * SECOND
        self.taken = 17  # before the meter was made
        self.asked = 0
        self.meter = limit.meter(self.now_ns, self.taken)
        self.deaths: list[int] = []
        self.arrivals: list[int] = []
        self.known = 0  # of the arrivals, at the last tick

    def wait(self, ns: int) -> None:
        until_ns = self.now_ns + ns
        while self.ticked_ns + SECOND // 2 <= until_ns:
            self.ticked_ns += SECOND // 2
            self.now_ns = self.ticked_ns
            self.meter.tick(self.now_ns, self.taken)
            self.known = len(self.arrivals)
        self.now_ns = until_ns

    def good(self, count: int = 1) -> None:
        self.taken += count
        self.arrivals += [self.now_ns] * count

    def bad(self) -> Excess | None:
        self.good()
        self.deaths.append(self.now_ns)
        return self.meter.dead(self.now_ns, self._count)

    def _count(self) -> int:
        self.asked += 1
        return self.taken


def test_without_a_share_the_rate_stops_it_as_soon_as_a_minute_s_worth_is_exceeded() -> None:
    feed = Feed(DeadLetterLimit(100, 1, 60 * SECOND, 1000, 1))
    answers = []
    for _ in range(6001):
        feed.wait(SECOND // 1000)  # ten times the rate: after six seconds, not after a minute
        answers.append(feed.bad())
    assert answers[:-1] == [None] * 6000
    excess = answers[-1]
    assert (excess.setting, excess.dead, excess.messages) == ("max_per_second", 6001, 6001)


def test_a_slow_route_is_judged_by_its_last_thousand_messages_however_long_they_took() -> None:
    """A minute has two messages here: judged by that alone it would never be stopped."""
    feed = Feed(LIMIT)
    for number in range(1, 100_000):
        feed.wait(30 * SECOND)
        if number % 50 == 0:
            excess = feed.bad()
            if excess is not None:
                break
        else:
            feed.good()
    assert (excess.setting, excess.messages, excess.dead) == ("max_share", 1000, 20)


def test_a_quiet_hour_does_not_thin_out_the_share_of_what_comes_after_it() -> None:
    feed = Feed(LIMIT)
    feed.good(1_000_000)
    feed.wait(3600 * SECOND)
    feed.good(1000)
    feed.wait(SECOND)
    answers = [feed.bad() for _ in range(11)]
    assert answers == [None] * 10 + [Excess("max_share", 11, 1011, SECOND)]


def test_good_messages_cost_nothing_and_dead_ones_under_the_ceiling_hardly_more() -> None:
    """The count is a walk over a route's slots: made for each of 6,000 dead letters it would hold up good messages."""
    feed = Feed(LIMIT)
    for _ in range(60):
        feed.good(100_000)
        for _ in range(90):
            assert feed.bad() is None
        feed.wait(SECOND)
    assert feed.asked <= 60


STEP = st.tuples(
    st.sampled_from([0, SECOND // 100, SECOND, 20 * SECOND, 300 * SECOND]),
    st.integers(0, 400),  # good ones
    st.integers(0, 12),  # bad ones
)


@example([(0, 1, 0), (300 * SECOND, 98, 1)], 0.5, 0.01, 1)
@given(
    st.lists(STEP, max_size=60),
    st.sampled_from([0.0, 0.5, 3.0, 1000.0]),
    st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    st.sampled_from([1, 50, 1000]),
)
def test_it_stops_exactly_what_is_over_the_ceiling(
    steps: list[tuple[int, int, int]], rate: float, share: float, least: int
) -> None:
    """Against the events themselves: the time looked back on is right to one of its steps and a tick."""
    limit = DeadLetterLimit(rate, share, 60 * SECOND, least, SECOND)
    feed = Feed(limit)
    slack_ns = limit.over_ns // STEPS + SECOND

    def within(events: list[int], ns: int) -> int:
        return len(events) - bisect_left(events, feed.now_ns - ns)

    for wait_ns, good, bad in steps:
        feed.wait(wait_ns)
        feed.good(good)
        for _ in range(bad):
            excess = feed.bad()
            longest = within(feed.deaths, limit.over_ns + slack_ns)
            shortest = within(feed.deaths, limit.over_ns)
            if excess is None:
                assert shortest <= rate * (limit.over_ns + slack_ns) / SECOND + 1e-9, "over the rate and not stopped"
                recent = within(feed.arrivals, limit.over_ns)
                # How far back the share looks is settled at a tick, by the messages that had come until then.
                known = recent - (len(feed.arrivals) - feed.known)
                if known >= least and longest == shortest and within(feed.arrivals, 60 * SECOND + slack_ns) == recent:
                    assert shortest <= share * recent, "over the share and not stopped"
                continue
            if excess.setting == "max_per_second":
                assert longest > rate * limit.over_ns / SECOND, "stopped, and not over the rate"
            else:
                assert excess.messages >= least
                assert excess.dead > share * excess.messages
                assert excess.dead <= len(feed.deaths)
            return


def test_it_follows_the_settings() -> None:
    assert DeadLetterLimit.from_settings(DeadLetterSettings()) == LIMIT
    assert "0 dead letters" in repr(LIMIT.meter(0, 0))


def test_a_quiet_route_takes_no_more_memory_the_longer_it_is_looked_back_on() -> None:
    """At a message every five seconds, 20,000 of them are a day; a sample of each would be as many, and looked through
    at every dead letter."""
    feed = Feed(replace(LIMIT, min_messages=20_000))
    most = 0
    excess = None
    for number in range(25_000):
        feed.wait(5 * SECOND)
        if number % 80 == 0:
            excess = excess or feed.bad()
        else:
            feed.good()
        most = max(most, int(repr(feed.meter).rpartition(", ")[2].split()[0]))
        assert excess is None or number >= 19_999
    assert most <= 6 * STEPS + 1
    assert excess.setting == "max_share"
    assert excess.messages >= 20_000
    assert excess.dead == pytest.approx(excess.messages / 80, abs=1)
