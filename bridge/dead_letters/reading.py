"""Reads records of a dead-letter topic: joins dead letters from their parts, and finds the message in each.

``bridge.produce.dead_letter`` writes them. Pure: the caller passes records in the order of their offsets within each
partition."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bridge import wire
from bridge.message import Properties
from bridge.ports import Headers

ALIKE = 1000


class Place(NamedTuple):
    """The place of a record. A dead letter has the place of its first part."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}:{self.offset}"


class LoggedRecord(NamedTuple):
    """A record of a Kafka topic. ``timestamp_ms`` is milliseconds since 1970: of its writing, if ``stamped_by_broker``
    (LogAppendTime)."""

    place: Place
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    stamped_by_broker: bool = False


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter, whole unless ``parts`` says otherwise.

    - ``places``: of its records, in the order of the parts; ``parts``: how many there should be;
    - ``value``: the payload, None for a tombstone; ``size``: its bytes, also where the value was not kept;
    - ``headers``: the message's own, without ``dlq.`` ones; ``said``: those of the dead letter, ``gateway.id`` too.
    """

    places: tuple[Place, ...]
    parts: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    size: int
    headers: tuple[tuple[str, bytes | None], ...]
    said: dict[str, bytes]

    @property
    def place(self) -> Place:
        return self.places[0]

    @property
    def complete(self) -> bool:
        """Whether every part is there: the first ones of an old dead letter may have expired."""
        return len(self.places) == self.parts

    def _text(self, name: str) -> str | None:
        value = self.said.get(name)
        return None if value is None else value.decode(errors="backslashreplace")

    def _number(self, name: str) -> int | None:
        value = self.said.get(name, b"")
        return int(value) if value.isdigit() else None

    @property
    def reason(self) -> str:
        return self._text(wire.DLQ_REASON) or ""

    @property
    def error_class(self) -> str:
        return self._text(wire.DLQ_ERROR_CLASS) or ""

    @property
    def error(self) -> str:
        return self._text(wire.DLQ_ERROR) or ""

    @property
    def route(self) -> str:
        """The name of its route; empty without one."""
        return self._text(wire.DLQ_ROUTE) or ""

    @property
    def kafka_topic(self) -> str | None:
        """The Kafka topic of the message, where that was known."""
        return self._text(wire.DLQ_KAFKA_TOPIC)

    @property
    def gateway(self) -> str:
        return self._text(wire.GATEWAY_ID) or ""

    @property
    def attempts(self) -> int:
        return self._number(wire.DLQ_ATTEMPTS) or 0

    @property
    def first_seen_ms(self) -> int:
        first = self._number(wire.DLQ_FIRST_SEEN_MS)
        return self.timestamp_ms if first is None else first

    def header(self, name: str) -> bytes | None:
        """The message's first header of that name."""
        return next((value for found, value in self.headers if found == name), None)

    @property
    def mqtt_topic(self) -> str | None:
        """The message's MQTT topic; None where its route's headers leave it out."""
        value = self.header(wire.MQTT_TOPIC)
        return None if value is None else value.decode(errors="backslashreplace")

    @property
    def device(self) -> str | None:
        value = self.header(wire.GATEWAY_DEVICE)
        return None if value is None else value.decode(errors="backslashreplace")

    @property
    def flags(self) -> int:
        """The low nibble of its PUBLISH: DUP 8, QoS 6, RETAIN 1."""
        said = self.header(wire.MQTT_QOS) or b""  # of a command, whoever wrote it chose it
        qos = int(said) & 3 if said.isdigit() else 0
        retain, dup = (self.header(name) == b"1" for name in (wire.MQTT_RETAIN, wire.MQTT_DUP))
        return dup << 3 | qos << 1 | retain

    def properties(self) -> Properties:
        """The message's MQTT 5 properties, read from the headers."""
        prefix = wire.MQTT_USER_PREFIX
        user = [(name[len(prefix) :], _utf8(value)) for name, value in self.headers if name.startswith(prefix)]
        expiry = self.header(wire.MQTT_MESSAGE_EXPIRY)
        content_type, response_topic = self.header(wire.MQTT_CONTENT_TYPE), self.header(wire.MQTT_RESPONSE_TOPIC)
        return Properties(
            user=tuple(user),
            content_type=None if content_type is None else _utf8(content_type),
            response_topic=None if response_topic is None else _utf8(response_topic),
            correlation_data=self.header(wire.MQTT_CORRELATION_DATA),
            payload_format=int(self.header(wire.MQTT_PAYLOAD_FORMAT) == b"1"),
            message_expiry=int(expiry) if expiry is not None and expiry.isdigit() else None,
        )

    def __repr__(self) -> str:
        return f"<DeadLetter {self.place} {self.reason} of route {self.route!r}, {self.size} bytes>"


