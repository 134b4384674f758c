"""Decides what goes to the spool, and brings it back: for partitions that Kafka does not take for a while.

A partition is *spooling* once its oldest record has waited ``after`` without an acknowledgement from it. From then on
what is flushed for it goes to the disk, together with the batch that is under way, and the spans that waited for it are
released: an acknowledgement to MQTT then means Kafka, or this disk. When the partition takes batches again, those on
disk go first, oldest first, some at a time; once the last of them is under way, new ones wait for it in memory as they
always did.

A batch that was under way when the spool took it stays the producer's: a late answer removes it from the disk, and
nothing else of its partition is sent before it has failed or its incarnation is gone. So what is on disk comes before
what is in memory alone, and each in the order received.

The event loop's thread owns everything here; the store works in a thread of its own."""

from __future__ import annotations

__all__ = ["SpoolPolicy", "Spooler"]

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from bridge.accumulator import Accumulator
from bridge.batch import Batch, Span
from bridge.errors import SpoolFullError, SpoolWriteError
from bridge.partitions import Backlog
from bridge.spool import SpoolBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bridge.accumulator import Slot
    from bridge.ledger import Ledger
    from bridge.partitions import PartitionQueue, Partitions
    from bridge.ports import BatchBuilder, Producer, SpoolStore
    from bridge.spool import StoredBatch

log = structlog.get_logger("spool")

LOOK_INTERVAL_S: Final = 0.1  # how often stalled partitions are looked for; spool.after is a second
WRITE_BYTES: Final = 4 << 20  # of one append: a commit of this size takes a slow disk some 40 ms
RETRY_S: Final = 1.0  # after a write that failed
AHEAD_BYTES: Final = 4 << 20  # beyond it nothing is read back before the batch in front of it is acknowledged
FRAME_BYTES: Final = 1024  # what a batch takes beyond its own bytes, at most
FULL_ADVICE: Final = "Kafka has to take some first: look why it does not; MQTT clients are held back meanwhile"
SMALL_BYTES: Final = 32 * 1024  # batches below it are put together again when they come back


@dataclass(frozen=True, slots=True)
class SpoolPolicy:
    """``after_ns``: how long a partition may take nothing; 0: everything goes through the disk. ``acknowledges``
    False: only Kafka does, and what MQTT will deliver again (QoS 1 and 2) is left to its window. ``takes`` False:
    nothing new goes to the disk, and what is there is delivered."""

    after_ns: int
    acknowledges: bool
    replay_bytes_per_s: int
    batch_bytes: int
    takes: bool = True


class _Replayed(Span):
    """What was read back at once, of one partition, and has to be removed from the disk once Kafka has it."""

    __slots__ = ("ids", "messages", "queue", "size")

    def __init__(self, spooler: Spooler, queue: PartitionQueue, ids: Sequence[int], messages: int, size: int) -> None:
        super().__init__(lambda: spooler.settle(self))
        self.queue = queue
        self.ids = ids
        self.messages = messages
        self.size = size


