"""Moves batches from the partitions to Kafka, one at a time per partition.

Order within a partition: one batch is in flight, and a failed batch returns to the front of its queue.

| failure | what happens |
|---|---|
| retriable | the producer sends the batch again by itself |
| Kafka rejects records and names them | these become dead letters, the others are sent again |
| Kafka rejects a batch and names no record | the batch is split until the bad record is alone |
| Kafka refuses a timestamp | the present replaces it; if that is refused too, the batch is held |
| rights are missing | the batch is held |
| no answer in time, or the sequence is lost twice | the producer is replaced |

Each producer is an *incarnation*. It is replaced in these steps: hold every partition; wait a bounded time for answers
of healthy batches; close the producer; start another; return failed and unanswered batches to the front of their
queues; send. A batch that Kafka stored without an answer is then stored twice (at least once).

The event loop's thread owns everything here.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, Self

import structlog

from bridge.backoff import KafkaPauses
from bridge.errors import (
    BridgeError,
    IncarnationError,
    LeaderMissingError,
    PoisonedError,
    RefusedError,
    RetriableError,
    TimestampError,
)
from bridge.produce.batch import Batch, Span
from bridge.produce.timestamps import restamped
from bridge.waiting import end_tasks, report_failure, until_beat_s
from config.errors import forget_frames

if TYPE_CHECKING:
    from bridge.ports import BatchBuilder, Producer, ProducerFactory, StoredRecord
    from bridge.produce.partitions import PartitionQueue, Partitions
    from bridge.produce.spooler import Spooler
    from config.settings import KafkaSettings

log = structlog.get_logger("sender")

WATCH_INTERVAL_S = 0.5  # between two checks of deadlines, which are seconds long
LEADER_INTERVAL_S = 0.1  # between two tries of partitions without a leader
CLOSE_PATIENCE_S = 1.0  # for the connections of a replaced producer to close


@dataclass(frozen=True, slots=True)
class SenderPolicy:
    """Time limits. The producer is replaced when a batch has no answer for ``delivery_timeout_ns``.

    Before that, answers of healthy batches are awaited for at most ``settle_ns``."""

    delivery_timeout_ns: int
    settle_ns: int
    pauses: KafkaPauses = field(default_factory=KafkaPauses)

    @classmethod
    def from_settings(cls, kafka: KafkaSettings) -> Self:
        return cls(
            delivery_timeout_ns=round(kafka.delivery_timeout.total_seconds() * 1e9),
            settle_ns=2 * round(kafka.request_timeout.total_seconds() * 1e9),
            pauses=KafkaPauses.from_settings(kafka),
        )


class SenderState(Enum):
    """Whether batches are handed to the producer.

        NEW ──▶ SENDING ◀──▶ REPLACING        each ──▶ CLOSED
         └───────────────────────▲

    | from | to | when |
    |---|---|---|
    | NEW | SENDING | the first producer has started |
    | NEW | REPLACING | Kafka was away at the start, and is tried in the background |
    | SENDING | REPLACING | a batch failed and only another producer helps; or ``renew`` |
    | REPLACING | SENDING | another producer has started |
    | any | CLOSED | ``close`` |"""

    NEW = "no producer has started"
    SENDING = "batches go to the producer"
    REPLACING = "every partition is held until another producer has started"
    CLOSED = "nothing is sent any more"


SENDER_NEXT: Final = {
    SenderState.NEW: {SenderState.SENDING, SenderState.REPLACING, SenderState.CLOSED},
    SenderState.SENDING: {SenderState.REPLACING, SenderState.CLOSED},
    SenderState.REPLACING: {SenderState.SENDING, SenderState.CLOSED},
    SenderState.CLOSED: {SenderState.CLOSED},
}


class SenderObserver(Protocol):
    """Receives the outcome of each batch; never called per record.

    ``partition`` is that of the batch; its slot may use another one meanwhile. ``offset`` is that of the first record,
    or -1 when Kafka has the batch but did not report the offset."""

    def batch_stored(self, batch: Batch, partition: int, offset: int, now_ns: int) -> None: ...

    def batch_failed(self, batch: Batch, partition: int, error: BridgeError) -> None: ...

    def incarnation_started(self, number: int) -> None: ...


class Sender:
    """Owns the producer incarnations and ``PartitionQueue.in_flight``.

    ``start`` waits for the first producer, and raises RefusedError or UnreachableError. Starts of later ones are
    repeated until one succeeds. ``fatal`` receives defects that would stop a partition."""

    def __init__(
        self,
        partitions: Partitions,
        factory: ProducerFactory,
        policy: SenderPolicy,
        observer: SenderObserver,
        clock_ns: Callable[[], int],  # monotonic
        fatal: Callable[[BaseException], None],  # gets an error after which nothing is sent any more
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._wall_ms = wall_ms
        self.partitions = partitions
        partitions.pump = self.pump
        self._factory = factory
        self._policy = policy
        self._observer = observer
        self._clock_ns = clock_ns
        self._fatal = fatal
        self.producer: Producer = factory()
        self._number = 0  # producers started so far
        self._state = SenderState.NEW
        self._failures: dict[PartitionQueue, BridgeError] = {}  # for which the producer is replaced
        self._waiting: dict[PartitionQueue, None] = {}  # without a leader, held, or over a quota
        self._recovery: asyncio.Task[None] | None = None  # ``_recover``
        self._watch: asyncio.Task[None] | None = None  # ``_watch_deadlines``
        self._retry_timer: asyncio.TimerHandle | None = None
        self._answered = asyncio.Event()  # set when a batch is answered while others are awaited
        self.spooler: Spooler | None = None  # set before the start, if there is one

    async def start(self) -> None:
        """Start the producer. After a failure it may be called again."""
        try:
            await self.producer.start()
        except BaseException:
            await self.producer.close(patience_s=CLOSE_PATIENCE_S)
            self.producer = self._factory()  # a producer starts once
            raise
        self._started()
        self._begin_watch()

    def start_later(self) -> None:
        """Try to start in the background. The spool takes messages while Kafka is unavailable."""
        self._begin_watch()
        self._begin_recovery()

    @property
    def started(self) -> bool:
        return self._number > 0

    async def close(self, *, patience_s: float) -> None:
        """End producer and tasks. Batches without an answer stay unacknowledged."""
        self._enter(SenderState.CLOSED)
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        await end_tasks(self._watch, self._recovery, patience_s=patience_s)
        await self.producer.close(patience_s=patience_s)

    def renew(self, reason: str) -> None:
        """Replace the producer because another writer found it unusable. Does not block. Answers of batches in flight
        are awaited, as at every replacement."""
        log.warning("producer_renewal_asked", reason=reason)
        self._begin_recovery()

    def create_batch(self, compressed: bool) -> BatchBuilder:
        return self.producer.create_batch(compressed=compressed)

    def pump(self) -> None:
        """Send batches of the queues that are due. Does not block."""
        if self.spooler is not None:
            self.spooler.pump()
        due = self.partitions.due
        for queue in due:
            if queue.in_flight is None:
                self._send_next(queue)
        due.clear()

    def resume(self, queue: PartitionQueue) -> None:
        """Send the next batch of a queue that could not send before. Does not block."""
        if queue.in_flight is None:
            self._send_next(queue)

    def _send_next(self, queue: PartitionQueue) -> None:
        """Send the queue's next batch, or let the queue wait for its pause, a quota or a leader."""
        if self._state is not SenderState.SENDING:
            return
        if queue.not_before_ns and self._clock_ns() < queue.not_before_ns:
            self._wait(queue)
            return
        producer = self.producer
        held_ns = producer.held_until_ns(queue.topic, queue.partition)
        if held_ns and queue.has_unsent and held_ns > self._clock_ns():
            self._wait(queue)  # batches fill or are spooled meanwhile, without a deadline
            return
        if not producer.has_leader(queue.topic, queue.partition):
            # A batch given to the producer now would expire there, and the partition's sequence would be lost.
            if queue.has_unsent:
                producer.watch_topic(queue.topic)  # this producer may not know a topic that an earlier one located
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
            producer.hand_over(queue.topic, queue.partition, batch.builder, partial(self._answer, queue, batch))
        except BridgeError as error:
            self._batch_failed(queue, batch, error)

    def _answer(self, queue: PartitionQueue, batch: Batch, offset: int, error: BridgeError | None) -> None:
        try:
            self._take_answer(queue, batch, offset, error)
        except Exception as defect:  # noqa: BLE001 - the loop would only log it, and the partition would stop
            self._fatal(defect)

    def _take_answer(self, queue: PartitionQueue, batch: Batch, offset: int, error: BridgeError | None) -> None:
        """Take the outcome of a batch in flight: the first record's offset, or an error."""
        if queue.in_flight is not batch:
            return  # rebuilt meanwhile, so this late answer is ignored
        if queue in self._failures:
            if error is not None:
                return
            del self._failures[queue]  # Kafka stored it, and it is not rebuilt yet
        if error is None:
            now_ns = self._clock_ns()
            queue.in_flight = None
            queue.last_acknowledged_ns = now_ns
            queue.answered_in_ns = now_ns - batch.sent_ns
            queue.clock_refused = False
            queue.dead_letters_refused = ""
            batch.slot.accumulator.stored(batch)
            self._observer.batch_stored(batch, queue.partition, offset, now_ns)
            if self._state is not SenderState.SENDING:
                self._answered.set()
            elif queue.has_unsent:
                self._send_next(queue)
        else:
            self._batch_failed(queue, batch, error)

    def _batch_failed(self, queue: PartitionQueue, batch: Batch, error: BridgeError) -> None:
        """Put a failed batch back and go on, or begin to replace the producer."""
        now_ns = self._clock_ns()
        batch.first_failed_ns = batch.first_failed_ns or now_ns
        self._observer.batch_failed(batch, queue.partition, error)
        if isinstance(error, LeaderMissingError):
            # Nothing was sent and no sequence number was used.
            queue.in_flight = None
            queue.in_front(batch).appendleft(batch)
            self._wait(queue)
            return
        if isinstance(error, PoisonedError | TimestampError | RefusedError):
            # Kafka refused and stored nothing: the producer reuses the sequence numbers.
            queue.in_flight = None
            if not isinstance(error, RefusedError):
                queue.waiting_since_ns = 0  # a refusal is an answer, so the partition is not silent
            if not batch.is_being_written:  # otherwise the spool keeps it, and sends it again
                self._put_back(queue, batch, error)
            self._answered.set()
            self._send_next(queue)
            self.pump()
            return
        self._failures[queue] = error
        self._answered.set()
        self._begin_recovery()

    def _begin_recovery(self) -> None:
        if self._recovery is None and self._state is not SenderState.CLOSED:
            self._enter(SenderState.REPLACING)
            self._recovery = asyncio.get_running_loop().create_task(self._recover())
            self._recovery.add_done_callback(self._recovered)

    def _recovered(self, task: asyncio.Task[None]) -> None:
        """The end of ``_recover``: its error is fatal, and later failures begin it again."""
        self._recovery = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._fatal(error)
        elif self._failures:  # the new producer failed before this callback
            self._begin_recovery()

    # --- incarnations ------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Replace the producer, and put back the batches in flight."""
        old = self.producer
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
        for queue in list(self.partitions.queues.values()):  # a copy: the first dead letter of a topic adds a queue
            batch = queue.in_flight
            if batch is not None:
                queue.in_flight = None
                if not batch.is_being_written:
                    self._put_back(queue, batch, failures.get(queue))
        self._started()
        for queue in self.partitions.queues.values():
            self.resume(queue)

    async def _settle(self) -> None:
        """Wait for answers of partitions without a failure, so that their batches are not stored twice."""
        with suppress(TimeoutError):
            # wait_for loses a cancellation that comes with the answer (Python 3.11), and the sender sent again after
            # its close.
            async with asyncio.timeout(self._policy.settle_ns / 1e9):
                while any(q.in_flight is not None and q not in self._failures for q in self.partitions.queues.values()):
                    self._answered.clear()
                    await self._answered.wait()

    async def _connect(self) -> None:
        """Try until a new producer has started, and use it."""
        pauses = self._policy.pauses
        for number in itertools.count():
            producer = self._factory()
            try:
                await producer.start()
            except (RetriableError, RefusedError) as error:
                await producer.close(patience_s=CLOSE_PATIENCE_S)
                forget_frames(error)  # they refer to the producer, and an outage may last for days
                refused = isinstance(error, RefusedError)
                pause_s = (pauses.hold_ns(number) if refused else pauses.reconnect_ns(number)) / 1e9
                log.warning("producer_start_failed", error=str(error), retry_in_s=round(pause_s, 2), repeat_key="start")
                await asyncio.sleep(pause_s)
            except BaseException:
                await producer.close(patience_s=CLOSE_PATIENCE_S)
                raise
            else:
                self.producer = producer
                return

    def _enter(self, state: SenderState) -> None:
        assert state in SENDER_NEXT[self._state], f"{self._state} to {state}"
        self._state = state

    def _started(self) -> None:
        self._enter(SenderState.SENDING)
        self._number += 1
        self._observer.incarnation_started(self._number)

    def _put_back(self, queue: PartitionQueue, batch: Batch, error: BridgeError | None) -> None:
        """Return a failed batch to the front of its queue: unchanged, without bad records, or with new timestamps."""
        parts, hold = [batch], batch.attempts > 1 or isinstance(error, RefusedError)
        if isinstance(error, PoisonedError):
            parts, hold = self._without_poison(queue, batch, error)
        elif isinstance(error, TimestampError):
            parts, hold = self._restamped(queue, batch, error)
        if batch not in parts:
            batch.slot.accumulator.discard(batch)
        queue.in_front(batch).extendleft(reversed(parts))
        if hold:
            # No record is at fault, a dead letter is refused, or the failure is repeated. Only this partition waits.
            queue.not_before_ns = self._clock_ns() + self._policy.pauses.hold_ns(batch.attempts - 1)

    def _without_poison(self, queue: PartitionQueue, batch: Batch, error: PoisonedError) -> tuple[list[Batch], bool]:
        """Make dead letters of the records that Kafka names, and return batches of the others, in order.

        If Kafka names none of several records, the batch is returned in two halves. The boolean is True if the batches
        must wait: a dead letter is refused, or the ceiling on dead letters is reached."""
        slot, records = batch.slot, self.producer.records(batch.builder)
        letters, share = slot.accumulator.dead_letters, _Share.of(batch)
        if slot.dead_letter and len(records) == 1:
            queue.dead_letters_refused = str(error)
            log.error("dead_letter_refused", topic=queue.topic, error=str(error))
            return [batch], True
        if len(records) > 1 and (slot.dead_letter or not error.records):
            middle = len(records) // 2
            first, second = share.split(middle)
            return [
                *self._rebuild(batch, records[:middle], first),
                *self._rebuild(batch, records[middle:], second),
            ], False
        at = 0  # ``share`` has the records from here on
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
        """The batch with the present in place of refused timestamps, and whether it must wait.

        If Kafka refuses the present too, the clock of this machine or of the broker is wrong."""
        records, now_ms = self.producer.records(batch.builder), self._wall_ms()
        refused = error.records or range(len(records))
        for number in refused:
            records[number] = restamped(records[number], now_ms)
        rebuilt = self._rebuild(batch, records, _Share.of(batch))
        for one in rebuilt:
            one.is_restamped = True
        topic, partition, text, count = queue.topic, queue.partition, str(error), len(refused)
        if batch.is_restamped:
            queue.clock_refused = True
            log.error("clock_refused", topic=topic, partition=partition, records=count, error=text, repeat_key=topic)
        else:
            log.warning(
                "timestamps_replaced", topic=topic, partition=partition, records=count, error=text, repeat_key=topic
            )
        return rebuilt, batch.is_restamped

    def _rebuild(self, batch: Batch, records: Sequence[StoredRecord], share: _Share) -> list[Batch]:
        """Some records of a batch as a new batch, or as several.

        A batch from the spool may be larger than the present ``kafka.batch_bytes``."""
        builder = self.producer.create_batch(compressed=True)
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
        rebuilt.size = builder.size()
        rebuilt.attempts = batch.attempts
        rebuilt.first_failed_ns = batch.first_failed_ns
        rebuilt.disk = batch.disk
        batch.slot.accumulator.buffered_bytes += rebuilt.size
        return [rebuilt]

    # --- waiting -----------------------------------------------------------------------------------

    def _wait(self, queue: PartitionQueue) -> None:
        self._waiting[queue] = None
        if self._retry_timer is None and self._state is not SenderState.CLOSED:
            self._retry_timer = asyncio.get_running_loop().call_later(LEADER_INTERVAL_S, self._retry_waiting)

    def _retry_waiting(self) -> None:
        """The timer of ``_wait``: try every waiting queue again."""
        self._retry_timer = None
        waiting, self._waiting = self._waiting, {}
        try:
            for queue in waiting:
                self.resume(queue)
        except Exception as error:  # noqa: BLE001 - the loop would only log it, and the partitions would stop
            self._fatal(error)

    def _begin_watch(self) -> None:
        self._watch = asyncio.create_task(self._watch_deadlines())
        self._watch.add_done_callback(report_failure(self._fatal))

    async def _watch_deadlines(self) -> None:
        """Replace the producer when a batch has no answer within the delivery timeout."""
        while True:
            await asyncio.sleep(until_beat_s(WATCH_INTERVAL_S))
            if self._state is not SenderState.SENDING:
                continue
            late_ns = self._clock_ns() - self._policy.delivery_timeout_ns
            for queue in self.partitions.queues.values():
                batch = queue.in_flight
                if (
                    batch is not None
                    and batch.sent_ns < late_ns
                    and self.producer.held_until_ns(queue.topic, queue.partition) < late_ns
                ):
                    seconds = self._policy.delivery_timeout_ns / 1e9
                    text = (
                        f"No answer for {queue.topic}/{queue.partition} within kafka.delivery_timeout ({seconds:g} s)."
                    )
                    self._batch_failed(queue, batch, IncarnationError(text))


@dataclass(frozen=True, slots=True)
class _Share:
    """For some records of a batch: the messages of each span, and the records that are not the last of their
    message."""

    parts: list[tuple[Span, int]]
    unfinished: list[int]

    @classmethod
    def of(cls, batch: Batch) -> _Share:
        return cls(batch.parts, batch.unfinished)

    @classmethod
    def joined(cls, pieces: Sequence[tuple[_Share, int]]) -> _Share:
        """The share of several pieces of a batch, in order, each with its number of records."""
        parts: list[tuple[Span, int]] = []
        unfinished: list[int] = []
        at = 0
        for share, records in pieces:
            parts += share.parts
            unfinished += [at + number for number in share.unfinished]
            at += records
        return cls(parts, unfinished)

    def split(self, middle: int) -> tuple[_Share, _Share]:
        """The shares of the first ``middle`` records and of the others."""
        first: list[tuple[Span, int]] = []
        second: list[tuple[Span, int]] = []
        left = middle - sum(number < middle for number in self.unfinished)  # messages in the first, not counted yet
        # The span of a record is unknown if the record is not the last of its message. Then both halves get every
        # span: a span may wait longer, and no message is acknowledged before it is durable.
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
