"""Settings of the worker itself: flow control, dead letters, logs."""

__all__ = ["DeadLetterSettings", "FlowSettings", "LogSettings"]

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from config.values.grammar import ByteCount, Count, Duration
from config.values.model import Table
from config.values.names import KafkaTopicName


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
    """MQTT topics whose route, key and partition are remembered, about 0.5 KiB each; on routes with interceptors half
    as many, about 1 KiB each. Should exceed the topics in use at a time: below, each message of an evicted topic is
    routed anew, some 10 µs, and so is that of a topic longer than 512 bytes."""

    property_cache_entries: Annotated[Count, Field(ge=1, le=100_000_000)] = 10_000
    """Different sets of MQTT 5 properties, of 512 bytes at most, that are remembered as headers, by each route. 10,000
    covers a property per device; properties that differ in every message gain nothing from any size."""


class DeadLetterSettings(Table):
    topic: KafkaTopicName = "gateway-dead-letters"
    """Kafka topic for messages that can never be delivered, with the reason and the original bytes, unless their route
    names its own (`routes[].dead_letter_topic`). It must be no route's topic. Dead letters live as long as the topic's
    `retention.ms`."""

    max_per_second: Annotated[float, Field(ge=0, le=1_000_000)] = 100.0
    """Dead letters a second, as the mean over `over`, that a route may make; beyond them the route is stopped: its
    further messages are held, not acknowledged. 100 is more than broken devices make and less than a broken route
    does. 0: the first dead letter stops its route. Large: a mistake in a route drains everything into the dead
    letters."""

    max_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of a route's messages over `over` that may become dead letters; beyond it the route is stopped as well.
    0.01 is one in a hundred. 0: the first one, once `min_messages` are there. 1: the share never stops a route."""

    over: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(hours=24))] = timedelta(minutes=1)
    """How far back rate and share look. 1 minute. Short: a burst of a second stops a route. Long: the count that a
    mistake may reach grows with it (`max_per_second` times `over`), and bad messages of long ago still count."""

    min_messages: Annotated[Count, Field(ge=1, le=1_000_000_000)] = 1000
    """Messages of a route before its share is judged; where fewer came in `over`, the share looks back as far as it
    takes. 1000, so that chance does not decide: at 1 % it is ten dead letters. Small: one bad device stops a quiet
    route."""

    retry_after: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(hours=24))] = timedelta(minutes=5)
    """How long a stopped route rests before ten of its messages are tried: when all are good it goes on, else it rests
    again. 5 minutes. Short: the trials themselves drain the route into the dead letters. Long: it rests on after the
    cause is mended; a restart tries at once."""


class LogSettings(Table):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important line that is written. `info` is a line per transition; `debug` adds decisions, never
    payloads."""

    format: Literal["auto", "json", "console"] = "auto"
    """How lines are written to stderr. `auto`: for people on a terminal, else JSON for collectors."""
