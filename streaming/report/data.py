"""What a report shows, whatever it was read from, and the bounds of it: all lists are bounded by who fills them.

Times are seconds since 1970 (UTC). A section whose table is missing or empty has nothing, and ``absent`` says why.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Final, NamedTuple

NOT_JUDGED: Final = "not judged"
MOST_SIGNALS: Final = 12
MOST_MARKS: Final = 50
"""On one signal's plot."""
MOST_POINTS: Final = 400
"""Of a line, whatever time it is over: a page is no wider."""
MOST_ROWS_SHOWN: Final = 25
MOST_LABELS: Final = 8
"""Lines or stacks of one plot that have a colour of their own; the others are put together."""

LATENESS: Final = (
    ("in the future", 0.0),
    ("under 1 s", 1.0),
    ("1 s to 10 s", 10.0),
    ("10 s to 1 min", 60.0),
    ("1 min to 10 min", 600.0),
    ("10 min to 1 h", 3600.0),
    ("1 h to 1 day", 86_400.0),
    ("over 1 day", inf),
)
"""Ranges of the time between a device's clock and the gateway's: label, and where it ends in seconds."""
LATE_S: Final = 300.0

Point = tuple[float, float]
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Bars:
    """Numbers per stretch of time, by label: label -> (begin, number)."""

    width_s: float
    stacks: Mapping[str, Sequence[Point]]


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
    rows: Sequence[Sequence[Cell]]
    total: int | None = None
    """How many rows there were before the list was cut."""


class Finding(NamedTuple):
    """A number for the head of the page; ``bad`` ones are to be looked at."""

    label: str
    value: str
    bad: bool = False


@dataclass(slots=True)
class Report:
    source: str
    """Where it was read from, in words."""
    made_at_s: float
    device: str | None = None
    """The one it is about; None for all."""
    begin_s: float | None = None
    end_s: float | None = None
    findings: list[Finding] = field(default_factory=list)
    states: Mapping[str, int] = field(default_factory=dict)
    """How many devices are in each state."""
    offenders: Table | None = None
    """Devices to look at first."""
    events: Bars | None = None
    """Of devices."""
    signals: Sequence[Signal] = ()
    anomalies: Table | None = None
    lateness: Mapping[str, int] | None = None
    """How many readings are in each range of :data:`LATENESS`."""
    quarantine: Bars | None = None
    deleted: Table | None = None
    """Ranges of offsets that Kafka no longer had when they were to be read."""
    lost: Table | None = None
    """Sequence numbers that are missing, worst devices first."""
    audit: Table | None = None
    throughput: Bars | None = None
    """Readings a second, each a mean of its stretch."""
    absent: dict[str, str] = field(default_factory=dict)
    """Section -> why it has nothing to show."""
    bounds: Sequence[str] = ()
    """What was left out to keep the report small, a sentence each."""


_NICE_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 604_800)


def bucket_s(span_s: float, most: int) -> int:
    """The shortest round length that cuts a span of time into at most ``most`` pieces."""
    return next((nice for nice in _NICE_S if span_s / nice <= most), max(1, round(span_s / most)))


def moment(second: float) -> str:
    """``2026-11-21 08:15``, UTC."""
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M}"


def worst_of(alerts: Mapping[tuple[str, str], int]) -> list[tuple[str, str]]:
    """Device and signal of the most alerts, :data:`MOST_SIGNALS` of them; of one signal at most a third, while there
    are others, or one kind of fault would fill the page."""
    ordered = sorted(alerts, key=lambda key: (-alerts[key], key))
    taken: Counter[str] = Counter()
    first: list[tuple[str, str]] = []
    rest: list[tuple[str, str]] = []
    for key in ordered:
        taken[key[1]] += 1
        (first if taken[key[1]] <= MOST_SIGNALS // 3 else rest).append(key)
    chosen = {*[*first, *rest][:MOST_SIGNALS]}
    return [key for key in ordered if key in chosen]


def stacked(counted: Iterable[tuple[str, float, float]], width_s: float) -> Bars:
    """Counts by label and begin as stacks, the largest first; what has no colour of its own is ``others``."""
    totals: defaultdict[str, float] = defaultdict(float)
    rows = list(counted)
    for label, _, count in rows:
        totals[label] += count
    names = sorted(totals, key=lambda label: (-totals[label], label))
    own = names if len(names) <= MOST_LABELS else names[: MOST_LABELS - 1]
    stacks: dict[str, defaultdict[float, float]] = {name: defaultdict(float) for name in [*own, "others"]}
    for label, begin, count in rows:
        stacks[label if label in own else "others"][begin] += count
    return Bars(width_s, {label: sorted(points.items()) for label, points in stacks.items() if points})


def rates(counts: Bars, begin_s: float, end_s: float) -> Bars:
    """Counts as rates a second, 0 for none; without the first and the last stretch where they are not whole,
    if there are others."""
    width_s = counts.width_s
    first, last = -(-begin_s // width_s) * width_s, end_s // width_s * width_s
    steps = [first + at * width_s for at in range(round((last - first) / width_s))] or [begin_s // width_s * width_s]
    by_label = {label: dict(points) for label, points in counts.stacks.items()}
    return Bars(
        width_s,
        {label: [(step, points.get(step, 0.0) / width_s) for step in steps] for label, points in by_label.items()},
    )
