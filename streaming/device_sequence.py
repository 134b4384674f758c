"""Which numbers of a device's sequence are missing. Plain Python: no Spark, no I/O, no clock of its own."""

from __future__ import annotations

__all__ = ["MOST_RANGES", "REORDERED", "Missing", "Sequence"]

from dataclasses import dataclass, field
from typing import Final, NamedTuple

MOST_RANGES: Final = 16
"""Ranges of missing numbers that are kept for a device. Beyond it the oldest is only counted, and can no more be
closed: a device that loses every other message would else have a state without bounds."""

REORDERED: Final = 1000
"""How far below the first number that was seen a number may be and still be one that was overtaken. What is further
below is an old message that came again, not the begin of a gap of a million."""

CLOCK_UNSET_MS: Final = 1_420_070_400_000
"""A device whose clock is before 2015 has not set it yet, which it does some time after its start."""


class Missing(NamedTuple):
    """Numbers ``low`` to ``high``, both included, that have not come."""

    life: int
    low: int
    high: int
    opened_ms: int  # when the number behind them came
    told: bool  # whether there was an event ``gap`` for it


@dataclass(slots=True)
class Sequence:
    """A device's sequence numbers: what is missing, what came twice, and when it began anew.

    A *life* is the numbers between two restarts of the device. Within a life, higher numbers have later device times;
    that is how a restart, a late reading of the life before and a repetition are told apart, in whatever order they
    come. All times are milliseconds since 1970.
    """

    life: int = 0
    first: int | None = None
    first_ms: int = 0  # by the device's clock
    last: int | None = None
    last_ms: int = 0  # by the device's clock
    before_last: int | None = None  # highest number of the life before
    before_ms: int = 0  # its time by the device's clock
    missing: list[Missing] = field(default_factory=list)
    given_up: int = 0
    duplicates: int = 0
    resets: int = 0

    @property
    def missing_count(self) -> int:
        """How many numbers have not come, of all lives."""
        return self.given_up + sum(gap.high - gap.low + 1 for gap in self.missing)

    def take(self, seq: int, device_ms: int, received_ms: int) -> Missing | None:
        """Notes a reading's number. Returns the range that it was the last of, if that had been told as a gap."""
        if self.last is None or self.first is None:
            self._begin(seq, device_ms)
            return None
        if self.life and device_ms < self.first_ms and not self._begins_below(seq, device_ms):
            return self._earlier_life(seq, device_ms, received_ms)
        if seq > self.last:
            self._open(self.life, self.last + 1, seq - 1, received_ms)
            self.last, self.last_ms = seq, device_ms
            return None
        found, closed = self._close(self.life, seq)
        if found:
            return closed
        if device_ms > self.last_ms or device_ms < CLOCK_UNSET_MS <= self.last_ms:
            self._restart(seq, device_ms)
        elif seq < self.first and self.first - seq <= REORDERED:
            self._open(self.life, seq + 1, self.first - 1, received_ms)
            self.first, self.first_ms = seq, device_ms
        else:
            self.duplicates += 1
        return None

    def due(self, after_ms: int) -> int | None:
        """When the next gap is old enough to be told."""
        return min((gap.opened_ms + after_ms for gap in self.missing if not gap.told), default=None)

    def tell(self, now_ms: int, after_ms: int) -> list[Missing]:
        """The gaps that have been open for ``after_ms``, each once."""
        told = [gap for gap in self.missing if not gap.told and gap.opened_ms + after_ms <= now_ms]
        self.missing = [gap._replace(told=True) if gap in told else gap for gap in self.missing]
        return told

    def _begin(self, seq: int, device_ms: int) -> None:
        self.first = self.last = seq
        self.first_ms = self.last_ms = device_ms

    def _restart(self, seq: int, device_ms: int) -> None:
        # A clock that went back to 1970 says nothing about before and after: then nothing is the earlier life's.
        self.before_last = self.last if device_ms > self.last_ms else None
        self.before_ms = self.last_ms
        self.life += 1
        self.resets += 1
        self._begin(seq, device_ms)

    def _begins_below(self, seq: int, device_ms: int) -> bool:
        """Whether this is a number of this life from before the first that was seen of it."""
        assert self.first is not None
        if self.before_last is None:
            return True
        return 0 < self.first - seq <= REORDERED and device_ms > self.before_ms

    def _earlier_life(self, seq: int, device_ms: int, received_ms: int) -> Missing | None:
        assert self.before_last is not None
        if seq > self.before_last and device_ms > self.before_ms:
            self._open(self.life - 1, self.before_last + 1, seq - 1, received_ms)
            self.before_last, self.before_ms = seq, device_ms
            return None
        for life in range(self.life - 1, -1, -1):
            found, closed = self._close(life, seq)
            if found:
                return closed
        self.duplicates += 1
        return None

    def _open(self, life: int, low: int, high: int, received_ms: int) -> None:
        if low > high:
            return
        self.missing = sorted([*self.missing, Missing(life, low, high, received_ms, told=False)])
        self._bound()

    def _close(self, life: int, seq: int) -> tuple[bool, Missing | None]:
        """Whether the number was missing, and the told range that is complete with it."""
        for place, gap in enumerate(self.missing):
            if gap.life == life and gap.low <= seq <= gap.high:
                halves = [gap._replace(high=seq - 1), gap._replace(low=seq + 1)]
                rest = [half for half in halves if half.low <= half.high]
                self.missing[place : place + 1] = rest
                self._bound()
                return True, gap if gap.told and not rest else None
        return False, None

    def _bound(self) -> None:
        while len(self.missing) > MOST_RANGES:
            oldest = self.missing.pop(0)
            self.given_up += oldest.high - oldest.low + 1
