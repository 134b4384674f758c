"""Settings of the worker itself: flow control, dead letters, HTTP port, logs."""

__all__ = ["DeadLetterSettings", "FlowSettings", "HttpSettings", "LogSettings"]

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from config.grammar import ByteCount, Count, Duration
from config.model import Table
from config.names import KafkaTopicName


class FlowSettings(Table):
    linger_max: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(seconds=10))] = timedelta(milliseconds=20)
    """Longest time that a record waits for company in its batch. A ceiling: batches leave at once when the input goes
    quiet or a window is full. 20 ms halves the cost under load. 0 sends every read on its own; long values only add
    latency."""

    read_pacing_max: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(seconds=1))] = timedelta(milliseconds=6)
    """Longest pause between two reads of a socket under load. Brokers write packet by packet; waiting 6 ms turns many
    wake-ups into one and halves the cost. Small values, 0 among them, wake up for every few messages; large ones add
    latency, and may not exceed `linger_max`."""

    memory_bytes: Annotated[ByteCount, Field(ge=1 << 20, le=1 << 40)] = 32 * 1024 * 1024
    """Bytes of messages that a worker holds at most; beyond it reading pauses until Kafka takes some. 32 MiB is a
    second of traffic at full rate. Small: pauses at every hiccup. The process itself needs about 60 MiB more."""

    expected_packet_bytes: Annotated[ByteCount, Field(ge=1, le=268_435_460)] = 1024
    """Average size of an MQTT packet, topic and properties included, as you expect it. Only used at start, to check
    that all windows full of such packets fit `memory_bytes`; 1 KiB is generous for telemetry."""

    route_cache_entries: Annotated[Count, Field(ge=1, le=100_000_000)] = 50_000
    """MQTT topics whose route, key and partition are remembered, about 0.5 KiB each. Should exceed the topics in use
    at a time: below, each message of an evicted topic is routed anew, some 10 µs."""

    property_cache_entries: Annotated[Count, Field(ge=1, le=100_000_000)] = 10_000
    """Different sets of MQTT 5 properties that are remembered as headers. 10,000 covers a property per device;
    properties that differ in every message gain nothing from any size."""


class DeadLetterSettings(Table):
    topic: KafkaTopicName = "gateway-dead-letters"
    """Kafka topic for messages that can never be delivered, with the reason and the original bytes. It must be no
    route's topic."""


class HttpSettings(Table):
    host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    """Address to listen on for `/metrics`, `/healthz` and `/readyz`. This machine alone unless told, since nothing
    there asks for a password; in a container `0.0.0.0`."""

    port: Annotated[Count, Field(ge=0, le=65535)] = 9464
    """Port to listen on. 9464 is the one that OpenTelemetry gives Prometheus exporters; 0 takes a free one and logs
    it."""

    overdue_after: Annotated[Duration, Field(gt=timedelta(0), le=timedelta(hours=24))] = timedelta(seconds=30)
    """Age of the oldest unacknowledged message at which `/readyz` turns red. 30 s outlasts an election of Kafka's
    leaders; below `kafka.request_timeout` it turns red at every slow request."""


class LogSettings(Table):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important line that is written. `info` is a line per transition; `debug` adds decisions, never
    payloads."""

    format: Literal["auto", "json", "console"] = "auto"
    """How lines are written to stderr. `auto`: for people on a terminal, else JSON for collectors."""
