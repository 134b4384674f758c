"""A Kafka consumer that stamps each record on arrival and tells how long after its making that was."""

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from confluent_kafka import Consumer, TopicPartition

from tests.bench.payloads import sent_ns_of, seq_of
from tests.bench.records import PARTITIONS, QUIET


@dataclass(frozen=True, slots=True)
class Assigned:
    """The consumer reads all partitions from here on."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Publish → consumer over ``count`` first deliveries, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def percentile(ordered: list[int], share: float) -> int:
    """The smallest value that at least ``share`` of the (sorted) values do not exceed."""
    return ordered[max(0, -(-len(ordered) * round(share * 10_000) // 10_000) - 1)]


def measure(pipe: Connection, bootstrap: str, topic: str, count: int, skip: int, timeout_s: float) -> None:
    """Sends Assigned, consumes until each of ``count`` messages has come once, sends Latencies without the first
    ``skip``.
    """
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-latency",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,  # the broker answers at the first byte; this is how long it waits for one
            "fetch.min.bytes": 1,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    consumer.poll(0.1)  # the topic is empty: the fetches are under way now
    pipe.send(Assigned())
    took_ns: dict[int, int] = {}
    deadline = time.monotonic() + timeout_s
    while len(took_ns) < count:
        message = consumer.poll(0.1)
        now = time.monotonic_ns()
        if message is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(took_ns)} of {count} messages reached the consumer within {timeout_s:g} s")
            continue
        if error := message.error():
            raise ConnectionError(f"consuming {topic}: {error.str()}")
        value = message.value() or b""
        took_ns.setdefault(seq_of(value), now - sent_ns_of(value))
    consumer.close()
    ordered = sorted(took for seq, took in took_ns.items() if seq >= skip)
    p50, p99 = percentile(ordered, 0.5), percentile(ordered, 0.99)
    pipe.send(Latencies(len(ordered), p50 / 1e6, p99 / 1e6, ordered[-1] / 1e6))
