"""What does not fit: readings of one signal against those before, and a device's silence against its habit.

Pure Python without Spark: a :class:`SignalWindow` per device and signal, a :class:`Habit` per device, both small and
packed into bytes by ``streaming.detector_state``. All calls are quick and do no I/O; one thread at a time may use one.

What is found, and what is not:

- **spikes and dropouts**: a reading far from the median of the window that also jumped away from the one before;
- **steps**: the first readings on the new level, until ``warm_up`` of them in a row make it the new normal, which is
  one alert of kind ``level``. Levels that were lived in for a whole window are remembered, the last four: coming back
  to one is none;
- **stuck sensors**: one exact value for far longer than this signal ever kept one, if it had been changing;
- not **drift**: what moves slower than its own noise takes the median along with it. Aggregates over days show drift;
- not a fault that was there from the first reading on: there is nothing to compare it with.

An anomalous reading is not added to the window it was judged by, so a burst of them does not become normal by widening
it; only a whole run does, by taking the window's place.
"""

from __future__ import annotations

__all__ = ["MAD_TO_DEVIATION", "Habit", "Limits", "SignalWindow", "Silence", "Verdict", "severity"]

from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

MAD_TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation in units of its median absolute deviation (MAD)."""

_LEVELS = 4
_GAPS = 32
_FEWEST_GAPS = 8
_USUAL_QUANTILE = 0.9
"""Of the gaps between a device's messages. Devices that send in bursts have many short gaps and a few long ones, and
the long ones are their habit; but three outages among 32 gaps are not."""
_FIRST_LOOK = 0.5
_NEXT_LOOK = 0.25
"""Of the limit, how much a look at a silent device may count at once. Two outages between two messages of a device that
is alive count for less than its limit that way."""

Kind = Literal["outlier", "level", "stuck", "silence", "score"]


@dataclass(frozen=True, slots=True)
class Limits:
    """When something is an anomaly. Docs of each: ``config.stream_jobs.AnomalySettings``. Times in microseconds."""

    threshold: float = 6.0
    window: int = 60
    window_us: int = 7 * 86_400 * 1_000_000
    warm_up: int = 20
    stuck_after: int = 60
    scale_share: float = 0.005
    min_scale: Mapping[str, float] = field(default_factory=dict)
    silence_factor: float = 5.0
    min_silence_us: int = 120 * 1_000_000


class Verdict(NamedTuple):
    """What is said of one reading. ``score``: how many robust standard deviations it is from the median of the readings
    before it; ``mad``: their median absolute deviation; both and ``median`` in the signal's unit."""

    kind: Kind
    score: float
    median: float
    mad: float
    run: int = 0
    """Of an outlier, which one in a row it is: 1 is the first. 0 for what is none."""


class Silence(NamedTuple):
    """A device that said nothing for ``silent_us`` of the stream's own time, and at most ``usual_us`` usually."""

    silent_us: int
    usual_us: int


def severity(kind: Kind, score: float, limits: Limits) -> str:
    """``critical`` from twice the threshold on; ``info`` for a score that is no anomaly."""
    if kind == "score":
        return "info"
    return "critical" if kind == "outlier" and score >= 2 * limits.threshold else "warning"


def median_of(ordered: list[float]) -> float:
    """The median of sorted numbers, at least one."""
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2


def mad_of(ordered: list[float], median: float) -> float:
    """The median distance of sorted numbers from their median, in O(log n)."""
    count = len(ordered)
    below = bisect_left(ordered, median)
    half, odd = divmod(count, 2)
    upper = _nearest(ordered, median, below, half + 1)
    return upper if odd else (_nearest(ordered, median, below, half) + upper) / 2


def _nearest(ordered: list[float], median: float, below: int, rank: int) -> float:
    """The ``rank``-th smallest distance from the median. Left and right of it distances are sorted already, so how many
    of the nearest lie left can be found by halving."""
    low, high = max(0, rank - (len(ordered) - below)), min(rank, below)
    while low < high:
        left = (low + high) // 2  # take so many from the left, the others from the right
        if median - ordered[below - left - 1] < ordered[below + rank - left - 1] - median:
            low = left + 1
        else:
            high = left
    right = rank - low
    return max(
        median - ordered[below - low] if low else 0.0,
        ordered[below + right - 1] - median if right else 0.0,
    )


