"""What the gateway writes into a Kafka record beside the payload: header names, their encodings, and the demo's value
schema.

Read by the Spark jobs too, so this module imports nothing but the standard library's light parts. Rules that hold for
every header:

- Values are UTF-8 text, numbers in decimal, except ``mqtt.correlation_data``, which is the sender's raw bytes.
- A flag that is 0 is not written: a record without ``mqtt.qos`` came with QoS 0, without ``mqtt.retain`` it was no
  retained message.
- User properties get the prefix ``mqtt.user.``, so that no device can forge a header the gateway vouches for
  (``gateway.message_id`` decides what downstream removes as a duplicate).
"""

from __future__ import annotations

__all__ = [
    "DEFAULT_METADATA_HEADERS",
    "DLQ_ATTEMPTS",
    "DLQ_ERROR",
    "DLQ_ERROR_CLASS",
    "DLQ_FIRST_SEEN_MS",
    "DLQ_KAFKA_TOPIC",
    "DLQ_PART",
    "DLQ_PART_ID",
    "DLQ_REASON",
    "DLQ_REPLAY",
    "DLQ_REPLAY_AFTER",
    "DLQ_REPLAY_ID",
    "DLQ_REPLAY_OFFSET",
    "DLQ_ROUTE",
    "GATEWAY_DEVICE",
    "GATEWAY_ID",
    "GATEWAY_MESSAGE_ID",
    "GATEWAY_MESSAGE_ID_KIND",
    "GATEWAY_RECEIVED_MS",
    "GATEWAY_TIMESTAMP_MS",
    "HEADERS",
    "LEDGER_FIELDS",
    "LEDGER_PARTITION",
    "LEDGER_SESSION",
    "LEDGER_TERMS",
    "LEDGER_VERSION",
    "LEDGER_WORKER",
    "MQTT_CONTENT_TYPE",
    "MQTT_CORRELATION_DATA",
    "MQTT_DUP",
    "MQTT_MESSAGE_EXPIRY",
    "MQTT_PAYLOAD_FORMAT",
    "MQTT_QOS",
    "MQTT_RESPONSE_TOPIC",
    "MQTT_RETAIN",
    "MQTT_TOPIC",
    "MQTT_USER_PREFIX",
    "RESERVED_PREFIXES",
    "TELEMETRY_FIELDS",
    "DeadLetterReason",
    "Field",
    "Header",
    "HeaderSpec",
    "LedgerField",
    "MessageIdKind",
    "header_bytes",
    "headers_table",
    "ledger_schema",
    "ledger_table",
]

from enum import StrEnum
from typing import Final, Literal, NamedTuple

FieldKind = Literal["string", "long", "double"]
Header = tuple[str, bytes]

MQTT_TOPIC: Final = "mqtt.topic"
MQTT_QOS: Final = "mqtt.qos"
MQTT_RETAIN: Final = "mqtt.retain"
MQTT_DUP: Final = "mqtt.dup"
MQTT_CONTENT_TYPE: Final = "mqtt.content_type"
MQTT_RESPONSE_TOPIC: Final = "mqtt.response_topic"
MQTT_CORRELATION_DATA: Final = "mqtt.correlation_data"
MQTT_PAYLOAD_FORMAT: Final = "mqtt.payload_format"
MQTT_MESSAGE_EXPIRY: Final = "mqtt.message_expiry"
MQTT_USER_PREFIX: Final = "mqtt.user."

GATEWAY_ID: Final = "gateway.id"
GATEWAY_DEVICE: Final = "gateway.device"
GATEWAY_MESSAGE_ID: Final = "gateway.message_id"
GATEWAY_MESSAGE_ID_KIND: Final = "gateway.message_id_kind"
GATEWAY_RECEIVED_MS: Final = "gateway.received_ms"
GATEWAY_TIMESTAMP_MS: Final = "gateway.timestamp_ms"

DLQ_REASON: Final = "dlq.reason"
DLQ_ERROR_CLASS: Final = "dlq.error_class"
DLQ_ERROR: Final = "dlq.error"
DLQ_ATTEMPTS: Final = "dlq.attempts"
DLQ_FIRST_SEEN_MS: Final = "dlq.first_seen_ms"
DLQ_ROUTE: Final = "dlq.route"
DLQ_KAFKA_TOPIC: Final = "dlq.kafka_topic"
DLQ_PART: Final = "dlq.part"
DLQ_PART_ID: Final = "dlq.part_id"
DLQ_REPLAY: Final = "dlq.replay"
DLQ_REPLAY_OFFSET: Final = "dlq.replay_offset"
DLQ_REPLAY_ID: Final = "dlq.replay_id"
DLQ_REPLAY_AFTER: Final = "dlq.replay_after"

