"""What a spool holds, when it is opened or its index made anew: all that can be read is kept, the rest counted.

Log, index and tally are witnesses of each other. Usually only the last few records of the log have to be added to the
index. Damage in the log costs the records it touches; the index, or else the tally, says how many messages were in
them.
"""

from __future__ import annotations

__all__ = ["Loading", "Losses", "SpoolReport"]

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from bridge.spool.index import DamagedError, Row
from bridge.spool.record import ID_BITS
from bridge.spool.removal import drop_lost, drop_segments
from bridge.spool.segments import HEADER_BYTES, Segments
from bridge.spool.state import PartitionState, State
from config.error_words import words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bridge.spool.index import Sums
    from bridge.spool.record import Head

log = structlog.get_logger("spool")

_SEQUENCE: Final = (1 << ID_BITS) - 1
_ROWS: Final = 500  # at a time: what is held in memory does not grow with the spool


@dataclass(frozen=True, slots=True)
class SpoolReport:
    """What was found in a spool when it was opened, or salvaged."""

    recovered_batches: int = 0
    recovered_messages: int = 0
    lost_batches: int = 0
    lost_messages: int = 0
    exact: bool = True  # whether the two numbers lost are all, or at least so many
    put_aside: tuple[Path, ...] = ()  # damaged files, renamed
    sentence: str = ""  # what happened, for people; empty when nothing did


@dataclass(slots=True)
class Losses:
    """Damage as it is found."""

    batches: int = 0
    messages: int = 0
    exact: bool = True
    put_aside: list[Path] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def report(self, state: State) -> SpoolReport:
        """The report, with what there is now."""
        stored = state.partitions.values()
        batches, messages = sum(p.batches for p in stored), sum(p.messages for p in stored)
        sentence = ""
        if self.said:
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
        return SpoolReport(batches, messages, self.batches, self.messages, self.exact, tuple(self.put_aside), sentence)