class SignalWindow:
    """The last readings of one signal of one device, and what the next one is measured by."""

    __slots__ = ("_deltas", "_limits", "_ordered", "_ordered_deltas", "aside", "last", "levels", "lived",
                 "longest", "min_scale", "readings", "repeats", "runs")  # fmt: skip

    def __init__(self, limits: Limits, signal: str = "") -> None:
        self._limits = limits
        self.min_scale = limits.min_scale.get(signal, 0.0)
        self.readings: deque[tuple[int, float]] = deque()
        """Event time in microseconds and value, as they came, anomalies left out."""
        self.aside: list[tuple[int, float]] = []
        """Readings far from the window's median, one behind the other: a level in the making."""
        self.levels: deque[tuple[float, float]] = deque(maxlen=_LEVELS)
        """Median and scale of levels that were normal for long before they were left."""
        self.lived = 0
        """How many readings the window has taken since it was begun, up to its length."""
        self.last: float | None = None
        self.repeats = 0
        """How often the last value came in a row."""
        self.longest = 0
        """The most an earlier value did, before the current one."""
        self.runs = 0
        """How often the value changed."""
        self._ordered: list[float] = []
        self._deltas: deque[float] = deque()
        self._ordered_deltas: list[float] = []

    def restore(self, readings: list[tuple[int, float]]) -> None:
        """Takes the readings of a window that was kept elsewhere."""
        kept = readings[-self._limits.window :]
        values = [value for _, value in kept]
        self.readings = deque(kept)
        self._ordered = sorted(values)
        self._deltas = deque([abs(after - before) for before, after in pairwise(values)])
        self._ordered_deltas = sorted(self._deltas)

    def judge(self, when_us: int, value: float) -> Verdict | None:
        """What is to be said of the next reading, and remembers it. None while the window is warming up, and for a
        reading older than the whole window's time: it belongs to another time than those it would be measured by."""
        limits = self._limits
        readings = self.readings
        if readings:
            newest = readings[-1][0]
            if when_us < newest - limits.window_us:
                return None
            oldest_kept = when_us - limits.window_us
            while readings and readings[0][0] < oldest_kept:
                self._drop()
        kind: Kind
        previous, repeated = self.last, self._count_repeats(value)
        if len(readings) < limits.warm_up:
            self.aside.clear()
            self._add(when_us, value)
            return None
        ordered = self._ordered
        median = median_of(ordered)
        mad = mad_of(ordered, median)
        scale = self._scale(median, mad)
        score = abs(value - median) / scale if scale else (0.0 if value == median else float("inf"))
        if score >= limits.threshold and (self.aside or self._jumped(value, previous, scale)):
            kind = self._hold_aside(when_us, value, median, scale)
            return Verdict(kind, score, median, mad, len(self.aside) if kind == "outlier" else 0)
        self.aside.clear()
        kind = "score"
        if repeated and self.runs >= limits.warm_up:
            if self.repeats == self._stuck_from():
                kind = "stuck"  # told once
            if self.repeats > max(limits.window // 4, self.longest):
                return Verdict(kind, score, median, mad)  # no news of the signal: it would only narrow the window
        self._add(when_us, value)
        return Verdict(kind, score, median, mad)

    def _scale(self, median: float, mad: float) -> float:
        """One robust standard deviation. Where more than half of the window is one value, MAD is 0; then it is the
        distance to the nearest other value (what the sensor can resolve), and at least the floor, always."""
        scale = mad * MAD_TO_DEVIATION if mad else self._resolution(median)
        return max(scale, self.min_scale or self._limits.scale_share * abs(median))

    def _resolution(self, median: float) -> float:
        ordered = self._ordered
        above, below = bisect_right(ordered, median), bisect_left(ordered, median)
        steps = []
        if above < len(ordered):
            steps.append(ordered[above] - median)
        if below:
            steps.append(median - ordered[below - 1])
        return min(steps, default=0.0)

    def _jumped(self, value: float, previous: float | None, scale: float) -> bool:
        """Whether the way from the reading before is out of the usual too. A slow change of a quiet signal (a room that
        begins to be heated) leaves its median far behind without ever jumping, and is none."""
        if previous is None or not self._ordered_deltas:
            return True
        usual = max(median_of(self._ordered_deltas) * MAD_TO_DEVIATION, scale / 2)
        return abs(value - previous) >= self._limits.threshold * usual

    def _hold_aside(self, when_us: int, value: float, median: float, scale: float) -> Kind:
        """Remembers a reading beside the window; the last of a run makes the run the window."""
        limits = self._limits
        known = any(abs(value - level) < limits.threshold * width for level, width in self.levels)
        self.aside.append((when_us, value))
        if len(self.aside) < limits.warm_up:
            return "score" if known else "outlier"
        if self.lived >= limits.window:
            self.levels.append((median, scale))
        run, self.aside, self.lived = self.aside, [], 0
        self.readings.clear()
        self._ordered.clear()
        self._deltas.clear()
        self._ordered_deltas.clear()
        for moment, held in run:
            self._add(moment, held)
        return "score" if known else "level"

    def _count_repeats(self, value: float) -> bool:
        """Keeps how long values last; whether this one is the last one again."""
        if value == self.last:
            self.repeats += 1
            return True
        if self.last is not None:
            self.runs += 1
            if not self._is_stuck():  # a sensor that was stuck once may be so again, and is told again
                self.longest = max(self.longest, self.repeats)
        self.last, self.repeats = value, 1
        return False

    def _stuck_from(self) -> int:
        return max(self._limits.stuck_after, 4 * self.longest)

    def _is_stuck(self) -> bool:
        return self.runs >= self._limits.warm_up and self.repeats >= self._stuck_from()

    def _add(self, when_us: int, value: float) -> None:
        if self.readings:
            delta = abs(value - self.readings[-1][1])
            self._deltas.append(delta)
            insort(self._ordered_deltas, delta)
        self.readings.append((when_us, value))
        insort(self._ordered, value)
        self.lived = min(self.lived + 1, self._limits.window)
        if len(self.readings) > self._limits.window:
            self._drop()

    def _drop(self) -> None:
        _, value = self.readings.popleft()
        del self._ordered[bisect_left(self._ordered, value)]
        if self._deltas:
            delta = self._deltas.popleft()
            del self._ordered_deltas[bisect_left(self._ordered_deltas, delta)]


class Habit:
    """How often a device speaks, and for how long it has not.

    Two clocks: gaps are measured between receive times; silence is counted on the stream's clock, which stands still
    when nothing comes from anybody. Where that clock jumps (the first records after an outage, a backlog read at once),
    a look counts no more than what had been planned until it, so an outage is nobody's silence.
    """

    __slots__ = ("_limits", "counted_to_us", "gaps", "last_event_us", "last_received_us", "look_at_us", "silent_us",
                 "told")  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.gaps: deque[int] = deque(maxlen=_GAPS)
        self.last_received_us = 0
        self.last_event_us = 0
        self.counted_to_us = 0
        self.silent_us = 0
        self.look_at_us = 0
        """When the next look was planned; 0: none is."""
        self.told = False

    def heard(self, received_us: int, event_us: int, clock_us: int) -> None:
        """The device spoke. ``clock_us``: the stream's clock then."""
        if self.last_received_us:
            gap = received_us - self.last_received_us
            if gap > 0:
                self.gaps.append(gap)
        self.last_received_us = max(self.last_received_us, received_us)
        self.last_event_us = max(self.last_event_us, event_us)
        self.counted_to_us = max(self.counted_to_us, clock_us)
        self.silent_us = 0
        self.told = False

    @property
    def usual_us(self) -> int | None:
        """The longest of its usual gaps; None as long as too few are known."""
        if len(self.gaps) < _FEWEST_GAPS:
            return None
        return sorted(self.gaps)[int(_USUAL_QUANTILE * (len(self.gaps) - 1))]

    def _limit_us(self, usual_us: int) -> int:
        return max(round(self._limits.silence_factor * usual_us), self._limits.min_silence_us)

    def plan(self) -> int | None:
        """When to look again, on the stream's clock, if that is not planned already; remembers it as planned."""
        usual_us = self.usual_us
        if self.look_at_us or self.told or usual_us is None:
            return None
        share = _NEXT_LOOK if self.silent_us else _FIRST_LOOK
        self.look_at_us = self.counted_to_us + max(1, round(share * self._limit_us(usual_us)))
        return self.look_at_us

    def look(self, now_us: int) -> Silence | None:
        """A planned look has come; the silence, once, if it has become one. Plan again afterwards. ``now_us``: the
        stream's clock, which may be far past the look."""
        planned, self.look_at_us = self.look_at_us, 0
        usual_us = self.usual_us
        if usual_us is None or self.told:
            return None
        limit_us = self._limit_us(usual_us)
        share = _NEXT_LOOK if self.silent_us else _FIRST_LOOK
        step_us = max(1, round(share * limit_us))
        if planned < self.counted_to_us + step_us:
            return None  # it has spoken since the look was planned
        self.silent_us += step_us
        self.counted_to_us = max(planned, now_us)
        if self.silent_us < limit_us:
            return None
        self.told = True
        return Silence(self.silent_us, usual_us)