RESERVED_PREFIXES: Final = ("mqtt.", "gateway.", "dlq.")
"""Header names with these prefixes are the gateway's own; a route's extra headers may not use them."""

DEFAULT_METADATA_HEADERS: Final = ("topic", "retain", "dup", "properties")
"""``metadata_headers`` of a route that names none: what a reader needs and cannot find elsewhere in the record. The
MQTT topic is the one part that always costs bytes; retain and dup cost nothing while they are 0; properties cost what
the sender put in. Left out: qos (11 bytes that say little after delivery), received (the record's timestamp says it)
and delivery ids (no identity: they differ on each redelivery)."""


class MessageIdKind(StrEnum):
    """What a ``gateway.message_id`` may be used for. Downstream removes duplicates by DEVICE ids only."""

    DEVICE = "device"  # the sender's own sequence or id: the same again means the same message again
    DELIVERY = "delivery"  # made here: traces one delivery, and differs when the broker delivers the message again


class DeadLetterReason(StrEnum):
    """Why a record went to the dead-letter topic: the value of ``dlq.reason`` and of the metric label ``reason``."""

    MISSING_VALUE = "missing_value"  # a template that must have a value found none
    INVALID_TOPIC = "invalid_topic"  # a template made a Kafka topic that is not allowed
    TOPIC_LIMIT = "topic_limit"  # the route's template made more distinct Kafka topics than max_topics
    TOO_LARGE = "too_large"  # the record is larger than max_record_bytes, or than the broker takes
    INTERCEPTOR_ERROR = "interceptor_error"  # an interceptor failed on it, and its policy is dead_letter
    INVALID_RECORD = "invalid_record"  # the broker refuses the record itself (no key on a compacted topic)


class HeaderSpec(NamedTuple):
    """One row of the reference table. ``selected_by`` is the word in ``metadata_headers`` that turns the header on."""

    name: str
    selected_by: str
    encoding: str
    written: str
    example: bytes


