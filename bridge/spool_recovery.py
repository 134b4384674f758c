"""What happens when a spool is opened, and when damage is found: everything that can be read is kept, the rest counted.

Log, index and tally are witnesses of each other. Usually only the last few records of the log have to be added to the
index. A damaged index is put aside and made anew from the log. Damage in the log costs the records it touches; the
index, or else the tally, says how many messages were in them.
"""

from __future__ import annotations

__all__ = ["Losses", "SpoolReport", "open_state", "rebuild"]

import os
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import SpoolError
from bridge.spool_files import Files, Topics, put_aside
from bridge.spool_index import Index, Row, is_damage
from bridge.spool_record import ID_BITS
from bridge.spool_segments import HEADER_BYTES, Segments, check_header
from bridge.spool_state import PartitionState, State
from bridge.spool_tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bridge.spool_record import Head
    from bridge.spool_tally import Slot

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
                f"{batches} batches with {messages} messages could be read; "
                f"lost are {few}{self.batches} batches with {few}{self.messages} messages."
            )
            if self.put_aside:
                sentence += f" Kept for inspection: {', '.join(path.name for path in self.put_aside)}."
        return SpoolReport(batches, messages, self.batches, self.messages, self.exact, tuple(self.put_aside), sentence)


def open_state(folder: Path, instance: str) -> tuple[State, SpoolReport]:
    """Open a spool, and make good what a crash or damage left. Blocks; raises SpoolError."""
    files = Files(folder)
    files.lock()
    try:
        return _open_locked(files, instance)
    except sqlite3.Error as error:
        files.unlock()
        raise SpoolError(f"The spool's index {files.index} cannot be opened ({error}).") from error
    except OSError as error:
        files.unlock()
        raise SpoolError(
            f"The spool in {folder.absolute()} cannot be opened ({error.strerror}: {error.filename}). Its folder must "
            "be readable and writable, and its disk have some space left."
        ) from error
    except BaseException:
        files.unlock()
        raise


def _open_locked(files: Files, instance: str) -> tuple[State, SpoolReport]:
    segments = Segments(files.folder, instance)
    losses = Losses()
    broken = [number for number in segments.numbers() if not check_header(segments.path(number), instance)]
    topics = Topics(files.topics)
    tally = Tally(files.tally)
    fresh = not files.index.exists()
    index: Index | None = None
    try:
        index = Index(files.index, instance)
        if not fresh and index.fact("clean") != "yes" and not index.sound():
            index.close()
            index = None
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        index = None
    rebuilt = index is None
    if index is None:
        losses.put_aside.append(put_aside(files.index))
        losses.said.append("its index could not be read and was made anew from the log")
        index = Index(files.index, instance)
    state = State(files, instance, segments, topics, tally, index)
    index.note("clean", "no")
    _load(state, losses, broken, rebuilt=rebuilt or fresh)
    return state, losses.report(state)


def rebuild(state: State) -> SpoolReport:
    """Make the index of a running spool anew from its log, since it turned out to be damaged.

    Raises OSError and sqlite3.Error when the disk does not allow it; the spool can then be tried again, no more.
    """
    losses = Losses(said=["its index was damaged while in use and was made anew from the log"])
    try:
        state.index.close()
    except sqlite3.Error as error:
        log.debug("spool_index_close_failed", error=str(error))
    state.log.seal()
    losses.put_aside.append(put_aside(state.files.index))
    state.index = Index(state.files.index, state.instance)
    state.partitions.clear()
    state.live.clear()
    _load(state, losses, [], rebuilt=True)
    return losses.report(state)


def _load(state: State, losses: Losses, broken: list[int], *, rebuilt: bool) -> None:
    """Fill the state's numbers from index, log and tally.

    rebuilt: the index is empty, whatever the log holds.
    """
    index, slots = state.index, state.tally.read()
    state.highest = max(slots, default=0)
    for number, topic, partition, last in index.partitions():
        state.partitions[topic, partition] = PartitionState(number, topic, partition, last)
        state.highest = max(state.highest, number)
    known = dict(state.partitions)
    doubtful = _catch_up(state, slots, losses, broken)
    with index.transaction():
        for number, slot in slots.items():
            # The index may be older than the tally: what was delivered since must not be delivered again.
            index.delete((number << ID_BITS) + 1, (number << ID_BITS) + slot.removed)
    if doubtful and not rebuilt:
        _verify(state, losses)
    _check_tally(state, slots, losses, known, rebuilt=rebuilt)
    _settle(state, slots)


