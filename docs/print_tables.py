"""Prints the tables of docs/routing.md and docs/ledger.md: ``python docs/print_tables.py``.

Tests compare the pages with what this prints.
"""

from __future__ import annotations

import sys
from itertools import groupby
from typing import Final, NamedTuple

from bridge import wire


class Row(NamedTuple):
    """One row of the reference table. ``selected_by`` is the word in ``metadata_headers`` that turns the header on."""

    name: str
    selected_by: str
    encoding: str
    written: str
    example: bytes


HEADERS: Final = (
    Row(wire.MQTT_TOPIC, "topic", "UTF-8", "always", b"devices/sensor-0042/telemetry"),
    Row(wire.MQTT_QOS, "qos", "`1` or `2`", "when not 0", b"1"),
    Row(wire.MQTT_RETAIN, "retain", "`1`", "when set", b"1"),
    Row(wire.MQTT_DUP, "dup", "`1`", "when set", b"1"),
    Row(wire.MQTT_PAYLOAD_FORMAT, "properties", "`1` (UTF-8 text)", "when 1", b"1"),
    Row(wire.MQTT_CONTENT_TYPE, "properties", "UTF-8", "when sent", b"application/json"),
    Row(wire.MQTT_RESPONSE_TOPIC, "properties", "UTF-8", "when sent", b"devices/sensor-0042/replies"),
    Row(wire.MQTT_CORRELATION_DATA, "properties", "the sender's bytes", "when sent", b"0123456789abcdef"),
    Row(wire.MQTT_MESSAGE_EXPIRY, "properties", "decimal seconds left at delivery", "when sent", b"3600"),
    Row(wire.MQTT_USER_PREFIX + "NAME", "properties", "UTF-8", "each user property, in order, repeats kept", b"eu-1"),
    Row(wire.GATEWAY_ID, "gateway", "UTF-8, the instance", "always", b"gateway"),
    Row(wire.GATEWAY_DEVICE, "device", "the route's `device` template", "when it has a value", b"sensor-0042"),
    Row(
        wire.GATEWAY_MESSAGE_ID,
        "message_id",
        "the route's `message_id` template, or a delivery id",
        "see below",
        b"sensor-0042-918273",
    ),
    Row(wire.GATEWAY_MESSAGE_ID_KIND, "message_id", "`device` or `delivery`", "with the message id", b"device"),
    Row(wire.GATEWAY_RECEIVED_MS, "received", "decimal milliseconds since 1970", "always", b"1763683200000"),
    Row(
        wire.GATEWAY_TIMESTAMP_MS,
        "(always)",
        "decimal milliseconds since 1970, the timestamp that was replaced",
        "when Kafka refused it, or an interceptor set it more than an hour ahead",
        b"1763683200000",
    ),
    Row(wire.DLQ_REASON, "(dead letters)", "a word of the list below", "always", b"missing_value"),
    Row(wire.DLQ_ERROR_CLASS, "(dead letters)", "the error's class", "always", b"RouteError"),
    Row(wire.DLQ_ERROR, "(dead letters)", "a sentence, UTF-8", "always", b"the sentence that was logged"),
    Row(wire.DLQ_ATTEMPTS, "(dead letters)", "decimal", "always", b"1"),
    Row(wire.DLQ_FIRST_SEEN_MS, "(dead letters)", "decimal milliseconds since 1970", "always", b"1763683200000"),
    Row(wire.DLQ_ROUTE, "(dead letters)", "UTF-8, the route's name", "when a route matched", b"telemetry"),
    Row(wire.DLQ_PART, "(dead letters)", "`number/of`", "when one message takes several records", b"1/2"),
    Row(wire.DLQ_PART_ID, "(dead letters)", "hexadecimal digits", "with a part", b"5f0c9a1b7d3e42c8"),
    Row(wire.DLQ_KAFKA_TOPIC, "(dead letters)", "UTF-8, where it was meant to go", "when it was known", b"telemetry"),
    Row(wire.DLQ_REPLAY, "(marks of a replay)", "`begun`, `done` or `undone`", "always", b"done"),
    Row(wire.DLQ_REPLAY_OFFSET, "(marks of a replay)", "decimal", "always", b"1042"),
    Row(wire.DLQ_REPLAY_ID, "(marks of a replay)", "hexadecimal digits", "always", b"5f0c9a1b7d3e42c8"),
    Row(wire.DLQ_REPLAY_AFTER, "(marks of a replay)", "hexadecimal digits", "when insisted on", b"90d1c2ab34ef5678"),
)
"""Every header the gateway writes."""


def ledger_table() -> str:
    """The Markdown table of the fields of a ledger record. Neighbours of one meaning share a row."""
    rows = ["| field | type | in | meaning |", "|---|---|---|---|"]
    for (kind, of, meaning), fields in groupby(wire.LEDGER_FIELDS, lambda field: (field.kind, field.of, field.meaning)):
        rows.append(f"| {', '.join(f'`{field.name}`' for field in fields)} | {kind} | {of} | {meaning} |")
    return "\n".join(rows) + "\n"


def _varint_bytes(number: int) -> int:
    """How many bytes Kafka's zigzag varint takes for a length."""
    return max(1, -(-(number << 1).bit_length() // 7))


def header_bytes(name: str, value: bytes) -> int:
    """How many bytes one header adds to a record before compression (record format v2: two varint lengths, name,
    value)."""
    key = name.encode()
    return _varint_bytes(len(key)) + len(key) + _varint_bytes(len(value)) + len(value)


def headers_table() -> str:
    """The Markdown table of the headers of routes' records, with what each costs per record."""
    rows = ["| header | selected by | encoding | written | bytes with this value |", "|---|---|---|---|---|"]
    for spec in HEADERS:
        if spec.name.startswith("dlq."):
            continue  # docs/dead-letters.md explains them
        cost = header_bytes(spec.name, spec.example)
        rows.append(
            f"| `{spec.name}` | {spec.selected_by} | {spec.encoding} | {spec.written} "
            f"| {cost} (`{spec.example.decode()}`) |"
        )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(f"{headers_table()}\n{ledger_table()}")
