"""Counts acknowledged records per route, topic, partition and interval, for the ledger topic.

Counted once per batch, without I/O or a clock. The offset of each acknowledged record is kept, as runs. A partition
without another writer has one run in an interval, whatever the rate. So the account is exact: the copy of another
record cannot hide a missing one.

Closed intervals wait in ``pending`` until they are written. Memory is bounded: of many intervals the oldest are merged.
Of very many runs the oldest intervals keep only the lowest and the highest offset.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from bridge.ledger import LedgerSnapshot
    from bridge.produce.batch import Batch

MAX_PENDING: Final = 60  # intervals that wait, an hour of them: what is older is put together
MAX_RUNS: Final = 4096  # of one entry: its record has 60 KB then
MAX_ALL_RUNS: Final = 65_536  # of all entries that wait, 1 MiB
MAX_LOSSES: Final = 1000  # of sessions, in intervals that are put together

_NOWHERE: Final = -2  # before the first offset; -1 is what the producer says when it knows none


class EntryKey(NamedTuple):
    """The key of an entry: each key has its own count."""

    route: str
    topic: str
    partition: int
    dead_letter: bool


class SessionLoss(NamedTuple):
    """An MQTT session that the broker had lost at ``at_ms``; last connected at ``left_ms``, None when unknown."""

    session: str
    client_id: str
    left_ms: int | None
    at_ms: int


class Entry:
    """Acknowledged records of one key in one interval.

    ``runs`` are closed runs, first offset and the one behind the last in turn; the open one is ``begin`` and ``next``.
    ``exact`` is False after runs were dropped: only ``low`` and ``high`` of them are kept.
    """

    __slots__ = ("begin", "exact", "high", "low", "messages", "next", "records", "runs", "size", "unlocated")

    def __init__(self) -> None:
        self.records = 0
        self.messages = 0
        self.size = 0  # bytes
        self.unlocated = 0  # records of which Kafka named no offset
        self.begin = self.next = _NOWHERE  # the open run; ``next`` is behind its last
        self.runs = array("q")  # closed runs: first offset and the one behind the last, in turn
        self.exact = True  # False: runs were dropped
        self.low = self.high = _NOWHERE  # bounds of the dropped runs

    def begin_run(self, offset: int, count: int) -> None:
        """Add a batch that does not continue the open run."""
        if offset < 0:
            self.unlocated += count
            return
        self._close_run()
        self.begin, self.next = offset, offset + count
        if len(self.runs) >= 2 * MAX_RUNS:
            self.keep_bounds_only()

    def add(self, other: Entry) -> None:
        """Add the entry of a later interval with the same key."""
        self.records += other.records
        self.messages += other.messages
        self.size += other.size
        self.unlocated += other.unlocated
        if not other.exact:
            self._widen_bounds(other.low, other.high)
            self.exact = False
        for first, end in other.all_runs():
            if first == self.next:
                self.next = end
            else:
                self.begin_run(first, end - first)
        if not self.exact:
            self.keep_bounds_only()

    def keep_bounds_only(self) -> None:
        """Replace the runs by the lowest and the highest offset."""
        self._close_run()
        for first, end in zip(self.runs[::2], self.runs[1::2], strict=True):
            self._widen_bounds(first, end - 1)
        self.runs = array("q")
        self.begin = self.next = _NOWHERE
        self.exact = False

    def all_runs(self) -> Iterator[tuple[int, int]]:
        """First offset and the one behind the last of each run that is kept."""
        yield from zip(self.runs[::2], self.runs[1::2], strict=True)
        if self.next >= 0:
            yield self.begin, self.next

    def run_count(self) -> int:
        return len(self.runs) // 2

    def bounds(self) -> tuple[int, int] | None:
        """Lowest and highest acknowledged offset; None where Kafka named none."""
        found = [(first, end - 1) for first, end in self.all_runs()]
        if self.high >= 0:
            found.append((self.low, self.high))
        return (min(low for low, _ in found), max(high for _, high in found)) if found else None

    def _close_run(self) -> None:
        if self.next >= 0:
            self.runs.extend((self.begin, self.next))
            self.begin = self.next = _NOWHERE

    def _widen_bounds(self, low: int, high: int) -> None:
        if high >= 0:
            self.low = low if self.high < 0 else min(self.low, low)
            self.high = max(self.high, high)


@dataclass(slots=True)
class Interval:
    """A closed interval. ``terms`` and ``acknowledged`` (records) count from the life's start to its end."""

    from_ms: int
    to_ms: int
    entries: dict[EntryKey, Entry]
    terms: LedgerSnapshot
    acknowledged: int
    losses: list[SessionLoss] = field(default_factory=list)

    def add(self, later: Interval) -> None:
        """Merge the next interval into this one."""
        self.to_ms = later.to_ms
        self.terms = later.terms
        self.acknowledged = later.acknowledged
        self.losses = [*self.losses, *later.losses][-MAX_LOSSES:]
        for key, entry in later.entries.items():
            if (ours := self.entries.get(key)) is None:
                self.entries[key] = entry
            else:
                ours.add(entry)

    def run_count(self) -> int:
        return sum(entry.run_count() for entry in self.entries.values())


