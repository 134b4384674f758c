"""Durations and sizes: what a person may write, and that nothing is guessed or rounded."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.values.grammar import format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(("written", "microseconds"), [
    ("20ms", 20_000), ("250us", 250), ("5s", 5_000_000), ("1.5s", 1_500_000), ("2m", 120_000_000),
    ("1h30m", 5_400_000_000), ("1d2h3m4s5ms6us", 93_784_005_006), ("0s", 0), ("30", 30_000_000), ("0.25", 250_000),
    (" 5s ", 5_000_000), (30, 30_000_000),
    (0.1, 100_000),  # a tenth, though no binary fraction is one
    (-5, -5_000_000),  # the setting's own bounds refuse it, and say which
    (timedelta(seconds=3), 3_000_000),
])  # fmt: skip
def test_a_duration_is_read(written: object, microseconds: int) -> None:
    assert parse_duration(written) == timedelta(microseconds=microseconds)


@pytest.mark.parametrize(("written", "word"), [
    ("5 parsecs", "unit"), ("5S", "unit"), ("5 s", "unit"), ("ms", "unit"), ("", "unit"), ("-5s", "unit"),
    ("PT5S", "unit"), ("1:30:00", "unit"), ("٣s", "unit"), (True, "unit"), (None, "unit"), ([5], "unit"),
    ("30m1h", "largest first"), ("1m1m", "once"), ("0.5us", "microsecond"), (1e-7, "microsecond"),
    (float("inf"), "range"), (float("nan"), "range"), ("99999999999999999999d", "range"),
])  # fmt: skip
def test_what_is_no_duration_is_refused_with_the_rule(written: object, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        parse_duration(written)


@given(st.timedeltas(min_value=timedelta(0)))
def test_a_duration_is_read_back_as_it_is_printed(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


def test_a_negative_duration_can_be_printed_in_a_message() -> None:
    assert format_duration(timedelta(seconds=-90)) == "-1m30s"


@pytest.mark.parametrize(("written", "size"), [
    (0, 0), (1000, 1000), ("1000", 1000), ("512B", 512), ("256KiB", 262_144), ("1.5MiB", 1_572_864),
    ("1 GiB", 1 << 30), ("2TiB", 2 << 40), ("64kB", 64_000), ("1MB", 1_000_000), ("1GB", 10**9), ("1TB", 10**12),
])  # fmt: skip
def test_a_size_is_read(written: object, size: int) -> None:
    assert parse_bytes(written) == size


@pytest.mark.parametrize(("written", "word"), [
    *((text, "count in 1024") for text in ("1K", "1KB", "1mb", "1kib", "1M", "MiB", "", "-1", "1 000", "1_000")),
    *((value, "count in 1024") for value in (1.5, True, None)),
    ("1.0001KiB", "whole number of bytes"),
])  # fmt: skip
def test_what_is_no_size_is_refused_with_the_rule(written: object, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        parse_bytes(written)


@given(st.integers(min_value=0, max_value=1 << 60))
def test_a_size_is_read_back_as_it_is_printed(value: int) -> None:
    assert parse_bytes(format_bytes(value)) == value
