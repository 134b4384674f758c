"""What the tests of the Spark jobs share: telemetry in Kafka, and a second opinion on what came out of it."""

import json
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from streaming.lake.delta_files import read_rows

_DAY_MS = 86_400_000
_TYPES = ("thermostat", "meter", "pump")


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
    found = read_rows(str(folder))
    return [] if found is None else list(found.to_pylist())


def offsets_in(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[int]]:
    """Kafka offsets by partition, in order, repeated ones as often as they occur; rows of bronze or silver."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        place = ("partition", "offset") if "offset" in row else ("kafka_partition", "kafka_offset")
        found[row[place[0]]].append(row[place[1]])
    return {partition: sorted(offsets) for partition, offsets in sorted(found.items())}


def write_config(folder: Path, bootstrap: str, topic: str, **stream: Any) -> Path:
    """A settings file for a job whose tables and checkpoint are below ``folder``."""
    # A stop waits for the last batches, which take long on a machine whose cores are all taken.
    lines = [
        'shutdown_timeout = "120s"',
        "[kafka]",
        f'bootstrap_servers = ["{bootstrap}"]',
        "[stream]",
        f'topics = ["{topic}"]',
    ]
    lines += [f"{name} = {json.dumps(value)}" for name, value in stream.items()]
    lines += [f'checkpoint = "{folder / "checkpoints"}"', f'lake.path = "{folder / "lake"}"']
    lines += ['gold.trigger = "0s"']
    file = folder / "gateway.toml"
    file.write_text("\n".join(lines) + "\n")
    return file
