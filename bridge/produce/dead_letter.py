"""Writes messages that can never be delivered into a dead-letter topic: the original bytes and the reason.

A dead letter takes the place of its message in the spans. So the message is acknowledged to MQTT when Kafka has the
dead letter, and not before. A dead letter that Kafka refuses holds every later acknowledgement. Nothing a device sends
may cause that, so a large message is written in parts. Header ``dlq.part`` has the part's number and their count,
``dlq.part_id`` the same value in all parts of a message. The values and the headers of the parts, joined in order, are
the original ones. A key that is too large is left out: it was made from the message.

A dead letter of a message that never became a record has the whole MQTT message. A dead letter of a refused record has
the record's content and the QoS, and the MQTT topic where the key is the topic for sure. Other properties are not kept,
because that would cost every good message of the route."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Self

import structlog

from bridge import wire
from bridge.dead_letters.reading import own_headers
from bridge.produce.partitioner import partition_for
from bridge.wire import DeadLetterReason

if TYPE_CHECKING:
    from bridge.ports import Headers, StoredRecord
    from bridge.produce.accumulator import Accumulator, Slot
    from bridge.produce.batch import Batch, BatchSlot, Span
    from config.settings import RouteSettings, Settings

log = structlog.get_logger("dead_letter")

PART_BYTES = 256 * 1024  # of the value in one record: far below every usual max.message.bytes
SMALL_PART_BYTES = 64 * 1024  # after the broker has called a record too large
HEADER_BYTES = 32 * 1024  # of the original headers in one record; a single one of MQTT has up to 128 KiB
KEY_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class DeadLetterDraft:
    """A message or record for the dead letters: the original bytes and the reason.

    ``first_seen_ms`` is absolute; 0 means now. ``kafka_topic`` is the intended topic, if known.
    ``attempts`` counts the times it was sent to Kafka."""

    route: str
    qos: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    reason: DeadLetterReason
    error: BaseException
    first_seen_ms: int = 0
    kafka_topic: str | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetterPlan:
    """Settings of dead letters. ``topic`` serves routes without their own topic in ``routes``. ``intercepted``: all
    routes have interceptors."""

    topic: str
    instance: str
    max_record_bytes: int
    routes: Sequence[RouteSettings] = ()
    intercepted: bool = False

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        return cls(
            settings.dead_letter.topic, settings.instance, settings.kafka.max_record_bytes, settings.routes,
            bool(settings.interceptors),
        )  # fmt: skip


class DeadLetters:
    """Writes dead letters into an accumulator. The dead-letter topics must exist for ``partition_count``.

    ``made`` is called with route, reason, error and Kafka topic once a dead letter is in the accumulator; Kafka has it
    later. ``withholds`` says whether refused records of a route wait instead of becoming dead letters. The timestamp of
    a dead letter is the present: Kafka may have refused the message's own.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        plan: DeadLetterPlan,
        partition_count: Callable[[str], int | None],
        *,
        made: Callable[[str, DeadLetterReason, BaseException, str | None], None] = lambda *_: None,
        withholds: Callable[[str], bool] = lambda _route: False,  # whether refused records of a route wait
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._topics: dict[str, str] = {}  # dead-letter topic by route
        self._keyed_by_topic: set[str] = set()  # routes whose records have the MQTT topic as key
        self.adopt(plan)
        self._made = made  # receives route, reason, error and Kafka topic
        self.withholds = withholds
        self._now_ms = now_ms
        self._accumulator = accumulator
        accumulator.dead_letters = self
        self._instance = plan.instance.encode()
        self._partition_count = partition_count
        self._part_bytes = min(plan.max_record_bytes, PART_BYTES)

    def adopt(self, plan: DeadLetterPlan) -> None:
        """Use other topics from now on.

        A removed route keeps its topic, for records in flight. A route whose key becomes the MQTT topic is not added to
        the routes with that key: its records in flight may have another key. So may records of interceptors."""
        known, routes = self._topics.keys(), plan.routes
        keyed = {
            route.name for route in routes if route.key == "${topic}" and not (route.interceptors or plan.intercepted)
        }
        self._keyed_by_topic = {name for name in keyed if name in self._keyed_by_topic or name not in known}
        self.topic = plan.topic
        self._topics |= {route.name: route.dead_letter_topic or plan.topic for route in routes}

    def doubt_keys(self) -> None:
        """Take no key for the MQTT topic any more: other settings may have made the records."""
        self._keyed_by_topic.clear()

    def take(self, batch: Batch, record: StoredRecord, reason: DeadLetterReason, error: BaseException) -> None:
        """Write a dead letter in place of the one record of a refused batch, and make it due.

        A message of several records is counted with its last record. A dead letter of another record counts none."""
        whole = batch.messages == 1
        slot = batch.slot
        letter = DeadLetterDraft(
            slot.route, slot.qos, record.key, record.value, self._with_what_is_known(slot, record), reason, error,
            first_seen_ms=record.timestamp_ms, kafka_topic=slot.topic, attempts=batch.attempts,
        )  # fmt: skip
        part_bytes = SMALL_PART_BYTES if reason is DeadLetterReason.TOO_LARGE else PART_BYTES
        dead = self._write(letter, list(batch.parts), min(part_bytes, self._part_bytes), whole=whole)
        if whole:
            dead.messages -= 1  # the record's own slot has counted the message
        self._accumulator.make_due(dead)
        self._made(slot.route, reason, error, slot.topic)

    def _with_what_is_known(self, slot: BatchSlot, record: StoredRecord) -> Headers:
        """Headers of a refused record. MQTT topic and QoS come first, if known and not written by its route."""
        names = {name for name, _ in record.headers}
        known: list[tuple[str, bytes | None]] = []
        if wire.MQTT_TOPIC not in names and slot.route in self._keyed_by_topic and record.key is not None:
            known.append((wire.MQTT_TOPIC, record.key))
        if wire.MQTT_QOS not in names and slot.qos:
            known.append((wire.MQTT_QOS, b"%d" % slot.qos))
        return [*known, *record.headers]

    def bury(self, letter: DeadLetterDraft, span: Span | None = None, *, whole: bool = True) -> Slot:
        """Write a dead letter of a message that never became a record, in ``span`` or the current one.

        ``whole`` is False for a record whose message is counted with another record. The next flush sends the returned
        slot, or ``Accumulator.make_due`` does."""
        parts = [(span or self._accumulator.current, int(whole))]
        slot = self._write(letter, parts, self._part_bytes, whole=whole)
        self._made(letter.route, letter.reason, letter.error, letter.kafka_topic)
        return slot

    def _write(self, letter: DeadLetterDraft, parts: list[tuple[Span, int]], part_bytes: int, *, whole: bool) -> Slot:
        """Append the parts of a letter, and count them to the spans of ``parts``. ``whole`` as in ``bury``."""
        accumulator, key, now_ms = self._accumulator, letter.key, self._now_ms()
        topic = self._topics.get(letter.route, self.topic)
        partitions = self._partition_count(topic) or 1
        partition = partition_for(key, partitions) if key else 0
        slot = accumulator.slot(letter.route, letter.qos, topic, partition, dead_letter=True)
        pieces = letter_parts(letter, self._instance, part_bytes, now_ms)
        for number, (piece_key, piece, all_headers) in enumerate(pieces, 1):
            accumulator.append(slot, timestamp=now_ms, key=piece_key, value=piece, headers=all_headers)
            if number < len(pieces) or not whole:
                assert slot.batch is not None
                slot.batch.unfinished.append(slot.count - 1)
        accumulator.move(parts, slot)
        return slot