HEADERS: Final = (
    HeaderSpec(MQTT_TOPIC, "topic", "UTF-8", "always", b"devices/sensor-0042/telemetry"),
    HeaderSpec(MQTT_QOS, "qos", "`1` or `2`", "when not 0", b"1"),
    HeaderSpec(MQTT_RETAIN, "retain", "`1`", "when set", b"1"),
    HeaderSpec(MQTT_DUP, "dup", "`1`", "when set", b"1"),
    HeaderSpec(MQTT_PAYLOAD_FORMAT, "properties", "`1` (UTF-8 text)", "when 1", b"1"),
    HeaderSpec(MQTT_CONTENT_TYPE, "properties", "UTF-8", "when sent", b"application/json"),
    HeaderSpec(MQTT_RESPONSE_TOPIC, "properties", "UTF-8", "when sent", b"devices/sensor-0042/replies"),
    HeaderSpec(MQTT_CORRELATION_DATA, "properties", "the sender's bytes", "when sent", b"0123456789abcdef"),
    HeaderSpec(MQTT_MESSAGE_EXPIRY, "properties", "decimal seconds left at delivery", "when sent", b"3600"),
    HeaderSpec(MQTT_USER_PREFIX + "NAME", "properties", "UTF-8", "each user property, in order, repeats kept", b"eu-1"),
    HeaderSpec(GATEWAY_ID, "gateway", "UTF-8, the instance", "always", b"gateway"),
    HeaderSpec(GATEWAY_DEVICE, "device", "the route's `device` template", "when it has a value", b"sensor-0042"),
    HeaderSpec(
        GATEWAY_MESSAGE_ID,
        "message_id",
        "the route's `message_id` template, or a delivery id",
        "see below",
        b"sensor-0042-918273",
    ),
    HeaderSpec(GATEWAY_MESSAGE_ID_KIND, "message_id", "`device` or `delivery`", "with the message id", b"device"),
    HeaderSpec(GATEWAY_RECEIVED_MS, "received", "decimal milliseconds since 1970", "always", b"1763683200000"),
    HeaderSpec(
        GATEWAY_TIMESTAMP_MS,
        "(always)",
        "decimal milliseconds since 1970, the timestamp that was replaced",
        "when Kafka refused it, or an interceptor set it more than an hour ahead",
        b"1763683200000",
    ),
    HeaderSpec(DLQ_REASON, "(dead letters)", "a word of the list below", "always", b"missing_value"),
    HeaderSpec(DLQ_ERROR_CLASS, "(dead letters)", "the error's class", "always", b"RouteError"),
    HeaderSpec(DLQ_ERROR, "(dead letters)", "a sentence, UTF-8", "always", b"the sentence that was logged"),
    HeaderSpec(DLQ_ATTEMPTS, "(dead letters)", "decimal", "always", b"1"),
    HeaderSpec(DLQ_FIRST_SEEN_MS, "(dead letters)", "decimal milliseconds since 1970", "always", b"1763683200000"),
    HeaderSpec(DLQ_ROUTE, "(dead letters)", "UTF-8, the route's name", "when a route matched", b"telemetry"),
    HeaderSpec(DLQ_PART, "(dead letters)", "`number/of`", "when one message takes several records", b"1/2"),
    HeaderSpec(DLQ_PART_ID, "(dead letters)", "hexadecimal digits", "with a part", b"5f0c9a1b7d3e42c8"),
    HeaderSpec(DLQ_KAFKA_TOPIC, "(dead letters)", "UTF-8, where it was meant to go", "when it was known", b"telemetry"),
    HeaderSpec(DLQ_REPLAY, "(marks of a replay)", "`begun`, `done` or `undone`", "always", b"done"),
    HeaderSpec(DLQ_REPLAY_OFFSET, "(marks of a replay)", "decimal", "always", b"1042"),
    HeaderSpec(DLQ_REPLAY_ID, "(marks of a replay)", "hexadecimal digits", "always", b"5f0c9a1b7d3e42c8"),
    HeaderSpec(DLQ_REPLAY_AFTER, "(marks of a replay)", "hexadecimal digits", "when insisted on", b"90d1c2ab34ef5678"),
)
"""Every header the gateway writes. docs/routing.md prints ``headers_table()``."""


class Field(NamedTuple):
    """One field of a JSON value. ``kind`` is a Spark SQL type's name; a required field that is absent makes the
    record bad."""

    name: str
    kind: FieldKind
    required: bool
    unit: str
    meaning: str


TELEMETRY_FIELDS: Final = (
    Field("device", "string", True, "", "the device's own name; with seq its message's identity"),
    Field("type", "string", True, "", "the device type that aggregates are grouped by"),
    Field("seq", "long", True, "", "the device's own sequence number, rising by 1 from 0"),
    Field("ts", "long", True, "ms since 1970 (UTC)", "the device's clock when it measured: it may be wrong, clamp it"),
    Field("temperature", "double", False, "°C", "air temperature"),
    Field("humidity", "double", False, "%", "relative humidity"),
    Field("voltage", "double", False, "V", "supply voltage"),
    Field("rssi", "long", False, "dBm", "received signal strength"),
)
"""The JSON object a device publishes as telemetry, one per MQTT message. Unknown fields are allowed and ignored."""


LEDGER_VERSION: Final = 1
"""Field ``v`` of every record on the ledger topic. It rises when a field changes its meaning; new fields do not."""

LEDGER_PARTITION: Final = "partition"
LEDGER_WORKER: Final = "worker"
LEDGER_SESSION: Final = "session"

LEDGER_TERMS: Final = (
    "received",
    "recovered",
    "delivered",
    "filtered",
    "dead_lettered",
    "copies",
    "in_flight",
    "returned",
    "lost",
)
"""The terms of the account, MQTT messages each, as ``bridge.ledger`` defines them."""


class LedgerField(NamedTuple):
    """One field of a record on the ledger topic. ``kind`` is its type in Spark SQL's DDL; ``of`` says which records
    have it: those of kind ``partition``, of kind ``worker``, both (and ``session``), or those of kind ``session``."""

    name: str
    kind: str
    of: Literal["both", "partition", "worker", "session"]
    meaning: str


