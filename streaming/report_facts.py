"""What all sources of a report have in common: its bounds, the ranges of lateness, and words for numbers."""

from __future__ import annotations

__all__ = [
    "LATENESS",
    "MOST_POINTS",
    "MOST_ROWS_SHOWN",
    "MOST_SIGNALS",
    "lateness_counts",
    "moment",
    "ranges",
    "stacked",
    "worst_of",
]

from bisect import bisect_right
from collections import Counter, defaultdict
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Final

from streaming.report_data import Bars
from streaming.report_plots import MOST_LABELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_SIGNALS: Final = 12
MOST_POINTS: Final = 400
"""Of a line, whatever time it is over: a page is no wider."""
MOST_ROWS_SHOWN: Final = 25

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


def lateness_counts(delays_s: Iterable[float]) -> list[int]:
    """How many are in each range of :data:`LATENESS`."""
    ends = [end for _, end in LATENESS]
    counts = [0] * len(ends)
    for delay in delays_s:
        counts[min(bisect_right(ends, delay), len(ends) - 1)] += 1
    return counts


def moment(second: float) -> str:
    """``2026-11-21 08:15:30``, UTC."""
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M:%S}"


def ranges(numbers: Sequence[int], most: int = 4) -> str:
    """Sorted numbers in words: ``3, 7 to 12, …``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = [str(low) if low == high else f"{low} to {high}" for low, high in runs[:most]]
    return ", ".join(told) + (", …" if len(runs) > most else "")


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
    own = set(names if len(names) <= MOST_LABELS else names[: MOST_LABELS - 1])
    stacks: dict[str, defaultdict[float, float]] = {
        name: defaultdict(float) for name in [*(name for name in names if name in own), "others"]
    }
    for label, begin, count in rows:
        stacks[label if label in own else "others"][begin] += count
    return Bars(width_s, {label: sorted(points.items()) for label, points in stacks.items() if points})
