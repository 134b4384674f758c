"""Settings of the way from an MQTT filter to a Kafka topic."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from config.tables.interceptors import InterceptorSettings
from config.values.grammar import Count, Qos
from config.values.model import Table
from config.values.names import KafkaTopicName, Template
from config.values.patterns import compile_pattern
from config.values.topic_filters import MqttFilter

ANY_TOPIC = r"[A-Za-z0-9._-]{1,249}"  # all that Kafka allows

MetadataHeader = Literal["topic", "qos", "retain", "dup", "properties", "gateway", "message_id", "device", "received"]


def _check_pattern(text: str) -> str:
    if text != ANY_TOPIC:
        compile_pattern(text)
    return text


class RouteSettings(Table):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """Unique name of the route in metrics, logs and dead letters: 1 to 64 letters, digits, `.`, `_`, `-`."""

    filters: Annotated[tuple[MqttFilter, ...], Field(min_length=1)]
    """MQTT topic filters of this route; `+` matches one level, `#` all remaining levels. `mqtt.distribution` adds
    `$share/…`."""

    topic: Annotated[Template, Field(min_length=1)]
    """Kafka topic, or a template that makes its name from the message, such as `plant-${topic[1]}`, within
    `allowed_topics` and `max_topics`."""

    key: Template = "${topic}"
    """Template of the record's key, which selects the partition as in Kafka's Java client. The MQTT topic keeps each
    topic's messages in order, `${device}` each device's. Empty: no key, all partitions, no order."""

    qos: Qos = 1
    """QoS of the subscription, the highest QoS that the broker delivers. 0 loses messages at every disconnect. 2
    doubles the packets, and Kafka may still hold duplicates after a failure."""

    group: str = ""
    """Sessions that fetch the route's messages: the name of one of `mqtt.groups`. Empty: those of `mqtt.sessions`."""

    device: Template | None = None
    """Template of the device's name, such as `${topic[1]}`, `${property.device}` or `${payload.device}`: a subscriber
    cannot see the publisher. Unset: `${device}` cannot be used."""

    message_id: Template | None = None
    """Template of an id that the device gave the message, such as `${payload.seq}`. Readers remove duplicates by it.
    Unset: a delivery id, which differs between two deliveries of one message."""

    headers: dict[str, Template] = Field(default={})
    """Extra record headers, name to template. Each adds its bytes to every record."""

    metadata_headers: tuple[MetadataHeader, ...] = ("topic", "retain", "dup", "properties")
    """Record headers about the message ([routing.md](routing.md#headers)). Empty: none, the fastest."""

    empty_payload: Literal["empty", "tombstone"] = "empty"
    """Result of an empty payload: a record with an `empty` value, or a `tombstone` (null), which deletes the key in a
    compacted topic."""

    interceptors: tuple[InterceptorSettings, ...] = ()
    """Interceptors for this route's records, in this order, after those for all routes."""

    allowed_topics: Annotated[str, AfterValidator(_check_pattern)] = ANY_TOPIC
    """Regular expression that a topic made from a template must match completely; other messages are dead-lettered.
    Names that start with `__` never match. Narrow it."""

    max_topics: Annotated[Count, Field(ge=1, le=100_000)] = 100
    """How many topics this route's template may make in a worker; messages for further ones are dead-lettered. Every
    topic costs partitions."""

    dead_letter_topic: KafkaTopicName | None = None
    """Kafka topic of this route's dead letters. Unset: `dead_letter.topic`."""
