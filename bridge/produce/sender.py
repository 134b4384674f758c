"""Moves batches from the accumulator to Kafka: one at a time per partition, retried, re-incarnated, taken apart when
poisoned.

Order within a partition is kept by having one batch of it under way and putting a failed one back in front of its
followers.

The producer tries again what can be tried again, by itself. From a batch that Kafka rejects the records that it names
are taken out; where it names none, the batch is split until the bad record is alone. A timestamp it refuses is replaced
by the present; when it refuses that too, or when it is our rights that are missing, the batch is held. A partition
whose sequence Kafka has lost begins anew by itself. The producer goes on. When an answer stays out too long, or a
partition's sequence is lost again at once, only another producer helps: one is an *incarnation*. Replacing it goes:
hold every partition; let healthy batches finish (bounded); close it; start another; put failed and undecided batches,
rebuilt, at the head of their partitions; go on. What the old one wrote without telling us is written twice: at least
once.

The event loop's thread owns everything here.
"""

from __future__ import annotations

__all__ = ["Sender", "SenderObserver", "SenderPolicy"]

import asyncio
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from bridge.backoff import Backoff
from bridge.errors import (
    BridgeError,
    IncarnationError,
    LeaderMissingError,
    PoisonedError,
    RefusedError,
    RetriableError,
    TimestampError,
)
from bridge.produce.batch import Batch
from bridge.produce.timestamps import restamped
from config.errors import forget_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bridge.ports import BatchBuilder, Producer, ProducerFactory, StoredRecord
    from bridge.produce.batch import Span
    from bridge.produce.partitions import PartitionQueue, Partitions
    from bridge.produce.spooler import Spooler

log = structlog.get_logger("sender")

WATCH_INTERVAL_S = 0.5  # how often deadlines are looked at; they are seconds long
LEADER_INTERVAL_S = 0.1  # how often a partition without leader is tried again
CLOSE_PATIENCE_S = 1.0  # for a replaced incarnation's connections to close: they are of no more use


@dataclass(frozen=True, slots=True)
class SenderPolicy:
    """How long to wait for what. ``delivery_timeout_ns``: a batch without an answer for so long costs the
    incarnation."""

    delivery_timeout_ns: int
    settle_ns: int
    backoff_initial_ns: int = 100_000_000
    backoff_max_ns: int = 10_000_000_000


class SenderObserver(Protocol):
    """Told of what happens to batches; called once per batch, never per record.

    Both get the partition of the batch, for its slot may have moved on to another; ``batch_stored`` also the offset of
    its first record, -1 when Kafka has the batch and does not say where."""

    def batch_stored(self, batch: Batch, partition: int, offset: int, now_ns: int) -> None: ...

    def batch_failed(self, batch: Batch, partition: int, error: BridgeError) -> None: ...

    def incarnation_started(self, number: int) -> None: ...


