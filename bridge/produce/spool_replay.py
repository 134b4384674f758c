"""Reads batches back from the spool: in order per partition, at a limited rate, within a limit of memory.

Batches of one read share a span. They are removed from the disk when Kafka has all of them, or the disk has their dead
letters. The event loop's thread owns everything here."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import SpoolWriteError
from bridge.produce.accumulator import Accumulator, Slot
from bridge.produce.batch import Batch, OnDisk, Span
from bridge.waiting import end_tasks
from config.errors import forget_frames

if TYPE_CHECKING:
    from bridge.ledger import Ledger
    from bridge.ports import BatchBuilder, Producer, SpoolStore
    from bridge.produce.partitions import Backlog, PartitionQueue, Partitions
    from bridge.spool.store import StoredBatch

log = structlog.get_logger("spool")

RETRY_S: Final = 1.0  # after a read that failed
AHEAD_BYTES: Final = 4 << 20  # a partition with more in memory does not read until batches are settled
SMALL_BYTES: Final = 32 * 1024  # smaller batches are joined when they are read


class Replayed:
    """Batches of one read of a partition, in a span. They are removed from the disk once Kafka has them.

    No subclass of ``Span``: that may be compiled, and then a class in Python cannot extend it."""

    __slots__ = ("ids", "messages", "queue", "size")

    def __init__(self, queue: PartitionQueue, ids: Sequence[int], messages: int) -> None:
        self.queue = queue
        self.ids = ids
        self.messages = messages
        self.size = 0  # bytes in memory, of batches that were read back


@dataclass(frozen=True, slots=True)
class SpoolLinks:
    """Objects that writing to the spool and reading from it share. ``resume`` is called with each queue that can send
    again."""

    store: SpoolStore
    partitions: Partitions
    producer: Callable[[], Producer]
    ledger: Ledger
    resume: Callable[[PartitionQueue], None]
    clock_ns: Callable[[], int]
    fatal: Callable[[BaseException], None]


class Replay:
    """Reads batches of one worker's spool."""

    def __init__(self, links: SpoolLinks, *, bytes_per_s: int, batch_bytes: int) -> None:
        self._links = links
        self._clock_ns = links.clock_ns
        self._bytes_per_s = bytes_per_s
        self._batch_bytes = batch_bytes
        # Its records were acknowledged to MQTT when they were on disk.
        self.accumulator = Accumulator(self._create_batch, _no_span, links.partitions)
        self._wanted: deque[PartitionQueue] = deque()  # queues to read, in turn
        self._spans: dict[Span, Replayed] = {}  # their rows on disk
        self._unsettled_spans: Counter[PartitionQueue] = Counter()  # number of unsettled spans by queue
        self.problem: str | None = None  # why nothing can be read at the moment
        self._held_back: dict[PartitionQueue, None] = {}  # queues that wait for memory
        self._bytes = 0  # read back and not settled
        self._next_load_ns = 0  # the rate allows no read before
        self._loader: asyncio.Task[None] | None = None  # ``_load_all``
        self.settled = asyncio.Event()  # set when rows were removed from the disk; a waiter clears it first
        self._may_read = True
        self._may_remove = True

    def adopt(self, bytes_per_s: int) -> None:
        """Read at another rate from now on."""
        self._bytes_per_s = bytes_per_s

    async def close(self) -> None:
        """Stop reading. Batches in flight are still removed when Kafka answers."""
        self._may_read = False
        await end_tasks(self._loader)

    def stop_removing(self) -> None:
        """Stop removing rows, before the store is closed."""
        self._may_remove = False

    def messages(self) -> int:
        """Messages that were read back and are not settled."""
        # Without those whose dead letters are in the spool, which another row counts.
        return sum(replayed.messages - span.spooled for span, replayed in self._spans.items())

    def taken(self, route: str) -> int:
        """Messages of a route that were read back so far."""
        return sum(slot.taken for slot in self.accumulator.slots if slot.route == route)

    def tried(self, route: str) -> bool:
        """Whether no batch of a route, as read back, has failed."""
        return not any(
            batch.first_failed_ns and batch.slot.route == route and batch.slot.accumulator is self.accumulator
            for queue in self._unsettled_spans
            for batch in queue.batches()
        )

    @property
    def idle(self) -> bool:
        """Whether all rows that were read back are removed from the disk."""
        return not self._spans

    def hold(self, queue: PartitionQueue, ids: Sequence[int], messages: int) -> Span:
        """Make a span for batches on disk that are in memory too."""
        span = Span(self.settle)
        self._spans[span] = Replayed(queue, ids, messages)
        self._unsettled_spans[queue] += 1
        return span

    def newest_in_memory(self, queue: PartitionQueue) -> int:
        """The newest row of a queue that is in memory and still on disk, or 0. Only newer rows may be read.

        A row stays on disk until Kafka takes its dead letters."""
        if not self._unsettled_spans[queue]:
            return 0
        rows = (row_id for replayed in self._spans.values() if replayed.queue is queue for row_id in replayed.ids)
        return max(rows, default=0)

    def settle(self, span: Span) -> None:
        """Remove the rows of a span: Kafka has its batches, or the disk has their dead letters."""
        replayed = self._spans.pop(span)
        self._unsettled_spans[replayed.queue] -= 1
        self._links.ledger.delivered += span.stored
        self._links.ledger.dead_lettered += span.dead
        if self._may_remove:
            self._links.store.remove(replayed.queue.topic, replayed.queue.partition, replayed.ids)
        self._bytes -= replayed.size
        self.settled.set()
        if self._held_back:
            held_back, self._held_back = self._held_back, {}
            for queue in held_back:
                self.want(queue)

    # --- reading -----------------------------------------------------------------------------------

    def want(self, queue: PartitionQueue) -> None:
        """Read more of a queue's backlog soon, and resume the queue then.

        A queue with AHEAD_BYTES in memory waits until a span is settled. Refused dead letters can cause that."""
        backlog = queue.backlog
        if backlog is None or not backlog.behind or backlog.is_loading or not self._may_read:
            return
        if self._bytes >= AHEAD_BYTES and self._unsettled_spans[queue]:
            self._held_back[queue] = None
            return
        backlog.is_loading = True
        self._wanted.append(queue)
        if self._loader is None:
            self._loader = asyncio.get_running_loop().create_task(self._load_all())
            self._loader.add_done_callback(self._loaded_all)

    async def _load_all(self) -> None:
        """Read for each wanted queue in turn, no faster than the rate allows, and resume it."""
        while self._wanted:
            wait_ns = self._next_load_ns - self._clock_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            queue = self._wanted.popleft()
            await self._load(queue)
            self._links.resume(queue)

    def _loaded_all(self, task: asyncio.Task[None]) -> None:
        """The end of ``_load_all``: its error is fatal, and a queue wanted meanwhile begins it again."""
        self._loader = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._links.fatal(error)
        elif self._wanted:
            queue = self._wanted.popleft()
            assert queue.backlog is not None
            queue.backlog.is_loading = False
            self.want(queue)

    async def _load(self, queue: PartitionQueue) -> None:
        """Read the queue's next rows into its backlog. After a disk error the queue is wanted again."""
        backlog = queue.backlog
        assert backlog is not None
        try:
            answer = await self._links.store.read(queue.topic, queue.partition, backlog.read_id, self._batch_bytes)
        except SpoolWriteError as error:
            forget_frames(error)
            self.problem = str(error)
            log.error("spool_not_read", error=str(error), repeat_key="read")  # noqa: TRY400 - a sentence
            await asyncio.sleep(RETRY_S)
            self._wanted.append(queue)
            return
        backlog.is_loading = False
        self.problem = None
        # The newest rows may be written but not counted yet; they are read later.
        rows = answer.batches[: backlog.behind - answer.lost_batches]
        size = sum(row.size for row in rows)
        self._next_load_ns = self._clock_ns() + size * 1_000_000_000 // self._bytes_per_s
        self._lose(queue, backlog, answer.lost_batches, answer.lost_messages)
        if rows:
            backlog.read_id = rows[-1].id
            backlog.from_earlier_run = max(0, backlog.from_earlier_run - len(rows))
            if queue.in_flight is None and not backlog.loaded:
                backlog.waited_read_ns = self._clock_ns()
            for group in _alike(rows):
                restored = self._restore(queue, group)
                backlog.behind -= len(group)
                backlog.behind_messages -= sum(row.batch.messages for row in group)
                backlog.loaded += restored
        elif not answer.batches and not answer.lost_batches:
            # The rest cannot be read. The store has logged the damage.
            self._lose(queue, backlog, backlog.behind, backlog.behind_messages)

    def _lose(self, queue: PartitionQueue, backlog: Backlog, batches: int, messages: int) -> None:
        """Count and log acknowledged messages that the disk has lost."""
        if batches:
            backlog.behind -= batches
            backlog.behind_messages -= messages
            backlog.from_earlier_run = max(0, backlog.from_earlier_run - batches)
            self._links.ledger.lost += messages
            log.critical("spool_lost", topic=queue.topic, partition=queue.partition, messages=messages)
            self.settled.set()

    def _restore(self, queue: PartitionQueue, rows: list[StoredBatch]) -> Iterable[Batch]:
        """Batches made of a slot's rows. Small rows are joined."""
        first = rows[0].batch
        slot = self.accumulator.slot(
            first.route, first.qos, queue.topic, queue.partition, dead_letter=first.dead_letter
        )
        span = self.hold(queue, [row.id for row in rows], sum(row.batch.messages for row in rows))
        span.is_sealed = True
        # The wall clock may step, so the age is limited to 0 to the machine's uptime.
        now_ns = self.accumulator.now_ns = self._clock_ns()
        opened_ns = now_ns - min(max(0, time.time_ns() // 1_000_000 - first.opened_ms) * 1_000_000, now_ns - 1)
        if len(rows) == 1:
            builders = [(self._links.producer().restore(first.data), first.messages, list(first.unfinished))]
        else:
            builders = self._merge(rows)
        batches = []
        size = 0
        for builder, messages, unfinished in builders:
            batch = Batch(slot, builder, opened_ns)
            batch.count = messages + len(unfinished)
            batch.unfinished = unfinished
            batch.size = builder.size()
            batch.disk = OnDisk.YES
            batch.parts = [(span, messages)]
            slot.messages += messages
            span.pending += 1
            self.accumulator.buffered_bytes += batch.size
            size += batch.size
            batches.append(batch)
        self._spans[span].size = size
        self._bytes += size
        return batches

    def _merge(self, rows: list[StoredBatch]) -> list[tuple[BatchBuilder, int, list[int]]]:
        """The records of several rows in as few batches as possible, each with its messages and unfinished records."""
        producer = self._links.producer()
        made: list[tuple[BatchBuilder, int, list[int]]] = []
        builder = producer.create_batch(compressed=True)
        count, unfinished = 0, list[int]()
        for row in rows:
            own = frozenset(row.batch.unfinished)
            for number, record in enumerate(producer.records(producer.restore(row.batch.data))):
                fields = (record.timestamp_ms, record.key, record.value, record.headers)
                if builder.append(count, *fields) is None:
                    made.append((_closed(builder, count), count - len(unfinished), unfinished))
                    builder = producer.create_batch(compressed=True)
                    count, unfinished = 0, []
                    taken = builder.append(count, *fields)
                    assert taken is not None, "a first record always fits"
                if number in own:
                    unfinished.append(count)
                count += 1
        made.append((_closed(builder, count), count - len(unfinished), unfinished))
        return made

    def _create_batch(self, compressed: bool) -> BatchBuilder:
        return self._links.producer().create_batch(compressed=compressed)


def _closed(builder: BatchBuilder, count: int) -> BatchBuilder:
    """Close and compress a batch now, because uncompressed it would take more memory while it waits."""
    builder.close(count)
    builder.encode()
    return builder


def _alike(rows: Sequence[StoredBatch]) -> Iterable[list[StoredBatch]]:
    """Groups of small rows of one slot, each of which becomes one batch.

    Rows are sorted by QoS first, because MQTT promises an order only within a QoS."""
    group: list[StoredBatch] = []
    last: Slot | object | None = None
    for row in sorted(rows, key=lambda row: row.batch.qos):
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
    """Does nothing, because no span of this accumulator is flushed."""
