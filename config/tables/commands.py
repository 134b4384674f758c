"""Settings of commands: the way from Kafka topics to devices, and back to a status of each."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from config.values.grammar import ByteCount, Count, Duration, Number, Qos, duration, within
from config.values.model import Table
from config.values.names import KafkaTopicName, placeholders

PLACEHOLDERS = ("device", "id", "subject")
_RouteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
_HeaderName = Annotated[str, Field(min_length=1, max_length=256)]


def _check_topic(text: str) -> str:
    """The MQTT topic of commands: a fixed beginning that ends with ``/``, and levels that are text or a placeholder."""
    unknown = [name for name in placeholders(text) if name not in PLACEHOLDERS]
    if unknown:
        raise ValueError(f"its placeholders are ${{device}}, ${{id}} and ${{subject}}, not ${{{unknown[0]}}}")
    if "${device}" not in text:
        raise ValueError("it contains ${device}, or every device would get the command")
    prefix = text.partition("${")[0]
    if not prefix.endswith("/") or prefix.startswith(("/", "$")):
        raise ValueError('it begins with a fixed level that is not empty and does not start with "$": "devices/…"')
    if any(character in text for character in "+#\x00"):
        raise ValueError('a topic of commands has no wildcard: neither "+" nor "#"')
    return text


def _check_response(text: str) -> str:
    """The response topic, perhaps empty. Raises ValueError with a sentence."""
    if text:
        unknown = [name for name in placeholders(text) if name != "device"]
        if unknown:
            raise ValueError(f"its placeholder is ${{device}}, not ${{{unknown[0]}}}")
        if any(character in text for character in "+#\x00"):
            raise ValueError('a response topic has no wildcard: neither "+" nor "#"')
    return text


class CommandSettings(Table):
    name: _RouteName
    """Unique name in metrics, logs and statuses: 1 to 64 letters, digits, `.`, `_`, `-`."""

    topics: Annotated[tuple[KafkaTopicName, ...], Field(min_length=1, max_length=100)]
    """Kafka topics with the commands, a record each. Their policy must be `delete`, with a retention of at least
    `expiry`. Who may write to them may command every device of `mqtt_topic`."""

    mqtt_topic: Annotated[str, AfterValidator(_check_topic), Field(max_length=1024)] = (
        "devices/${device}/req/${subject}"
    )
    """MQTT topic of a command. It begins with a fixed level and has the placeholders `${device}`, `${subject}` and
    `${id}`. Devices of MQTT 3.1.1 need `${id}`: they receive no properties."""

    status_topic: KafkaTopicName
    """Kafka topic for the status of each command, with at least as many partitions as any of `topics`. `gateway topics
    apply`, and the start with `kafka.topics.create`, create it with `cleanup.policy=compact,delete`."""

    status_retention: Annotated[Duration, within("1h", "3650d")] = duration("7d")
    """How long a status is kept: `retention.ms` of a `status_topic` that is created, or changed by `gateway topics
    apply`."""

    group: Annotated[str, Field(max_length=249)] = ""
    """Consumer group of the workers; gateways with one group share the commands. Empty:
    `<instance>-commands-<name>`."""

    secret: SecretStr | None = None
    """Key that signs the correlation data of commands, 32 characters at least, so that nobody invents an answer. The
    same in all gateways of `group`. Required with `answers` or `delivered_by`."""

    qos: Qos = 1
    """QoS of the messages to devices. 0: a command ends as `sent`, and nobody knows more of it."""

    device_header: _HeaderName = "device_id"
    """Record header with the device's name; without it the record's key, which alone keeps a device's commands in
    order."""

    id_header: _HeaderName = "correlation-id"
    """Record header with the command's id; without it `topic/partition:offset` of the record."""

    subject_header: _HeaderName = "subject"
    """Record header with the name of the command, which fills `${subject}`."""

    response_header: _HeaderName = "response-required"
    """Record header that says whether an answer is awaited: `true` or `false`. Without it: `response_required`."""

    expiry_header: _HeaderName = "expires-at"
    """Record header with the moment, in ms since 1970, from which the command is not sent any more. Without it: the
    record's timestamp plus `expiry`."""

    expiry: Annotated[Duration, within("1s", "7d")] = duration("1m")
    """Life of a command without `expiry_header`. A timestamp in the future counts as now."""

    response_required: bool = False
    """Whether commands without `response_header` await an answer. Needs `answers`."""

    response_topic: Annotated[str, AfterValidator(_check_response), Field(max_length=1024)] = "devices/${device}/res"
    """Response topic for MQTT 5 devices, matched by the filters of the route `answers`. Empty: none."""

    answers: _RouteName | None = None
    """Name of the route that brings the devices' answers, with a `device` template and a QoS above 0."""

    answer_timeout: Annotated[Duration, within("100ms", "1d")] = duration("30s")
    """Longest wait for an answer, and for a delivery, from the moment of sending. Then the command is `timed_out`."""

    confirm: Literal["sent", "delivered"] = "sent"
    """What ends a command without an answer. `sent`: the broker has it, and some subscription matched. `delivered`: the
    device acknowledged it, which EMQX reports through `delivered_by`."""

    delivered_by: _RouteName | None = None
    """Name of the route that brings EMQX's events `$events/message_acked` (a rule in `deploy/emqx`). Required for
    `delivered`."""

    presence: _RouteName | None = None
    """Name of a route with births and deaths of devices: EMQX's events of clients and subscriptions, or birth topics. A
    birth wakes the waiting commands of its device. Unset: only growing pauses decide."""

    when_offline: Literal["wait", "queue", "fail"] = "wait"
    """What happens when nobody subscribes to the command's topic. `wait`: it waits here until its expiry, and blocks
    later commands of its device. `queue`: the device's persistent session at the broker holds it; without a session it
    fails. `fail`: it ends as `undeliverable`."""

    in_flight: Annotated[Count, Field(ge=1, le=1000)] = 1
    """Commands of one device that may be under way. More than 1: in any order."""

    release: Literal["sent", "delivered", "answered"] = "answered"
    """When a command makes room for the next one of its device: once the broker has it, the device has it, or the
    command is finished. Without an answer or confirmation to wait for, the earlier event counts."""

    waiting_per_device: Annotated[Count, Field(ge=1, le=100_000)] = 50
    """Commands of one device that may wait; a further one is `refused`."""

    max_waiting: Annotated[Count, Field(ge=1, le=10_000_000)] = 100_000
    """Commands that a worker holds in memory. Beyond it the partitions are not read until some are finished."""

    max_waiting_bytes: Annotated[ByteCount, Field(ge=1 << 20, le=1 << 40)] = 64 * 1024 * 1024
    """Bytes of the payloads and headers of these commands. Beyond it the partitions are not read."""

    max_payload_bytes: Annotated[ByteCount, Field(ge=1, le=268_435_455)] = 256 * 1024
    """Largest payload of a command; a larger one is dead-lettered."""

    rate: Annotated[Number, Field(ge=0.0001, le=1_000_000)] | None = None
    """Commands a second that a worker sends at most. Unset: no limit."""

    rate_per_device: Annotated[Number, Field(ge=0.0001, le=1_000_000)] | None = None
    """Commands a second that a worker sends one device at most. Unset: no limit."""

    settle: Annotated[Duration, within("0s", "10m")] = duration("5s")
    """Wait after connecting to the broker before commands are sent: devices need time to subscribe."""
