"""Where messages go that can never be delivered as they are: one Kafka topic, with the original bytes and the reason.

A dead letter takes its message's place in the spans, so the message is acknowledged to MQTT when Kafka has the dead
letter, and not before. A dead letter that Kafka refuses therefore holds up everything behind it, so nothing a device
can send may make one: what is large is written in parts, header ``dlq.part`` saying which of how many and
``dlq.part_id`` of which message. Their headers and values, each put together in order, are the original ones; a key
that is too large itself is left out, for it was made from the rest.

What a dead letter knows of its MQTT message: all of it where the message never became a record. A record that Kafka
refused knows what its route wrote into it, and its QoS; the MQTT topic also where the route's key is the topic. The
rest was not kept, for keeping it would cost every good message of the route."""

from __future__ import annotations

__all__ = ["DeadLetters", "stored_letters"]

import os
import time
from itertools import zip_longest
from typing import TYPE_CHECKING

import structlog

from bridge import wire
from bridge.produce.partitioner import partition_for
from bridge.wire import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bridge.ports import Headers, StoredRecord
    from bridge.produce.accumulator import Accumulator, Slot
    from bridge.produce.batch import Batch, Span
    from config.settings import RouteSettings

log = structlog.get_logger("dead_letter")

PART_BYTES = 256 * 1024  # of the value in one record: any sensible broker takes that, with headers
SMALL_PART_BYTES = 64 * 1024  # where the broker has just called something too large, whatever settings say of it
HEADER_BYTES = 32 * 1024  # of the original headers in one record; a single one of MQTT has up to 128 KiB
KEY_BYTES = 32 * 1024


