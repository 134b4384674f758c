"""Moves batches from the accumulator to Kafka: one at a time per partition, retried, re-incarnated, taken apart when
poisoned.

Order within a partition is kept by having one batch of it under way and putting a failed one back in front of its
followers.

aiokafka retries what can be retried by itself. What it gives up on costs the whole producer, because an idempotent
producer whose batch was rejected has used that batch's sequence numbers: every later batch of the partition fails
with OutOfOrderSequenceNumber for ever. So a producer is an *incarnation*. Replacing one goes: hold every partition;
let healthy batches finish (bounded); close it; start another; put failed and undecided batches, rebuilt, at the head
of their partitions; go on. What the old one wrote without telling us is written twice: at least once.

The event loop's thread owns everything here.
"""

from __future__ import annotations

__all__ = ["Sender", "SenderObserver", "SenderPolicy"]

import asyncio
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from bridge.accumulator import Batch
from bridge.backoff import Backoff
from bridge.errors import BridgeError, IncarnationError, LeaderMissingError, PoisonedError, RefusedError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bridge.accumulator import Accumulator, PartitionQueue, Span
    from bridge.dead_letter import DeadLetters
    from bridge.ports import BatchBuilder, Producer, ProducerFactory, StoredRecord

log = structlog.get_logger("sender")

WATCH_INTERVAL_S = 0.5  # how often deadlines are looked at; they are seconds long
LEADER_INTERVAL_S = 0.1  # how often a partition without leader is tried again


@dataclass(frozen=True, slots=True)
class SenderPolicy:
    """How long to wait for what. ``delivery_timeout_ns``: a batch without an answer for so long costs the
    incarnation."""

    delivery_timeout_ns: int
    settle_ns: int
    backoff_initial_ns: int = 100_000_000
    backoff_max_ns: int = 10_000_000_000


class SenderObserver(Protocol):
    """Told of what happens to batches; called once per batch, never per record."""

    def batch_stored(self, batch: Batch, now_ns: int) -> None: ...

    def batch_failed(self, batch: Batch, error: BridgeError) -> None: ...

    def incarnation_started(self, number: int) -> None: ...