LEDGER_FIELDS: Final = (
    LedgerField("v", "int", "both", "version of this schema"),
    LedgerField("kind", "string", "both", "`partition`, `worker`, or `session`: an MQTT session was lost"),
    LedgerField("gateway", "string", "both", "the instance, as in the header `gateway.id`"),
    LedgerField("worker", "int", "both", "number of the worker within the instance"),
    LedgerField("life", "string", "both", "one run of one worker process, from start to end; all counts begin anew"),
    LedgerField("number", "bigint", "both", "which interval of the life, from 0; a number that is absent was lost"),
    LedgerField(
        "from_ms", "bigint", "both",
        "begin of the interval, ms since 1970 by the gateway's clock; of a lost session: when it was last "
        "connected, or `to_ms` where nobody knows",
    ),
    LedgerField(
        "to_ms", "bigint", "both",
        "its end; longer than `ledger.interval` where intervals were put together; of a lost session: when it was "
        "missed",
    ),
    LedgerField("route", "string", "partition", "the route's name"),
    LedgerField("topic", "string", "partition", "the Kafka topic written to; for dead letters theirs"),
    LedgerField("partition", "int", "partition", "the partition written to"),
    LedgerField("dead_letter", "boolean", "partition", "whether these are the route's dead letters"),
    LedgerField("tagged", "boolean", "partition", "whether the records have the header `gateway.id`"),
    LedgerField("records", "bigint", "partition", "records that Kafka acknowledged in the interval"),
    LedgerField("messages", "bigint", "partition", "MQTT messages whose last record is among them"),
    LedgerField("bytes", "bigint", "partition", "bytes of their batches before compression"),
    LedgerField("first_offset", "bigint", "partition", "lowest offset acknowledged; null if Kafka named none"),
    LedgerField("last_offset", "bigint", "partition", "highest offset acknowledged; null if Kafka named none"),
    LedgerField(
        "runs", "array<array<bigint>>", "partition",
        "each acknowledged offset: `[first, count]` of every unbroken run; null where there were too many to list",
    ),
    LedgerField("unlocated", "bigint", "partition", "those of `records` that Kafka acknowledged without an offset"),
    LedgerField("state", "string", "worker", "`started`, `running`, or `stopped` in the last record of a life"),
    LedgerField("started_ms", "bigint", "worker", "when the life began"),
    LedgerField("entries", "int", "worker", "how many `partition` records belong to the interval"),
    LedgerField("unwritten", "bigint", "worker", "ledger records of this life that Kafka refused for good: 0"),
    LedgerField("previous_life", "string", "worker", "in `started`: the life before, if the data directory knows it"),
    LedgerField("previous_clean", "boolean", "worker", "in `started`: whether that life had written its last record"),
    *(LedgerField(term, "bigint", "worker", "the term of the account, in this life so far") for term in LEDGER_TERMS),
    LedgerField("session", "string", "session", "the session that the broker had lost, as metrics name it"),
    LedgerField("client_id", "string", "session", "its client id"),
    LedgerField("away_known", "boolean", "session", "whether `from_ms` is when it was last connected"),
    LedgerField("imbalance", "bigint", "worker", "received + recovered minus all other terms: 0"),
    LedgerField("acknowledged", "bigint", "worker", "records that Kafka acknowledged in this life so far"),
)  # fmt: skip
"""The JSON objects on the ledger topic. docs/ledger.md prints ``ledger_table()``."""


def ledger_schema() -> str:
    """The schema of a ledger record for Spark's ``from_json``, in DDL."""
    return ", ".join(f"`{field.name}` {field.kind}" for field in LEDGER_FIELDS)


def ledger_table() -> str:
    """The Markdown table of the fields of a ledger record."""
    rows = ["| field | type | in | meaning |", "|---|---|---|---|"]
    rows += [f"| `{field.name}` | {field.kind} | {field.of} | {field.meaning} |" for field in LEDGER_FIELDS]
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
    """The Markdown table of every header with what it costs per record."""
    rows = ["| header | selected by | encoding | written | bytes with this value |", "|---|---|---|---|---|"]
    for spec in HEADERS:
        cost = header_bytes(spec.name, spec.example)
        rows.append(
            f"| `{spec.name}` | {spec.selected_by} | {spec.encoding} | {spec.written} "
            f"| {cost} (`{spec.example.decode()}`) |"
        )
    return "\n".join(rows) + "\n"
