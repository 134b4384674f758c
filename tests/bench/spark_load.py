"""Telemetry written to Kafka for the Spark rows: 200-byte JSON, with the key and the header that the gateway writes."""

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from random import Random
from typing import Any, Final, Literal

from confluent_kafka import Producer

from tests.bench.payloads import PAYLOAD_BYTES
from tests.bench.processes import BenchError
from tests.bench.records import PARTITIONS, QUIET

_DEVICES: Final = 1_000
_TYPES: Final = ("thermostat", "pump", "meter")
_SEQ_OFFSET: Final = 10**8  # nine digits
_FLUSH_S: Final = 60.0
_POLL_EVERY: Final = 5_000
_PRODUCER: Final = {
    **QUIET,
    "enable.idempotence": True,
    "linger.ms": 20,
    "compression.type": "zstd",
    "queue.buffering.max.messages": 500_000,
}
_LIVE_LINGER_MS: Final = 5
_COPY_EVERY: Final = 100
_COPY_AFTER: Final = 5 * _DEVICES
_DAY_MS: Final = 86_400_000
_DAYS: Final = 365

Load = Literal["now", "ids", "days"]
"""``now``: records of the last minutes. ``ids``: the same with ``gateway.message_id``, and each hundredth is a copy.
``days``: the same over the last year."""


class RecordSource:
    """Record ``number`` of an endless series: devices take turns, and a device's records are in one partition."""

    def __init__(self) -> None:
        self._rests = [self._rest(Random(device), device) for device in range(_DEVICES)]

    @staticmethod
    def _head(device: int, seq: int, ts_ms: int) -> str:
        return f'{{"device":"sensor-{device:06d}","type":"{_TYPES[device % 3]}","seq":{_SEQ_OFFSET + seq},"ts":{ts_ms},'

    def _rest(self, draw: Random, device: int) -> str:
        body = (
            f'"temperature":{draw.uniform(10, 40):.3f},"humidity":{draw.uniform(20, 90):.3f}'
            f',"voltage":{draw.uniform(3, 4.2):.4f},"rssi":{draw.randint(-110, -40)},"tag":"'
        )
        left = PAYLOAD_BYTES - len(self._head(device, 0, 10**12)) - len(body) - 2
        return f'{body}{f"{draw.getrandbits(512):0128x}"[:left]}"}}'

    def record(self, number: int, at_ms: int) -> dict[str, Any]:
        """What ``Producer.produce`` takes beside the topic."""
        device, seq = number % _DEVICES, number // _DEVICES
        topic = b"devices/%d/telemetry" % device
        return {
            "value": f"{self._head(device, seq, at_ms)}{self._rests[device]}".encode(),
            "key": topic,
            "partition": device % PARTITIONS,
            "timestamp": at_ms,
            "headers": [("mqtt.topic", topic)],
        }


def preload(bootstrap: str, topic: str, count: int, load: Load = "now") -> None:
    """Writes ``count`` records. Blocks; raises BenchError if Kafka does not take all."""
    producer = Producer({**_PRODUCER, "bootstrap.servers": bootstrap})
    source = RecordSource()
    length_ms = _DAYS * _DAY_MS if load == "days" else count // 50
    first_ms = int(time.time() * 1000) - length_ms
    for number in range(count):
        record = source.record(number, first_ms + number * length_ms // count)
        if load == "ids":
            is_copy = number % _COPY_EVERY == _COPY_EVERY - 1 and number >= _COPY_AFTER
            original = number - _COPY_AFTER if is_copy else number
            record["value"] = source.record(original, first_ms + original * length_ms // count)["value"]
            record["headers"] += [("gateway.message_id", b"%d" % original), ("gateway.message_id_kind", b"device")]
        while True:
            try:
                producer.produce(topic, **record)
                break
            except BufferError:  # the queue is full
                producer.poll(0.1)
        if not number % _POLL_EVERY:
            producer.poll(0)
    if left := producer.flush(_FLUSH_S):
        raise BenchError(f"Kafka at {bootstrap} left {left} of {count} records unacknowledged for {_FLUSH_S:g} s")


@dataclass(frozen=True, slots=True)
class Paced:
    """What was published at an even pace: ``sent_s`` has the moment (Unix time) of each record of each partition."""

    sent_s: tuple[tuple[float, ...], ...]


def paced(pipe: Connection, bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    """Publishes ``rate`` records a second for a time, after a first message through the pipe; then sends ``Paced``."""
    producer = Producer({**_PRODUCER, "linger.ms": _LIVE_LINGER_MS, "bootstrap.servers": bootstrap})
    source = RecordSource()
    sent: list[list[float]] = [[] for _ in range(PARTITIONS)]
    pipe.recv()
    began = time.monotonic()
    for number in range(int(rate * seconds)):
        if (ahead := began + number / rate - time.monotonic()) > 0:
            producer.poll(0)
            time.sleep(ahead)
        now = time.time()
        record = source.record(number, int(now * 1000))
        producer.produce(topic, **record)
        sent[record["partition"]].append(now)
    if left := producer.flush(_FLUSH_S):
        raise BenchError(f"{left} records were not acknowledged within {_FLUSH_S:g} s")
    pipe.send(Paced(tuple(map(tuple, sent))))
