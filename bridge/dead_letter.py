"""Where messages go that can never be delivered as they are: one Kafka topic, with the original bytes and the reason.

A dead letter takes its message's place in the spans, so the message is acknowledged to MQTT when Kafka has the dead
letter, and not before. One that is larger than a record may be is written in parts, header ``dlq.part`` saying which
of how many; their values, put together, are the original bytes."""

from __future__ import annotations

__all__ = ["DeadLetters"]

import time
from typing import TYPE_CHECKING

import structlog

from bridge import wire
from bridge.partitioner import partition_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.accumulator import Accumulator, Batch, Span
    from bridge.ports import Headers, StoredRecord
    from bridge.wire import DeadLetterReason

log = structlog.get_logger("dead_letter")


class DeadLetters:
    """Writes dead letters into the accumulator. ``partition_count`` knows the dead-letter topic, which must exist.

    ``counted`` is called with reason and number of messages.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        topic: str,
        *,
        instance: str,
        partition_count: Callable[[str], int | None],
        max_record_bytes: int,
        counted: Callable[[DeadLetterReason, int], None],
    ) -> None:
        self.topic = topic
        self._accumulator = accumulator
        self._instance = instance.encode()
        self._partition_count = partition_count
        self._part_bytes = max_record_bytes
        self._counted = counted

    def take(self, batch: Batch, record: StoredRecord, reason: DeadLetterReason, error: BaseException) -> None:
        """Take over the one record of a batch that Kafka refuses, with its place in the spans."""
        first_seen_ms = record.timestamp_ms
        slot = batch.slot
        headers = [
            *record.headers,
            *self._headers(reason, error, first_seen_ms, slot.route, batch.attempts, slot.queue.topic),
        ]
        self._write(
            slot.route, slot.qos, record.timestamp_ms, record.key, record.value, headers, list(batch.parts), reason
        )
        self._accumulator.flush()

    def bury(
        self,
        route: str,
        qos: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes,
        headers: Headers,
        reason: DeadLetterReason,
        error: BaseException,
        kafka_topic: str | None = None,
        span: Span | None = None,
    ) -> None:
        """Write a message that never became a record. ``span`` is where it waits, the current one if not given."""
        all_headers = [*headers, *self._headers(reason, error, timestamp_ms, route, 0, kafka_topic)]
        self._write(route, qos, timestamp_ms, key, value, all_headers, [(span or self._accumulator.current, 1)], reason)

    def _write(
        self,
        route: str,
        qos: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        parts: list[tuple[Span, int]],
        reason: DeadLetterReason,
    ) -> None:
        accumulator = self._accumulator
        partitions = self._partition_count(self.topic) or 1
        slot = accumulator.slot(route, qos, self.topic, partition_for(key, partitions) if key else 0, dead_letter=True)
        chunks = [value]
        if value is not None and len(value) > self._part_bytes:
            chunks = [value[start : start + self._part_bytes] for start in range(0, len(value), self._part_bytes)]
        for number, chunk in enumerate(chunks, 1):
            more = [(wire.DLQ_PART, b"%d/%d" % (number, len(chunks)))] if len(chunks) > 1 else []
            accumulator.append(slot, timestamp=timestamp_ms, key=key, value=chunk, headers=[*headers, *more])
            if number < len(chunks):
                assert slot.batch is not None
                slot.batch.extra += 1
                accumulator.move([(span, 0) for span, _ in parts], slot)  # they wait for every part
        accumulator.move(parts, slot)
        self._counted(reason, 1)

    def _headers(
        self,
        reason: DeadLetterReason,
        error: BaseException,
        first_seen_ms: int,
        route: str,
        attempts: int,
        kafka_topic: str | None,
    ) -> list[tuple[str, bytes | None]]:
        headers: list[tuple[str, bytes | None]] = [
            (wire.DLQ_REASON, reason.value.encode()),
            (wire.DLQ_ERROR_CLASS, type(error).__name__.encode()),
            (wire.DLQ_ERROR, str(error)[:1000].encode()),
            (wire.DLQ_ATTEMPTS, b"%d" % attempts),
            (wire.DLQ_FIRST_SEEN_MS, b"%d" % (first_seen_ms or time.time_ns() // 1_000_000)),
            (wire.DLQ_ROUTE, route.encode()),
            (wire.GATEWAY_ID, self._instance),
        ]
        if kafka_topic is not None:
            headers.append((wire.DLQ_KAFKA_TOPIC, kafka_topic.encode()))
        return headers
