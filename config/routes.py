"""Settings of the way from an MQTT filter to a Kafka topic."""

__all__ = ["ANY_TOPIC", "MetadataHeader", "RouteSettings"]

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from config.interceptors import InterceptorSettings
from config.values.grammar import Count
from config.values.model import Table
from config.values.names import KafkaTopicName, MqttFilter, Template
from config.values.patterns import compile_pattern

ANY_TOPIC = r"[A-Za-z0-9._-]{1,249}"  # all that Kafka allows

MetadataHeader = Literal["topic", "qos", "retain", "dup", "properties", "gateway", "message_id", "device", "received"]


def _check_pattern(text: str) -> str:
    if text != ANY_TOPIC:
        compile_pattern(text)
    return text


class RouteSettings(Table):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """Name of the route in metrics, logs and dead letters: 1 to 64 letters, digits, `.`, `_`, `-`. Required, and each
    once."""

    filters: Annotated[tuple[MqttFilter, ...], Field(min_length=1)]
    """MQTT topic filters whose messages take this route, with `+` for one level and `#` for the rest. Routes are
    tried in their order and the first that matches wins. No `$share/…`: `mqtt.distribution` decides that. Required."""

    topic: Annotated[Template, Field(min_length=1)]
    """Kafka topic to write to, or a template that makes it from the message, such as `plant-${topic[1]}`. Required. A
    template is held to `allowed_topics` and `max_topics`."""

    key: Template = "${topic}"
    """Template of the record's key, which chooses the partition as the Java client does. The default, the MQTT topic,
    keeps each topic's messages in order; `${device}` keeps each device's. Empty: no key, spread over all partitions,
    and no order."""

    qos: Literal[0, 1, 2] = 1
    """QoS of the subscription: what arrives at most. 1, because an acknowledged message is then in Kafka at least
    once. 0 loses messages at every break; 2 costs twice the packets, and Kafka still may hold a message twice after a
    failure."""

    group: str = ""
    """Which sessions fetch the route's messages: the name of one of `mqtt.groups`, or empty for those of
    `mqtt.sessions`. A group of its own keeps what is urgent from waiting behind what is much."""

    device: Template | None = None
    """Template that says which device a message is from: `${topic[1]}`, `${property.device}`, `${payload.device}`. A
    subscriber is never told the publisher, so unset means unknown; `${device}` may then not be used."""

    message_id: Template | None = None
    """Template of an identity that the device gave the message, such as `${payload.seq}`; downstream removes
    duplicates by it. Unset: a delivery id, which tells two deliveries of one message apart and so cannot serve for
    that."""

    headers: dict[str, Template] = Field(default={})
    """Extra record headers, name to template. Each costs its bytes in every record."""

    metadata_headers: tuple[MetadataHeader, ...] = ("topic", "retain", "dup", "properties")
    """Record headers about the message: topic, qos, retain, dup, properties, gateway, message_id, device, received. The
    default is what a reader needs and cannot find elsewhere in the record: the topic always costs its bytes, retain and
    dup only when set, properties what the sender put in. Empty: none, the fastest; every further one costs bytes in
    each record."""

    empty_payload: Literal["empty", "tombstone"] = "empty"
    """What an empty payload becomes: a record with an empty value, or a `tombstone` (null), which deletes the key in
    a compacted topic. `empty`, so that nothing is deleted unasked."""

    interceptors: tuple[InterceptorSettings, ...] = ()
    """Interceptors for this route's records, in this order, behind those for all routes."""

    allowed_topics: Annotated[str, AfterValidator(_check_pattern)] = ANY_TOPIC
    """Regular expression that a topic made from a template must match as a whole; others are dead-lettered. The
    default is all that Kafka allows; names that start with `__` are Kafka's own and never allowed. Devices choose
    these names: narrow it."""

    max_topics: Annotated[Count, Field(ge=1, le=100_000)] = 100
    """How many different topics this route's template may make; messages for further ones are dead-lettered. 100,
    because every topic costs a cluster partitions and a device may invent names without end."""

    dead_letter_topic: KafkaTopicName | None = None
    """Kafka topic for this route's dead letters. Unset: `dead_letter.topic`, which all routes share. A topic of its own
    gives them readers, rights and a `retention.ms` of their own."""
