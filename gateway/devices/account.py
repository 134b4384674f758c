"""Counts numbered messages that are read back: seen, missing, duplicates, out of order. Pure.

Demo, trial and canary count with it. A message is a device and a number; a device numbers its messages from 0 without
gaps.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from enum import Enum, auto
from typing import Generic, TypeVar

D = TypeVar("D", bound="Hashable")


class Arrival(Enum):
    """The place of a record among its device's messages."""

    NEXT = auto()
    """The first record of a message, later than all earlier records."""
    BEHIND = auto()
    """The first record of a message behind a later one of its device."""
    COPY = auto()
    """A further record of a message."""


class Seen:
    """The numbers seen of one device. Memory grows with gaps, not with numbers."""

    __slots__ = ("_gaps", "_next")

    def __init__(self) -> None:
        self._next = 0  # one more than the highest number seen
        self._gaps: list[tuple[int, int]] = []  # first number, and one more than the last; in order

    def add(self, number: int) -> Arrival:
        """Note a number, 0 or higher."""
        if number >= self._next:
            if number > self._next:
                self._gaps.append((self._next, number))
            self._next = number + 1
            return Arrival.NEXT
        at = self._gap(number)
        if at is None:
            return Arrival.COPY
        first, end = self._gaps[at]
        self._gaps[at : at + 1] = [gap for gap in ((first, number), (number + 1, end)) if gap[0] < gap[1]]
        return Arrival.BEHIND

    def _gap(self, number: int) -> int | None:
        at = bisect_right(self._gaps, number, key=lambda gap: gap[0]) - 1
        return at if at >= 0 and number < self._gaps[at][1] else None

    def __contains__(self, number: int) -> bool:
        return 0 <= number < self._next and self._gap(number) is None

    def absent(self, count: int) -> Iterator[int]:
        """The numbers below ``count`` that were not seen."""
        for first, end in self._gaps:
            yield from range(first, min(end, count))
        yield from range(self._next, count)

    def found(self, count: int) -> int:
        """How many numbers below ``count`` were seen."""
        return count - sum(1 for _ in self.absent(count))


class Tally(Generic[D]):
    """Counts the messages read from one place, in the order of reading."""

    def __init__(self) -> None:
        self.records = 0
        self.unreadable = 0
        """Records without a device and number."""
        self.reordered = 0
        """First records behind a later message of their device. Only meaningful for ordered places."""
        self.seen: defaultdict[D, Seen] = defaultdict(Seen)
        self.duplicates = 0
        """Records of messages beyond the first of each."""
        self.copies: Counter[tuple[D, int]] = Counter()
        """The number of duplicates by message."""

    @property
    def distinct(self) -> int:
        return self.records - self.unreadable - self.duplicates

    def add(self, device: D, number: int) -> Arrival:
        """Note a record of this message. A negative number counts as unreadable."""
        if number < 0:
            self.add_unreadable()
            return Arrival.COPY
        self.records += 1
        arrival = self.seen[device].add(number)
        if arrival is Arrival.COPY:
            self.duplicates += 1
            self.copies[device, number] += 1
        elif arrival is Arrival.BEHIND:
            self.reordered += 1
        return arrival

    def add_unreadable(self) -> None:
        """Note a record that none of the devices can have written."""
        self.records += 1
        self.unreadable += 1

    def missing(self, device: D, published: int, acknowledged: Callable[[int], bool]) -> list[int]:
        """Numbers of a device that were acknowledged to it and not read here."""
        seen = self.seen.get(device) or Seen()
        return [number for number in seen.absent(published) if acknowledged(number)]
