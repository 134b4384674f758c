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

from enum import StrEnum
from typing import Final, Literal, NamedTuple

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
    LedgerField("route", "string", "partition", "the route's name, or the commands'"),
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
        "the acknowledged offsets, `[first, count]` of each unbroken run; null where there were too many",
    ),
    LedgerField("unlocated", "bigint", "partition", "those of `records` that Kafka acknowledged without an offset"),
    LedgerField("state", "string", "worker", "`started`, `running`, or `stopped` in the last record of a life"),
    LedgerField("started_ms", "bigint", "worker", "when the life began"),
    LedgerField("entries", "int", "worker", "how many `partition` records belong to the interval"),
    LedgerField("unwritten", "bigint", "worker", "ledger records of this life that Kafka refused for good: 0"),
    LedgerField("previous_life", "string", "worker", "in `started`: the life before, if the data directory knows it"),
    LedgerField("previous_clean", "boolean", "worker", "in `started`: whether that life had written its last record"),
    *(LedgerField(term, "bigint", "worker", "term of the account") for term in LEDGER_TERMS),
    LedgerField("session", "string", "session", "the session that the broker had lost, as metrics name it"),
    LedgerField("client_id", "string", "session", "its client id"),
    LedgerField("away_known", "boolean", "session", "whether `from_ms` is when it was last connected"),
    LedgerField("imbalance", "bigint", "worker", "received + recovered minus all other terms: 0"),
    LedgerField("acknowledged", "bigint", "worker", "records that Kafka acknowledged in this life so far"),
)  # fmt: skip
"""The JSON objects on the ledger topic. docs/ledger.md has them as a table (docs/print_tables.py)."""


def ledger_schema() -> str:
    """The schema of a ledger record for Spark's ``from_json``, in DDL."""
    return ", ".join(f"`{field.name}` {field.kind}" for field in LEDGER_FIELDS)
