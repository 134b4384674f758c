"""Settings of the worker itself: flow control, dead letters, logs."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from config.values.grammar import ByteCount, Count, Duration, Number, duration, within
from config.values.model import Table
from config.values.names import KafkaTopicName

FLOW_PROFILES: Final = {
    "low-latency": {"linger_max": "10ms", "read_pacing_max": "2ms"},
    "balanced": {},  # the defaults of the fields
    "economy": {"linger_max": "60ms", "read_pacing_max": "20ms"},
}


class FlowSettings(Table):
    profile: Literal["low-latency", "balanced", "economy"] = "balanced"
    """How latency is traded for CPU: the defaults of `linger_max` and `read_pacing_max`. `low-latency`: 10 ms and 2 ms;
    `economy`: 60 ms and 20 ms. [Measured](benchmarks.md#profiles)."""

    linger_max: Annotated[Duration, within("0s", "10s")] = duration("20ms")
    """Longest time that a record waits for others in its batch. A batch leaves at once when input pauses or a window is
    full. 0 sends every read alone."""

    read_pacing_max: Annotated[Duration, within("0s", "1s")] = duration("6ms")
    """Longest pause between two reads of a socket; at high rates as long as between batches. It must not exceed
    `linger_max`."""

    memory_bytes: Annotated[ByteCount, Field(ge=1 << 20, le=1 << 40)] = 32 * 1024 * 1024
    """Bytes of messages that a worker may hold. Above it reading pauses. 32 MiB is one second of traffic at full rate.
    The process needs about 60 MiB more."""

    expected_packet_bytes: Annotated[ByteCount, Field(ge=1, le=268_435_460)] = 1024
    """Expected average size of an MQTT packet. The start checks that all windows full of such packets fit into
    `memory_bytes`."""

    route_cache_entries: Annotated[Count, Field(ge=1, le=100_000_000)] = 50_000
    """MQTT topics whose route, key and partition are cached: 0.1 to 0.4 KiB each; on routes with interceptors half as
    many at about 1 KiB. A topic outside the cache, or longer than 512 bytes, costs 10 µs a message."""

    property_cache_entries: Annotated[Count, Field(ge=1, le=100_000_000)] = 10_000
    """Sets of MQTT 5 properties, up to 512 bytes each, cached as headers for each route. Properties that differ in
    every message gain nothing."""

    @model_validator(mode="before")
    @classmethod
    def _take_profile(cls, given: Any) -> Any:
        profile = given.get("profile") if isinstance(given, dict) else None
        return {**FLOW_PROFILES[profile], **given} if profile in tuple(FLOW_PROFILES) else given


class DeadLetterSettings(Table):
    topic: KafkaTopicName = "gateway-dead-letters"
    """Kafka topic of messages that can never be delivered, with reason and original bytes, unless
    `routes[].dead_letter_topic` names another. No route may write to it. Its `retention.ms` limits how long dead
    letters exist."""

    max_per_second: Annotated[Number, Field(ge=0, le=1_000_000)] = 100.0
    """Dead letters a second of a route in each worker, as the mean over `over`. Above it the route is stopped: its
    further messages wait, unacknowledged. Broken devices make fewer than 100, a broken route more. 0: the first dead
    letter stops its route."""

    max_share: Annotated[Number, Field(ge=0, le=1)] = 0.01
    """Share of a route's messages over `over` that may become dead letters; above it the route is stopped. 0: the first
    one stops the route, once `min_messages` have come. 1: no limit."""

    over: Annotated[Duration, within("1s", "1d")] = duration("1m")
    """Period over which both limits are taken."""

    min_messages: Annotated[Count, Field(ge=1, le=1_000_000_000)] = 1000
    """Messages of a route before its share is judged; if fewer came within `over`, it looks back further. Small: one
    bad device stops a quiet route."""

    retry_after: Annotated[Duration, within("1s", "1d")] = duration("5m")
    """How long a stopped route waits before ten of its messages are tried. If all are good, the route continues. A
    restart tries at once."""


class LogSettings(Table):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written. `info` is one line per change of state. `debug` adds decisions, never payloads."""

    format: Literal["auto", "json", "console"] = "auto"
    """Format of the lines on stderr. `auto`: for people on a terminal, otherwise JSON."""
