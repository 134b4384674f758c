"""What does not fit: readings of one signal against those before, and a device's silence against its habit.

Pure Python without Spark: a :class:`SignalModel` per device and signal, a :class:`Habit` per device, both small. All
calls are quick and do no I/O; one thread at a time may use one.

A reading's score is its distance from the mean of its hour of the day, in units of what is usual for the signal. An
incident that goes further moves the usual, which then fades back. Found are outliers; levels, the mean of the last
readings off though no single one may be; and stuck sensors. One alert per incident. docs/streaming.md has the figures.
What is learned does not depend on ``threshold``.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import copysign, inf, log, nan, sqrt
from typing import Final, Literal, NamedTuple

MAD_TO_DEVIATION: Final = 1.4826  # a normal distribution's standard deviation in units of its median absolute deviation

SLOTS: Final = 48  # hours of a working day, then hours of a Saturday or Sunday, in UTC
SIDES: Final = 4  # of an incident: a reading above, one below, the mean of the last readings above, the same below
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US
_WEEK_US: Final = 7 * _DAY_US
_DAY_WEIGHT: Final = 0.3  # of a day's readings of one hour in that hour's mean: the last three days are two thirds
_MOST_COUNTED: Final = 255  # readings of an hour up to which its mean is the plain mean; one byte
_MEMORY: Final = 5000
"""Readings of which the deviation is made, and after which the usual has faded by half; at least a week of them. At one
reading in 5 minutes it is 17 days: rare faults are remembered from one week to the next."""
_FIRST: Final = 10  # readings that are learned from more freely; a deviation of fewer is chance
_CLIP: Final = 5.0  # deviations by which a reading counts at most when it is learned from: no outlier becomes normal
_USUAL: Final = 3.0  # deviations, for every signal; a normal distribution goes beyond them once in 400 readings
_USUAL_MEAN: Final = 2.0  # the same of the mean of the last readings: 2 in nearly all of them are no chance
_LEAST: Final = (_USUAL, _USUAL, _USUAL_MEAN, _USUAL_MEAN)
_MOST: Final = 30.0
"""Deviations beyond which no reading is further off: a broken one of any size leaves the next one to be found. Nor does
one of the first readings count for more when it is learned from."""
_STEP: Final = 0.2
"""Of the way from the usual to an incident's peak, how far the incident moves the usual. One incident does not hide the
next of its kind; five or more close to each other do."""
_MEAN_WEIGHT: Final = 0.02  # of a reading, in the mean of the last readings: about 50 count
_RUN: Final = 20  # readings in a row far off to one side that are another level: the deviation leaves them out
_QUIET: Final = 25  # readings that end an incident: half of those that the mean is of
_RUNS: Final = 20  # changes of value before a signal can be stuck
_LN2: Final = log(2)

_GAPS: Final = 32
_FEWEST_GAPS: Final = 8
_USUAL_QUANTILE: Final = 0.9
"""Of the gaps between a device's messages. Devices that send in bursts have many short gaps and a few long ones, and
the long ones are their habit; but three outages among 32 gaps are not."""
_FIRST_LOOK: Final = 0.5
_NEXT_LOOK: Final = 0.25
"""Of the limit, how much a look at a silent device may count: so two outages between two messages count for less."""

Kind = Literal["outlier", "level", "stuck", "silence", "score"]


@dataclass(frozen=True, slots=True)
class Limits:
    """When something is an anomaly. Docs of each: ``AnomalySettings``. Times in microseconds."""

    threshold: float = 1.3
    warm_up: int = 60
    stuck_after: int = 60
    scale_share: float = 0.005
    min_scale: Mapping[str, float] = field(default_factory=dict)
    silence_factor: float = 5.0
    min_silence_us: int = 120 * 1_000_000


class Verdict(NamedTuple):
    """What is said of one reading."""

    kind: Kind
    score: float  # how far it, or the mean of the last readings, is off, in units of what is usual
    expected: float  # what it was compared with, in the signal's unit, as is the deviation
    deviation: float


class Silence(NamedTuple):
    """A device that said nothing for ``silent_us`` of the stream's own time, and at most ``usual_us`` usually."""

    silent_us: int
    usual_us: int


def severity(kind: Kind, score: float, limits: Limits) -> str:
    """``critical`` from twice the threshold on; ``info`` for a score that is no anomaly."""
    if kind == "score":
        return "info"
    return "critical" if kind == "outlier" and score >= 2 * limits.threshold else "warning"