class Sender:
    """Owns the producer incarnations and ``PartitionQueue.in_flight``.

    ``start`` waits for the first incarnation, raising RefusedError or UnreachableError; later ones are retried for
    ever."""

    def __init__(
        self,
        accumulator: Accumulator,
        factory: ProducerFactory,
        policy: SenderPolicy,
        dead_letters: DeadLetters,
        observer: SenderObserver,
        clock_ns: Callable[[], int],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._accumulator = accumulator
        self._factory = factory
        self._policy = policy
        self._dead_letters = dead_letters
        self._observer = observer
        self._clock_ns = clock_ns
        self._fatal = fatal  # told of a defect in the recovery itself: nothing would move any more
        self._producer: Producer = factory()
        self._number = 0
        self._held = True
        self._failures: dict[PartitionQueue, BridgeError] = {}
        self._waiting: set[PartitionQueue] = set()  # without a leader, or told to wait
        self._recovery: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._answered = asyncio.Event()
        self._backoff = Backoff(policy.backoff_initial_ns, policy.backoff_max_ns, jitter=0.2)
        self._closed = False

    @property
    def producer(self) -> Producer:
        """The incarnation of the moment: for metadata, and for making batches."""
        return self._producer

    async def start(self) -> None:
        await self._producer.start()
        self._started()
        self._held = False
        self._watch = asyncio.create_task(self._watch_deadlines())

    async def close(self, *, patience_s: float) -> None:
        """End producer and tasks. Batches without an answer stay unacknowledged."""
        self._closed = True
        self._held = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        for task in (self._watch, self._recovery):
            if task is not None:
                task.cancel()
                await asyncio.wait([task], timeout=patience_s)
        await self._producer.close(patience_s=patience_s)

    def create_batch(self, compressed: bool) -> BatchBuilder:
        return self._producer.create_batch(compressed=compressed)

    def pump(self) -> None:
        """Send what the accumulator has listed as due. Does not block."""
        due = self._accumulator.due
        for queue in due:
            if queue.in_flight is None:
                self._send_next(queue)
        due.clear()

    def _send_next(self, queue: PartitionQueue) -> None:
        if self._held:
            return
        if queue.not_before_ns and self._clock_ns() < queue.not_before_ns:
            self._wait(queue)
            return
        producer = self._producer
        if not producer.has_leader(queue.topic, queue.partition):
            # Handed over now it would expire inside the producer and poison the partition's sequence.
            if queue.sealed or queue.open:
                self._wait(queue)
            return
        batch = self._accumulator.next_batch(queue)
        if batch is None:
            return
        batch.sent_ns = self._clock_ns()
        batch.attempts += 1
        queue.in_flight = batch
        try:
            future = producer.send(queue.topic, queue.partition, batch.builder)
        except BridgeError as error:
            self._failed(queue, batch, error)
            return
        future.add_done_callback(functools.partial(self._answer, queue, batch))

    def _answer(self, queue: PartitionQueue, batch: Batch, future: asyncio.Future[object]) -> None:
        error = self._producer.failure(future)
        if queue.in_flight is not batch or queue in self._failures:
            return  # given up on, and rebuilt or about to be: a late answer changes nothing
        if error is None:
            now_ns = self._clock_ns()
            queue.in_flight = None
            queue.last_acknowledged_ns = now_ns
            self._accumulator.stored(batch)
            self._observer.batch_stored(batch, now_ns)
            if self._held:
                self._answered.set()
            elif queue.sealed or queue.open:
                self._send_next(queue)
        else:
            self._failed(queue, batch, error)

    def _failed(self, queue: PartitionQueue, batch: Batch, error: BridgeError) -> None:
        now_ns = self._clock_ns()
        batch.first_failed_ns = batch.first_failed_ns or now_ns
        self._observer.batch_failed(batch, error)
        if isinstance(error, LeaderMissingError):
            # Nothing was sent and no sequence number used: only wait.
            queue.in_flight = None
            queue.sealed.appendleft(batch)
            self._wait(queue)
            return
        self._failures[queue] = error
        self._answered.set()
        if self._recovery is None and not self._closed:
            self._recovery = asyncio.get_running_loop().create_task(self._recover())
            self._recovery.add_done_callback(self._recovered)

    def _recovered(self, task: asyncio.Task[None]) -> None:
        self._recovery = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error)

    # --- incarnations
    # -------------------------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        self._held = True
        old = self._producer
        log.warning(
            "producer_replacing",
            incarnation=self._number,
            reasons=sorted({str(error) for error in self._failures.values()})[:3],
        )
        await self._settle()
        for queue in self._accumulator.queues.values():
            if queue.in_flight is not None:
                self._failures.setdefault(queue, IncarnationError("No answer before the producer was replaced."))
        await old.close(patience_s=1.0)
        await self._connect()
        failures, self._failures = self._failures, {}
        for queue in self._accumulator.queues.values():
            batch = queue.in_flight
            if batch is not None:
                queue.in_flight = None
                self._put_back(queue, batch, failures.get(queue), old.records(batch.builder))
        self._started()
        self._held = False
        for queue in self._accumulator.queues.values():
            if queue.in_flight is None:
                self._send_next(queue)

    async def _settle(self) -> None:
        """Wait for the answers of partitions that have not failed, so that they are not written twice."""
        deadline_ns = self._clock_ns() + self._policy.settle_ns
        while any(q.in_flight is not None and q not in self._failures for q in self._accumulator.queues.values()):
            left_s = (deadline_ns - self._clock_ns()) / 1e9
            if left_s <= 0:
                return
            self._answered.clear()
            try:
                await asyncio.wait_for(self._answered.wait(), left_s)
            except TimeoutError:
                return

    async def _connect(self) -> None:
        while True:
            producer = self._factory()
            try:
                await producer.start()
            except (RetriableError, RefusedError) as error:
                delay_ns = self._backoff.next_ns(self._clock_ns())
                log.warning("producer_start_failed", error=str(error), retry_in_s=round(delay_ns / 1e9, 2))
                await producer.close(patience_s=1.0)
                await asyncio.sleep(delay_ns / 1e9)
            else:
                self._producer = producer
                return

    def _started(self) -> None:
        self._number += 1
        self._observer.incarnation_started(self._number)

    def _put_back(
        self, queue: PartitionQueue, batch: Batch, error: BridgeError | None, records: list[StoredRecord]
    ) -> None:
        """Rebuild a batch whose incarnation is gone; what is known of its failure decides how."""
        slot = batch.slot
        if isinstance(error, PoisonedError):
            if len(records) > 1:
                middle = len(records) // 2
                first, second = _split_parts(batch.parts, middle)
                queue.sealed.appendleft(self._rebuild(batch, records[middle:], second))
                queue.sealed.appendleft(self._rebuild(batch, records[:middle], first))
                self._accumulator.buffered_bytes -= batch.size
                return
            if not slot.dead_letter:
                self._dead_letters.take(batch, records[0], error.reason, error)
                self._accumulator.buffered_bytes -= batch.size
                return
            log.error("dead_letter_refused", topic=queue.topic, error=str(error))
        if isinstance(error, RefusedError | PoisonedError):
            # No record's fault, or a dead letter nobody takes: keep it and ask again later.
            delay_ns = min(self._policy.backoff_initial_ns << min(batch.attempts, 10), self._policy.backoff_max_ns)
            queue.not_before_ns = self._clock_ns() + delay_ns
        rebuilt = self._rebuild(batch, records, batch.parts)
        self._accumulator.buffered_bytes -= batch.size
        queue.sealed.appendleft(rebuilt)

    def _rebuild(self, batch: Batch, records: Sequence[StoredRecord], parts: list[tuple[Span, int]]) -> Batch:
        builder = self._producer.create_batch(compressed=True)
        for number, record in enumerate(records):
            builder.append(number, record.timestamp_ms, record.key, record.value, record.headers)
        builder.close(len(records))
        rebuilt = Batch(batch.slot, builder, batch.opened_ns)
        rebuilt.count = len(records)
        rebuilt.parts = parts
        rebuilt.extra = batch.extra
        rebuilt.counted = rebuilt.messages
        rebuilt.size = builder.size()
        rebuilt.attempts = batch.attempts
        rebuilt.first_failed_ns = batch.first_failed_ns
        self._accumulator.buffered_bytes += rebuilt.size
        return rebuilt

    # --- waiting -----------------------------------------------------------------------------------
    # --------------

    def _wait(self, queue: PartitionQueue) -> None:
        self._waiting.add(queue)
        if self._retry_timer is None and not self._closed:
            self._retry_timer = asyncio.get_running_loop().call_later(LEADER_INTERVAL_S, self._retry_waiting)

    def _retry_waiting(self) -> None:
        self._retry_timer = None
        waiting, self._waiting = self._waiting, set()
        for queue in waiting:
            if queue.in_flight is None:
                self._send_next(queue)

    async def _watch_deadlines(self) -> None:
        """Replace an incarnation that has left a batch without an answer: aiokafka itself would wait for ever."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if self._held:
                continue
            late_ns = self._clock_ns() - self._policy.delivery_timeout_ns
            for queue in self._accumulator.queues.values():
                batch = queue.in_flight
                if batch is not None and batch.sent_ns < late_ns:
                    seconds = self._policy.delivery_timeout_ns / 1e9
                    text = (
                        f"No answer for {queue.topic}/{queue.partition} within kafka.delivery_timeout ({seconds:g} s)."
                    )
                    self._failed(queue, batch, IncarnationError(text))


def _split_parts(parts: list[tuple[Span, int]], middle: int) -> tuple[list[tuple[Span, int]], list[tuple[Span, int]]]:
    """Share out a batch's spans between its first ``middle`` messages and the rest."""
    first: list[tuple[Span, int]] = []
    second: list[tuple[Span, int]] = []
    left = middle
    for span, count in parts:
        taken = min(count, left)
        left -= taken
        if taken or not count:
            first.append((span, taken))
        if count - taken:
            second.append((span, count - taken))
            if taken:
                span.pending += 1  # it now waits for two batches
    return first, second