def _catch_up(state: State, slots: dict[int, Slot], losses: Losses, broken: list[int]) -> bool:
    """Add to the index what the log has beyond it. Returns whether the log looks damaged where it is indexed."""
    segments = state.log
    ends = {}
    doubtful = bool(broken)
    state.damaged = set(broken)
    if broken:
        losses.said.append(f"{len(broken)} of its segments start with damage")
    for number, end, damaged in state.index.segments():
        ends[number] = end
        segments.last = max(segments.last, number)
        if damaged:
            state.damaged.add(number)
        size = segments.size(number)
        if size < end:
            doubtful = True
            losses.said.append(
                f"segment {segments.path(number).name} ends {end - size} bytes too early"
                if size
                else f"segment {segments.path(number).name} is missing"
            )
    floors = {p.number: max(p.last, _removed(slots, p.number)) for p in state.partitions.values()}
    for number in segments.numbers():
        segments.last = max(segments.last, number)
        start = ends.get(number, HEADER_BYTES)
        if segments.size(number) > start:
            _index_tail(state, number, start, slots, floors, losses)
    return doubtful


def _index_tail(
    state: State, number: int, start: int, slots: dict[int, Slot], floors: dict[int, int], losses: Losses
) -> None:
    rows: list[Row] = []
    end = start
    for group, upto, damage in _groups(state.log, number, start):
        if damage:
            state.damaged.add(number)
            losses.said.append(f"{damage} bytes of segment {state.log.path(number).name} cannot be read")
            losses.exact = False
        for offset, head in group:
            partition, sequence = head.id >> ID_BITS, head.id & _SEQUENCE
            floor = floors.get(partition)
            if floor is None:
                floor = floors[partition] = _removed(slots, partition)
            if sequence > floor:
                rows.append(Row(head.id, number, offset, head.size, head.messages, head.opened_ms))
                _learn(state, head)
        end = upto
        if len(rows) >= _ROWS:
            _store(state, rows, number, end)
            rows = []
    _store(state, rows, number, end)
    if end < state.log.size(number):
        # An append that a crash cut off, never acknowledged.
        log.info("spool_tail_cut", segment=number, bytes=state.log.size(number) - end)
        os.truncate(state.log.path(number), end)


def _groups(segments: Segments, number: int, start: int) -> Iterator[tuple[list[tuple[int, Head]], int, int]]:
    """Whole appends of a segment: their records, where they end, and how many bytes before them were damaged.

    What an append that did not end left is not among them, unless something whole follows it: then it had ended, and
    damage came later.
    """
    group: list[tuple[int, Head]] = []
    damage = 0
    for span in segments.scan(number, start):
        if span.head is None:
            damage += span.end - span.offset
            continue
        group.append((span.offset, span.head))
        if not span.head.following:
            yield group, span.end, damage
            group, damage = [], 0


def _learn(state: State, head: Head) -> None:
    partition = state.partitions.get((head.topic, head.partition))
    number = head.id >> ID_BITS
    if partition is None:
        partition = PartitionState(number, head.topic, head.partition)
        state.partitions[head.topic, head.partition] = partition
        state.highest = max(state.highest, number)
    partition.last = max(partition.last, head.id & _SEQUENCE)


def _store(state: State, rows: list[Row], segment: int, end: int) -> None:
    with state.index.transaction():
        state.index.add(rows, [(p.number, p.topic, p.partition, p.last) for p in state.partitions.values()])
        state.index.set_end(segment, end)


