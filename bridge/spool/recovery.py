"""Finds the batches of a spool at its opening, or for a new index. Keeps readable batches, and counts the others.

Log, index and tally are compared with each other. Usually only the last few records of the log are added to the index.
Damage in the log loses the records that it touches. The index has their number of messages, or else the tally.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from bridge.spool.index import DamagedError, Row, Sums
from bridge.spool.record import ID_BITS, Head
from bridge.spool.removal import drop_lost, drop_segments
from bridge.spool.segments import HEADER_BYTES, Segments
from bridge.spool.state import PartitionState, State

log = structlog.get_logger("spool")

_SEQUENCE: Final = (1 << ID_BITS) - 1
BUILDING: Final = "building"  # instead of "yes" or "no": an index that a start makes anew once more
_ROWS: Final = 500  # at a time, to bound memory


@dataclass(frozen=True, slots=True)
class SpoolReport:
    """The result of opening a spool, or of salvaging a running one."""

    lost_batches: int = 0
    lost_messages: int = 0
    exact: bool = True  # False: more may be lost
    put_aside: tuple[Path, ...] = ()  # damaged files, renamed
    sentence: str = ""  # about the damage; empty without damage


@dataclass(slots=True)
class Losses:
    batches: int = 0
    messages: int = 0
    exact: bool = True
    put_aside: list[Path] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def report(self, state: State) -> SpoolReport:
        """The losses as a report, with a sentence if there are any, and what is readable now."""
        sentence = ""
        if self.said:
            stored = state.partitions.values()
            batches, messages = sum(p.batches for p in stored), sum(p.messages for p in stored)
            few = "" if self.exact else "at least "
            sentence = (
                f"The spool in {state.files.folder.absolute()} was damaged: {'; '.join(self.said)}. "
                f"{batches} batches with {messages} messages are readable; "
                f"lost are {few}{self.batches} batches with {few}{self.messages} messages."
            )
            if self.put_aside:
                sentence += f" Kept for inspection: {', '.join(path.name for path in self.put_aside)}."
            if state.damaged:
                names = ", ".join(f"{state.log.path(number).name}.damaged" for number in sorted(state.damaged))
                sentence += f" Once their readable batches are delivered, kept as well: {names}."
        return SpoolReport(self.batches, self.messages, self.exact, tuple(self.put_aside), sentence)


class Loading:
    """Fills a state's numbers from index, log and tally. ``rebuilt``: the index is new and empty."""

    def __init__(self, state: State, losses: Losses, *, rebuilt: bool, step: Callable[[], None]) -> None:
        self.state = state
        self.losses = losses
        self.rebuilt = rebuilt  # the index is new, and the log is read whole
        self._step = step
        self.slots = state.tally.read()  # of the tally, by partition number
        self._changed: dict[int, int] = {}  # id and messages of batches in the log that cannot be read

    def load(self, *, verify: bool) -> None:
        """Load everything. ``verify`` reads every batch; so does a segment that is too short."""
        state, index = self.state, self.state.index
        was_clean = index.fact("clean") == "yes"
        index.note("clean", BUILDING if self.rebuilt else "no")
        state.highest = max(self.slots, default=0)
        for number, topic, partition, last in index.partitions():
            state.partitions[topic, partition] = PartitionState(number, topic, partition, last)
            state.highest = max(state.highest, number)
        short = self._short_segments()
        self._catch_up()
        with index.transaction():
            for number, slot in self.slots.items():
                # The tally may be newer than the index: batches delivered since must not be delivered again.
                index.delete((number << ID_BITS) + 1, (number << ID_BITS) + slot.removed)
        self._count_changed()
        if (verify or short) and not self.rebuilt:
            self._verify()
            with index.transaction():
                for number, _ in short:
                    index.set_segment(number, state.log.size(number), damaged=True)
        self._compare()
        self._settle(was_clean=was_clean)
        index.note("clean", "no")

    def _short_segments(self) -> list[tuple[int, int]]:
        """Segments that are shorter than in the index, with the number of missing bytes."""
        segments = self.state.log
        short = []
        for number, end, damaged in self.state.index.segments():
            segments.last = max(segments.last, number)
            if damaged:
                self.state.damaged.add(number)
            size = segments.size(number)
            if size < end:
                short.append((number, end - size))
                name = segments.path(number).name
                self.losses.said.append(
                    f"segment {name} ends {end - size} bytes too early" if size else f"segment {name} is missing"
                )
        return short

    def _catch_up(self) -> None:
        """Add records of the log that the index lacks."""
        segments = self.state.log
        ends = {number: end for number, end, _ in self.state.index.segments()}
        # By partition the newest record that was indexed or removed: what is not newer is skipped.
        floors = {p.number: max(p.last, self._removed(p.number)) for p in self.state.partitions.values()}
        numbers = segments.numbers()
        for number in numbers:
            segments.last = max(segments.last, number)
            start = ends.get(number, HEADER_BYTES)
            if segments.size(number) > start:
                self._index_tail(number, start, floors, newest=number == numbers[-1])

    def _index_tail(self, number: int, start: int, floors: dict[int, int], *, newest: bool) -> None:
        """Index a segment's records from ``start`` on, above ``floors`` (by partition), and cut its incomplete end."""
        state = self.state
        rows: list[Row] = []
        end, is_cut = start, False
        for append in _appends(state.log, number, start):
            self._step()
            if append.damage or append.changed:
                state.damaged.add(number)
                size = append.damage + sum(head.size for head in append.changed)
                self.losses.said.append(f"{size} bytes of segment {state.log.path(number).name} have changed")
            if append.damage:
                self.losses.exact = False  # the tally may correct this
            for head in append.changed:
                if not self._was_stored(head, append, newest=newest):
                    is_cut = True
                    break
                _note_partition_of(state, head)
                self._changed[head.id] = head.batch.messages
            for offset, head in append.records:
                if not self._was_stored(head, append, newest=newest):
                    is_cut = True
                    break
                partition, sequence = head.id >> ID_BITS, head.id & _SEQUENCE
                _note_partition_of(state, head)
                if sequence > floors.setdefault(partition, self._removed(partition)):
                    rows.append(Row(head.id, number, offset, head.size, head.batch.messages, head.batch.opened_ms))
                end = offset + head.size
            if len(rows) >= _ROWS:
                _store(state, rows, number, end)
                rows = []
        size = state.log.size(number)
        if number in state.damaged and not is_cut:
            end = size  # changed bytes are kept for analysis; records of a cut append are not: their ids are used again
        _store(state, rows, number, end)
        if end < size:
            log.info("spool_tail_cut", segment=number, bytes=size - end)
            os.truncate(state.log.path(number), end)

    def _was_stored(self, head: Head, append: _Append, *, newest: bool) -> bool:
        """Whether an append may have been acknowledged: not when a crash interrupted its write."""
        slot = self.slots.get(head.id >> ID_BITS)
        return not newest or append.whole or (slot is not None and head.id & _SEQUENCE <= slot.last)

    def _count_changed(self) -> None:
        """Count the batches of the log with an intact head and changed data. A batch may be in two segments. With a new
        index the tally has the counts of an earlier start."""
        for id_ in list(self._changed):
            slot = self.slots.get(id_ >> ID_BITS)
            known = slot is not None and id_ & _SEQUENCE <= (slot.last if self.rebuilt else slot.removed)
            if known or self.state.index.rows(id_ - 1, id_, 1):
                del self._changed[id_]
        self.losses.batches += len(self._changed)
        self.losses.messages += sum(self._changed.values())

    def _verify(self) -> None:
        """Read every batch of the index. Drop and count unreadable ones."""
        for partition in self.state.partitions.values():
            after, last = partition.base, partition.base + _SEQUENCE
            while rows := self.state.index.rows(after, last, _ROWS):
                after = rows[-1].id
                self._step()
                bad = [row for row in rows if not readable(self.state, row)]
                if bad:
                    drop_lost(self.state, bad)
                    self.losses.batches += len(bad)
                    self.losses.messages += sum(row.messages for row in bad)

    def _compare(self) -> None:
        """Compare with the tally: batches that neither index nor log have are lost."""
        newest = {p.number: p.last for p in self.state.partitions.values()}
        missing = 0
        for number, slot in self.slots.items():
            if not self.rebuilt and newest.get(number, 0) >= slot.last:
                continue  # the index is at least as new as the tally
            batches, messages = self.state.index.count(
                (number << ID_BITS) + slot.removed, (number << ID_BITS) + slot.last
            )
            counted = [
                self._changed[id_]
                for id_ in self._changed
                if (number << ID_BITS) < id_ <= (number << ID_BITS) + slot.last
            ]
            batches, messages = batches + len(counted), messages + sum(counted)
            if batches < slot.batches:
                missing += slot.batches - batches
                self.losses.messages += max(0, slot.messages - messages)
        self.losses.batches += missing
        if missing and not self.losses.said:
            self.losses.said.append("its newest batches are missing")
        if self.rebuilt:
            # Exact where the tally covers everything. Without it the content of a damaged log is unknown.
            self.losses.exact = newest.keys() <= self.slots.keys() if self.losses.said else True

    def _settle(self, *, was_clean: bool) -> None:
        """Set totals from the index, remove unneeded segments, and correct the tally."""
        state = self.state
        sums, state.live = state.index.survey()
        state.sizes = {number: state.log.size(number) for number in state.live}
        state.needed, state.written = sum(size for _, size in state.live.values()), sum(state.sizes.values())
        if was_clean and not self.losses.said:
            self._check_sums(sums)
        for partition in state.partitions.values():
            slot = self.slots.get(partition.number)
            if slot is not None:
                partition.last = max(partition.last, slot.last)  # a sequence number is never used twice
            first = state.index.rows(partition.base, partition.base + _SEQUENCE, 1)
            partition.removed = (first[0].id & _SEQUENCE) - 1 if first else partition.last
            found = sums.get(partition.number)
            if found is not None:
                partition.batches, partition.messages = found.batches, found.messages
                partition.bytes, partition.oldest_ms = found.bytes, first[0].opened_ms
        gone = {number for number, _, _ in state.index.segments()} | set(state.log.numbers())
        drop_segments(state, sorted(gone - state.live.keys()))
        emptied = {n: slot._replace(removed=slot.last, batches=0, messages=0) for n, slot in self.slots.items()}
        # Each slot once: a kill between two writes of one would leave its batches removed.
        for slot in (emptied | {partition.number: partition.slot for partition in state.partitions.values()}).values():
            state.tally.write(slot)

    def _check_sums(self, sums: dict[int, Sums]) -> None:
        """Compare index and tally after a clean stop. A difference is the only sign of changed entries."""
        for number, slot in self.slots.items():
            found = sums.get(number)
            if (slot.batches, slot.messages) != ((found.batches, found.messages) if found else (0, 0)):
                raise DamagedError(f"The index {self.state.files.index} is not as it was when the gateway stopped")

    def _removed(self, number: int) -> int:
        slot = self.slots.get(number)
        return slot.removed if slot is not None else 0