class Loading:
    """Fills a state's numbers from index, log and tally. ``rebuilt``: the index is new, whatever the log holds."""

    def __init__(self, state: State, losses: Losses, *, rebuilt: bool, step: Callable[[], None]) -> None:
        self.state = state
        self.losses = losses
        self.rebuilt = rebuilt
        self._step = step
        self.slots = state.tally.read()

    def load(self, *, verify: bool) -> None:
        """All of it. ``verify`` reads every batch; that is also done when a segment is too short."""
        state, index = self.state, self.state.index
        was_clean = index.fact("clean") == "yes"
        index.note("clean", "no")
        state.highest = max(self.slots, default=0)
        for number, topic, partition, last in index.partitions():
            state.partitions[topic, partition] = PartitionState(number, topic, partition, last)
            state.highest = max(state.highest, number)
        short = self._short_segments()
        self._catch_up()
        with index.transaction():
            for number, slot in self.slots.items():
                # The index may be older than the tally: what was delivered since must not be delivered again.
                index.delete((number << ID_BITS) + 1, (number << ID_BITS) + slot.removed)
        if (verify or short) and not self.rebuilt:
            self._verify()
            with index.transaction():
                for number, _ in short:
                    index.set_segment(number, state.log.size(number), damaged=True)
        self._compare()
        self._settle(was_clean=was_clean)

    def _short_segments(self) -> list[tuple[int, int]]:
        """Segments that end before the index says so, and how many bytes they miss."""
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
        """Add to the index what the log has beyond it."""
        segments = self.state.log
        ends = {number: end for number, end, _ in self.state.index.segments()}
        floors = {p.number: max(p.last, self._removed(p.number)) for p in self.state.partitions.values()}
        numbers = segments.numbers()
        for number in numbers:
            segments.last = max(segments.last, number)
            start = ends.get(number, HEADER_BYTES)
            if segments.size(number) > start:
                self._index_tail(number, start, floors, newest=number == numbers[-1])

    def _index_tail(self, number: int, start: int, floors: dict[int, int], *, newest: bool) -> None:
        state = self.state
        rows: list[Row] = []
        end = start
        for append in _appends(state.log, number, start):
            self._step()
            if append.damage:
                state.damaged.add(number)
                self.losses.said.append(f"{append.damage} bytes of segment {state.log.path(number).name} have changed")
                self.losses.exact = False  # unless the tally knows what they were
            for offset, head in append.records:
                partition, sequence = head.id >> ID_BITS, head.id & _SEQUENCE
                slot = self.slots.get(partition)
                if newest and not append.whole and (slot is None or sequence > slot.last):
                    break  # a crash came in the middle: nobody was told that it is stored
                _learn(state, head)
                if sequence > floors.setdefault(partition, self._removed(partition)):
                    rows.append(Row(head.id, number, offset, head.size, head.messages, head.opened_ms))
                end = offset + head.size
            if len(rows) >= _ROWS:
                _store(state, rows, number, end)
                rows = []
        _store(state, rows, number, end)
        size = state.log.size(number)
        if end < size:
            log.info("spool_tail_cut", segment=number, bytes=size - end)
            os.truncate(state.log.path(number), end)

    def _verify(self) -> None:
        """Read every batch that the index knows; forget and count those that cannot be read."""
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
        """Ask the tally for batches that neither index nor log have any more."""
        newest = {p.number: p.last for p in self.state.partitions.values()}
        missing = 0
        for number, slot in self.slots.items():
            if not self.rebuilt and newest.get(number, 0) >= slot.last:
                continue  # the index is at least as new, and has said itself what is missing
            batches, messages = self.state.index.count(
                (number << ID_BITS) + slot.removed, (number << ID_BITS) + slot.last
            )
            if batches < slot.batches:
                missing += slot.batches - batches
                self.losses.messages += max(0, slot.messages - messages)
        self.losses.batches += missing
        if missing and not self.losses.said:
            self.losses.said.append("its newest batches are missing")
        if self.rebuilt:
            # Exact where the tally covers everything; without it nobody knows what a damaged log held.
            self.losses.exact = newest.keys() <= self.slots.keys() if self.losses.said else True

    def _settle(self, *, was_clean: bool) -> None:
        """Totals from the index, segments that nobody needs away, the tally as it should be."""
        state = self.state
        sums, state.live = state.index.survey()
        state.sizes = {number: state.log.size(number) for number in state.live}
        state.needed, state.written = sum(size for _, size in state.live.values()), sum(state.sizes.values())
        if was_clean and not self.losses.said:
            self._check_sums(sums)
        for partition in state.partitions.values():
            slot = self.slots.get(partition.number)
            if slot is not None:
                partition.last = max(partition.last, slot.last)  # a sequence number is never given twice
            first = state.index.rows(partition.base, partition.base + _SEQUENCE, 1)
            partition.removed = (first[0].id & _SEQUENCE) - 1 if first else partition.last
            found = sums.get(partition.number)
            if found is not None:
                partition.batches, partition.messages = found.batches, found.messages
                partition.bytes, partition.oldest_ms = found.bytes, first[0].opened_ms
        gone = {number for number, _, _ in state.index.segments()} | set(state.log.numbers())
        drop_segments(state, sorted(gone - state.live.keys()))
        for slot in self.slots.values():
            state.tally.write(slot._replace(removed=slot.last, batches=0, messages=0))
        for partition in state.partitions.values():
            state.tally.write(partition.slot)

    def _check_sums(self, sums: dict[int, Sums]) -> None:
        """After a clean stop index and tally agree; that they do not is the only sign of entries that have changed."""
        for number, slot in self.slots.items():
            found = sums.get(number)
            if (slot.batches, slot.messages) != ((found.batches, found.messages) if found else (0, 0)):
                raise DamagedError(f"The index {self.state.files.index} is not as it was when the gateway stopped")

    def _removed(self, number: int) -> int:
        slot = self.slots.get(number)
        return slot.removed if slot is not None else 0


@dataclass(slots=True)
class _Append:
    """Records that were written together, and how many bytes right before or between them have changed since."""

    records: list[tuple[int, Head]] = field(default_factory=list)
    damage: int = 0
    whole: bool = False  # its last record is there, or something later


def _appends(segments: Segments, number: int, start: int) -> Iterator[_Append]:
    append = _Append()
    damage = 0
    for span in segments.scan(number, start):
        if span.head is None:
            damage = span.end - span.offset  # counts when a record follows: else it may never have been written
            continue
        append.damage += damage
        damage = 0
        append.records.append((span.offset, span.head))
        if not span.head.following:
            append.whole = True
            yield append
            append = _Append()
    if append.records:
        yield append


def _learn(state: State, head: Head) -> None:
    partition = state.partitions.get((head.topic, head.partition))
    if partition is None:
        number = head.id >> ID_BITS
        partition = PartitionState(number, head.topic, head.partition)
        state.partitions[head.topic, head.partition] = partition
        state.highest = max(state.highest, number)
    partition.last = max(partition.last, head.id & _SEQUENCE)


def _store(state: State, rows: list[Row], segment: int, end: int) -> None:
    with state.index.transaction():
        state.index.add(rows, [(p.number, p.topic, p.partition, p.last) for p in state.partitions.values()])
        state.index.set_segment(segment, end, damaged=segment in state.damaged)


def readable(state: State, row: Row) -> bool:
    """Whether the log still has a batch as the index describes it."""
    try:
        found = state.log.read(row.segment, row.offset)
    except OSError as error:
        log.warning("spool_read_failed", segment=row.segment, error=words(error))
        return False
    return found is not None and found[0].id == row.id
