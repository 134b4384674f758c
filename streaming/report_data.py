"""What a report shows, whatever it was read from. Small on purpose: all lists are bounded by who fills them.

Times are seconds since 1970 (UTC). A section whose table is missing or empty is None, and ``absent`` says why.
"""

from __future__ import annotations

__all__ = [
    "MOST_MARKS",
    "Bars",
    "Finding",
    "Health",
    "Histogram",
    "Mark",
    "Report",
    "Series",
    "Signal",
    "Table",
    "bucket_s",
]

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_MARKS: Final = 50
"""On one signal's plot."""

Point = tuple[float, float]

_NICE_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 604_800)


def bucket_s(span_s: float, most: int) -> int:
    """The shortest round length that cuts a span of time into at most ``most`` pieces."""
    return next((nice for nice in _NICE_S if span_s / nice <= most), max(1, round(span_s / most)))


@dataclass(frozen=True, slots=True)
class Series:
    """A line: points by time."""

    label: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Bars:
    """Counts per stretch of time, stacked: label -> (begin, count)."""

    width_s: float
    stacks: Mapping[str, Sequence[Point]]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many lie in each of some ranges, in their order."""

    ranges: Sequence[str]
    counts: Sequence[int]


class Mark(NamedTuple):
    """An anomalous reading of a signal."""

    time_s: float
    value: float
    kind: str


@dataclass(frozen=True, slots=True)
class Signal:
    """One device's signal: its mean, least and greatest value in stretches of time, and the marks on it."""

    device: str
    name: str
    unit: str
    points: Sequence[tuple[float, float, float, float]]
    """time, least, mean, greatest"""
    marks: Sequence[Mark]
    alerts: int
    """How often it was anomalous; several marks may be of one time."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for reading; numbers are right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | float | None]]
    total: int | None = None
    """How many rows there were before the list was cut."""


@dataclass(frozen=True, slots=True)
class Health:
    """States of devices, and those to look at first."""

    states: Mapping[str, int]
    offenders: Table | None
    events: Bars | None = None


class Finding(NamedTuple):
    """A number for the head of the page; ``bad`` ones are to be looked at."""

    label: str
    value: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page."""

    source: str
    """Where it was read from, in words."""
    made_at_s: float
    begin_s: float | None
    end_s: float | None
    findings: Sequence[Finding] = ()
    health: Health | None = None
    signals: Sequence[Signal] = ()
    anomalies: Table | None = None
    lateness: Histogram | None = None
    quarantine: Bars | None = None
    lost: Table | None = None
    """Sequence numbers that are missing, worst devices first."""
    gaps: Table | None = None
    """Offsets that Kafka had deleted before they were read."""
    audit: Table | None = None
    throughput: Sequence[Series] = ()
    throughput_s: float = 60.0
    """Over how many seconds each of its points is a mean."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Section -> why it has nothing to show."""
    bounds: Sequence[str] = ()
    """What was left out to keep the report small, a sentence each."""
