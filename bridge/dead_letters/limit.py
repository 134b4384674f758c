"""The ceiling on dead letters of a route, as a rate and as a share of its messages.

Dead letters are for single bad messages. Sometimes all messages are bad: a route's template is wrong, a topic's rules
have changed, a fleet sends another format. Every message would then be acknowledged to its device and missing in its
topic. Beyond the ceiling the route stops instead (``route_stops.py``).

Pure: the caller passes the time and the route's number of messages. A good message costs nothing: the number is read at
a dead letter and once a tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, Self

from config.settings import DeadLetterSettings

STEPS = 12  # into which the time looked back on is divided: it is exact to one of them
_SAMPLES = 6 * STEPS  # a step each of the time, and two of the messages; the rest is room, so that thinning is seldom


@dataclass(frozen=True, slots=True)
class DeadLetterLimit:
    """The ceiling, a value; ``meter`` makes the state of one route.

    - ``max_per_second``: dead letters a second, as the mean over ``over_ns``;
    - ``max_share``: dead letters per message over the same time, or over as long as ``min_messages`` take to come;
    - ``retry_after_ns``: how long a stopped route rests before a trial.
    """

    max_per_second: float
    max_share: float
    over_ns: int
    min_messages: int
    retry_after_ns: int

    @classmethod
    def from_settings(cls, settings: DeadLetterSettings) -> Self:
        return cls(
            max_per_second=settings.max_per_second,
            max_share=settings.max_share,
            over_ns=round(settings.over.total_seconds() * 1e9),
            min_messages=settings.min_messages,
            retry_after_ns=round(settings.retry_after.total_seconds() * 1e9),
        )

    def meter(self, now_ns: int, taken: int) -> DeadLetterMeter:
        """A meter for a route. It does not count the ``taken`` messages before now."""
        return DeadLetterMeter(self, now_ns, taken)


@dataclass(frozen=True, slots=True)
class Excess:
    """A ceiling exceeded: ``dead`` of ``messages`` within ``span_ns``, more than ``setting`` allows."""

    setting: Literal["max_per_second", "max_share"]
    dead: int
    messages: int
    span_ns: int


class _Sample(NamedTuple):
    """The counts of a time in which nothing changed."""

    from_ns: int
    until_ns: int
    taken: int
    dead: int


class DeadLetterMeter:
    """Dead letters and messages of one route within the limit's time. Made by ``DeadLetterLimit.meter``."""

    __slots__ = ("_dead", "_known", "_limit", "_samples")

    def __init__(self, limit: DeadLetterLimit, now_ns: int, taken: int) -> None:
        self._limit = limit
        self._dead = 0
        self._known = taken  # messages taken, when last asked
        self._samples = deque([_Sample(now_ns, now_ns, taken, 0)])  # oldest first; the first is where looking back ends

    def tick(self, now_ns: int, taken: int) -> None:
        """Remember the present counts. Call it more than ``STEPS`` times in the limit's time."""
        self._known = taken
        samples, last = self._samples, self._samples[-1]
        if (last.taken, last.dead) == (taken, self._dead):
            samples[-1] = last._replace(until_ns=now_ns)
        elif now_ns - last.until_ns >= self._limit.over_ns // STEPS:
            samples.append(_Sample(now_ns, now_ns, taken, self._dead))
        while len(samples) > 1 and self._reaches(samples[1], now_ns):
            samples.popleft()
        if len(samples) > _SAMPLES:
            self._thin_out(now_ns)

    def _thin_out(self, now_ns: int) -> None:
        """Where a quiet route is looked back on for days, a ``STEPS``-th of the messages is step enough: a sample every
        few seconds for as long as ``min_messages`` take to come would be any number of them."""
        limit, before = self._limit, list(self._samples)
        kept = before[:1]
        for sample, behind in pairwise(before[1:]):
            needed = now_ns - behind.from_ns < limit.over_ns
            if needed or behind.taken - kept[-1].taken > limit.min_messages // STEPS:
                kept.append(sample)
        self._samples = deque((*kept, before[-1]))

    def _reaches(self, sample: _Sample, now_ns: int) -> bool:
        """Whether looking back to this sample is far enough."""
        limit = self._limit
        return now_ns - sample.from_ns >= limit.over_ns and self._known - sample.taken >= limit.min_messages

    def dead(self, now_ns: int, taken: Callable[[], int]) -> Excess | None:
        """Count one more dead letter, and return the ceiling that it exceeds, or None.

        ``taken`` returns the route's messages, this one included. It is called only when the result depends on it."""
        self._dead += 1
        return self._over_rate(now_ns, taken) or self._over_share(now_ns, taken)

    def _over_rate(self, now_ns: int, taken: Callable[[], int]) -> Excess | None:
        """The excess if the window has more than ``max_per_second`` dead letters; None otherwise."""
        limit = self._limit
        since = self._samples[0]
        for sample in self._samples:
            if now_ns - sample.from_ns < limit.over_ns:
                break
            since = sample
        dead, span_ns = self._dead - since.dead, max(limit.over_ns, now_ns - since.until_ns)
        if dead * 1_000_000_000 <= limit.max_per_second * span_ns:
            return None
        return Excess("max_per_second", dead, taken() - since.taken, now_ns - since.until_ns)

    def _over_share(self, now_ns: int, taken: Callable[[], int]) -> Excess | None:
        """The excess if more than ``max_share`` of the window's messages became dead letters; None otherwise. Calls
        ``taken``, the number of all messages, only if the last known number does not decide."""
        limit, since = self._limit, self._samples[0]
        dead = self._dead - since.dead
        if dead <= limit.max_share * max(limit.min_messages, self._known - since.taken):
            return None  # nor with the messages that came since: they only make the share smaller
        self._known = taken()
        messages = self._known - since.taken
        if messages < limit.min_messages or dead <= limit.max_share * messages:
            return None
        return Excess("max_share", dead, messages, now_ns - since.until_ns)

    def __repr__(self) -> str:
        return f"<DeadLetterMeter {self._dead} dead letters, {len(self._samples)} samples>"