class LedgerIntervals:
    """Counts acknowledged records by interval. Belongs to the worker's event loop.

    With ``located`` False no ledger is written: no offsets are kept, and no interval is closed.
    """

    def __init__(self, *, located: bool = True) -> None:
        self._located = located  # offsets are kept; otherwise all records are unlocated
        self.pending: deque[Interval] = deque()  # closed, not written, oldest first
        self._open: dict[tuple[str, str, int, bool], Entry] = {}  # by route, topic, partition, dead letter
        self._losses: list[SessionLoss] = []  # of the open interval
        self._from_ms = 0  # begin of the open interval
        self._acknowledged = 0  # records of closed intervals
        self._messages: dict[tuple[str, bool], int] = {}  # of closed intervals, by route and dead letter

    def begin(self, now_ms: int) -> None:
        """The first interval begins, at a time in ms since 1970."""
        self._from_ms = now_ms

    def stored(self, batch: Batch, partition: int, offset: int) -> None:
        """Count a batch that Kafka has. Takes 0.8 µs."""
        slot = batch.slot
        key = (slot.route, slot.topic, partition, slot.dead_letter)  # a NamedTuple takes 0.3 µs more to make
        # The records of the very bytes that were sent.
        self._count(key, batch.builder.record_count(), batch.messages, batch.size, offset)

    def letter_stored(self, commands: str, topic: str, partition: int, offset: int, size: int) -> None:
        """Count a dead letter of a command, which is a record but no MQTT message."""
        self._count((commands, topic, partition, True), 1, 0, size, offset)

    def _count(self, key: tuple[str, str, int, bool], count: int, messages: int, size: int, offset: int) -> None:
        """Add a batch to the open interval: ``count`` records from ``offset`` on (-1: unknown)."""
        entry = self._open.get(key)
        if entry is None:
            entry = self._open[key] = Entry()
        entry.records += count
        entry.messages += messages
        entry.size += size
        if offset == entry.next:
            entry.next += count
        else:
            entry.begin_run(offset if self._located else -1, count)

    def session_lost(self, loss: SessionLoss) -> None:
        """Note a session that the broker had lost, in the open interval."""
        if self._located:
            self._losses.append(loss)

    def close(self, now_ms: int, terms: LedgerSnapshot) -> None:
        """End the interval and begin the next. An empty interval is kept too: it shows that nothing was sent."""
        entries, self._open = {EntryKey(*key): entry for key, entry in self._open.items()}, {}
        for key, entry in entries.items():
            self._acknowledged += entry.records
            if entry.messages:
                total = (key.route, key.dead_letter)
                self._messages[total] = self._messages.get(total, 0) + entry.messages
        from_ms = min(self._from_ms, now_ms)  # later than now where the clock was stepped back
        losses, self._losses = self._losses[-MAX_LOSSES:], []
        self.pending.append(Interval(from_ms, now_ms, entries, terms, self._acknowledged, losses))
        self._from_ms = now_ms
        self._bound()

    def messages(self, *, dead_letter: bool) -> dict[str, int]:
        """MQTT messages of this life by route that Kafka has, or whose dead letters it has."""
        rows = {route: count for (route, dead), count in self._messages.items() if dead is dead_letter}
        for (route, _, _, dead), entry in self._open.items():
            if dead is dead_letter and entry.messages:
                rows[route] = rows.get(route, 0) + entry.messages
        return rows

    def _bound(self) -> None:
        """Merge the oldest intervals, and drop their runs, until both are within their limits."""
        pending = self.pending
        while len(pending) > MAX_PENDING:
            oldest = pending.popleft()
            oldest.add(pending.popleft())
            pending.appendleft(oldest)
        runs = sum(interval.run_count() for interval in pending)
        for interval in pending:
            if runs <= MAX_ALL_RUNS:
                return
            runs -= interval.run_count()
            for entry in interval.entries.values():
                entry.keep_bounds_only()