@dataclass(slots=True)
class _Append:
    """Records of one append, with the damaged ones around them."""

    records: list[tuple[int, Head]] = field(default_factory=list)
    changed: list[Head] = field(default_factory=list)  # their batches cannot be read
    damage: int = 0  # bytes that are no record
    whole: bool = False  # whether its last record, or a later one, is in the log


def _appends(segments: Segments, number: int, start: int) -> Iterator[_Append]:
    """The appends of a segment from ``start`` on, each with the damage before and within it."""
    append = _Append()
    for span in segments.scan(number, start):
        if span.head is None:
            append.damage += 0 if span.intact else span.end - span.offset
            continue
        if span.intact:
            append.records.append((span.offset, span.head))
        else:
            append.changed.append(span.head)
        if not span.head.following:
            append.whole = True
            yield append
            append = _Append()
    if append.records or append.changed or append.damage:
        yield append


def _note_partition_of(state: State, head: Head) -> None:
    """Note a record's partition, and its sequence number if it is the newest."""
    name = head.batch.topic, head.batch.partition
    partition = state.partitions.get(name)
    if partition is None:
        number = head.id >> ID_BITS
        partition = PartitionState(number, *name)
        state.partitions[name] = partition
        state.highest = max(state.highest, number)
    partition.last = max(partition.last, head.id & _SEQUENCE)


def _store(state: State, rows: list[Row], segment: int, end: int) -> None:
    with state.index.transaction():
        state.index.add(rows, [(p.number, p.topic, p.partition, p.last) for p in state.partitions.values()])
        state.index.set_segment(segment, end, damaged=segment in state.damaged)


def readable(state: State, row: Row) -> bool:
    """Whether the log has a batch as the index describes it; true while the disk fails to read it."""
    try:
        return state.log.read(row.segment, row.offset, row.id) is not None
    except OSError:
        return True