class DeadLetters:
    """Writes dead letters into the accumulator. ``partition_count`` knows the dead-letter topics, which must exist.

    ``topic`` is that of every route that names none of its own in ``routes``. ``made`` is called with
    route, reason and error of each, once it is in the accumulator: Kafka has it later, or never. ``withholds`` says
    of a route that what Kafka refuses of it is to wait, instead of becoming a dead letter. They are written with the
    present as their timestamp: that of the message may be what Kafka refuses.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        topic: str,
        *,
        instance: str,
        partition_count: Callable[[str], int | None],
        max_record_bytes: int,
        routes: Sequence[RouteSettings] = (),
        made: Callable[[str, DeadLetterReason, BaseException, str | None], None] = lambda *_: None,
        withholds: Callable[[str], bool] = lambda _route: False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._topics: dict[str, str] = {}
        self._keyed_by_topic: set[str] = set()
        self.adopt(topic, routes)
        self._made = made
        self.withholds = withholds
        self._now_ms = now_ms
        self._accumulator = accumulator
        accumulator.dead_letters = self
        self._instance = instance.encode()
        self._partition_count = partition_count
        self._part_bytes = min(max_record_bytes, PART_BYTES)

    def adopt(self, topic: str, routes: Sequence[RouteSettings]) -> None:
        """Use other topics from now on. A route that is no more keeps the one it had, for records that are still on
        their way; and what is a key of theirs is not taken for an MQTT topic because a route of that name is keyed by
        it now."""
        known = self._topics.keys()
        keyed = {route.name for route in routes if route.key == "${topic}"}
        self._keyed_by_topic = {name for name in keyed if name in self._keyed_by_topic or name not in known}
        self.topic = topic
        self._topics |= {route.name: route.dead_letter_topic or topic for route in routes}

    def take(self, batch: Batch, record: StoredRecord, reason: DeadLetterReason, error: BaseException) -> None:
        """Take over the one record of a batch that Kafka refuses, with its place in the spans, and make it due.

        A record that is not the last of its message takes no message with it: that one is counted where its last
        record is."""
        whole = batch.messages == 1
        slot = batch.slot
        said = self._headers(reason, error, record.timestamp_ms, slot.route, batch.attempts, slot.queue.topic)
        part_bytes = SMALL_PART_BYTES if reason is DeadLetterReason.TOO_LARGE else self._part_bytes
        dead = self._write(
            slot.accumulator, slot.route, slot.qos, record.key, record.value,
            self._with_what_is_known(slot, record), said,
            list(batch.parts), min(part_bytes, self._part_bytes), whole=whole,
        )  # fmt: skip
        if whole:
            dead.messages -= 1  # its own slot has counted the message already
        slot.accumulator.hurry(dead)
        self._made(slot.route, reason, error, slot.queue.topic)

    def _with_what_is_known(self, slot: Slot, record: StoredRecord) -> Headers:
        """A refused record's headers, behind those that its route leaves out and that are known all the same."""
        names = {name for name, _ in record.headers}
        known: list[tuple[str, bytes | None]] = []
        if wire.MQTT_TOPIC not in names and slot.route in self._keyed_by_topic and record.key is not None:
            known.append((wire.MQTT_TOPIC, record.key))
        if wire.MQTT_QOS not in names and slot.qos:
            known.append((wire.MQTT_QOS, b"%d" % slot.qos))
        return [*known, *record.headers]

    def bury(
        self,
        route: str,
        qos: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        reason: DeadLetterReason,
        error: BaseException,
        kafka_topic: str | None = None,
        span: Span | None = None,
        *,
        whole: bool = True,
    ) -> Slot:
        """Write a message that never became a record. ``span`` is where it waits, the current one if not given.
        Not ``whole``: one of several records of a message that is counted with another of them.

        Returns the slot it is in; the next flush sends it, or ``Accumulator.hurry``."""
        said = self._headers(reason, error, timestamp_ms, route, 0, kafka_topic)
        parts = [(span or self._accumulator.current, int(whole))]
        slot = self._write(
            self._accumulator, route, qos, key, value, headers, said, parts, self._part_bytes,
            whole=whole,
        )  # fmt: skip
        self._made(route, reason, error, kafka_topic)
        return slot

    def _write(
        self,
        accumulator: Accumulator,
        route: str,
        qos: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        said: list[tuple[str, bytes | None]],
        parts: list[tuple[Span, int]],
        part_bytes: int,
        *,
        whole: bool,
    ) -> Slot:
        topic = self._topics.get(route, self.topic)
        partitions = self._partition_count(topic) or 1
        slot = accumulator.slot(route, qos, topic, partition_for(key, partitions) if key else 0, dead_letter=True)
        if key is not None and len(key) > KEY_BYTES:
            key = None
        groups, chunks = _header_groups(headers), _chunks(value, part_bytes)
        count = max(len(groups), len(chunks))
        now_ms = self._now_ms()
        part_id = os.urandom(8).hex().encode() if count > 1 else b""  # other workers' parts may lie between ours
        for number, group, chunk in zip_longest(range(1, count + 1), groups, chunks):
            all_headers = [*(group or ()), *said]
            if count > 1:
                all_headers += [(wire.DLQ_PART, b"%d/%d" % (number, count)), (wire.DLQ_PART_ID, part_id)]
            piece = b"" if chunk is None and number > 1 else chunk  # a first None is a tombstone's own
            accumulator.append(slot, timestamp=now_ms, key=key, value=piece, headers=all_headers)
            if number < count or not whole:
                assert slot.batch is not None
                slot.batch.unfinished.append(slot.count - 1)
        accumulator.move(parts, slot)
        return slot

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
            (wire.DLQ_FIRST_SEEN_MS, b"%d" % (first_seen_ms or self._now_ms())),
            (wire.DLQ_ROUTE, route.encode()),
            (wire.GATEWAY_ID, self._instance),
        ]
        if kafka_topic is not None:
            headers.append((wire.DLQ_KAFKA_TOPIC, kafka_topic.encode()))
        return headers


def stored_letters(records: Iterable[StoredRecord]) -> Iterator[tuple[str, str]]:
    """Route and reason of each dead letter among records of a dead-letter topic; of one in parts at its last part."""
    for record in records:
        said = dict(record.headers)
        number, _, total = (said.get(wire.DLQ_PART) or b"1/1").partition(b"/")
        if number == total:
            yield (said.get(wire.DLQ_ROUTE) or b"").decode(), (said.get(wire.DLQ_REASON) or b"").decode()


def _chunks(value: bytes | None, part_bytes: int) -> list[bytes | None]:
    """A value in pieces of at most ``part_bytes``; one piece if it fits."""
    if value is None or len(value) <= part_bytes:
        return [value]
    return [value[start : start + part_bytes] for start in range(0, len(value), part_bytes)]


def _header_groups(headers: Headers) -> list[list[tuple[str, bytes | None]]]:
    """Headers in groups of at most HEADER_BYTES, or of one; a single group if they fit."""
    groups: list[list[tuple[str, bytes | None]]] = [[]]
    size = 0
    for name, content in headers:
        cost = len(name) + len(content or b"") + 8
        if groups[-1] and size + cost > HEADER_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((name, content))
        size += cost
    return groups
