"""Counts and log lines of what the sender reports for each batch: stored, failed, sent again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from bridge.errors import BridgeError, PoisonedError, TimestampError
from bridge.interceptors import Chains, RecordMetadata
from bridge.produce.dead_letter import stored_letters
from gateway.base.metrics import Metrics, send_failure_labels

if TYPE_CHECKING:
    from bridge.ledger_topic.intervals import LedgerIntervals
    from bridge.ports import BatchBuilder, StoredRecord
    from bridge.produce.batch import Batch, BatchSlot
    from gateway.base.instruments import Cell, Histogram

    Meters = tuple[Cell, Cell, Cell, Histogram, Histogram, Histogram, Histogram]

log = structlog.get_logger("worker")


class SendCounts:
    """A ``bridge.produce.sender.SenderObserver``. The event loop calls it once per batch, never once per record.

    ``records`` reads a closed batch again; ``dead_letter_stored`` gets route and reason of each dead letter that Kafka
    has. ``started`` is set by the first producer. ``chains`` are exchanged by a reload. ``listeners`` get what
    ``batch_stored`` gets.
    """

    def __init__(
        self,
        metrics: Metrics,
        chains: Chains,
        intervals: LedgerIntervals,
        records: Callable[[BatchBuilder], Sequence[StoredRecord]],
        dead_letter_stored: Callable[[str, str], None],
    ) -> None:
        self.chains = chains
        self.started = asyncio.Event()  # a producer has connected
        self.intervals = intervals
        self.listeners: list[Callable[[Batch, int, int, int], None]] = []
        self._metrics = metrics
        self._records = records  # reads a closed batch again
        self._dead_letter_stored = dead_letter_stored  # gets route and reason
        self._meters: dict[BatchSlot, Meters] = {}

    def batch_stored(self, batch: Batch, partition: int, offset: int, now_ns: int) -> None:
        """Kafka has the batch: count it, and tell interceptors and listeners."""
        self.intervals.stored(batch, partition, offset)
        slot = batch.slot
        if slot.route in self.chains.listening and not slot.dead_letter:
            self.chains.stored(slot.route, RecordMetadata(slot.topic, partition, offset, batch.count))
        meters = self._meters.get(slot)
        if meters is None:
            meters = self._meters[slot] = self._make_meters(slot)
        records, last_ack, size, produce, end_to_end, batch_records, batch_bytes = meters
        count = batch.count
        records.value += count
        last_ack.value = time.time()
        size.value += batch.size
        produce.observe_many(now_ns - batch.sent_ns, count)
        end_to_end.observe_many(now_ns - batch.opened_ns, count)
        batch_records.observe_many(count, 1)
        batch_bytes.observe_many(batch.size, 1)
        if slot.dead_letter:
            self._count_dead_letters(batch)
        for listener in self.listeners:
            listener(batch, partition, offset, now_ns)

    def _make_meters(self, slot: BatchSlot) -> Meters:
        """The series of a slot's batches, looked up once: the look-up is a tenth of what a small batch costs."""
        metrics = self._metrics
        return (
            metrics.kafka_records_sent.child(slot.topic),
            metrics.last_ack_timestamp.child(slot.topic),
            metrics.kafka_sent_bytes.child(),
            metrics.kafka_produce_seconds.child(),
            metrics.end_to_end_seconds.child(slot.route),
            metrics.kafka_batch_records.child(),
            metrics.kafka_batch_bytes.child(),
        )

    def _count_dead_letters(self, batch: Batch) -> None:
        """Only batches of dead letters are read again; those from the spool count like the others."""
        for route, reason in stored_letters(self._records(batch.builder)):
            self.dead_letter_stored(route, reason)

    def dead_letter_stored(self, route: str, reason: str) -> None:
        """Kafka has a dead letter of a route, or of the ``[[commands]]`` of this name."""
        self._metrics.dlq_records.child(reason).value += 1
        self._dead_letter_stored(route, reason)

    def batch_failed(self, batch: Batch, partition: int, error: BridgeError) -> None:
        """Kafka has not taken the batch: count and log it, tell interceptors of records that are given up."""
        reason, retriable = send_failure_labels(error)
        topic = batch.slot.topic
        self._metrics.kafka_send_failures.child(topic, reason, retriable).value += 1
        if isinstance(error, PoisonedError):
            # Where Kafka names no record, a larger batch is split until the record is alone.
            count, slot = len(error.records) or int(batch.count == 1), batch.slot
            # One that waits in the spool for its stopped route is sent, and refused, again.
            waits = batch.is_being_written or slot.accumulator.dead_letters.withholds(slot.route)
            if count and not slot.dead_letter and not waits:
                self.chains.given_up(slot.route, RecordMetadata(topic, partition, -1, count), error)
        else:
            self._metrics.kafka_retries.child().value += 1
            if isinstance(error, TimestampError) and not batch.is_restamped:
                self._metrics.timestamps_replaced.child("kafka").value += len(error.records) or batch.count
        log.warning(
            "batch_failed",
            topic=topic,
            partition=partition,
            records=batch.messages,
            error=str(error),
            repeat_key=(topic, reason),
        )

    def batch_retried(self, topic: str, error: BridgeError, *, expected: bool) -> None:
        """Counts a batch that the same producer sends again. ``expected``: the failure is no reason for a warning."""
        reason, retriable = send_failure_labels(error)
        self._metrics.kafka_send_failures.child(topic, reason, retriable).value += 1
        self._metrics.kafka_retries.child().value += 1
        if expected:
            log.info("batch_retried", topic=topic, error=str(error), repeat_key=(topic, reason, "settling"))
        else:
            log.warning("batch_retried", topic=topic, error=str(error), repeat_key=(topic, reason))

    def incarnation_started(self, number: int) -> None:
        self.started.set()
        self._metrics.kafka_incarnations.child().value = number
        if number > 1:
            log.info("producer_replaced", incarnation=number)

    def throttled(self, milliseconds: int) -> None:
        """A broker's quota delays the next requests."""
        self._metrics.kafka_throttle_seconds.child().observe(milliseconds * 1_000_000)
