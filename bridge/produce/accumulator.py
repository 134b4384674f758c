"""Records that wait for Kafka: an open batch for each route, QoS and partition, and the spans of their messages.

Nothing here does I/O or reads a clock: callers pass the time. The event loop's thread owns every object.

A *span* holds the messages received between two flushes. A record joins the open batch of its *slot*. A batch knows
the spans of its records. A span is durable once all batches with its records are. Spans complete in the order they
were opened. So acknowledgements leave in MQTT order [MQTT-4.6.0-2], whichever partition answers first.

While a batch of a partition is in flight, the partition's open batches take more records. A slow Kafka then gets
larger batches, and the queue stays short."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bridge.produce.batch import Batch, BatchDeadLetters, Owner, Span
from bridge.produce.partitions import PartitionQueue, Partitions

if TYPE_CHECKING:
    from bridge.ports import Append, BatchBuilder, Headers

SMALL_BATCH_BYTES = 2048  # below this zstd costs more than it saves: 10 µs for a record, which hardly shrinks


class Slot:
    """The entry of a partition's queue for records of one route and QoS.

    ``append`` is the append of the open batch itself; the hot path calls nothing else. If it returns None, the batch is
    full: call ``roll`` with the same record. Without an open batch ``append`` is ``_open``; after a flush it is
    ``_join``. Most messages need neither."""

    __slots__ = (
        "accumulator",
        "append",
        "batch",
        "choose",
        "compressed",
        "count",
        "dead_letter",
        "messages",
        "qos",
        "queue",
        "route",
        "topic",
    )

    def __init__(
        self,
        accumulator: Accumulator,
        queue: PartitionQueue,
        route: str,
        qos: int,
        choose: Callable[[], PartitionQueue] | None,  # None: always ``queue``
        *,
        dead_letter: bool,  # its records are dead letters
    ) -> None:
        self.accumulator = accumulator
        self.queue = queue
        self.topic = queue.topic
        self.route = route
        self.qos = qos
        self.choose = choose  # chooses a partition for each batch of records without a key
        self.dead_letter = dead_letter
        self.count = 0  # records in the open batch
        self.messages = 0  # messages of sealed batches, for metrics
        self.batch: Batch | None = None  # the open one
        self.compressed = True  # whether the next batch is
        self.append: Append = self._open  # what appends now: _open, _join, or the append of the open batch

    @property
    def taken(self) -> int:
        """Messages appended so far, those of the open batch included."""
        return self.messages + self.count - (len(self.batch.unfinished) if self.batch is not None else 0)

    def roll(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Seal the full batch and put the record that did not fit into a new one."""
        self.seal()
        self.accumulator.partitions.due.append(self.queue)
        self._open(0, timestamp, key, value, headers)
        self.count = 1

    def seal(self) -> None:
        """Close the open batch and queue it behind the partition's others."""
        batch = self.batch
        assert batch is not None
        self.batch = None
        self.append = self._open
        self.queue.open.remove(self)
        self._attribute(batch)
        batch.builder.close(batch.count)
        self.count = 0
        self.compressed = batch.size >= SMALL_BATCH_BYTES
        self.messages += batch.messages
        self.queue.sealed.append(batch)

    def leave_open(self) -> None:
        """Attribute the records so far to the span that ends now. The batch stays open: its partition is busy."""
        batch = self.batch
        if batch is not None:
            self._attribute(batch)
            self.append = self._join

    def _open(self, number: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> object:
        """Append the first record of a new batch. Arguments and result are those of ``Append``."""
        accumulator = self.accumulator
        if self.choose is not None:
            self.queue = self.choose()
        batch = self.batch = Batch(self, accumulator.create_batch(self.compressed), accumulator.now_ns)
        self.queue.open.append(self)
        accumulator.touched.append(self)
        batch.parts.append((accumulator.hold_span(), 0))
        self.append = batch.builder.append
        try:
            return self.append(number, timestamp, key, value, headers)
        except BaseException:  # the record has a wrong type, so the batch stays empty
            self.batch = None
            self.append = self._open
            self.queue.open.remove(self)
            accumulator.touched.remove(self)
            batch.parts[0][0].pending -= 1
            raise

    def _join(self, number: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> object:
        """Append to a batch that ``leave_open`` left: the current span gets a part of it. As ``Append``."""
        batch = self.batch
        assert batch is not None
        accumulator = self.accumulator
        accumulator.touched.append(self)
        if batch.parts[-1][0] is not accumulator.current:
            batch.parts.append((accumulator.hold_span(), 0))
        self.append = batch.builder.append
        return self.append(number, timestamp, key, value, headers)

    def _attribute(self, batch: Batch) -> None:
        """Count the new messages to the batch's last span, and its new bytes to the accumulator."""
        batch.count = self.count
        count = batch.messages
        span, before = batch.parts[-1]
        batch.parts[-1] = (span, before + count - batch.counted)
        batch.counted = count
        size = batch.builder.size()
        self.accumulator.buffered_bytes += size - batch.size
        batch.size = size


class Accumulator:
    """All slots and spans of a session group. Its acknowledgements wait for its own messages alone.

    ``create_batch`` makes an empty builder. ``completed`` is called with each durable span, in order. All groups of a
    worker share ``partitions``. ``now_ns`` is the time of the last read; the caller sets it before it appends."""

    def __init__(
        self,
        create_batch: Callable[[bool], BatchBuilder],  # True: compressed
        completed: Callable[[Span], None],  # called with each durable span, in order
        partitions: Partitions | None = None,
    ) -> None:
        self.create_batch = create_batch
        self._completed = completed
        self.partitions = partitions or Partitions()
        self.current = Span()
        self.spans: deque[Span] = deque()  # flushed, not durable, oldest first
        self.touched: list[Slot] = []  # with records since the last flush
        self.buffered_bytes = 0  # of records in memory
        self.now_ns = 0  # time of the last read
        self.dead_letters: BatchDeadLetters  # of this accumulator's records; they set themselves
        self.parked_messages = 0  # parked or held: in no batch, and their spans are pending
        self.freed: Callable[[], None] | None = None  # called when memory was released
        # By route, QoS, topic, partition (-n: records without a key, n partitions), dead letter.
        self._slots: dict[tuple[str, int, str, int, bool], Slot] = {}

    @property
    def slots(self) -> Iterable[Slot]:
        return self._slots.values()

    def slot(self, route: str, qos: int, topic: str, partition: int, *, dead_letter: bool = False) -> Slot:
        """The slot for records of a route and QoS in a partition; made at first use."""
        key = (route, qos, topic, partition, dead_letter)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot(
                self, self.partitions.queue(topic, partition), route, qos, None, dead_letter=dead_letter
            )
        return slot

    def keyless_slot(self, route: str, qos: int, topic: str, partitions: int) -> Slot:
        """The slot for records without a key. Each batch goes to the next idle partition (as in KIP-480).

        A topic may have another number of ``partitions`` later: then it has another slot."""
        key = (route, qos, topic, -partitions, False)
        slot = self._slots.get(key)
        if slot is None:
            queues = [self.partitions.queue(topic, partition) for partition in range(partitions)]
            turn = 0

            def choose() -> PartitionQueue:
                nonlocal turn
                for step in range(1, partitions + 1):
                    queue = queues[(turn + step) % partitions]
                    if queue.in_flight is None and not queue.sealed and queue.backlog is None:
                        turn += step
                        return queue
                turn += 1
                return queues[turn % partitions]

            slot = self._slots[key] = Slot(self, queues[0], route, qos, choose, dead_letter=False)
        return slot

    def append(self, slot: Slot, *, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Append one record to a slot, for the slow lane. Does not block and never refuses."""
        if slot.append(slot.count, timestamp, key, value, headers) is None:  # None: the batch is full
            slot.roll(timestamp, key, value, headers)
        else:
            slot.count += 1

    def hold_span(self) -> Span:
        """Keep the current span pending, and return it. The caller lowers ``pending`` later."""
        span = self.current
        if not (span.pending or span.placed or span.spooled):
            span.opened_ns = self.now_ns  # an earlier read without a message may have set it
        span.pending += 1
        return span

    def release_span(self, span: Span) -> None:
        """Undo ``hold_span``. A span without anything pending becomes durable."""
        span.pending -= 1
        self._complete_and_free()

    @contextmanager
    def within(self, span: Span) -> Iterator[None]:
        """Append to an older span, held for it (``hold_span``).

        For messages that were held when received and are routed now. No flush may happen inside."""
        for slot in self.touched:
            slot.leave_open()
        current, self.current = self.current, span
        try:
            yield
        finally:
            for slot in self.touched:
                slot.leave_open()
            self.current = current

    def move(self, spans: list[tuple[Span, int]], slot: Slot) -> None:
        """Count the last records of the open batch of ``slot`` to other spans.

        Called when records change places: into the dead letters, or out of parking. ``spans`` lists each span with its
        number of messages, in the order of the records. Each span then waits for this batch too."""
        batch = slot.batch
        assert batch is not None
        slot.leave_open()
        parts = batch.parts
        span, count = parts[-1]
        parts[-1] = (span, count - sum(moved for _, moved in spans))
        for span, moved in spans:
            last, count = parts[-1]
            if last is span:
                parts[-1] = (span, count + moved)
            else:
                parts.append((span, moved))
                span.pending += 1

    def make_due(self, slot: Slot) -> None:
        """Make the open batch of a slot due without a flush, for records that do not come from a read."""
        if slot.batch is not None:
            slot.seal()
            self.partitions.due.append(slot.queue)

    def discard(self, batch: Batch) -> None:
        """Release a batch whose records were moved into other batches, which hold its spans now."""
        self.buffered_bytes -= batch.size
        for span, _ in batch.parts:
            span.pending -= 1

    def flush(self) -> None:
        """End the current span. Batches of idle partitions are sealed and become due. The others stay open."""
        span = self.current
        touched = self.touched
        if not (touched or span.owed or span.filtered or span.copies or span.pending):
            return
        due = self.partitions.due
        for slot in touched:
            queue = slot.queue
            if queue.in_flight is None and not queue.sealed:
                if slot.batch is not None:
                    slot.seal()
                due.append(queue)
            else:
                slot.leave_open()
        touched.clear()
        span.is_sealed = True
        self.spans.append(span)
        self.current = Span()
        self._complete_oldest()

    def stored(self, batch: Batch) -> None:
        """Note that Kafka has the batch. Releases its bytes, and every span with nothing else pending."""
        self.buffered_bytes -= batch.size
        batch.is_stored = True
        dead = batch.slot.dead_letter
        # Count what Kafka acknowledged. A difference from the appended records then shows in the ledger.
        surplus = batch.builder.record_count() - batch.count
        if surplus:
            span, count = batch.parts[-1]
            batch.parts[-1] = (span, count + surplus)
        for span, count in batch.parts:
            if dead:
                span.dead += count
            else:
                span.stored += count
            self._lower_pending(span)
        self._complete_and_free()

    def spooled(self, batch: Batch, to: Span | None = None) -> None:
        """Note that the spool has the batch. Releases every span with nothing else pending.

        With ``to`` the batch stays in memory and belongs to that span. Otherwise its bytes are released too."""
        parts = batch.parts
        if to is None:
            self.buffered_bytes -= batch.size
        else:
            batch.parts = [(to, batch.messages)]
            to.pending += 1
        for span, count in parts:
            span.spooled += count
            self._lower_pending(span)
        self._complete_and_free()

    def _lower_pending(self, span: Span) -> None:
        span.pending -= 1
        if span.settled is not None and not span.pending:
            span.settled(span)

    def _complete_and_free(self) -> None:
        self._complete_oldest()
        if self.freed is not None:  # also when an older span still waits
            self.freed()

    def in_flight(self) -> int:
        """Messages received and not acknowledged, counted from batches and spans, for the ledger.

        Only for an accumulator that shares its partitions with no other."""
        return self.partitions.messages() + self.settled()

    def settled(self) -> int:
        """Messages in no batch and not acknowledged: parked, or durable behind older ones."""
        count = self.parked_messages
        for span in self._live_spans():
            count += span.placed - span.returned
        return count

    def returned(self, owner: Owner) -> int:
        """Note that a connection ended. Returns how many of its messages the broker will deliver again."""
        total = 0
        for span in self._live_spans():
            for who, ids, ids2 in span.owed:
                if who is owner:
                    span.returned += len(ids) + len(ids2)
                    total += len(ids) + len(ids2)
            span.owed = [one for one in span.owed if one[0] is not owner]  # a span may wait for days
        return total

    def oldest_ns(self) -> int:
        """Receive time of the oldest message not acknowledged, or 0."""
        for span in self._live_spans():
            if span.pending or span.placed or span.spooled:
                return span.opened_ns
        return 0

    def _live_spans(self) -> Iterator[Span]:
        yield from self.spans
        yield self.current

    def _complete_oldest(self) -> None:
        spans = self.spans
        while spans and not spans[0].pending:
            self._completed(spans.popleft())
