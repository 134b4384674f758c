"""Brings back what the spool holds: in order per partition, at a capped rate, and no more at a time than memory bears.

What is read at once is one span, the spool's own: when Kafka has all of it, or the disk has it again as dead letters,
it is removed from the disk. The event loop's thread owns everything here."""

from __future__ import annotations

__all__ = ["Replay", "Replayed"]

import asyncio
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import SpoolWriteError
from bridge.produce.accumulator import Accumulator
from bridge.produce.batch import Batch, Span
from config.errors import forget_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bridge.ledger import Ledger
    from bridge.ports import BatchBuilder, Producer, SpoolStore
    from bridge.produce.accumulator import Slot
    from bridge.produce.partitions import Backlog, PartitionQueue, Partitions
    from bridge.spool.spool import StoredBatch

log = structlog.get_logger("spool")

RETRY_S: Final = 1.0  # after a read that failed
AHEAD_BYTES: Final = 4 << 20  # beyond it a partition reads nothing more before all it has read is where it goes
SMALL_BYTES: Final = 32 * 1024  # batches below it are put together again when they come back


class Replayed(Span):
    """What was read back at once, of one partition, and has to be removed from the disk once Kafka has it."""

    __slots__ = ("ids", "messages", "queue", "size")

    def __init__(self, replay: Replay, queue: PartitionQueue, ids: Sequence[int], messages: int) -> None:
        super().__init__(replay.settle)  # nothing that knows the span: it would wait for the collector
        self.queue = queue
        self.ids = ids
        self.messages = messages
        self.size = 0  # bytes it takes in memory, where it was read back


