"""How windows are written, and what is refused."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.values.window_shapes import WindowShape, check_windows, parse_window, step_of


def minutes(count: int) -> timedelta:
    return timedelta(minutes=count)


@pytest.mark.parametrize(("text", "shape", "label"), [
    ("1m", WindowShape(minutes(1), minutes(1)), "1m tumbling"),
    ("60s tumbling", WindowShape(minutes(1), minutes(1)), "1m tumbling"),
    ("15m sliding 5m", WindowShape(minutes(15), minutes(5)), "15m sliding 5m"),
    (" 5m  sliding 300s ", WindowShape(minutes(5), minutes(5)), "5m tumbling"),
])  # fmt: skip
def test_a_window_is_read_and_written_one_way(text: str, shape: WindowShape, label: str) -> None:
    assert parse_window(text) == shape
    assert shape.label == label
    assert parse_window(label) == shape


@pytest.mark.parametrize(("texts", "why"), [
    (("1m slides 5m",), "LENGTH tumbling"),
    (("15m/5m",), "a duration is a number with a unit"),
    (("15m sliding 4m",), "a multiple of its step"),
    (("5m sliding 15m",), "no longer than itself"),
    (("500ms",), "at least 1s"),
    (("32d",), "at most 31d"),
    (("1001ms sliding 1001ms", "1.0001s"), "exact to the millisecond"),
    (("1m", "60s tumbling"), "named twice"),
    (("1s", "31d"), "2,678,400 of them, more than 10,000"),
    (("2h sliding 1m",), "in 120 windows, more than 100"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_a_sentence(texts: tuple[str, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_windows(texts)


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 8)), min_size=1, max_size=4))
def test_all_windows_are_whole_numbers_of_their_step(parts: list[tuple[int, int]]) -> None:
    shapes = tuple(WindowShape(minutes(every * times), minutes(every)) for every, times in parts)
    step = step_of(shapes).length
    assert step <= timedelta(hours=1)
    for shape in shapes:
        assert not shape.length % step
        assert not shape.every % step
