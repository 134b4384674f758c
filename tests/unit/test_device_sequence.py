"""Sequence numbers: what is missing, what came twice, and restarts, in whatever order they come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.device_sequence import MOST_RANGES, Sequence

T0 = 1_700_000_000_000


def fed(numbers: list[tuple[int, int]]) -> Sequence:
    sequence = Sequence()
    for seq, device_ms in numbers:
        sequence.take(seq, device_ms, device_ms)
    return sequence


def ranges(sequence: Sequence) -> list[tuple[int, int, int]]:
    return [(gap.life, gap.low, gap.high) for gap in sequence.missing]


def steady(*numbers: int) -> list[tuple[int, int]]:
    return [(number, T0 + number * 1000) for number in numbers]


def test_a_gap_is_a_range_and_a_late_reading_closes_it() -> None:
    sequence = fed(steady(1, 2, 6))
    assert ranges(sequence) == [(0, 3, 5)]
    assert sequence.missing_count == 3
    for number in (4, 3, 5):
        sequence.take(number, T0 + number * 1000, T0 + 60_000)
    assert sequence.missing == []
    assert sequence.duplicates == sequence.resets == 0


def test_a_reading_again_is_a_duplicate_and_no_restart() -> None:
    sequence = fed(steady(1, 2, 3, 2, 3, 3))
    assert (sequence.duplicates, sequence.resets, sequence.last) == (3, 0, 3)


def test_a_restart_begins_anew_and_opens_no_gap() -> None:
    sequence = fed([*steady(500, 501), (0, T0 + 900_000), (1, T0 + 901_000)])
    assert (sequence.resets, sequence.life, sequence.last, sequence.missing_count) == (1, 1, 1, 0)


def test_what_the_life_before_still_sends_is_that_lifes() -> None:
    sequence = fed([*steady(500, 501, 504), (0, T0 + 900_000), (1, T0 + 901_000), *steady(503, 502)])
    assert (sequence.resets, sequence.last, sequence.missing, sequence.duplicates) == (1, 1, [], 0)
    sequence.take(506, T0 + 506_000, T0 + 910_000)  # the last before the restart, overtaken by it
    assert ranges(sequence) == [(0, 505, 505)]
    assert sequence.last == 1


def test_a_clock_that_begins_at_1970_is_a_restart_too() -> None:
    sequence = fed([*steady(500, 501), (0, 5_000), (1, 6_000), (2, T0 + 900_000)])
    assert (sequence.resets, sequence.last, sequence.missing_count, sequence.duplicates) == (1, 2, 0, 0)


def test_an_old_reading_far_below_the_first_is_no_gap_of_a_million() -> None:
    sequence = fed(steady(1_000_000, 5))
    assert (sequence.missing_count, sequence.duplicates) == (0, 1)


def test_ranges_are_bounded_and_their_numbers_still_counted() -> None:
    sequence = fed(steady(*range(0, 400, 2)))
    assert len(sequence.missing) == MOST_RANGES
    assert sequence.missing_count == 199
    assert sequence.missing[-1].high == 397


def test_a_gap_is_told_once_and_only_when_it_stays() -> None:
    sequence = Sequence()
    for number in (1, 5, 9):
        sequence.take(number, T0 + number * 1000, T0 + number * 1000)
    assert sequence.due(10_000) == T0 + 15_000
    assert [(gap.low, gap.high) for gap in sequence.tell(T0 + 15_000, 10_000)] == [(2, 4)]
    assert sequence.tell(T0 + 15_000, 10_000) == []
    assert sequence.take(7, T0 + 7_000, T0 + 16_000) is None
    closed = [sequence.take(number, T0 + number * 1000, T0 + 17_000) for number in (2, 3, 4)]
    assert [gap is not None for gap in closed] == [False, False, True], "told ranges say when they are complete"


@settings(max_examples=300, deadline=None)
@given(st.sets(st.integers(0, 32), min_size=1), st.randoms(use_true_random=False), st.integers(0, 5))
def test_any_order_gives_the_same(numbers: set[int], random: object, repeats: int) -> None:
    """Against a set: what is missing is what is between lowest and highest and did not come. Of 33 numbers there are
    never more open ranges than are kept."""
    log = steady(*numbers) + steady(*sorted(numbers)[:repeats])
    random.shuffle(log)  # type: ignore[attr-defined]
    sequence = fed(log)
    missing = {number for gap in sequence.missing for number in range(gap.low, gap.high + 1)}
    expected = set(range(min(numbers), max(numbers) + 1)) - numbers
    assert sequence.missing_count == len(expected)
    assert (sequence.first, sequence.last, sequence.resets) == (min(numbers), max(numbers), 0)
    assert sequence.given_up == 0
    assert missing == expected
    assert sequence.duplicates == len(log) - len(numbers)


@settings(max_examples=300, deadline=None)
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
    assert (shuffled.first, shuffled.last, shuffled.missing_count) == (
        in_order.first,
        in_order.last,
        in_order.missing_count,
    )
