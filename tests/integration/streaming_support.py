"""What the tests of the Spark jobs share: telemetry in Kafka, and a second opinion on what came out of it."""

from __future__ import annotations

__all__ = [
    "BAD",
    "PLACES",
    "Message",
    "base_ms",
    "messages",
    "offsets_in",
    "produce",
    "reading",
    "rows_in",
    "write_config",
]

import json
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as arrow
from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_DAY_MS = 86_400_000
_TYPES = ("thermostat", "meter", "pump")

BAD: Mapping[str, bytes] = {
    "not_json": b'{"device":"sensor-1","type":"pump","seq":1,',
    "not_utf8": b'{"device":"\xff\xfe"}',
    "not_an_object": b"[1,2]",
    "missing_field": b'{"device":"sensor-1","type":"pump"}',
    "wrong_type": b'{"device":"sensor-1","type":"pump","seq":"one","ts":1}',
    "out_of_range": b'{"device":"sensor-1","type":"pump","seq":1,"ts":9223372036854775807}',
    "empty": b"",
}
"""One payload for each reason to quarantine a record."""


@dataclass(frozen=True, slots=True)
class Message:
    """A record to produce. ``at_ms`` is its Kafka timestamp, the moment the gateway received it."""

    value: bytes
    at_ms: int
    partition: int = 0


def base_ms() -> int:
    """Five seconds before the last midnight UTC: readings from here on fall on two dates, and are young enough."""
    return int(time.time() * 1000) // _DAY_MS * _DAY_MS - 5_000


def reading(number: int, at_ms: int, **changes: Any) -> dict[str, Any]:
    """The fields of a plausible reading, the same for the same number."""
    noise = random.Random(number)
    return {
        "device": f"sensor-{number % 40:02d}",
        "type": _TYPES[number % 40 % 3],
        "seq": number // 40,
        "ts": at_ms - noise.randrange(0, 800),
        "temperature": round(noise.gauss(20.0, 3.0), 2),
        "humidity": round(noise.uniform(20.0, 80.0), 1),
        "voltage": round(noise.gauss(2.9, 0.1), 3),
        "rssi": noise.randrange(-90, -40),
        **changes,
    }


def messages(numbers: range, first_ms: int, partitions: int) -> list[Message]:
    """A reading every 10 ms, spread over the partitions by device."""
    return [
        Message(json.dumps(reading(number, at_ms)).encode(), at_ms, number % 40 % partitions)
        for number in numbers
        for at_ms in [first_ms + (number - numbers.start) * 10]
    ]


def produce(bootstrap: str, topic: str, batch: Sequence[Message]) -> None:
    """Writes the messages and waits until Kafka has them all."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    for message in batch:
        headers: list[tuple[str, str | bytes | None]] = [("mqtt.topic", b"devices/any/telemetry")]
        producer.produce(
            topic,
            message.value,
            b"key",
            message.partition,
            timestamp=message.at_ms,
            headers=headers,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(30) == 0, f"not all messages for {topic} were delivered in time"
    assert not failed, f"Kafka did not take a message for {topic}: {failed[0]}"


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """All rows of a table as a reader sees them that knows nothing of Spark."""
    if not folder.exists():
        return []
    return arrow.dataset(folder, partitioning="hive").to_table().to_pylist()


def offsets_in(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[int]]:
    """Kafka offsets by partition, in order, repeated ones as often as they occur."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        found[row["kafka_partition"]].append(row["kafka_offset"])
    return {partition: sorted(offsets) for partition, offsets in sorted(found.items())}


def write_config(folder: Path, bootstrap: str, topic: str, **stream: Any) -> Path:
    """A settings file for a job whose tables and checkpoint are below ``folder``."""
    lines = ["[kafka]", f'bootstrap_servers = ["{bootstrap}"]', "[stream]", f'topics = ["{topic}"]']
    lines += [f'{name} = "{folder / place}"' for name, place in PLACES.items()]
    lines += [f"{name} = {json.dumps(value)}" for name, value in stream.items()]
    file = folder / "gateway.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


PLACES = {"output": "telemetry", "quarantine": "quarantine", "checkpoint": "checkpoints"}
