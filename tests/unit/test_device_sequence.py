"""Sequence numbers: what is missing, what came twice, and restarts, in whatever order they come."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.devices.records import MOST
from streaming.devices.sequence import MOST_RANGES, WINDOW, Sequence

T0 = 1_700_000_000_000


def fed(numbers: list[tuple[int, int]]) -> Sequence:
    sequence = Sequence()
    for seq, device_ms in numbers:
        sequence.take(seq, device_ms, device_ms)
    return sequence


def ranges(sequence: Sequence) -> list[tuple[int, int, int]]:
    """The numbers that have not come, told or not."""
    young = [gap for gap in sequence.missing if not gap.told]
    return sorted((gap.life, gap.low, gap.high) for gap in [*young, *sequence.gaps])


def lost(sequence: Sequence) -> int:
    """How many numbers are missing once all gaps are told."""
    sequence.tell(T0 * 2, 0)
    return sequence.missing_count


def steady(*numbers: int) -> list[tuple[int, int]]:
    return [(number, T0 + number * 1000) for number in numbers]


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        (steady(1, 2, 3, 2, 3, 3), {"duplicates": 3, "resets": 0, "last": 3}),
        ([*steady(500, 501), (0, T0 + 900_000), (1, T0 + 901_000)], {"resets": 1, "life": 1, "last": 1}),
        ([*steady(500, 501), (0, 5_000), (1, 6_000), (2, T0 + 900_000)], {"resets": 1, "last": 2, "duplicates": 0}),
        (steady(1_000_000, 5), {"duplicates": 0, "too_late": 1}),
    ],
    ids=["a reading again is a duplicate and no restart", "a restart begins anew and opens no gap",
         "a clock that begins at 1970 is a restart too", "an old reading far below the first is no gap of a million"],
)  # fmt: skip
def test_what_a_number_means(readings: list[tuple[int, int]], found: dict[str, int]) -> None:
    sequence = fed(readings)
    assert {name: getattr(sequence, name) for name in found} == found
    assert lost(sequence) == 0


def test_what_the_life_before_still_sends_is_that_lifes() -> None:
    sequence = fed([*steady(500, 501, 504), (0, T0 + 900_000), (1, T0 + 901_000), *steady(503, 502)])
    assert (sequence.resets, sequence.last, sequence.missing, sequence.duplicates) == (1, 1, [], 0)
    sequence.take(506, T0 + 506_000, T0 + 910_000)  # the last before the restart, overtaken by it
    assert ranges(sequence) == [(0, 505, 505)]
    assert sequence.last == 1


def test_every_second_number_forty_later_is_neither_missing_nor_a_duplicate() -> None:
    """10,000 numbers that all come, told after a minute, at ten a second."""
    sequence = Sequence()
    arrivals = sorted(range(10_000), key=lambda number: (number + 40 * (number % 2), number))
    for place, number in enumerate(arrivals):
        sequence.take(number, T0 + number * 100, T0 + place * 100)
        assert sequence.tell(T0 + place * 100, 60_000) == []
    assert (lost(sequence), sequence.duplicates, sequence.too_late, sequence.resets) == (0, 0, 0, 0)


@pytest.mark.parametrize("told", [False, True])
def test_what_comes_after_the_window_is_not_taken_for_a_duplicate(told: bool) -> None:
    sequence = Sequence()
    for number in range(0, 2 * WINDOW, 2):
        sequence.take(number, T0 + number * 1000, T0 + number * 1000)
        if told:
            sequence.tell(T0 + number * 1000, 60_000)
    assert lost(sequence) == WINDOW - 1
    kept = WINDOW // 2 + MOST_RANGES
    assert (len(sequence.gaps), sequence.given_up) == (kept, WINDOW - 1 - kept)
    late = range(1, 2 * WINDOW, 2)[:-1]
    closed = [sequence.take(number, T0 + number * 1000, T0 * 2) for number in late]
    assert closed == [False] * (WINDOW - 1 - kept) + [True] * kept
    assert (sequence.missing_count, sequence.too_late, sequence.duplicates) == (WINDOW - 1 - kept, sequence.given_up, 0)
    sequence.take(late[-1], T0, T0 * 2)
    assert sequence.duplicates == 1


def test_a_range_that_the_window_leaves_is_one_range() -> None:
    sequence = fed(steady(0, 1001, 2000))
    assert lost(sequence) == 1998
    sequence.take(2010, T0 + 2_010_000, T0)
    assert lost(sequence) == 2007
    assert ranges(sequence) == [(0, 1, 1000), (0, 1002, 1999), (0, 2001, 2009)]
    closed = [sequence.take(number, T0 + number * 1000, T0) for number in range(1, 1001)]
    assert closed == [False] * 999 + [True]
    sequence.take(10**15, T0 + 10**15, T0)
    assert ranges(sequence)[0] == (0, 1002, 1999)


def test_more_can_be_missing_than_a_table_holds() -> None:
    """Numbers of 64 bits, from one end to the other and back after a restart."""
    sequence = fed([(number, T0 + at) for at, number in enumerate([-MOST - 1, MOST] * (MOST_RANGES + 2))])
    assert (lost(sequence), sequence.given_up) == (MOST, MOST)
    assert sequence.resets == MOST_RANGES + 1


def test_a_gap_is_counted_and_told_once_and_only_when_it_stays() -> None:
    sequence = fed(steady(1, 5, 9))
    assert (sequence.missing_count, sequence.gaps, sequence.due(10_000)) == (0, [], T0 + 15_000)
    assert [(gap.low, gap.high) for gap in sequence.tell(T0 + 15_000, 10_000)] == [(2, 4)]
    assert (sequence.missing_count, [(gap.low, gap.high) for gap in sequence.gaps]) == (3, [(2, 4)])
    assert sequence.tell(T0 + 15_000, 10_000) == []
    assert not sequence.take(7, T0 + 7_000, T0 + 16_000)
    closed = [sequence.take(number, T0 + number * 1000, T0 + 17_000) for number in (2, 3, 4)]
    assert closed == [False, False, True], "told ranges say when they are complete"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 3000), st.randoms(use_true_random=True), st.sampled_from([0, 0.02, 0.3]),
    st.sampled_from([0, 0.02, 0.3]), st.sampled_from([0, 3, 40, WINDOW]), st.sampled_from([0, 20_000, 10**9]),
)  # fmt: skip
def test_overtaken_within_the_window_the_account_is_that_of_a_set(
    count: int, random: Random, losses: float, copies: float, delay: int, gap_after_ms: int
) -> None:
    """Against sets without bounds: what is missing, what came twice. Numbers are lost one by one and in runs."""
    sent = [number for number in range(count) if random.random() >= losses]
    if losses and random.random() < 0.5:
        begin = random.randrange(count)
        end = begin + random.randrange(count)
        sent = [number for number in sent if not begin <= number < end]
    sent += [number for number in sent if random.random() < copies]
    arrivals = sorted((number + random.randint(0, delay), number) for number in sent)
    sequence, came, twice = Sequence(), set[int](), 0
    for place, (_, number) in enumerate(arrivals):
        sequence.take(number, T0 + number * 1000, T0 + place * 1000)
        sequence.tell(T0 + place * 1000, gap_after_ms)
        twice += number in came
        came.add(number)
    expected = set(range(min(came), max(came) + 1)) - came if came else set[int]()
    listed = {number for _, low, high in ranges(sequence) for number in range(low, high + 1)}
    assert listed <= expected
    assert {number for number in expected if number >= max(came) - WINDOW} <= listed
    assert lost(sequence) == len(expected)
    assert (sequence.duplicates, sequence.too_late, sequence.resets) == (twice, 0, 0)
    assert (sequence.first, sequence.last) == (min(came, default=None), max(came, default=None))
    assert sequence.holes.bit_length() <= WINDOW + 1
    assert len(sequence.missing) <= MOST_RANGES + 1


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(100, 110), min_size=2), st.sets(st.integers(0, 9), min_size=1), st.data())
def test_a_restart_is_one_restart_in_any_near_order(before: set[int], after: set[int], data: st.DataObject) -> None:
    """Neighbours change places, across the restart too; but the first of all, which is what the life began with."""
    log = steady(*sorted(before)) + [(number, T0 + 900_000 + number * 1000) for number in sorted(after)]
    in_order = fed(log)
    for place in data.draw(st.sets(st.integers(1, len(log) - 2), max_size=3)):
        log[place], log[place + 1] = log[place + 1], log[place]
    shuffled = fed(log)
    assert shuffled.resets == in_order.resets == 1
    assert ranges(shuffled) == ranges(in_order)
    assert (shuffled.first, shuffled.last, lost(shuffled)) == (in_order.first, in_order.last, lost(in_order))
