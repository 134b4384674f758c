"""The event loop's side of the spool: batches on disk, durable when ``append`` returns, in order per partition.

A thread does all work on the disk, so the loop never waits for it. Appends of several tasks are written together, with
one fsync. docs/spool.md names the files, ``record.py`` has the format.

Memory does not grow with the number of stored batches. Each partition has a few numbers, and the sizes of batches that
were read and not removed yet.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import structlog

from bridge.errors import SpoolFullError, SpoolWriteError
from bridge.spool.index import Totals
from bridge.spool.record import SpoolBatch
from bridge.spool.recovery import SpoolReport
from bridge.spool.store import ReadResult, Removal, Removed, Store
from bridge.spool.thread import SpoolThread
from config.errors import forget_frames

log = structlog.get_logger("spool")

REMOVE_EVERY_S: Final = 0.1  # removals are collected for so long
REMOVE_AT: Final = 256  # or until there are so many
RETRY_S: Final = 1.0
_KNOWN: Final = 64  # appended batches whose size is remembered per partition: those a late answer may still remove


def spool_path(data_dir: Path, worker: int) -> Path:
    return data_dir / f"worker-{worker}" / "spool"


class _Partition:
    """The loop's numbers of a partition."""

    __slots__ = ("batches", "bytes", "known", "messages", "oldest_ms", "removed", "removing", "uncounted")

    def __init__(self) -> None:
        self.batches = 0
        self.messages = 0
        self.bytes = 0
        self.oldest_ms = 0
        self.known: dict[int, tuple[int, int]] = {}  # id: messages, bytes
        self.removed: list[int] = []  # removed from the totals; the thread does not have them yet
        self.uncounted: list[tuple[int, int]] = []  # ranges of ids whose numbers only the thread can find
        self.removing: set[int] = set()  # removed from the totals; a read in progress may still return them