def _verify(state: State, losses: Losses) -> None:
    """Read every batch that the index knows; forget and count those that cannot be read."""
    for partition in state.partitions.values():
        after, last = partition.base, partition.base + _SEQUENCE
        while rows := state.index.rows(after, last, _ROWS):
            after = rows[-1].id
            bad = [row for row in rows if not readable(state, row)]
            if bad:
                drop_lost(state, bad)
                losses.batches += len(bad)
                losses.messages += sum(row.messages for row in bad)


def readable(state: State, row: Row) -> bool:
    """Whether the log still has a batch as the index describes it."""
    try:
        found = state.log.read(row.segment, row.offset)
    except OSError as error:
        log.warning("spool_read_failed", segment=row.segment, error=str(error))
        return False
    return found is not None and found[0].id == row.id


def drop_lost(state: State, rows: list[Row]) -> None:
    """Forget batches that cannot be read; their segments are to be kept when they go."""
    with state.index.transaction():
        for row in rows:
            state.index.delete(row.id, row.id)
            state.index.set_damaged(row.segment)
    state.damaged.update(row.segment for row in rows)


def _check_tally(
    state: State, slots: dict[int, Slot], losses: Losses, known: dict[tuple[str, int], PartitionState], *, rebuilt: bool
) -> None:
    """Compare with what the tally says was there: it knows of batches that neither index nor log have any more."""
    indexed = {p.number: p for p in known.values()}
    newest = {p.number: p.last for p in state.partitions.values()}
    before = losses.batches
    missing_slots = False
    for number, slot in slots.items():
        if not rebuilt and newest.get(number, 0) >= slot.last:
            continue  # the index is at least as new, and says itself what is missing
        base = number << ID_BITS
        found_batches = found_messages = 0
        after = base + slot.removed
        while rows := state.index.rows(after, base + slot.last, _ROWS):
            after = rows[-1].id
            found_batches += len(rows)
            found_messages += sum(row.messages for row in rows)
        if slot.batches > found_batches:
            losses.batches += slot.batches - found_batches
            losses.messages += max(0, slot.messages - found_messages)
    if rebuilt:
        missing_slots = any(p.number not in slots and p.number not in indexed for p in state.partitions.values())
    if losses.batches > before and not losses.said:
        losses.said.append("its newest batches are missing")
    losses.exact = not missing_slots and (losses.exact or losses.batches > before)
    if not losses.exact and not losses.batches:
        losses.batches = losses.messages = 0


def _settle(state: State, slots: dict[int, Slot]) -> None:
    """Totals from the index, segments that nobody needs away, the tally as it should be."""
    sums = {found.number: found for found in state.index.sums()}
    for partition in state.partitions.values():
        slot = slots.get(partition.number)
        if slot is not None:
            partition.last = max(partition.last, slot.last)  # a sequence number is never given twice
        first = state.index.rows(partition.base, partition.base + _SEQUENCE, 1)
        partition.removed = (first[0].id & _SEQUENCE) - 1 if first else partition.last
        found = sums.get(partition.number)
        if found is not None:
            partition.batches, partition.messages = found.batches, found.messages
            partition.bytes, partition.oldest_ms = found.bytes, first[0].opened_ms
    state.live = state.index.live()
    gone = [number for number, _, _ in state.index.segments() if number not in state.live]
    gone += [number for number in state.log.numbers() if number not in state.live and number not in gone]
    drop_segments(state, gone)
    state.tally.clear()
    for partition in state.partitions.values():
        state.tally.write(partition.slot)


def drop_segments(state: State, numbers: list[int]) -> None:
    """Remove segments in which nothing is needed; damaged ones are renamed."""
    if not numbers:
        return
    with state.index.transaction():
        for number in numbers:
            state.index.forget_segment(number)
    # Else a power cut could bring back index rows of files that are gone, and they would be called lost.
    state.index.sync()
    for number in numbers:
        state.live.pop(number, None)
        name = state.log.path(number).name
        state.log.drop(number, keep_as=f"{name}.damaged" if number in state.damaged else "")
        state.damaged.discard(number)


def _removed(slots: dict[int, Slot], number: int) -> int:
    slot = slots.get(number)
    return slot.removed if slot is not None else 0
