"""Which files of silver a batch looks through: all that can hold an original, and few others."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streaming.silver_match import Span, match_condition, spans

DAY_US = 86_400_000_000
MOMENTS = st.integers(0, 253_402_300_799_999_999)
FOUND = st.lists(st.tuples(MOMENTS, MOMENTS).map(lambda it: Span(min(it), max(it))), max_size=20)


@given(FOUND, st.integers(1, 8))
def test_no_time_of_the_batch_is_left_out_and_the_spans_are_apart_and_few(found: list[Span], most: int) -> None:
    joined = spans(found, most=most)

    for span in found:
        assert any(it.first_us <= span.first_us and span.last_us <= it.last_us for it in joined), f"{span} is left out"
    assert len(joined) <= most
    assert all(one.last_us < other.first_us for one, other in pairwise(joined))
    ends = {span.first_us for span in found}, {span.last_us for span in found}
    assert all(it.first_us in ends[0] and it.last_us in ends[1] for it in joined), "a span is wider than it has to be"


def test_the_widest_gaps_are_what_is_left_out() -> None:
    found = [Span(0, 1), Span(3, 4), Span(1000, 1001), Span(1004, 1005), Span(9000, 9000)]
    assert spans(found, most=3) == [Span(0, 4), Span(1000, 1005), Span(9000, 9000)]


def test_the_condition_names_the_days_of_the_times_and_lets_wrong_clocks_lie_on_any_day() -> None:
    assert match_condition([Span(DAY_US - 1, DAY_US), Span(20 * DAY_US, 20 * DAY_US + 5)]) == (
        "t.record_id = s.record_id AND ("
        "t.device_time BETWEEN TIMESTAMP '1970-01-01 23:59:59.999999' AND TIMESTAMP '1970-01-02 00:00:00.000000'"
        " OR t.device_time BETWEEN TIMESTAMP '1970-01-21 00:00:00.000000' AND TIMESTAMP '1970-01-21 00:00:00.000005')"
        " AND (t.clock_ahead OR t.event_date IN (DATE '1970-01-01', DATE '1970-01-02', DATE '1970-01-21'))"
    )


def test_more_days_than_can_be_listed_are_not() -> None:
    condition = match_condition([Span(0, 500 * DAY_US)])
    assert "event_date" not in condition
    assert "t.device_time BETWEEN" in condition


def test_times_beyond_the_calendar_are_cut_at_its_ends() -> None:
    assert "TIMESTAMP '1970-01-01 00:00:00.000000' AND TIMESTAMP '9999-12-31 23:59:59.999999'" in match_condition(
        [Span(-DAY_US, 2**62)]
    )