class Spool:
    """The spool of one worker. ``path`` is its folder. Every method belongs to the event loop's thread.

    ``salvaged`` is called on the loop after a repair while running: totals may have changed.
    """

    def __init__(
        self, path: Path, *, max_bytes: int, instance: str, salvaged: Callable[[SpoolReport], None] | None = None
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._tell_salvaged = salvaged  # receives the report of each rebuilt index
        self._store = Store(path, instance, self._salvaged_in_thread)
        self._thread = SpoolThread(self._store)
        self._partitions: dict[tuple[str, int], _Partition] = {}  # by topic and partition
        self.messages = 0  # stored and not removed, as bytes and batches are
        self.bytes = 0
        self.batches = 0
        self._reserved = 0  # bytes of appends under way
        self._salvages = 0  # how often a new index replaced all numbers
        self._timer: asyncio.TimerHandle | None = None  # of the next ``_submit_removals``
        self._waiting_removals = 0  # noted, not given to the thread yet
        self._topics: dict[str, int] = {}  # partitions by topic, as on disk
        self._failing = False  # the last removal failed, and a warning is in the log

    def watch_writes(self, wrote: Callable[[int], None]) -> None:
        """Call ``wrote`` with the nanoseconds of each write."""
        self._thread.wrote = wrote

    async def open(self) -> SpoolReport:
        """Create or open it, and repair what a crash or damage left. Raises SpoolError with a sentence."""
        self._thread.start(asyncio.get_running_loop())
        try:
            report = await self._thread.run(self._store.open)
            self._replace_totals(await self._thread.run(self._store.totals))
            self._topics = await self._thread.run(self._store.topics)
        except BaseException as error:
            # After a cancellation the thread goes on, perhaps for minutes, and then closes what it has opened.
            self._thread.submit(self._store.close, lambda *_: None)
            self._thread.stop(joins=not isinstance(error, asyncio.CancelledError))
            raise
        if report.sentence:
            log.error("spool_damaged", lost_messages=report.lost_messages, exact=report.exact, detail=report.sentence)
        return report

    # --- what is stored: exact, and without I/O

    @property
    def segments(self) -> int:
        return self._store.segments

    @property
    def opening_steps(self) -> int:
        """Grows while ``open`` reads the log."""
        return self._store.opening_steps

    def oldest_ms(self) -> int:
        """Wall clock of the oldest stored batch, 0 without one. Follows removals within ``REMOVE_EVERY_S``."""
        return min((p.oldest_ms for p in self._partitions.values() if p.batches), default=0)

    def has_room(self, size: int) -> bool:
        """Whether batches that take so many bytes (``SpoolBatch.stored_bytes``) fit."""
        return self.bytes + self._reserved + size <= self.max_bytes

    def partitions(self) -> Iterable[tuple[str, int]]:
        return [name for name, partition in self._partitions.items() if partition.batches]

    def waiting(self, topic: str, partition: int) -> int:
        found = self._partitions.get((topic, partition))
        return found.batches if found is not None else 0

    def waiting_messages(self, topic: str, partition: int) -> int:
        found = self._partitions.get((topic, partition))
        return found.messages if found is not None else 0

    def topics(self) -> dict[str, int]:
        """Partitions of each topic as last remembered, over restarts."""
        return dict(self._topics)

    # --- what takes the disk

    async def append(self, batches: Sequence[SpoolBatch]) -> list[int]:
        """Store batches, all or none; returns their ids, which rise within a partition. Durable on return.

        Batches of a partition keep the order in which they were appended, also across calls that wait together.
        Raises SpoolFullError or SpoolWriteError, and then none is stored. A cancelled call may have stored them.
        """
        if not batches:
            return []
        size = sum(batch.stored_bytes for batch in batches)
        if not self.has_room(size):
            raise SpoolFullError(
                f"The spool in {self.path.absolute()} is full: {self.bytes} bytes are stored, {size} more would pass "
                f"spool.max_bytes = {self.max_bytes}. It empties once Kafka takes batches again."
            )
        self._reserved += size
        return await self._thread.append(batches, lambda ids: self._appended(batches, size, ids))

    def _appended(self, batches: Sequence[SpoolBatch], size: int, ids: list[int] | None) -> None:
        """Count an append, on the loop, also of a caller that was cancelled. ``ids`` None: nothing was stored."""
        self._reserved -= size
        if ids is None:
            return
        for batch, id_ in zip(batches, ids, strict=True):
            partition = self._partitions.get((batch.topic, batch.partition))
            if partition is None:
                partition = self._partitions[batch.topic, batch.partition] = _Partition()
            if not partition.batches:
                partition.oldest_ms = batch.opened_ms
            stored = batch.stored_bytes
            self._count(partition, 1, batch.messages, stored)
            if len(partition.known) < _KNOWN:
                partition.known[id_] = (batch.messages, stored)

    async def read(self, topic: str, partition: int, after_id: int, max_bytes: int) -> ReadResult:
        """The next batches of a partition after an id (0: from the first), in order, at least one if there is one.

        A batch whose bytes have changed on disk is omitted and removed; the result counts the lost messages. Raises
        SpoolWriteError when the disk fails.
        """
        found = self._partitions.get((topic, partition))
        if found is None:
            return ReadResult([])
        self._submit_removals()
        lost_batches = lost_messages = lost_bytes = 0
        while True:
            result = await self._thread.run(self._store.read, topic, partition, after_id, max_bytes)
            self._count(found, -result.lost_batches, -result.lost_messages, -result.lost_bytes)
            lost_batches += result.lost_batches
            lost_messages += result.lost_messages
            lost_bytes += result.lost_bytes
            batches = [stored for stored in result.batches if stored.id not in found.removing]
            if batches or not result.batches:
                break
            after_id = result.batches[-1].id  # all are removed, and the disk has refused that so far
        for stored in batches:
            found.known[stored.id] = (stored.batch.messages, stored.size)
        return ReadResult(batches, lost_batches, lost_messages, lost_bytes)

    def remove(self, topic: str, partition: int, ids: Sequence[int]) -> None:
        """Remove delivered batches. Totals change at once, the disk within ``REMOVE_EVERY_S``. A crash before that
        delivers them again.

        Ids that are not stored are ignored. Some sizes only the thread knows: those of batches neither read nor among
        the first few appended since the start. These leave the totals when the thread has removed them.
        """
        found = self._partitions.get((topic, partition))
        if found is None or not ids:
            return
        known = []
        for id_ in ids:
            if id_ in found.known:
                known.append(id_)
            elif id_ not in found.removing:
                found.uncounted.append((id_, id_))
                found.removing.add(id_)
                self._waiting_removals += 1
        for id_ in known:
            messages, size = found.known.pop(id_)
            self._count(found, -1, -messages, -size)
        found.removed += known
        found.removing.update(known)
        self._waiting_removals += len(known)
        if self._waiting_removals >= REMOVE_AT:
            self._submit_removals()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REMOVE_EVERY_S, self._submit_removals)

    def _submit_removals(self) -> None:
        """Have the thread remove the batches that were noted for removal."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting_removals:
            return
        self._waiting_removals = 0
        removals = []
        for (topic, partition), found in self._partitions.items():
            if found.removed or found.uncounted:
                removals.append(Removal(topic, partition, _ranges(found.removed), found.uncounted))
                found.removed, found.uncounted = [], []
        salvages = self._salvages

        def removed(result: list[Removed] | None, error: BaseException | None) -> None:
            self._removals_done(removals, salvages, result, error)

        store = self._store
        self._thread.submit(lambda: store.remove(removals, salvages=salvages), removed)

    def _removals_done(
        self,
        removals: list[Removal],
        salvages: int,
        result: list[Removed] | None,
        error: BaseException | None,
    ) -> None:
        """Count what only the thread could count. ``result`` None: it failed, and is tried again."""
        if result is None:
            self._retry_removals(removals, salvages, error)
            return
        self._failing = False
        for removal, gone in zip(removals, result, strict=True):
            found = self._partitions.get((removal.topic, removal.partition))
            if found is None:
                continue
            found.oldest_ms = gone.oldest_ms
            self._count(found, -gone.batches, -gone.messages, -gone.bytes)
            # Ids of two QoS that came in turn are many ranges: the few wide ones alone are looked through for each.
            found.removing.difference_update(i for first, last in removal.counted for i in range(first, last + 1))
            found.removing.difference_update(first for first, last in removal.uncounted if first == last)
            wide = [(first, last) for first, last in removal.uncounted if first != last]
            found.removing = {i for i in found.removing if not any(first <= i <= last for first, last in wide)}

    def _retry_removals(self, removals: list[Removal], salvages: int, error: BaseException | None) -> None:
        """Note failed removals again. After a new index (``salvages``) the thread counts them all."""
        if isinstance(error, SpoolWriteError):
            forget_frames(error)
        if not self._failing:
            log.warning("spool_removal_failed", error=str(error), retry_in_s=RETRY_S)
        self._failing = True
        for removal in removals:
            found = self._partitions.get((removal.topic, removal.partition))
            if found is None:
                continue
            if salvages == self._salvages:
                found.removed += [id_ for first, last in removal.counted for id_ in range(first, last + 1)]
            else:
                found.uncounted += removal.counted
            found.uncounted += removal.uncounted
            self._waiting_removals += 1
        if self._timer is None and not self._thread.stopping:
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._submit_removals)

    async def remember_topic(self, topic: str, partitions: int) -> None:
        """Keep a topic's number of partitions over restarts, for a start without Kafka.

        Costs nothing when it is known already. Raises SpoolWriteError.
        """
        if self._topics.get(topic) != partitions:
            await self._thread.run(self._store.remember_topic, topic, partitions)
            self._topics[topic] = partitions

    async def close(self) -> None:
        """Write every removal, tidy the disk, and unlock the folder. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._thread.running:
            return
        try:
            for _ in range(2):  # once more for those that the disk refuses at first
                self._submit_removals()
                await self._thread.run(_nothing)
            await self._thread.run(self._store.close)
        except SpoolWriteError as error:
            log.warning("spool_close_failed", error=str(error))
        finally:
            self._thread.stop()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    # --- numbers

    def _count(self, partition: _Partition, batches: int, messages: int, size: int) -> None:
        """Add to the totals of a partition and of the spool; negative numbers were removed."""
        partition.batches += batches
        partition.messages += messages
        partition.bytes += size
        self.batches += batches
        self.messages += messages
        self.bytes += size

    def _replace_totals(self, totals: list[Totals]) -> None:
        """Set all totals to those of the store."""
        self.batches = self.messages = self.bytes = 0
        for partition in self._partitions.values():
            partition.batches = partition.messages = partition.bytes = 0
        for total in totals:
            partition = self._partitions.setdefault((total.topic, total.partition), _Partition())
            self._count(partition, total.batches, total.messages, total.bytes)
            partition.oldest_ms = total.oldest_ms

    def _salvaged_in_thread(self, report: SpoolReport) -> None:
        totals = self._store.totals()
        self._thread.post(lambda: self._salvaged(report, totals))

    def _salvaged(self, report: SpoolReport, totals: list[Totals]) -> None:
        """Use the store's new numbers. Removals that the thread does not have yet count again."""
        self._salvages += 1
        for partition in self._partitions.values():
            partition.known.clear()
            partition.uncounted += _ranges(partition.removed)
            partition.removed = []
        self._replace_totals(totals)
        log.error("spool_salvaged", lost_messages=report.lost_messages, exact=report.exact, detail=report.sentence)
        if self._tell_salvaged is not None:
            self._tell_salvaged(report)


def _nothing() -> None:
    """A job that ends after all earlier ones."""


def _ranges(ids: list[int]) -> list[tuple[int, int]]:
    """Ids as ranges, first and last included."""
    ranges: list[tuple[int, int]] = []
    for id_ in sorted(ids):
        if ranges and ranges[-1][1] == id_ - 1:
            ranges[-1] = (ranges[-1][0], id_)
        else:
            ranges.append((id_, id_))
    return ranges
