"""Few ranges that cover many."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.lake.ranges import TimeRange, aligned, joined

RANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 20)).map(lambda it: TimeRange(it[0], it[0] + it[1])))

many = settings(deadline=None)


def covered(ranges: list[TimeRange]) -> set[int]:
    return {moment for one in ranges for moment in range(one.first, one.end)}


@many
@given(RANGES, st.integers(1, 8))
def test_ranges_are_disjoint_in_order_few_and_cover_all(ranges: list[TimeRange], most: int) -> None:
    made = joined(ranges, most)
    assert len(made) <= most
    assert all(one.end < two.first for one, two in pairwise(made))
    assert covered(ranges) <= covered(made)


@many
@given(RANGES)
def test_with_room_enough_nothing_is_covered_that_need_not_be(ranges: list[TimeRange]) -> None:
    assert covered(joined(ranges, 1000)) == covered(ranges)


def test_the_smallest_gaps_are_filled() -> None:
    apart = [TimeRange(0, 10), TimeRange(12, 20), TimeRange(100, 110), TimeRange(113, 120)]
    assert joined(apart, 2) == [TimeRange(0, 20), TimeRange(100, 120)]
    assert joined([], 3) == []


@many
@given(RANGES, st.integers(1, 9), st.integers(1, 4))
def test_aligned_ranges_are_those_of_the_windows(ranges: list[TimeRange], every: int, times: int) -> None:
    length = every * times
    starts = [start for start in range(-every * 5, 400) if not start % every]
    windows = {s for s in starts if covered([TimeRange(s, s + length)]) & covered(ranges)}
    assert covered(aligned(ranges, length, every)) == covered([TimeRange(s, s + length) for s in windows])