def _utf8(value: bytes | None) -> str:
    return (value or b"").decode(errors="backslashreplace")


class _Parts:
    """The parts so far of one dead letter."""

    __slots__ = ("records", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.records: dict[int, LoggedRecord] = {}


class Assembler:
    """Joins records to dead letters. ``keep_values`` False drops payloads at once, to look through many."""

    def __init__(self, *, keep_values: bool = True) -> None:
        self._keep_values = keep_values
        self._open: dict[tuple[object, ...], _Parts] = {}
        self._whole: set[tuple[object, ...]] = set()
        self._alike: dict[bytes, bytes] = {}  # what many dead letters say, kept once

    def take(self, record: LoggedRecord) -> DeadLetter | None:
        """The dead letter that this record completes, or None. Marks of a replay and foreign records return None."""
        said = own_headers(record.headers)
        if wire.DLQ_REASON not in said:
            return None
        number, total = _part(said)
        if total == 1:
            return self._make([record], 1, said)
        # A batch that was written twice has its parts twice; the second ones are the same.
        key = (record.place[:2], said.get(wire.DLQ_PART_ID, b""), record.key, said.get(wire.DLQ_FIRST_SEEN_MS), total)
        if key in self._whole:
            return None
        parts = self._open.setdefault(key, _Parts(total))
        if number in parts.records:
            return None
        parts.records[number] = record
        if len(parts.records) < total:
            return None
        del self._open[key]
        self._whole.add(key)
        return self._make([parts.records[n] for n in range(1, total + 1)], total, said)

    def rest(self) -> Iterator[DeadLetter]:
        """Dead letters without all parts at the end: some have expired, or are not written yet."""
        for parts in self._open.values():
            records = [record for _, record in sorted(parts.records.items())]
            yield self._make(records, parts.total, own_headers(records[0].headers))
        self._open.clear()

    def _make(self, records: list[LoggedRecord], total: int, said: dict[str, bytes]) -> DeadLetter:
        """The dead letter of these parts. ``total``: its number of parts; ``said``: its own headers."""
        first = records[0]
        size = sum(len(record.value or b"") for record in records)
        value: bytes | None = None
        if self._keep_values and first.value is not None:
            value = first.value if total == 1 else b"".join(record.value or b"" for record in records)
        said = {
            sys.intern(name): self._kept_once(content)
            for name, content in said.items()
            if name not in (wire.DLQ_PART, wire.DLQ_PART_ID)
        }
        headers = [
            (sys.intern(name), content) for record in records for name, content in record.headers if not _ours(name)
        ]
        places = tuple(record.place for record in records)
        return DeadLetter(places, total, first.timestamp_ms, first.key, value, size, tuple(headers), said)

    def _kept_once(self, content: bytes) -> bytes:
        if len(self._alike) > ALIKE:
            self._alike.clear()
        return self._alike.setdefault(content, content)


def _ours(name: str) -> bool:
    return name.startswith("dlq.") or name == wire.GATEWAY_ID


def own_headers(headers: Headers) -> dict[str, bytes]:
    """The dead letter's own headers. They begin with the last ``dlq.reason``, behind the message's own, of which some
    may have such names."""
    said: dict[str, bytes] = {}
    for name, value in headers:
        if name == wire.DLQ_REASON:
            said.clear()
        if _ours(name):
            said[name] = value or b""
    return said


def _part(said: dict[str, bytes]) -> tuple[int, int]:
    number, _, total = said.get(wire.DLQ_PART, b"1/1").partition(b"/")
    return (int(number), int(total)) if number.isdigit() and total.isdigit() else (1, 1)