def letter_parts(
    letter: DeadLetterDraft, instance: bytes, part_bytes: int, now_ms: int
) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """The records of a dead letter: key, value and headers of each part."""
    key, own_headers = letter.key, _headers(letter, instance, now_ms)
    if key is not None and len(key) > KEY_BYTES:
        key = None
    groups, chunks = _header_groups(letter.headers), _chunks(letter.value, part_bytes)
    count = max(len(groups), len(chunks))
    part_id = os.urandom(8).hex().encode() if count > 1 else b""  # other workers' parts may lie between these
    found = []
    for number, group, chunk in zip_longest(range(1, count + 1), groups, chunks):
        all_headers = [*(group or ()), *own_headers]
        if count > 1:
            all_headers += [(wire.DLQ_PART, b"%d/%d" % (number, count)), (wire.DLQ_PART_ID, part_id)]
        piece = b"" if chunk is None and number > 1 else chunk  # a None in the first part is a tombstone
        found.append((key, piece, all_headers))
    return found


def _headers(letter: DeadLetterDraft, instance: bytes, now_ms: int) -> list[tuple[str, bytes | None]]:
    """The headers that a dead letter adds behind those of the message."""
    error = letter.error
    headers: list[tuple[str, bytes | None]] = [
        (wire.DLQ_REASON, letter.reason.value.encode()),
        (wire.DLQ_ERROR_CLASS, type(error).__name__.encode()),
        (wire.DLQ_ERROR, str(error)[:1000].encode()),
        (wire.DLQ_ATTEMPTS, b"%d" % letter.attempts),
        (wire.DLQ_FIRST_SEEN_MS, b"%d" % (letter.first_seen_ms or now_ms)),
        (wire.DLQ_ROUTE, letter.route.encode()),
        (wire.GATEWAY_ID, instance),
    ]
    if letter.kafka_topic is not None:
        headers.append((wire.DLQ_KAFKA_TOPIC, letter.kafka_topic.encode()))
    return headers


def stored_letters(records: Iterable[StoredRecord]) -> Iterator[tuple[str, str]]:
    """Route and reason of each dead letter among records. A dead letter in parts counts at its last part."""
    for record in records:
        headers = own_headers(record.headers)
        number, _, total = headers.get(wire.DLQ_PART, b"1/1").partition(b"/")
        if number == total:
            yield headers.get(wire.DLQ_ROUTE, b"").decode(), headers.get(wire.DLQ_REASON, b"").decode()


def _chunks(value: bytes | None, part_bytes: int) -> list[bytes | None]:
    """A value in pieces of at most ``part_bytes``; one piece if it fits."""
    if value is None or len(value) <= part_bytes:
        return [value]
    return [value[start : start + part_bytes] for start in range(0, len(value), part_bytes)]


def _header_groups(headers: Headers) -> list[list[tuple[str, bytes | None]]]:
    """Headers in groups of at most HEADER_BYTES; a larger header is alone in its group."""
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
