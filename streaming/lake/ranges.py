"""Stretches of time and of names, few enough to be written into a query: how late readings, and those of some devices,
are found without reading what is between them. Pure; times are µs since 1970."""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MOST_RANGES: Final = 64
"""Stretches, of names or of time, that a query names; more are joined to so many, with what is between."""
_NO_TEXT: Final = "\ufffd"  # what Spark makes of bytes that are no UTF-8 when it hands them to Python


class TimeRange(NamedTuple):
    first: int
    end: int  # not included


def moment(at_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=at_us)


def millis(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)


def timestamp(at_us: int) -> str:
    """A time as SQL."""
    return f"TIMESTAMP '{moment(at_us):%Y-%m-%d %H:%M:%S.%f}'"


def joined(ranges: Iterable[TimeRange], most: int) -> list[TimeRange]:
    """At most ``most`` disjoint ranges, in order, that cover all of ``ranges``: the smallest gaps are filled."""
    merged: list[TimeRange] = []
    for one in sorted(ranges):
        if merged and one.first <= merged[-1].end:
            merged[-1] = TimeRange(merged[-1].first, max(merged[-1].end, one.end))
        else:
            merged.append(one)
    if len(merged) <= most:
        return merged
    gaps = sorted(range(1, len(merged)), key=lambda n: merged[n].first - merged[n - 1].end, reverse=True)
    cuts = [0, *sorted(gaps[: most - 1]), len(merged)]
    return [TimeRange(merged[a].first, merged[b - 1].end) for a, b in pairwise(cuts)]


def aligned(ranges: Sequence[TimeRange], length: int, every: int) -> list[TimeRange]:
    """From the begin of the first to the end of the last window that each range has a part in: of ``length``, one
    beginning ``every`` so often, aligned to 0."""
    wide = (
        TimeRange(first - first % every - (length - every), end - 1 - (end - 1) % every + length)
        for first, end in ranges
    )
    return joined(wide, max(1, len(ranges)))


def text(name: str) -> str:
    """The name as SQL. ``$`` is written as its number: Spark replaces ``${…}`` by its settings, in quotes too."""
    quoted = name.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{quoted}'"


def named(column: str, names: Collection[str]) -> str:
    """SQL that is true where the column has one of the names. It may be true for names between them: Delta passes
    files over by the first and the last of a list alone, so these are ranges, few enough to be written."""
    if any(_NO_TEXT in name for name in names):
        return "true"  # what the name is nobody knows here
    ordered = sorted(set(names), key=str.encode)  # as Spark and Delta compare
    step = max(1, -(-len(ordered) // MOST_RANGES))
    parts = (ordered[at : at + step] for at in range(0, len(ordered), step))
    return " OR ".join(f"{column} BETWEEN {text(part[0])} AND {text(part[-1])}" for part in parts) or "false"


def between(column: str, first: bytes, last: bytes) -> str:
    """SQL that is true where the column has one of two names, in UTF-8, or one between them."""
    try:
        return f"{column} BETWEEN {text(first.decode())} AND {text(last.decode())}"
    except UnicodeDecodeError:
        return "true"  # such a name cannot be written