class Spooler:
    """``resume`` is called with a queue that has something to send again, or room to. ``opened`` comes first."""

    def __init__(
        self,
        store: SpoolStore,
        partitions: Partitions,
        producer: Callable[[], Producer],
        policy: SpoolPolicy,
        ledger: Ledger,
        resume: Callable[[PartitionQueue], None],
        clock_ns: Callable[[], int],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self.store = store
        self._partitions = partitions
        self._producer = producer
        self._policy = policy
        self._ledger = ledger
        self._resume = resume
        self._clock_ns = clock_ns
        self._fatal = fatal
        # Records of an earlier life enter here: they are owed no acknowledgement, and are no receipts of this one.
        self.accumulator = Accumulator(self._create_batch, _no_span, partitions)
        self._spooling: dict[PartitionQueue, None] = {}
        self._wanted: deque[PartitionQueue] = deque()
        self._replays: set[_Replayed] = set()
        self._loaded_bytes = 0
        self._next_load_ns = 0
        self._writer: asyncio.Task[None] | None = None
        self._loader: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retry_ns = 0
        self._settled = asyncio.Event()
        self._closed = False  # nothing goes to the disk or comes from it any more
        self._ended = False  # nor is anything removed from it
        self.problem: str | None = None  # why the disk takes nothing at the moment
        if policy.takes and not policy.after_ns:
            partitions.made = self._begin

    # --- life --------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Take over what the store holds from an earlier life: it goes before anything new of its partitions."""
        for topic, partition in self.store.partitions():
            queue = self._partitions.queue(topic, partition)
            backlog = queue.backlog = queue.backlog or Backlog()
            backlog.behind = self.store.waiting(topic, partition)
            backlog.behind_messages = self.store.waiting_messages(topic, partition)
            self._ledger.recovered += backlog.behind_messages
            if self._policy.takes:
                self._begin(queue)
        self._look()

    async def close(self, *, patience_s: float = 0.0) -> None:
        """Send nothing from the disk any more; let a write end, and wait a moment for the answers to what is under
        way, which would be delivered again otherwise. The rest is on disk, or was never acknowledged."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._loader is not None:
            self._loader.cancel()
            await asyncio.wait([self._loader])
        if self._writer is not None:
            await asyncio.wait([self._writer])
        under_way = [queue for queue in self._partitions.queues.values() if queue.in_flight is not None]
        replays = [queue for queue in under_way if queue.in_flight is not None and queue.in_flight.on_disk]
        if replays and patience_s:
            self._settled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    while any(queue.in_flight is not None and queue.in_flight.on_disk for queue in replays):
                        await self._settled.wait()
                        self._settled.clear()
        self._ended = True

    async def drained(self) -> None:
        """Wait until the disk holds nothing any more, however long that takes."""
        while self.messages():
            self._settled.clear()
            await self._settled.wait()

    def messages(self) -> int:
        """Messages in the spool, read back or not, until Kafka has them: the ledger's own look at what is held."""
        behind = sum(backlog.behind_messages for backlog in self._backlogs())
        # Without those that another of its batches has again: a dead letter made of one that was read back.
        return behind + sum(span.messages - span.spooled for span in self._replays)

    def spooling(self) -> dict[str, list[int]]:
        """The partitions whose messages go to the disk at the moment, by topic."""
        found: dict[str, list[int]] = {}
        for queue in self._spooling:
            found.setdefault(queue.topic, []).append(queue.partition)
        return found

    def _backlogs(self) -> Iterator[Backlog]:
        return (queue.backlog for queue in self._partitions.queues.values() if queue.backlog is not None)

    # --- for the sender ----------------------------------------------------------------------------

    def pump(self) -> None:
        """Write what has been flushed for the partitions that are spooling. Does not block."""
        if self._spooling and self._writer is None and not self._closed:
            items = self._collect()
            if items:
                self._writer = asyncio.get_running_loop().create_task(self._write_all(items))
                self._writer.add_done_callback(self._written_all)

    def next_batch(self, queue: PartitionQueue) -> Batch | None:
        """Take the batch to send next of a queue that has a backlog, or None: it may be on its way from the disk."""
        backlog = queue.backlog
        assert backlog is not None
        if self._closed:
            return None
        if backlog.loaded:
            batch = backlog.loaded.popleft()
            if backlog.behind:
                if self._loaded_bytes < AHEAD_BYTES:
                    self._want(queue)
            elif not backlog.loaded and not backlog.writing and self._policy.after_ns:
                self._end(queue)  # new batches wait for this one in memory
            return batch
        if backlog.behind:
            self._want(queue)
            return None
        if backlog.writing:
            return None
        if self._policy.after_ns:
            self._end(queue)
            queue.backlog = None
        return queue.next_batch()

    # --- to the disk -------------------------------------------------------------------------------

    def _look(self) -> None:
        """Find the partitions that have taken nothing for too long."""
        self._timer = None
        if self._closed:
            return
        now_ns = self._clock_ns()
        late_ns = now_ns - self._policy.after_ns
        for queue in self._partitions.queues.values() if self._policy.takes else ():
            if queue not in self._spooling:
                oldest_ns = queue.oldest_ns()
                if oldest_ns and max(oldest_ns, queue.last_acknowledged_ns) < late_ns and self._takes_any(queue):
                    log.warning("spooling", topic=queue.topic, partition=queue.partition, repeat_key=queue.topic)
                    self._begin(queue)
        try:
            self.pump()
        except Exception as error:  # noqa: BLE001 - the loop would only log it, and nothing be spooled any more
            self._fatal(error)
        self._timer = asyncio.get_running_loop().call_later(LOOK_INTERVAL_S, self._look)

    def _begin(self, queue: PartitionQueue) -> None:
        queue.backlog = queue.backlog or Backlog()
        queue.backlog.spooling = True
        self._spooling[queue] = None

    def _end(self, queue: PartitionQueue) -> None:
        assert queue.backlog is not None
        if queue.backlog.spooling:
            queue.backlog.spooling = False
            self._spooling.pop(queue, None)
            log.info("spool_drained", topic=queue.topic, partition=queue.partition, repeat_key=queue.topic)

    def _takes(self, batch: Batch) -> bool:
        return self._policy.acknowledges or batch.slot.qos == 0

    def _takes_any(self, queue: PartitionQueue) -> bool:
        if self._policy.acknowledges:
            return True
        opened = any(slot.qos == 0 for slot in queue.open)
        return opened or any(batch.slot.qos == 0 for batch in queue.batches() if not batch.on_disk)

    def _collect(self) -> list[tuple[PartitionQueue, Batch]]:
        """What to write next, in order for each partition; empty when there is nothing, or no room for it."""
        if self._clock_ns() < self._retry_ns:
            return []
        items: list[tuple[PartitionQueue, Batch]] = []
        room = min(WRITE_BYTES, self.store.max_bytes - self.store.bytes)
        for queue in list(self._spooling):
            taken, room = self._collect_from(queue, room)
            items += ((queue, batch) for batch in taken)
        return items

    def _collect_from(self, queue: PartitionQueue, room: int) -> tuple[list[Batch], int]:
        """What of a queue to write next, and the bytes left for others. One that does not fit stays, and with it
        everything behind it."""
        taken: list[Batch] = []
        backlog = queue.backlog
        assert backlog is not None
        batch = queue.in_flight
        if batch is not None and not batch.on_disk and self._takes(batch):
            if batch.size + FRAME_BYTES > room:
                self._note_full()
                return [], room
            batch.writing = True
            backlog.writing.append(batch)
            taken.append(batch)
            room -= batch.size + FRAME_BYTES
        kept: list[Batch] = []
        while (batch := queue.next_batch()) is not None:
            if not self._takes(batch):
                kept.append(batch)
                continue
            if batch.size + FRAME_BYTES > room:
                kept.append(batch)
                self._note_full()
                break
            batch.writing = True
            backlog.writing.append(batch)
            taken.append(batch)
            room -= batch.size + FRAME_BYTES
        queue.sealed.extendleft(reversed(kept))
        return taken, room

    def _note_full(self) -> None:
        """Back-pressure: what does not fit stays in memory, unacknowledged, until the disk has room again."""
        if self.store.max_bytes - self.store.bytes < WRITE_BYTES and self.problem is None:
            self.problem = f"the spool holds {self.store.bytes} bytes of spool.max_bytes = {self.store.max_bytes}"
            log.error("spool_full", bytes=self.store.bytes, max_bytes=self.store.max_bytes, advice=FULL_ADVICE)

    async def _write_all(self, items: list[tuple[PartitionQueue, Batch]]) -> None:
        while items:
            await self._write(items)
            items = [] if self._closed else self._collect()

    def _written_all(self, task: asyncio.Task[None]) -> None:
        self._writer = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error)

    async def _write(self, items: list[tuple[PartitionQueue, Batch]]) -> None:
        now_ns, now_ms = self._clock_ns(), time.time_ns() // 1_000_000
        rows = [
            SpoolBatch(
                topic=queue.topic,
                partition=queue.partition,
                route=batch.slot.route,
                qos=batch.slot.qos,
                dead_letter=batch.slot.dead_letter,
                messages=batch.messages,
                unfinished=tuple(batch.unfinished),
                opened_ms=now_ms - (now_ns - batch.opened_ns) // 1_000_000,
                data=batch.builder.encode(),
            )
            for queue, batch in items
        ]
        try:
            ids = await self.store.append(rows)
        except (SpoolFullError, SpoolWriteError) as error:
            self._not_written(items, error)
        else:
            if self.problem is not None:
                self.problem = None
                log.info("spool_takes_again")
            for (queue, batch), row_id in zip(items, ids, strict=True):
                self._written(queue, batch, row_id)
        for queue in dict.fromkeys(queue for queue, _ in items):
            self._resume(queue)

    def _written(self, queue: PartitionQueue, batch: Batch, row_id: int) -> None:
        backlog = queue.backlog
        assert backlog is not None
        batch.writing = False
        backlog.writing.remove(batch)
        if batch.stored:
            # Kafka has answered meanwhile, so as far as the ledger is concerned the disk never had it.
            backlog.read_id = max(backlog.read_id, row_id)
            self.store.remove(queue.topic, queue.partition, [row_id])
            return
        if batch is queue.in_flight:
            backlog.read_id = max(backlog.read_id, row_id)
            span = _Replayed(self, queue, [row_id], batch.messages, 0)
            self._replays.add(span)
            batch.on_disk = True
            batch.slot.accumulator.spooled(batch, span)
            return
        backlog.behind += 1
        backlog.behind_messages += batch.messages
        batch.slot.accumulator.spooled(batch)

    def _not_written(self, items: list[tuple[PartitionQueue, Batch]], error: SpoolFullError | SpoolWriteError) -> None:
        """Everything stays in memory, unacknowledged: the windows close, and the broker holds what comes."""
        self._retry_ns = self._clock_ns() + round(RETRY_S * 1e9)
        self.problem = str(error)
        log.error("spool_not_written", error=str(error), repeat_key=type(error).__name__)
        for queue, batch in reversed(items):
            batch.writing = False
            assert queue.backlog is not None
            queue.backlog.writing.remove(batch)
            if batch is not queue.in_flight and not batch.stored:
                queue.sealed.appendleft(batch)

    # --- and back ----------------------------------------------------------------------------------

    def _want(self, queue: PartitionQueue) -> None:
        assert queue.backlog is not None
        if queue.backlog.loading or self._closed:
            return
        queue.backlog.loading = True
        self._wanted.append(queue)
        if self._loader is None:
            self._loader = asyncio.get_running_loop().create_task(self._load_all())
            self._loader.add_done_callback(self._loaded_all)

    async def _load_all(self) -> None:
        while self._wanted:
            wait_ns = self._next_load_ns - self._clock_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            queue = self._wanted.popleft()
            await self._load(queue)
            self._resume(queue)

    def _loaded_all(self, task: asyncio.Task[None]) -> None:
        self._loader = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._fatal(error)
        elif self._wanted:
            queue = self._wanted.popleft()
            assert queue.backlog is not None
            queue.backlog.loading = False
            self._want(queue)

    async def _load(self, queue: PartitionQueue) -> None:
        backlog = queue.backlog
        assert backlog is not None
        try:
            answer = await self.store.read(queue.topic, queue.partition, backlog.read_id, self._policy.batch_bytes)
        except SpoolWriteError as error:
            log.error("spool_not_read", error=str(error), repeat_key="read")  # noqa: TRY400 - a sentence
            await asyncio.sleep(RETRY_S)
            self._wanted.append(queue)
            return
        backlog.loading = False
        # The last ones may have been written and not been counted yet: not before that.
        rows = answer.batches[: backlog.behind - answer.lost_batches]
        size = sum(row.size for row in rows)
        self._next_load_ns = self._clock_ns() + size * 1_000_000_000 // self._policy.replay_bytes_per_s
        self._lose(queue, backlog, answer.lost_batches, answer.lost_messages)
        if rows:
            backlog.read_id = rows[-1].id
            for group in _alike(rows):
                restored = self._restore(queue, group)
                backlog.behind -= len(group)
                backlog.behind_messages -= sum(row.batch.messages for row in group)
                backlog.loaded += restored
        elif not answer.batches and not answer.lost_batches:
            # The store has said so in its log when it found out: what it put aside is not there to be read.
            self._lose(queue, backlog, backlog.behind, backlog.behind_messages)

    def _lose(self, queue: PartitionQueue, backlog: Backlog, batches: int, messages: int) -> None:
        """The disk has destroyed what was acknowledged: say so, and go on."""
        if batches:
            backlog.behind -= batches
            backlog.behind_messages -= messages
            self._ledger.lost += messages
            log.critical("spool_lost", topic=queue.topic, partition=queue.partition, messages=messages)
            self._settled.set()

    def _restore(self, queue: PartitionQueue, rows: list[StoredBatch]) -> Iterable[Batch]:
        """Rows of one slot as batches to be sent: small ones put together."""
        first = rows[0].batch
        slot = self.accumulator.slot(
            first.route, first.qos, queue.topic, queue.partition, dead_letter=first.dead_letter
        )
        size = sum(row.size for row in rows)
        messages = sum(row.batch.messages for row in rows)
        span = _Replayed(self, queue, [row.id for row in rows], messages, size)
        span.sealed = True
        self._replays.add(span)
        self._loaded_bytes += size
        # Wall clocks step: a moment in the future, or before the machine's own start, would make no sense of ages.
        now_ns = self.accumulator.now_ns = self._clock_ns()
        opened_ns = now_ns - min(max(0, time.time_ns() // 1_000_000 - first.opened_ms) * 1_000_000, now_ns - 1)
        if len(rows) == 1:
            builders = [(self._producer().restore(first.data), first.messages, list(first.unfinished))]
        else:
            builders = self._merge(rows)
        batches = []
        for builder, messages, unfinished in builders:
            batch = Batch(slot, builder, opened_ns)
            batch.count = messages + len(unfinished)
            batch.counted = messages
            batch.unfinished = unfinished
            batch.size = builder.size()
            batch.on_disk = True
            batch.parts = [(span, messages)]
            span.pending += 1
            self.accumulator.buffered_bytes += batch.size
            batches.append(batch)
        return batches

    def _merge(self, rows: list[StoredBatch]) -> list[tuple[BatchBuilder, int, list[int]]]:
        """One batch, or more, of the records of several; with each one's messages and unfinished records."""
        producer = self._producer()
        made: list[tuple[BatchBuilder, int, list[int]]] = []
        builder = producer.create_batch(compressed=True)
        count, unfinished = 0, list[int]()
        for row in rows:
            own = frozenset(row.batch.unfinished)
            for number, record in enumerate(producer.records(producer.restore(row.batch.data))):
                fields = (record.timestamp_ms, record.key, record.value, record.headers)
                if builder.append(count, *fields) is None:
                    builder.close(count)
                    made.append((builder, count - len(unfinished), unfinished))
                    builder = producer.create_batch(compressed=True)
                    count, unfinished = 0, []
                    taken = builder.append(count, *fields)
                    assert taken is not None, "a first record always fits"
                if number in own:
                    unfinished.append(count)
                count += 1
        builder.close(count)
        made.append((builder, count - len(unfinished), unfinished))
        return made

    def settle(self, span: _Replayed) -> None:
        """Kafka has what was read back at once, or the disk has it again as dead letters: remove it."""
        self._replays.discard(span)
        self._ledger.delivered += span.stored
        self._ledger.dead_lettered += span.dead
        self._ledger.filtered += span.filtered
        if not self._ended:
            self.store.remove(span.queue.topic, span.queue.partition, span.ids)
        self._loaded_bytes -= span.size
        self._settled.set()

    def _create_batch(self, compressed: bool) -> BatchBuilder:
        return self._producer().create_batch(compressed=compressed)


def _alike(rows: Sequence[StoredBatch]) -> Iterable[list[StoredBatch]]:
    """Neighbours that may become one batch: of one slot, and small; in order."""
    group: list[StoredBatch] = []
    last: Slot | object | None = None
    for row in rows:
        batch = row.batch
        kind = (batch.route, batch.qos, batch.dead_letter) if len(batch.data) < SMALL_BYTES else object()
        if group and kind != last:
            yield group
            group = []
        group.append(row)
        last = kind
    if group:
        yield group


def _no_span(_span: Span) -> None:
    """No span of the spooler's own accumulator is ever flushed: nothing is read from MQTT into it."""
