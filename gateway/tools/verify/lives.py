"""The lives of workers: their terms, missing records, and ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from bridge.ledger_topic.records import PartitionRecord, WorkerRecord

Ending = Literal["stopped", "crashed", "running", "silent"]

_EARLIER_MS = 150_000
"""A record counts in the interval of its acknowledgement, but has the time of its receipt, which is earlier by at most
``kafka.delivery_timeout`` (120 s) while Kafka answers."""


class Window(NamedTuple):
    """A span of time whose acknowledgements are in no ledger record."""

    from_ms: int
    to_ms: int

    def holds(self, timestamp_ms: int) -> bool:
        return self.from_ms - _EARLIER_MS <= timestamp_ms <= self.to_ms


@dataclass(slots=True)
class Life:
    """One run of one worker, within the verified span."""

    worker: int
    name: str
    started_ms: int = 0
    last: WorkerRecord | None = None
    worst_imbalance: int = 0
    lowest: int | None = None
    highest: int = -1
    seen: int = 0
    next_started_ms: int | None = None
    crashed_before: str | None = None  # the previous life, if it ended without its last record
    silent_after_ms: int = 0  # three of its intervals
    unmatched: dict[int, int] = field(default_factory=dict)  # by interval: announced minus found partition records

    def ending(self, now_ms: int) -> Ending:
        """How this life ended. ``silent``: no record for three intervals, and no later life that reports the end."""
        if self.last is not None and self.last.state == "stopped":
            return "stopped"
        if self.next_started_ms is not None:
            return "crashed"
        quiet_ms = now_ms - (self.last.to_ms if self.last else self.started_ms)
        return "silent" if quiet_ms > self.silent_after_ms else "running"

    def missing_numbers(self, complete_from_ms: int, outside: Iterable[int] = ()) -> int:
        """Number of intervals without a ``worker`` record up to the last: from the first interval of the life (number
        0), or from the first record if earlier ones may have expired or be before the span. Those ``outside`` of the
        span are not missing."""
        if self.lowest is None:
            return 0
        first = 0 if self.started_ms > complete_from_ms else self.lowest
        return self.highest - first + 1 - self.seen - sum(first <= number <= self.highest for number in outside)


class Lives:
    """All lives of the gateway in the span, which begins at ``since_ms``. Records up to ``complete_from_ms`` may have
    expired."""

    def __init__(self, interval_ms: int, complete_from_ms: int, since_ms: int = 0) -> None:
        self._interval_ms = interval_ms
        self._complete_from_ms = complete_from_ms  # earlier ledger records may have expired
        self._begin_ms = max(complete_from_ms, since_ms)
        self._lives: dict[tuple[int, str], Life] = {}
        self._outside: dict[tuple[int, str], set[int]] = {}  # numbers of worker records that are not in the span

    def sorted(self) -> list[Life]:
        """The lives by worker and time, each with the start of its worker's next life."""
        lives = sorted(self._lives.values(), key=lambda life: (life.worker, life.started_ms))
        for life, following in pairwise(lives):
            life.next_started_ms = following.started_ms if following.worker == life.worker else None
        return lives

    def add_worker(self, record: WorkerRecord) -> None:
        """Add a ``worker`` record; there are no copies."""
        life = self._life(record.worker, record.life)
        life.started_ms = record.started_ms
        if record.previous_clean is False:
            life.crashed_before = record.previous_life
        if life.last is None or record.number > life.last.number:
            life.last = record
        life.silent_after_ms = max(life.silent_after_ms, 3 * max(self._interval_ms, record.to_ms - record.from_ms))
        if abs(record.imbalance) > abs(life.worst_imbalance):
            life.worst_imbalance = record.imbalance
        life.lowest = record.number if life.lowest is None else min(life.lowest, record.number)
        life.highest = max(life.highest, record.number)
        life.seen += 1
        self._expect(life, record.number, record.entries, record.to_ms)

    def pass_over(self, record: WorkerRecord) -> None:
        """Note an interval that is outside of the span: after a step of the clock it may lie among those within."""
        self._outside.setdefault((record.worker, record.life), set()).add(record.number)

    def add_partition(self, record: PartitionRecord) -> None:
        """Add a ``partition`` record; there are no copies."""
        life = self._life(record.worker, record.life)
        self._expect(life, record.number, -1, record.to_ms)

    def incomplete(self) -> int:
        """Number of intervals with a missing ledger record."""
        count = 0
        for key, life in self._lives.items():
            count += life.missing_numbers(self._begin_ms, self._outside.get(key, ()))
            # If a crash prevented the worker record, there are partition records beyond the last number.
            count += sum(1 for number, left in life.unmatched.items() if left and number <= life.highest)
        return count

    def windows(self, now_ms: int) -> list[Window]:
        """The open interval of each life without an orderly end: its acknowledgements were not counted."""
        windows = []
        for life in self.sorted():
            if life.crashed_before is not None and (life.worker, life.crashed_before) not in self._lives:
                windows.append(Window(0, life.started_ms))  # a life without a record in the span
            if life.ending(now_ms) != "stopped":
                from_ms = life.last.to_ms if life.last is not None else life.started_ms
                windows.append(Window(from_ms, life.next_started_ms or now_ms))
        return windows

    def _life(self, worker: int, name: str) -> Life:
        life = self._lives.get((worker, name))
        if life is None:
            life = self._lives[worker, name] = Life(worker, name)
        return life

    def _expect(self, life: Life, number: int, count: int, to_ms: int) -> None:
        """Expect ``count`` more ``partition`` records of an interval; a found record counts -1."""
        if to_ms <= self._complete_from_ms:
            return
        left = life.unmatched.get(number, 0) + count
        if left:
            life.unmatched[number] = left
        else:
            life.unmatched.pop(number, None)