class Replay:
    """``resume`` is called with a queue that has something to send again."""

    def __init__(
        self,
        store: SpoolStore,
        partitions: Partitions,
        producer: Callable[[], Producer],
        ledger: Ledger,
        resume: Callable[[PartitionQueue], None],
        clock_ns: Callable[[], int],
        fatal: Callable[[BaseException], None],
        *,
        bytes_per_s: int,
        batch_bytes: int,
    ) -> None:
        self._store = store
        self._producer = producer
        self._ledger = ledger
        self._resume = resume
        self._clock_ns = clock_ns
        self._fatal = fatal
        self._bytes_per_s = bytes_per_s
        self._batch_bytes = batch_bytes
        # Records of an earlier life enter here: they are owed no acknowledgement, and are no receipts of this one.
        self.accumulator = Accumulator(self._create_batch, _no_span, partitions)
        self._wanted: deque[PartitionQueue] = deque()
        self._spans: set[Replayed] = set()
        self._unsettled: Counter[PartitionQueue] = Counter()  # spans of each
        self.problem: str | None = None  # why the disk gives nothing back at the moment
        self._held_back: set[PartitionQueue] = set()  # wait for memory
        self._bytes = 0  # read back, and not yet where it goes
        self._next_load_ns = 0
        self._loader: asyncio.Task[None] | None = None
        self.settled = asyncio.Event()  # something has gone from the disk; for whoever clears it and waits
        self._closed = False  # nothing is read any more
        self._ended = False  # nor is anything removed

    def adopt(self, bytes_per_s: int) -> None:
        """Read at another rate from now on."""
        self._bytes_per_s = bytes_per_s

    async def close(self) -> None:
        """Read nothing more. What is under way may still be answered, and is removed then."""
        self._closed = True
        if self._loader is not None:
            self._loader.cancel()
            await asyncio.wait([self._loader])

    def end(self) -> None:
        """Remove nothing any more: the store is about to be closed."""
        self._ended = True

    def messages(self) -> int:
        """Messages that were read back and are not yet where they go."""
        # Without those that another batch of the spool has again: a dead letter made of one that was read back.
        return sum(span.messages - span.spooled for span in self._spans)

    def taken(self, route: str) -> int:
        """Messages of a route that were read back so far."""
        return sum(slot.taken for slot in self.accumulator.slots if slot.route == route)

    def tried(self, route: str) -> bool:
        """Whether Kafka has refused nothing of a route that waits here."""
        return not any(
            batch.first_failed_ns and batch.slot.route == route and batch.slot.accumulator is self.accumulator
            for queue in self._unsettled
            for batch in queue.batches()
        )

    @property
    def idle(self) -> bool:
        """Whether all that was read back has been removed from the disk."""
        return not self._spans

    def hold(self, queue: PartitionQueue, ids: Sequence[int], messages: int) -> Replayed:
        """A span for batches of the disk that are in memory."""
        span = Replayed(self, queue, ids, messages)
        self._spans.add(span)
        self._unsettled[queue] += 1
        return span

    def last_held(self, queue: PartitionQueue) -> int:
        """The newest row of a queue that is in memory, and still on the disk: its dead letters may wait for Kafka. 0
        for none. Newer rows alone are to be read."""
        if not self._unsettled[queue]:
            return 0
        return max((row_id for span in self._spans if span.queue is queue for row_id in span.ids), default=0)

    def settle(self, span: Replayed) -> None:
        """Kafka has what was read back at once, or the disk has it again as dead letters: remove it."""
        self._spans.discard(span)
        self._unsettled[span.queue] -= 1
        self._ledger.delivered += span.stored
        self._ledger.dead_lettered += span.dead
        if not self._ended:
            self._store.remove(span.queue.topic, span.queue.partition, span.ids)
        self._bytes -= span.size
        self.settled.set()
        if self._held_back:
            held_back, self._held_back = self._held_back, set()
            for queue in held_back:
                self.want(queue)

    # --- reading -----------------------------------------------------------------------------------

    def want(self, queue: PartitionQueue) -> None:
        """Read more of a queue's backlog soon, and resume it then.

        Dead letters that nobody takes keep what was read back in memory: then its partition waits for them."""
        backlog = queue.backlog
        if backlog is None or not backlog.behind or backlog.loading or self._closed:
            return
        if self._bytes >= AHEAD_BYTES and self._unsettled[queue]:
            self._held_back.add(queue)
            return
        backlog.loading = True
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
            self.want(queue)

    async def _load(self, queue: PartitionQueue) -> None:
        backlog = queue.backlog
        assert backlog is not None
        try:
            answer = await self._store.read(queue.topic, queue.partition, backlog.read_id, self._batch_bytes)
        except SpoolWriteError as error:
            forget_frames(error)
            self.problem = str(error)
            log.error("spool_not_read", error=str(error), repeat_key="read")  # noqa: TRY400 - a sentence
            await asyncio.sleep(RETRY_S)
            self._wanted.append(queue)
            return
        backlog.loading = False
        self.problem = None
        # The last ones may have been written and not been counted yet: not before that.
        rows = answer.batches[: backlog.behind - answer.lost_batches]
        size = sum(row.size for row in rows)
        self._next_load_ns = self._clock_ns() + size * 1_000_000_000 // self._bytes_per_s
        self._lose(queue, backlog, answer.lost_batches, answer.lost_messages)
        if rows:
            backlog.read_id = rows[-1].id
            if queue.in_flight is None and not backlog.loaded:
                backlog.read_ns = self._clock_ns()
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
            self.settled.set()

    def _restore(self, queue: PartitionQueue, rows: list[StoredBatch]) -> Iterable[Batch]:
        """Rows of one slot as batches to be sent: small ones put together."""
        first = rows[0].batch
        slot = self.accumulator.slot(
            first.route, first.qos, queue.topic, queue.partition, dead_letter=first.dead_letter
        )
        span = self.hold(queue, [row.id for row in rows], sum(row.batch.messages for row in rows))
        span.sealed = True
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
            slot.messages += messages
            span.pending += 1
            self.accumulator.buffered_bytes += batch.size
            span.size += batch.size
            batches.append(batch)
        self._bytes += span.size
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
        return self._producer().create_batch(compressed=compressed)


def _closed(builder: BatchBuilder, count: int) -> BatchBuilder:
    """No more records; compressed now, for it may wait, and its records take a multiple of that."""
    builder.close(count)
    builder.encode()
    return builder


def _alike(rows: Sequence[StoredBatch]) -> Iterable[list[StoredBatch]]:
    """Neighbours that may become one batch: of one slot, and small. Those of each QoS in order, and MQTT promises no
    more: so what came alternately at two of them are neighbours, too."""
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
    """No span of the spooler's own accumulator is ever flushed: nothing is read from MQTT into it."""
