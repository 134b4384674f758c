"""The thread's side of the spool: append, read and remove, one after the other. Each blocks on the disk.

An append is durable, and answered, when the log has it. The index follows at once without waiting for the disk. If the
process dies in between, the next start adds the rest from the log.
"""

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from bridge.errors import SpoolWriteError
from bridge.spool.files import RESERVE_BYTES
from bridge.spool.index import Row, Sums, Totals, is_damage, is_full
from bridge.spool.opening import open_state, rebuild
from bridge.spool.record import ID_BITS, SpoolBatch, encode
from bridge.spool.recovery import SpoolReport
from bridge.spool.removal import drop_lost, drop_segments
from bridge.spool.segments import SEGMENT_BYTES
from bridge.spool.state import PartitionState, State
from config.error_words import words

log = structlog.get_logger("spool")

_SEQUENCE: Final = (1 << ID_BITS) - 1
_ROWS: Final = 64
GIVE_UP_NS: Final = 60_000_000_000  # a batch that the disk fails to read for so long is lost
_UNREADABLE: Final = {errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", 117)}  # of the disk, its checksums, its files
_UNINDEXED: Final = 64  # appended batches that the index may lack while more come
# A partition that cannot be written keeps a little of every segment alive; beyond this its batches move together.
_SLACK_BYTES: Final = 4 * SEGMENT_BYTES


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch in the spool. ``size`` is what its removal frees."""

    id: int
    batch: SpoolBatch
    size: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Batches in order, and the number of lost ones, whose bytes on disk had changed."""

    batches: list[StoredBatch]
    lost_batches: int = 0
    lost_messages: int = 0
    lost_bytes: int = 0


class Removal(NamedTuple):
    """Ids to remove of a partition: ranges that the caller has counted, and others."""

    topic: str
    partition: int
    counted: Sequence[tuple[int, int]]
    uncounted: Sequence[tuple[int, int]]


class Removed(NamedTuple):
    """Removed batches that the caller could not count, and the time of the oldest one left (0: none)."""

    batches: int
    messages: int
    bytes: int
    oldest_ms: int


class Store:
    """The spool in its thread. ``salvaged`` is called after a rebuilt index: all numbers may have changed."""

    def __init__(self, folder: Path, instance: str, salvaged: Callable[[SpoolReport], None]) -> None:
        self.folder = folder
        self._instance = instance
        self._salvaged = salvaged
        self._state: State | None = None  # None: not open
        self._unindexed: list[tuple[PartitionState, Row]] = []  # in the log, not yet in the index
        self._ends: dict[int, int] = {}  # where those segments end
        self._is_index_behind = False  # the index could not be written
        self._is_index_damaged = False  # it is to be rebuilt before anything else
        self._untidy: set[int] = set()  # segments whose damage only a read may find
        self._unread: dict[int, tuple[int, int]] = {}  # by segment: since when the disk fails to read it, and a batch
        self.give_up_ns = GIVE_UP_NS
        self.salvages = 0  # how often all numbers were replaced
        self.opening_steps = 0  # grows while a log is read; other threads may look at it

    @property
    def state(self) -> State:
        assert self._state is not None, "the spool is not open"
        return self._state

    @property
    def is_open(self) -> bool:
        return self._state is not None

    @property
    def segments(self) -> int:
        """Files of the log. Other threads may ask for it: a length."""
        return 0 if self._state is None else len(self._state.sizes)

    def open(self) -> SpoolReport:
        """Raises SpoolError."""
        self._state, report = open_state(self.folder, self._instance, self._step)
        return report

    def _step(self) -> None:
        self.opening_steps += 1

    def totals(self) -> list[Totals]:
        """What is stored, by partition."""
        return [
            Totals(p.topic, p.partition, p.batches, p.messages, p.bytes, p.oldest_ms)
            for p in self.state.partitions.values()
        ]

    # --- appending

    def append(self, calls: Sequence[Sequence[SpoolBatch]]) -> list[list[int]]:
        """Store the batches of several calls with one write; returns the ids for each. Durable on return.

        Raises SpoolWriteError, and then nothing of any call is stored. Call ``index_appended`` soon.
        """
        if self._is_index_damaged or self._is_index_behind or len(self._unindexed) >= _UNINDEXED:
            self.index_appended()
        state = self.state
        self._need_space(sum(batch.stored_bytes for batches in calls for batch in batches))
        pieces: list[bytes] = []
        rows: list[tuple[PartitionState, Row]] = []
        ids: list[list[int]] = []
        given: dict[int, int] = {}
        offset = 0
        for batches in calls:
            ids.append([])
            for number, batch in enumerate(batches, 1):
                partition = state.partition(batch.topic, batch.partition)
                sequence = given[partition.number] = given.get(partition.number, partition.last) + 1
                id_ = partition.base + sequence
                head = encode(batch, id_, len(batches) - number)
                size = len(head) + len(batch.data)
                pieces += (head, batch.data)
                rows.append((partition, Row(id_, 0, offset, size, batch.messages, batch.opened_ms)))
                ids[-1].append(id_)
                offset += size
        try:
            at = state.log.write(pieces)
        except OSError as error:
            if state.log.uncut:
                # A start may find these batches in the log before others of the same ids, and take them for those.
                for partition, row in rows:
                    partition.last = row.id & _SEQUENCE
            raise self._write_error(error) from error
        segment = state.log.active
        for partition, row in rows:
            self._unindexed.append((partition, row._replace(segment=segment, offset=at + row.offset)))
            partition.last = row.id & _SEQUENCE
            partition.batches += 1
            partition.messages += row.messages
            partition.bytes += row.size
            partition.oldest_ms = partition.oldest_ms or row.opened_ms
            state.count(segment, 1, row.size)
        self._ends[segment] = state.log.end
        return ids

    def _need_space(self, size: int) -> None:
        """Raise SpoolWriteError unless ``size`` bytes fit the disk with the reserve, which is made if missing."""
        files = self.state.files
        try:
            free = files.free_bytes()
        except OSError as error:
            raise self._write_error(error) from error
        if size + RESERVE_BYTES > free:
            raise self._write_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        if not self.state.log.active:
            files.reserve()

    def imported(self, export: str) -> int:
        """The number of batches of an export that are stored already."""
        return self.state.index.imported(export)

    def index_appended(self, *, imported: tuple[str, int] | None = None) -> None:
        """Add appended batches to the index, and the progress of an import (``imported``: export, batches stored of
        it). Raises SpoolWriteError; the next call tries again."""
        if self._is_index_damaged:
            self._rebuild()
        if not self._unindexed:
            return
        state = self.state
        touched = {partition.number: partition for partition, _ in self._unindexed}
        try:
            with state.index.transaction():
                state.index.add(
                    [row for _, row in self._unindexed],
                    [(p.number, p.topic, p.partition, p.last) for p in touched.values()],
                )
                if imported is not None:
                    state.index.note(f"import {imported[0]}", str(imported[1]))
                for segment, end in self._ends.items():
                    state.index.set_segment(segment, end, damaged=segment in state.damaged)
        except sqlite3.Error as error:
            self._is_index_behind = True
            if self._freed_reserve(error):
                self.index_appended(imported=imported)
            else:
                self._index_failed(error)
        else:
            self._is_index_behind = False
            self._unindexed.clear()
            self._ends.clear()
            self._note(touched.values())

    # --- reading

    def read(self, topic: str, partition: int, after_id: int, max_bytes: int) -> ReadResult:
        """The partition's next batches after an id, at least one if there is one. Raises SpoolWriteError."""
        self.index_appended()
        found = self.state.partitions.get((topic, partition))
        if found is None:
            return ReadResult([])
        try:
            return self._read_batches(found, max(after_id, found.base), max_bytes)
        except sqlite3.Error as error:
            self._index_failed(error)
            return self.read(topic, partition, after_id, max_bytes)  # from the new index

    def _read_batches(self, partition: PartitionState, after: int, max_bytes: int) -> ReadResult:
        """As ``read``, with the index as it is. Drops and counts unreadable batches."""
        batches: list[StoredBatch] = []
        bad: list[Row] = []
        size = 0
        more = True
        while more:
            rows = self.state.index.rows(after, partition.base + _SEQUENCE, _ROWS)
            more = len(rows) == _ROWS
            for row in rows:
                after = row.id
                if batches and size + row.size > max_bytes:
                    more = False
                    break
                try:
                    found = self.state.log.read(row.segment, row.offset, row.id)
                except OSError as error:
                    if batches:  # these first; the next read begins with it
                        more = False
                        break
                    if not self._gives_up(row, error):
                        raise self._read_error(error) from error
                    found = None
                else:
                    if self._unread.get(row.segment, (0, 0))[1] == row.id:
                        del self._unread[row.segment]
                if found is None:
                    bad.append(row)
                    continue
                batches.append(StoredBatch(row.id, found, row.size))
                size += row.size
        if bad:
            self._drop_lost(partition, bad)
        messages, lost = sum(row.messages for row in bad), sum(row.size for row in bad)
        return ReadResult(batches, len(bad), messages, lost)

    def _gives_up(self, row: Row, error: OSError) -> bool:
        """Whether a batch that the disk fails to read is lost: only after a minute of failing, since a disk may come
        back. Of a segment that has had its minute, every one is. An error that is not the disk's loses nothing."""
        if error.errno not in _UNREADABLE:
            return False
        since_ns, _ = self._unread.setdefault(row.segment, (time.monotonic_ns(), row.id))
        if time.monotonic_ns() < since_ns + self.give_up_ns:
            return False
        log.warning("spool_read_failed", segment=row.segment, error=words(error))
        return True

    def _drop_lost(self, partition: PartitionState, bad: list[Row]) -> None:
        """Log unreadable batches, and remove them from index and totals."""
        log.error(
            "spool_batches_lost",
            topic=partition.topic,
            partition=partition.partition,
            batches=len(bad),
            messages=sum(row.messages for row in bad),
            segments=sorted({self.state.log.path(row.segment).name for row in bad}),
        )
        drop_lost(self.state, bad)
        for row in bad:
            self._uncount(partition, row.segment, 1, row.messages, row.size)
        self._went([partition])

    # --- removing

    def remove(self, removals: Iterable[Removal], *, salvages: int | None = None) -> list[Removed]:
        """Remove batches, without waiting for the disk. Raises SpoolWriteError, and then all are still stored.

        ``salvages``: how many the caller's numbers include, None for all. After a later one every batch is counted.
        """
        salvages = self.salvages if salvages is None else salvages
        self.index_appended()  # perhaps with a salvage
        count_all = self.salvages != salvages
        removals = list(removals)
        state = self.state
        touched: list[PartitionState | None] = []
        gone: list[tuple[PartitionState, int, int, int, int]] = []
        sums: list[Sums] = []
        try:
            with state.index.transaction():
                for removal in removals:
                    partition = state.partitions.get((removal.topic, removal.partition))
                    touched.append(partition)
                    sums.append(Sums())
                    if partition is None:
                        continue
                    # Without its ``last``, a kill before the tally is written would look like lost batches.
                    state.index.add([], [(partition.number, partition.topic, partition.partition, partition.last)])
                    for ranges, counted in ((removal.counted, not count_all), (removal.uncounted, False)):
                        for first, last in ranges:
                            first, last = max(first, partition.base), min(last, partition.base + _SEQUENCE)
                            for segment, batches, messages, size in state.index.delete(first, last):
                                gone.append((partition, segment, batches, messages, size))
                                if not counted:
                                    sums[-1].batches += batches
                                    sums[-1].messages += messages
                                    sums[-1].bytes += size
        except sqlite3.Error as error:
            if self._freed_reserve(error):
                return self.remove(removals, salvages=salvages)
            self._index_failed(error)
            return self.remove(removals, salvages=salvages)
        for partition, segment, batches, messages, size in gone:
            self._uncount(partition, segment, batches, messages, size)
        self._went({p.number: p for p in touched if p is not None}.values())
        return [
            Removed(n.batches, n.messages, n.bytes, partition.oldest_ms if partition is not None else 0)
            for n, partition in zip(sums, touched, strict=True)
        ]

    def _uncount(self, partition: PartitionState, segment: int, batches: int, messages: int, size: int) -> None:
        partition.batches -= batches
        partition.messages -= messages
        partition.bytes -= size
        self.state.count(segment, -batches, -size)

    def _went(self, partitions: Iterable[PartitionState]) -> None:
        """After a removal: find the oldest batch and remove unneeded files. The next call repeats what fails."""
        state = self.state
        try:
            for partition in partitions:
                first = state.index.rows(partition.base, partition.base + _SEQUENCE, 1)
                partition.removed = (first[0].id & _SEQUENCE) - 1 if first else partition.last
                partition.oldest_ms = first[0].opened_ms if first else 0
                state.tally.write(partition.slot)
            empty = not any(batches for batches, _ in state.live.values())
            drop_segments(
                state, [n for n, (batches, _) in state.live.items() if not batches and (empty or n != state.log.active)]
            )
            if empty:
                state.index.shrink()
        except (sqlite3.Error, OSError) as error:
            log.warning("spool_clean_up_failed", error=words(error))

    def tidy(self) -> None:
        """Rewrite one segment with few needed batches, when there are too many such segments.

        Blocks for at most 8 MiB of reading and writing, since the emptiest one is at most half full then. Raises
        SpoolWriteError.
        """
        state = self.state
        if state.written <= 2 * state.needed + _SLACK_BYTES:
            return
        closed = {
            n: size
            for n, (_, size) in state.live.items()
            if n != state.log.active and n not in self._untidy | state.damaged
        }
        if not closed:
            return
        segment = min(closed, key=lambda n: closed[n] / (state.sizes[n] or 1))
        try:
            self._rewrite(segment)
        except OSError as error:
            raise self._write_error(error) from error
        except sqlite3.Error as error:
            self._index_failed(error)

    def _rewrite(self, segment: int) -> None:
        """Move a segment's batches into the active segment, and remove it. An unreadable batch prevents that."""
        state = self.state
        rows = state.index.in_segment(segment)
        pieces: list[bytes] = []
        for row in rows:
            found = state.log.read(segment, row.offset, row.id)
            if found is None:
                self._untidy.add(segment)  # reported when it is read
                return
            pieces += (encode(found, row.id, 0), found.data)
        at = state.log.write(pieces)
        active = state.log.active
        with state.index.transaction():
            for row in rows:
                state.index.move(row, active, at)
                at += row.size
            state.index.set_segment(active, state.log.end, damaged=active in state.damaged)
        for row in rows:
            state.count(segment, -1, -row.size)
            state.count(active, 1, row.size)
        drop_segments(state, [segment])

    # --- the rest

    def topics(self) -> dict[str, int]:
        """The last known partition counts."""
        return dict(self.state.topics.counts)

    def remember_topic(self, topic: str, partitions: int) -> None:
        """Keep a topic's number of partitions. Durable on return. Raises SpoolWriteError."""
        counts = self.state.topics.counts
        if counts.get(topic) != partitions:
            try:
                self.state.topics.write({**counts, topic: partitions})
            except OSError as error:
                raise self._write_error(error) from error

    def close(self) -> None:
        """Write everything and close. Raises SpoolWriteError when the disk fails; the log is complete all the same."""
        if self._state is None:
            return
        state = self._state
        try:
            self.index_appended()
            for partition in state.partitions.values():
                state.tally.write(partition.slot)  # the disk may have refused it before
            state.tally.sync()
            if not state.log.uncut:  # else the next start may find more in the log than the tally counts
                state.index.note("clean", "yes")
            state.index.close()
        except (sqlite3.Error, OSError) as error:
            raise self._write_error(error) from error
        finally:
            state.index.release()  # not closed after a failure before it
            state.log.close()
            state.tally.close()
            state.files.unlock()
            self._state = None

    def _note(self, partitions: Iterable[PartitionState]) -> None:
        """Write the partitions' numbers into the tally."""
        try:
            for partition in partitions:
                self.state.tally.write(partition.slot)
        except OSError as error:
            log.warning("spool_tally_failed", error=words(error))  # delivery does not need the tally

    def _freed_reserve(self, error: sqlite3.Error) -> bool:
        """Free the reserved space of a full disk. True when the operation may be tried once more."""
        if is_full(error) and self.state.files.free_reserve():
            log.warning("spool_reserve_used", error=words(error))
            return True
        return False

    def _index_failed(self, error: sqlite3.Error) -> None:
        """Rebuild a damaged index. Raises SpoolWriteError when it is not damaged, or the disk fails."""
        if not is_damage(error):
            raise self._write_error(error) from error
        log.error("spool_index_damaged", error=words(error))
        self._unindexed.clear()  # they are in the log, from which the index is made
        self._ends.clear()
        self._is_index_damaged = True
        self._rebuild()

    def _rebuild(self) -> None:
        """Make the index anew. Raises SpoolWriteError; the next call tries again."""
        try:
            report = rebuild(self.state, self._step)
        except (OSError, sqlite3.Error) as failure:
            raise self._write_error(failure) from failure
        self._is_index_damaged = self._is_index_behind = False
        self.salvages += 1
        self._salvaged(report)

    def _read_error(self, error: OSError) -> SpoolWriteError:
        return SpoolWriteError(
            f"The spool in {self.folder.absolute()} cannot be read ({words(error)}). Check its disk, and the limit of "
            "open files; the gateway goes on by itself once it can be read."
        )

    def _write_error(self, error: OSError | sqlite3.Error) -> SpoolWriteError:
        return SpoolWriteError(
            f"The spool in {self.folder.absolute()} cannot be written ({words(error)}). Check the space on its disk, "
            "and the disk; the gateway goes on by itself once it can be written."
        )