class Sender:
    """Owns the producer incarnations and ``PartitionQueue.in_flight``.

    ``start`` waits for the first incarnation, raising RefusedError or UnreachableError; later ones are retried for
    ever."""

    def __init__(
        self,
        partitions: Partitions,
        factory: ProducerFactory,
        policy: SenderPolicy,
        observer: SenderObserver,
        clock_ns: Callable[[], int],
        fatal: Callable[[BaseException], None],
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._wall_ms = wall_ms
        self.partitions = partitions
        self._factory = factory
        self._policy = policy
        self._observer = observer
        self._clock_ns = clock_ns
        self._fatal = fatal  # told of a defect of ours: something would not move any more
        self._producer: Producer = factory()
        self._number = 0
        self._held = True
        self._failures: dict[PartitionQueue, BridgeError] = {}
        self._waiting: set[PartitionQueue] = set()  # without a leader, told to wait, or over a quota
        self._recovery: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._answered = asyncio.Event()
        self._backoff = Backoff(policy.backoff_initial_ns, policy.backoff_max_ns, jitter=0.2)
        self._closed = False
        self.spooler: Spooler | None = None  # set before the start, where there is one

    @property
    def producer(self) -> Producer:
        """The incarnation of the moment: for metadata, and for making batches."""
        return self._producer

    async def start(self) -> None:
        try:
            await self._producer.start()
        except BaseException:
            await self._producer.close(patience_s=CLOSE_PATIENCE_S)
            self._producer = self._factory()  # an incarnation starts once
            raise
        self._started()
        self._held = False
        self._watch = asyncio.create_task(self._watch_deadlines())
        self._watch.add_done_callback(self._watched)

    def start_later(self) -> None:
        """Go on trying to start, in the background: for a Kafka that is away while the spool takes what comes."""
        self._watch = asyncio.create_task(self._watch_deadlines())
        self._watch.add_done_callback(self._watched)
        self._begin_recovery()

    @property
    def started(self) -> bool:
        """Whether there has been an incarnation."""
        return self._number > 0

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

    def renew(self, reason: str) -> None:
        """Replace the producer, for somebody beside us who writes through it and found it of no more use. Does not
        block; what is under way is waited for, as at any replacement."""
        log.warning("producer_renewal_asked", reason=reason)
        self._begin_recovery()

    def create_batch(self, compressed: bool) -> BatchBuilder:
        return self._producer.create_batch(compressed=compressed)

    def pump(self) -> None:
        """Send what the accumulators have listed as due. Does not block."""
        if self.spooler is not None:
            self.spooler.pump()
        due = self.partitions.due
        for queue in due:
            if queue.in_flight is None:
                self._send_next(queue)
        due.clear()

    def resume(self, queue: PartitionQueue) -> None:
        """Something of a queue can be sent again. Does not block."""
        if queue.in_flight is None:
            self._send_next(queue)

    def _send_next(self, queue: PartitionQueue) -> None:
        if self._held:
            return
        if queue.not_before_ns and self._clock_ns() < queue.not_before_ns:
            self._wait(queue)
            return
        producer = self._producer
        held_ns = producer.held_until_ns(queue.topic, queue.partition)
        if held_ns and queue.waiting and held_ns > self._clock_ns():
            self._wait(queue)  # it goes on filling, or to the disk, and its time-out does not run
            return
        if not producer.has_leader(queue.topic, queue.partition):
            # Handed over now it would expire inside the producer and poison the partition's sequence.
            if queue.waiting:
                producer.watch_topic(queue.topic)  # located through an earlier incarnation, this one may not know it
                self._wait(queue)
            return
        if queue.backlog is None:
            batch = queue.next_batch()
        else:
            assert self.spooler is not None
            batch = self.spooler.next_batch(queue)
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

    def _answer(self, queue: PartitionQueue, batch: Batch, future: asyncio.Future[int]) -> None:
        try:
            error = self._producer.failure(future)
            self._take_answer(queue, batch, error, future.result() if error is None else -1)
        except Exception as error:  # noqa: BLE001 - the loop would only log it, and the partition stand still
            self._fatal(error)

    def _take_answer(self, queue: PartitionQueue, batch: Batch, error: BridgeError | None, offset: int) -> None:
        if queue.in_flight is not batch:
            return  # rebuilt since: a late answer changes nothing
        if queue in self._failures:
            if error is not None or not isinstance(self._failures[queue], IncarnationError):
                return
            del self._failures[queue]  # given up on, but not rebuilt yet, and Kafka has it: no need for a copy
        if error is None:
            now_ns = self._clock_ns()
            queue.in_flight = None
            queue.last_acknowledged_ns = now_ns
            queue.answered_in_ns = now_ns - batch.sent_ns
            queue.clock_refused = False
            queue.dead_letters_refused = ""
            batch.slot.accumulator.stored(batch)
            self._observer.batch_stored(batch, queue.partition, offset, now_ns)
            if self._held:
                self._answered.set()
            elif queue.waiting:
                self._send_next(queue)
        else:
            self._failed(queue, batch, error)

    def _failed(self, queue: PartitionQueue, batch: Batch, error: BridgeError) -> None:
        now_ns = self._clock_ns()
        batch.first_failed_ns = batch.first_failed_ns or now_ns
        self._observer.batch_failed(batch, queue.partition, error)
        if isinstance(error, LeaderMissingError):
            # Nothing was sent and no sequence number used: only wait.
            queue.in_flight = None
            queue.in_front(batch).appendleft(batch)
            self._wait(queue)
            return
        if isinstance(error, PoisonedError | TimestampError | RefusedError):
            # Kafka said no and stored nothing: the producer has its sequence numbers back and serves on.
            queue.in_flight = None
            if not isinstance(error, RefusedError):
                queue.waiting_since_ns = 0  # an answer, if no acknowledgement: the partition is not silent
            if not batch.writing:  # else its place is in the spool, whose copy shows the fault again
                self._put_back(queue, batch, error)
            self._answered.set()
            self._send_next(queue)
            self.pump()
            return
        self._failures[queue] = error
        self._answered.set()
        self._begin_recovery()

    def _begin_recovery(self) -> None:
        if self._recovery is None and not self._closed:
            self._recovery = asyncio.get_running_loop().create_task(self._recover())
            self._recovery.add_done_callback(self._recovered)

    def _recovered(self, task: asyncio.Task[None]) -> None:
        self._recovery = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._fatal(error)
        elif self._failures:  # the new incarnation failed before this was called
            self._begin_recovery()

    # --- incarnations ------------------------------------------------------------------------------

    async def _recover(self) -> None:
        self._held = True
        old = self._producer
        if self._number:
            reasons = sorted({str(error) for error in self._failures.values()})[:3]
            log.warning("producer_replacing", incarnation=self._number, reasons=reasons)
        await self._settle()
        for queue in self.partitions.queues.values():
            if queue.in_flight is not None:
                self._failures.setdefault(queue, IncarnationError("No answer before the producer was replaced."))
        await old.close(patience_s=CLOSE_PATIENCE_S)
        await self._connect()
        failures, self._failures = self._failures, {}
        for queue in list(self.partitions.queues.values()):  # a first dead letter adds one
            batch = queue.in_flight
            if batch is not None:
                queue.in_flight = None
                if not batch.writing:
                    self._put_back(queue, batch, failures.get(queue))
        self._started()
        self._held = False
        for queue in self.partitions.queues.values():
            if queue.in_flight is None:
                self._send_next(queue)

    async def _settle(self) -> None:
        """Wait for the answers of partitions that have not failed, so that they are not written twice."""
        deadline_ns = self._clock_ns() + self._policy.settle_ns
        while any(q.in_flight is not None and q not in self._failures for q in self.partitions.queues.values()):
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
                await producer.close(patience_s=CLOSE_PATIENCE_S)
                forget_frames(error)  # they have the producer, and an outage may last for days
                delay_ns = self._backoff.next_ns(self._clock_ns())
                log.warning("producer_start_failed", error=str(error), retry_in_s=round(delay_ns / 1e9, 2))
                await asyncio.sleep(delay_ns / 1e9)
            except BaseException:
                await producer.close(patience_s=CLOSE_PATIENCE_S)
                raise
            else:
                self._backoff.started(self._clock_ns())
                self._producer = producer
                return

    def _started(self) -> None:
        self._number += 1
        self._observer.incarnation_started(self._number)

    def _put_back(self, queue: PartitionQueue, batch: Batch, error: BridgeError | None) -> None:
        """Put a batch that failed in front of its followers; what is known of the failure decides in which form."""
        parts, hold = [batch], batch.attempts > 1 or isinstance(error, RefusedError)
        if isinstance(error, PoisonedError):
            parts, hold = self._without_poison(batch, error)
        elif isinstance(error, TimestampError):
            parts, hold = self._restamped(queue, batch, error)
        if batch not in parts:
            batch.slot.accumulator.discard(batch)
        queue.in_front(batch).extendleft(reversed(parts))
        if hold:
            # No record's fault, or a dead letter nobody takes, or a failure that comes again: keep it, ask later.
            # Only this partition waits; every other has the new incarnation at once.
            delay_ns = min(self._policy.backoff_initial_ns << min(batch.attempts, 10), self._policy.backoff_max_ns)
            queue.not_before_ns = self._clock_ns() + delay_ns

    def _without_poison(self, batch: Batch, error: PoisonedError) -> tuple[list[Batch], bool]:
        """Take the records that Kafka names to the dead letters, and return the others, in order; two halves where it
        names none and there are several. Also whether they have to wait: for a dead letter that nobody takes, or
        that the ceiling on dead letters does not allow now."""
        slot, records = batch.slot, self._producer.records(batch.builder)
        letters, share = slot.accumulator.dead_letters, _Share.of(batch)
        if slot.dead_letter and len(records) == 1:
            slot.queue.dead_letters_refused = str(error)
            log.error("dead_letter_refused", topic=slot.queue.topic, error=str(error))
            return [batch], True
        if len(records) > 1 and (slot.dead_letter or not error.records):
            middle = len(records) // 2
            first, second = share.split(middle)
            return [
                *self._rebuild(batch, records[:middle], first),
                *self._rebuild(batch, records[middle:], second),
            ], False
        at = 0  # what follows is still in ``share``
        good: list[StoredRecord] = []
        shares: list[tuple[_Share, int]] = []
        for number in error.records or (0,):
            before, share = share.split(number - at)
            good += records[at:number]
            shares.append((before, number - at))
            at = number
            if letters.withholds(slot.route):
                if not at:
                    return [batch], True
                rest = self._rebuild(batch, records[at:], share)
                return [*(self._rebuild(batch, good, _Share.joined(shares)) if good else ()), *rest], not good
            alone, share = share.split(1)
            (bad,) = self._rebuild(batch, records[at : at + 1], alone)
            letters.take(bad, records[at], error.reason, error)
            slot.accumulator.discard(bad)
            at += 1
        good += records[at:]
        shares.append((share, len(records) - at))
        return self._rebuild(batch, good, _Share.joined(shares)) if good else [], False

    def _restamped(self, queue: PartitionQueue, batch: Batch, error: TimestampError) -> tuple[list[Batch], bool]:
        """The batch with the present in place of the timestamps that Kafka refuses, and whether it has to wait: where
        it refuses the present too, our clock or the broker's is wrong, until somebody corrects it."""
        records, now_ms = self._producer.records(batch.builder), self._wall_ms()
        refused = error.records or range(len(records))
        for number in refused:
            records[number] = restamped(records[number], now_ms)
        rebuilt = self._rebuild(batch, records, _Share.of(batch))
        for one in rebuilt:
            one.restamped = True
        topic, partition, said, count = queue.topic, queue.partition, str(error), len(refused)
        if batch.restamped:
            queue.clock_refused = True
            log.error("clock_refused", topic=topic, partition=partition, records=count, error=said, repeat_key=topic)
        else:
            log.warning(
                "timestamps_replaced", topic=topic, partition=partition, records=count, error=said, repeat_key=topic
            )
        return rebuilt, batch.restamped

    def _rebuild(self, batch: Batch, records: Sequence[StoredRecord], share: _Share) -> list[Batch]:
        """Some records of a batch as a batch of their own; as several, if settings allow less than when it was made
        (the spool keeps batches across changes)."""
        builder = self._producer.create_batch(compressed=True)
        for number, record in enumerate(records):
            if builder.append(number, record.timestamp_ms, record.key, record.value, record.headers) is None:
                first, second = share.split(number)
                rest = self._rebuild(batch, records[number:], second)
                return [*self._rebuild(batch, records[:number], first), *rest]
        builder.close(len(records))
        rebuilt = Batch(batch.slot, builder, batch.opened_ns)
        rebuilt.count = len(records)
        rebuilt.parts = share.parts
        for span, _ in share.parts:
            span.pending += 1
        rebuilt.unfinished = share.unfinished
        rebuilt.counted = rebuilt.messages
        rebuilt.size = builder.size()
        rebuilt.attempts = batch.attempts
        rebuilt.first_failed_ns = batch.first_failed_ns
        rebuilt.on_disk = batch.on_disk
        batch.slot.accumulator.buffered_bytes += rebuilt.size
        return [rebuilt]

    # --- waiting -----------------------------------------------------------------------------------

    def _wait(self, queue: PartitionQueue) -> None:
        self._waiting.add(queue)
        if self._retry_timer is None and not self._closed:
            self._retry_timer = asyncio.get_running_loop().call_later(LEADER_INTERVAL_S, self._retry_waiting)

    def _retry_waiting(self) -> None:
        self._retry_timer = None
        waiting, self._waiting = self._waiting, set()
        try:
            for queue in waiting:
                if queue.in_flight is None:
                    self._send_next(queue)
        except Exception as error:  # noqa: BLE001 - the loop would only log it, and the partitions stand still
            self._fatal(error)

    def _watched(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error)

    async def _watch_deadlines(self) -> None:
        """Replace an incarnation that has left a batch without an answer: aiokafka itself would wait for ever."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if self._held:
                continue
            late_ns = self._clock_ns() - self._policy.delivery_timeout_ns
            for queue in self.partitions.queues.values():
                batch = queue.in_flight
                if (
                    batch is not None
                    and batch.sent_ns < late_ns
                    and self._producer.held_until_ns(queue.topic, queue.partition) < late_ns
                ):
                    seconds = self._policy.delivery_timeout_ns / 1e9
                    text = (
                        f"No answer for {queue.topic}/{queue.partition} within kafka.delivery_timeout ({seconds:g} s)."
                    )
                    self._failed(queue, batch, IncarnationError(text))


@dataclass(frozen=True, slots=True)
class _Share:
    """Which messages of which spans some records hold, and which of the records are not the last of their message."""

    parts: list[tuple[Span, int]]
    unfinished: list[int]

    @classmethod
    def of(cls, batch: Batch) -> _Share:
        return cls(batch.parts, batch.unfinished)

    @classmethod
    def joined(cls, pieces: Sequence[tuple[_Share, int]]) -> _Share:
        """The share of several pieces of a batch, each with its number of records, put behind each other."""
        parts: list[tuple[Span, int]] = []
        unfinished: list[int] = []
        at = 0
        for share, records in pieces:
            for span, count in share.parts:
                if parts and parts[-1][0] is span:
                    parts[-1] = (span, parts[-1][1] + count)
                else:
                    parts.append((span, count))
            unfinished += [at + number for number in share.unfinished]
            at += records
        return cls(parts, unfinished)

    def split(self, middle: int) -> tuple[_Share, _Share]:
        """The first ``middle`` records' share, and the rest's."""
        first: list[tuple[Span, int]] = []
        second: list[tuple[Span, int]] = []
        left = middle - sum(number < middle for number in self.unfinished)
        # Records that are not the last of their message are in no count, so where they belong is not known: then both
        # halves answer for every span. It waits a little longer; nothing is acknowledged before it is durable.
        both = bool(self.unfinished)
        for span, count in self.parts:
            taken = min(count, left)
            left -= taken
            if taken or both:
                first.append((span, taken))
            if count - taken or both:
                second.append((span, count - taken))
        before = [number for number in self.unfinished if number < middle]
        behind = [number - middle for number in self.unfinished if number >= middle]
        return _Share(first, before), _Share(second, behind)
