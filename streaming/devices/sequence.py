"""Which numbers of a device's sequence are missing. Plain Python: no Spark, no I/O, no clock of its own."""

from bisect import bisect, bisect_left, insort
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from streaming.devices.records import MOST

WINDOW: Final = 1024
"""So many numbers below the highest each missing one is known: so far a reading may be overtaken and still be told from
one that came twice."""
MOST_RANGES: Final = 16
"""Ranges of missing numbers that are kept beyond the window. With one more the oldest is only counted: a device that
loses every other message would else have a state without bounds."""
_CLOCK_UNSET_MS: Final = 1_420_070_400_000  # 2015: a device that has not set its clock yet is before it


class Missing(NamedTuple):
    """Numbers ``low`` to ``high``, both included, that have not come."""

    life: int
    low: int
    high: int
    opened_ms: int  # when the number behind them came; 0 once they are told
    told: bool  # whether there was an event ``gap`` for it


@dataclass(slots=True)
class Sequence:
    """A device's sequence numbers: what is missing, what came twice, and when it began anew.

    A *life* is the numbers between two restarts of the device. Within a life, higher numbers have later device times,
    which tells a restart, a late reading of the life before and a repetition apart. Missing numbers are ranges until
    they are told as gaps. From then on those in the window are bits, at most 129 bytes; a range that the window leaves,
    or that is of an earlier life, is one of ``MOST_RANGES``.
    """

    life: int = 0
    first: int | None = None
    first_ms: int = 0  # by the device's clock
    last: int | None = None
    last_ms: int = 0  # by the device's clock
    before_last: int | None = None  # highest number of the life before
    before_ms: int = 0  # its time by the device's clock
    missing: list[Missing] = field(default_factory=list)  # sorted: not told yet, or beyond the window
    holes: int = 0  # a bit for each number in the window that is told: 1 << distance to the highest
    given_up: int = 0
    given_up_to: int | None = None  # the highest number of this life that was given up
    too_late: int = 0
    duplicates: int = 0
    resets: int = 0

    @property
    def missing_count(self) -> int:
        """How many numbers are told as missing, or were given up, of all lives."""
        ranges = sum(gap.high - gap.low + 1 for gap in self.missing if gap.told)
        return min(self.given_up + ranges + self.holes.bit_count(), MOST)

    @property
    def gaps(self) -> list[Missing]:
        """The ranges that are told as missing and may still be closed, by life and number."""
        holes, found = self.holes, [gap for gap in self.missing if gap.told]
        while holes:
            gap, holes = self._lowest(holes)
            found.append(gap)
        return sorted(found)

    def take(self, seq: int, device_ms: int, received_ms: int) -> bool:
        """Notes a reading's number. Returns whether it was the last that was missing of a range told as a gap."""
        if self.last is None or self.first is None:
            self._begin(seq, device_ms)
            return False
        if self.life and device_ms < self.first_ms and not self._begins_below(seq, device_ms):
            return self._earlier_life(seq, device_ms, received_ms)
        if seq > self.last:
            self._leave(seq - self.last)
            opened = self.last + 1
            self.last, self.last_ms = seq, device_ms
            self._open(self.life, opened, seq - 1, received_ms)
            return False
        if (closed := self._close(self.life, seq)) is not None:
            return closed
        if device_ms > self.last_ms or device_ms < _CLOCK_UNSET_MS <= self.last_ms:  # a lower number at a later time
            self._restart(seq, device_ms)
        elif 0 < self.first - seq <= WINDOW:  # from before the first that came
            self._open(self.life, seq + 1, self.first - 1, received_ms)
            self.first, self.first_ms = seq, device_ms
        elif seq < self.first or (self.given_up_to is not None and seq <= self.given_up_to):
            self.too_late += 1
        else:
            self.duplicates += 1
        return False

    def due(self, after_ms: int) -> int | None:
        """When the next gap is old enough to be told."""
        return min((gap.opened_ms + after_ms for gap in self.missing if not gap.told), default=None)

    def tell(self, now_ms: int, after_ms: int) -> list[Missing]:
        """The ranges that have been open for ``after_ms``, each once: from now on they are told as gaps."""
        told = [gap for gap in self.missing if not gap.told and gap.opened_ms + after_ms <= now_ms]
        if told:
            self.missing = [gap for gap in self.missing if gap not in told]
            for gap in told:
                self._keep(gap._replace(opened_ms=0, told=True))
        return told

    def _begin(self, seq: int, device_ms: int) -> None:
        self.first = self.last = seq
        self.first_ms = self.last_ms = device_ms

    def _restart(self, seq: int, device_ms: int) -> None:  # seq is the first of a new life
        # A clock that went back to 1970 says nothing about before and after: then nothing is the earlier life's.
        self.before_last = self.last if device_ms > self.last_ms else None
        self.before_ms = self.last_ms
        self._leave(WINDOW)
        self.life += 1
        self.resets += 1
        self.given_up_to = None
        self._begin(seq, device_ms)
        self._bound()

    def _begins_below(self, seq: int, device_ms: int) -> bool:
        """Whether this is a number of this life from before the first that was seen of it."""
        assert self.first is not None
        return self.before_last is None or (0 < self.first - seq <= WINDOW and device_ms > self.before_ms)

    def _earlier_life(self, seq: int, device_ms: int, received_ms: int) -> bool:  # as take
        assert self.before_last is not None
        if seq > self.before_last and device_ms > self.before_ms:
            self._open(self.life - 1, self.before_last + 1, seq - 1, received_ms)
            self.before_last, self.before_ms = seq, device_ms
            return False
        for life in sorted({gap.life for gap in self.missing if gap.life < self.life}, reverse=True):
            if (closed := self._close(life, seq)) is not None:
                return closed
        if self.given_up:
            self.too_late += 1
        else:
            self.duplicates += 1
        return False

    def _open(self, life: int, low: int, high: int, received_ms: int) -> None:
        if low <= high:
            insort(self.missing, Missing(life, low, high, received_ms, told=False))
        if self.missing:
            self._bound()

    def _close(self, life: int, seq: int) -> bool | None:
        """Takes a number out of what is missing: whether that ends a told range. None if it was not missing."""
        if life == self.life and self.last is not None and 0 < (distance := self.last - seq) <= WINDOW:
            bit = 1 << distance
            if self.holes & bit:
                self.holes ^= bit
                return not self.holes & (bit << 1 | bit >> 1)
        place = bisect(self.missing, (life, seq, inf)) - 1
        if place < 0 or (gap := self.missing[place]).life != life or gap.high < seq:
            return None
        del self.missing[place]
        rest = [half for half in (gap._replace(high=seq - 1), gap._replace(low=seq + 1)) if half.low <= half.high]
        for half in rest:
            self._keep(half)
        self._bound()
        return gap.told and not rest

    def _keep(self, gap: Missing) -> None:  # as bits in the window, else as a range
        assert self.last is not None
        if gap.told and gap.life == self.life and gap.low >= self.last - WINDOW:
            self.holes |= ((1 << (gap.high - gap.low + 1)) - 1) << (self.last - gap.high)
        else:
            insort(self.missing, gap)

    def _lowest(self, holes: int) -> tuple[Missing, int]:
        """The range with the lowest numbers among ``holes`` (its bits), and the bits without it."""
        assert self.last is not None
        length = holes.bit_length()
        rest = holes ^ ((1 << length) - 1)  # what is not missing: its highest bit is next to the range
        end = rest.bit_length()
        return Missing(self.life, self.last - length + 1, self.last - end, 0, told=True), holes & ((1 << end) - 1)

    def _leave(self, steps: int) -> None:
        """Moves the window up. A range that it leaves, if only partly, goes from the bits to ``missing``."""
        while self.holes and self.holes.bit_length() - 1 + steps > WINDOW:
            gap, self.holes = self._lowest(self.holes)
            insort(self.missing, gap)
        if self.holes:
            self.holes <<= steps

    def _bound(self) -> None:  # gives up the oldest ranges if there are too many
        assert self.last is not None
        beyond = bisect_left(self.missing, (self.life, self.last - WINDOW)) - MOST_RANGES
        if beyond > 0:
            for gap in self.missing[:beyond]:
                self.given_up = min(self.given_up + gap.high - gap.low + 1, MOST)
                if gap.life == self.life:
                    self.given_up_to = gap.high
            del self.missing[:beyond]
