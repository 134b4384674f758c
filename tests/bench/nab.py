"""The Numenta Anomaly Benchmark (Lavin & Ahmad 2015): its series, its standard profile, and two plain detectors.

A detection inside a labelled window counts the more the earlier it is: a sigmoid of its place in the window, 1 at the
window's begin. Only the first in a window counts. A window without one counts -1. A detection outside costs up to 0.11,
little right after a window and most far from it. Nothing counts in the probation: the first 15 % of a series, at most
750 readings. The sum is normalised: 0 is what finding nothing gives, 100 what finding every window at once gives. The
threshold is chosen once for all series, as the benchmark does.

Added to it, and the same for all detectors here: of readings at the threshold with fewer than 25 below it between them
only the first counts, as the job writes one alert per incident.
"""

import csv
import json
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_FALSE_WEIGHT: Final = 0.11
_PROBATION: Final = 0.15
_MOST_PROBATION: Final = 750
QUIET: Final = 25
_THRESHOLDS: Final = 250
_GAUSSIAN_WINDOW: Final = 6400
_GAUSSIAN_STEP: Final = 100
_ROLLING: Final = 60

Scores = dict[str, list[float]]
"""A score for each reading, by series."""


@dataclass(frozen=True, slots=True)
class Series:
    """One signal and its labelled windows, each as the places of its first and last reading."""

    name: str
    readings: Sequence[tuple[int, float]]
    """Event time in microseconds, value."""
    windows: Sequence[tuple[int, int]]

    @property
    def probation(self) -> int:
        """Readings at the begin that do not count."""
        return math.floor(min(_PROBATION * len(self.readings), _MOST_PROBATION))

    def weight(self, at: int) -> tuple[int | None, float]:
        """The window that a reading lies in, if any, and what a detection there counts."""
        past = None
        for number, (first, last) in enumerate(self.windows):
            if first <= at <= last:
                return number, _sigmoid(-(last - at + 1) / (last - first + 1)) / _sigmoid(-1.0)
            if last < at:
                past = first, last
        if past is None:
            return None, -1.0
        return None, _sigmoid((at - past[1]) / max(past[1] - past[0], 1))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What detections are worth: the normalised score, windows found of those labelled, detections outside of any."""

    nab: float
    found: int
    windows: int
    false: int

    @property
    def precision(self) -> float:
        """Windows found, of windows found and false detections."""
        return self.found / (self.found + self.false) if self.found else 0.0

    @property
    def recall(self) -> float:
        """Windows found, of all."""
        return self.found / self.windows if self.windows else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of the two."""
        return 2 * self.precision * self.recall / (self.precision + self.recall) if self.found else 0.0


def load(folder: Path) -> list[Series]:
    """The series of a folder with ``windows.json`` and ``data/<group>/<series>.csv``. Raises OSError."""
    labels = json.loads((folder / "windows.json").read_text(encoding="utf-8"))
    return [_series(name, folder / "data" / name, windows) for name, windows in sorted(labels.items())]


def _series(name: str, file: Path, labels: Sequence[tuple[str, str]]) -> Series:
    with file.open(encoding="utf-8", newline="") as lines:
        readings = [(_micros(row["timestamp"]), float(row["value"])) for row in csv.DictReader(lines)]
    windows = []
    for begin, end in labels:
        inside = [at for at, (when, _) in enumerate(readings) if _micros(begin) <= when <= _micros(end)]
        windows.append((inside[0], inside[-1]))
    return Series(name, readings, sorted(windows))


def _micros(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)


def _sigmoid(place: float) -> float:
    """Of a place relative to a window's end, in window lengths: below 0 it lies inside."""
    return -1.0 if place > 3 else 2 / (1 + math.exp(5 * place)) - 1


def outcome(series: Sequence[Series], detections: Mapping[str, Sequence[int]]) -> Outcome:
    """What detections, as places in each series, are worth by the standard profile."""
    windows = sum(len(one.windows) for one in series)
    total, found, false = 0.0, 0, 0
    for one in series:
        inside: dict[int, float] = {}
        for at in detections.get(one.name, ()):
            if at < one.probation:
                continue
            window, weight = one.weight(at)
            if window is None:
                total += _FALSE_WEIGHT * weight
                false += 1
            else:
                inside[window] = max(inside.get(window, -1.0), weight)
        total += sum(inside.values()) - (len(one.windows) - len(inside))
        found += len(inside)
    return Outcome(100 * (total + windows) / (2 * windows), found, windows, false)


def incidents(scores: Sequence[tuple[int, float]], threshold: float) -> Iterator[int]:
    """Where incidents begin: of readings at the threshold those with enough below it before them."""
    last = -QUIET - 1
    for at, score in scores:
        if score >= threshold:
            if at - last > QUIET:
                yield at
            last = at


def best(series: Sequence[Series], scores: Scores) -> tuple[float, Outcome]:
    """The threshold, one for all series, that scores highest, and what it gives."""
    ordered = sorted((score for values in scores.values() for score in values if score > 0), reverse=True)
    count = max(len(ordered) // 5, 1)  # more than every fifth reading is no anomaly
    tried = {ordered[min(int(count ** (step / _THRESHOLDS)), count) - 1] for step in range(_THRESHOLDS + 1)}
    lowest = min(tried)
    high = {
        name: [(at, score) for at, score in enumerate(values) if score >= lowest] for name, values in scores.items()
    }
    outcomes = (
        (threshold, outcome(series, {name: list(incidents(values, threshold)) for name, values in high.items()}))
        for threshold in sorted(tried)
    )
    return max(outcomes, key=lambda one: one[1].nab)


def scored_by(series: Sequence[Series], detector: Callable[[], Callable[[int, float], float]]) -> Scores:
    """The scores of a new detector for each series: a function of time and value."""
    found = {}
    for one in series:
        judge = detector()
        found[one.name] = [judge(when_us, value) for when_us, value in one.readings]
    return found


def windowed_gaussian() -> Callable[[int, float], float]:
    """NAB's: how improbable a reading is in a normal distribution of the last 6,400, which move on by 100 at a time."""
    window: deque[float] = deque()
    waiting: list[float] = []
    zero = total = squares = mean = 0.0
    deviation = 1.0

    def judge(_when_us: int, value: float) -> float:
        nonlocal zero, total, squares, mean, deviation
        score = 1 - 0.5 * math.erfc(abs(value - mean) / deviation / math.sqrt(2)) if window else 0.0
        zero = zero if window else value
        waiting.append(value)
        if len(window) >= _GAUSSIAN_WINDOW and len(waiting) < _GAUSSIAN_STEP:
            return score
        for one in waiting:
            window.append(one)
            total, squares = total + one - zero, squares + (one - zero) ** 2
        waiting.clear()
        while len(window) > _GAUSSIAN_WINDOW:
            old = window.popleft() - zero
            total, squares = total - old, squares - old**2
        middle = total / len(window)
        mean, deviation = zero + middle, math.sqrt(max(squares / len(window) - middle**2, 0.0)) or 1e-6
        return score

    return judge


def rolling_z() -> Callable[[int, float], float]:
    """The two lines of pandas: the distance from the mean of the last 60 readings in their standard deviations."""
    window: deque[float] = deque(maxlen=_ROLLING)

    def judge(_when_us: int, value: float) -> float:
        score = 0.0
        if len(window) == _ROLLING:
            deviation = statistics.stdev(window)
            score = abs(value - statistics.fmean(window)) / deviation if deviation else 0.0
        window.append(value)
        return score

    return judge
