"""Moments as people write them for users and bans."""

import pytest

from auth.moments import format_moment, parse_expiry

NOW_S = 1_800_000_000.9
MIDNIGHT_S = 1_801_353_600


@pytest.mark.parametrize(("text", "moment_s"), [
    ("never", None), ("30d", 1_800_000_000 + 30 * 86_400), (" 1h30m ", 1_800_000_000 + 5_400),
    ("2027-01-31", MIDNIGHT_S), ("2027-01-31T12:00:00Z", MIDNIGHT_S + 43_200),
    ("2027-01-31T12:00:00+01:00", MIDNIGHT_S + 39_600),
])  # fmt: skip
def test_a_moment(text: str, moment_s: int | None) -> None:
    assert parse_expiry(text, NOW_S) == moment_s
    assert parse_expiry(format_moment(moment_s)) == moment_s


@pytest.mark.parametrize("text", ["", "soon", "30", "2027-01-31T12:00:00", "2027-02-30", "9999999999d"])
def test_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match="a moment is a date"):
        parse_expiry(text, NOW_S)


def test_a_file_has_no_now() -> None:
    with pytest.raises(ValueError, match="a moment is a date"):
        parse_expiry("30d")


def test_a_moment_beyond_all_years_is_shown_as_its_seconds() -> None:
    assert format_moment(10**14) == "100000000000000"