@dataclass(slots=True, eq=False)
class SignalModel:
    """What is known of one signal of one device, and what its next reading is compared with. Spark's state has the
    fields behind the first two, in this order."""

    _limits: Limits
    min_scale: float = 0.0
    means: list[float] = field(default_factory=lambda: [0.0] * SLOTS)
    counts: bytearray = field(default_factory=lambda: bytearray(SLOTS))  # readings of each mean, up to _MOST_COUNTED
    variance: float = 0.0
    readings: int = 0
    newest_us: int = 0
    slot: int = 0  # of the last reading
    mean_off: float = 0.0  # mean distance of the last readings, in deviations
    usual: list[float] = field(default_factory=lambda: list(_LEAST))  # distances, in deviations
    peaks: list[float] = field(default_factory=lambda: [0.0] * SIDES)  # of the incidents that go on; 0: none does
    calm: bytearray = field(default_factory=lambda: bytearray(SIDES))  # readings of each since one was far off
    off_run: int = 0  # readings in a row that were far above (negative: below)
    off_sum: float = 0.0  # their distances together, in the signal's unit
    run_from_us: int = 0  # when the first of them was
    quiet: int = _QUIET  # readings since the last one at or above the threshold, up to _QUIET
    last: float = nan
    repeats: int = 0  # how often the last value came in a row
    longest: int = 0  # the most an earlier value did
    runs: int = 0  # how often the value changed

    def judge(self, when_us: int, value: float) -> Verdict | None:  # when_us: the reading's own time
        """The verdict on the next reading, which is then learned from; None for the first ``warm_up`` readings."""
        limits = self._limits
        slot = self._begin(when_us // _HOUR_US, value)
        passed_us = max(when_us - self.newest_us, 0) if self.readings else 0
        self.newest_us = max(self.newest_us, when_us)
        fade = min(1 / _MEMORY, passed_us / _WEEK_US)  # what this reading weighs at least in the spread
        self.readings += 1
        learned = value
        if self.readings == 3:  # one of the first may be a power-on value, or broken: the two count that are closest
            low, middle, high = sorted((self.means[slot], self.last, value))
            self.counts = bytearray(SLOTS)
            self.counts[slot], self.means[slot] = 1, middle
            learned = low if middle - low < high - middle else high
        expected = self.means[slot]
        off = learned - expected
        deviation = max(sqrt(self.variance), self.min_scale or limits.scale_share * abs(expected))
        is_stuck = self._count_repeats(value)
        verdict = None
        if self.readings > limits.warm_up:
            distance = off / deviation if deviation else copysign(_MOST, off) if off else 0.0
            self._count_run(off, distance, when_us)
            single, together = self._scores(min(max(distance, -_MOST), _MOST), 1.0 - _LN2 * fade)
            kind = self._kind(single, together)
            if is_stuck and kind == "score":
                kind = "stuck"
            verdict = Verdict(kind, max(single, together), expected, deviation)
            if abs(self.off_run) >= limits.warm_up and when_us - self.run_from_us >= _DAY_US:
                off -= self._move()  # the run is the new normal level
        # What only repeats is no news: it would narrow the spread.
        if self.readings > 2 and (self.runs < _RUNS or self.repeats <= max(_QUIET, self.longest)):
            self._learn(off, deviation, fade, passed_us)
        return verdict

    def _begin(self, hours: int, value: float) -> int:
        """The slot of an hour since 1970. A new one begins with what is known: the mean of the same hour of working
        days, else that of the last reading's hour."""
        slot = hours % 24
        if (hours // 24 + 3) % 7 >= 5:  # 1970 began on a Thursday
            slot += 24
        counts, means = self.counts, self.means
        if not counts[slot]:
            known = slot - 24 if slot >= 24 and counts[slot - 24] else self.slot
            means[slot] = means[known] if self.readings else value
            counts[slot] = 1
        self.slot = slot
        return slot

    def _scores(self, distance: float, kept: float) -> tuple[float, float]:
        """Scores, 0 or more, of the reading and of the mean of the last ones. ``kept``: factor of what is usual."""
        mean = self.mean_off = self.mean_off + _MEAN_WEIGHT * (distance - self.mean_off)
        usual, peaks, calm = self.usual, self.peaks, self.calm
        for side, far in enumerate((distance, -distance, mean, -mean)):
            least = _LEAST[side]
            if usual[side] > least:
                usual[side] = max(usual[side] * kept, least)
            if far >= least:
                calm[side] = 0
                peaks[side] = max(peaks[side], far)
            elif peaks[side]:
                calm[side] += 1
                if calm[side] == _QUIET:
                    usual[side] += _STEP * max(peaks[side] - usual[side], 0.0)
                    peaks[side] = 0.0
        return (
            distance / usual[0] if distance > 0 else -distance / usual[1],
            mean / usual[2] if mean > 0 else -mean / usual[3],
        )

    def _kind(self, single: float, together: float) -> Kind:  # the scores
        """What kind of incident begins with this reading; ``score`` where none does."""
        threshold = self._limits.threshold
        is_far = single >= threshold or together >= threshold
        begins = is_far and self.quiet == _QUIET
        self.quiet = 0 if is_far else min(self.quiet + 1, _QUIET)
        if not begins:
            return "score"
        return "outlier" if single >= threshold else "level"

    def _learn(self, off: float, deviation: float, fade: float, passed_us: int) -> None:
        """Takes a reading that is ``off`` its slot's mean into mean and variance; ``fade``: its least weight there."""
        if deviation:
            most = (_CLIP if self.readings > _FIRST else _MOST) * deviation
            off = min(max(off, -most), most)
        elif off * off == inf:  # not clipped, as nothing is known yet: the variance would stay infinite
            return
        if abs(self.off_run) < _RUN:
            self.variance += max(1 / (self.readings + 1), fade) * (off * off - self.variance)  # fade: its least weight
        weight = _DAY_WEIGHT * min(passed_us / _HOUR_US, 1.0)
        count = self.counts[self.slot]
        if count < _MOST_COUNTED:
            self.counts[self.slot] = count = count + 1
            weight = max(weight, 1 / count)
        self.means[self.slot] += weight * off

    def _count_run(self, off: float, distance: float, when_us: int) -> None:  # distance: off in deviations
        """Keeps for how long, and how far, readings have been off to one side."""
        side = int(distance >= _USUAL) - int(distance <= -_USUAL)
        if side * self.off_run > 0:
            self.off_run += side
            self.off_sum += off
        else:
            self.off_run, self.off_sum, self.run_from_us = side, off, when_us

    def _move(self) -> float:
        """Takes the level of the run for the normal one; returns by how much it differs."""
        moved = self.off_sum / abs(self.off_run)
        # Working days and weekends apart, or the first weekend would take the working days along.
        days = slice(0, 24) if self.slot < 24 else slice(24, SLOTS)
        self.means[days] = [mean + moved for mean in self.means[days]]
        self.off_run, self.mean_off = 0, 0.0
        return moved

    def _count_repeats(self, value: float) -> bool:
        """Counts how often each value comes in a row. True, once for each time, when this one becomes stuck."""
        if value == self.last:
            self.repeats += 1
            return self.runs >= _RUNS and self.repeats == self._stuck_from()
        if self.repeats:
            self.runs += 1
            if self.runs < _RUNS or self.repeats < self._stuck_from():  # a stuck time is no habit
                self.longest = max(self.longest, self.repeats)
        self.last, self.repeats = value, 1
        return False

    def _stuck_from(self) -> int:
        return max(self._limits.stuck_after, 4 * self.longest)


@dataclass(slots=True, eq=False)
class Habit:
    """How often a device speaks, and for how long it has not.

    Gaps are measured between receive times. Silence is counted on the stream's clock, which stands still when nothing
    comes from anybody. Where that clock jumps, a look counts no more than what had been planned until it, so an outage
    is nobody's silence. Spark's state has the fields behind the first two, in this order.
    """

    _limits: Limits
    gaps: deque[int] = field(default_factory=lambda: deque(maxlen=_GAPS))
    last_received_us: int = 0
    last_event_us: int = 0
    counted_to_us: int = 0  # to where the stream's clock is counted as silence or was heard
    silent_us: int = 0  # counted since the device was heard
    look_at_us: int = 0  # when the next look was planned; 0: none is
    reported: bool = False

    def heard(self, received_us: int, event_us: int, clock_us: int) -> None:
        """Notes a message, and the gap since the last one. ``clock_us``: the stream's clock then."""
        if self.last_received_us and received_us > self.last_received_us:
            self.gaps.append(received_us - self.last_received_us)
        self.last_received_us = max(self.last_received_us, received_us)
        self.last_event_us = max(self.last_event_us, event_us)
        self.counted_to_us = max(self.counted_to_us, clock_us)
        self.silent_us, self.reported = 0, False

    @property
    def usual_us(self) -> int | None:
        """The gap that nine in ten are not longer than; None as long as too few are known."""
        if len(self.gaps) < _FEWEST_GAPS:
            return None
        return sorted(self.gaps)[int(_USUAL_QUANTILE * (len(self.gaps) - 1))]

    def _limit_us(self, usual_us: int) -> int:
        return max(round(self._limits.silence_factor * usual_us), self._limits.min_silence_us)

    def _step_us(self, usual_us: int) -> int:  # how much the next look may count
        return max(1, round((_NEXT_LOOK if self.silent_us else _FIRST_LOOK) * self._limit_us(usual_us)))

    def plan(self) -> int | None:
        """When to look for silence next, on the stream's clock. None: planned already, reported, or gaps too few."""
        usual_us = self.usual_us
        if self.look_at_us or self.reported or usual_us is None:
            return None
        self.look_at_us = self.counted_to_us + self._step_us(usual_us)
        return self.look_at_us

    def look(self, now_us: int) -> Silence | None:
        """The silence, once, where it has become one by a planned look. Plan again afterwards. ``now_us``: the stream's
        clock, which may be far past the look."""
        planned, self.look_at_us = self.look_at_us, 0
        usual_us = self.usual_us
        if usual_us is None or self.reported:
            return None
        step_us = self._step_us(usual_us)
        if planned < self.counted_to_us + step_us:
            return None  # it has spoken since the look was planned
        self.silent_us += step_us
        self.counted_to_us = max(planned, now_us)
        self.reported = self.silent_us >= self._limit_us(usual_us)
        return Silence(self.silent_us, usual_us) if self.reported else None
