"""What arrived in Kafka, counted by a client the gateway does not use."""

import time
import uuid
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]  # not in its __all__

from tests.bench.payloads import payload, seq_of, template
from tests.bench.processes import BenchError, wait_until

PARTITIONS: Final = 12
_TIMEOUT_S: Final = 30.0
_WARM_UP_RECORDS: Final = 90_000  # below librdkafka's queue of 100,000: produce() never has to wait
QUIET: Final = {"log_level": 0}  # what fails comes as an exception; librdkafka need not write to stderr as well
_CONSUMER: Final = {**QUIET, "enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50}


@dataclass(frozen=True, slots=True)
class Account:
    """The records of a topic against the messages sent: each of ``distinct`` numbers was sent a known count of times.

    missing: messages without a record; duplicates: records beyond the messages; unordered: partitions in which a
    number came before its turn (redelivery repeats, so this is only judged without duplicates).
    """

    records: int
    missing: int
    duplicates: int
    unordered: int


class Kafka:
    """Topics of the benchmark on one cluster. Every method blocks, at most 30 s, and raises BenchError when Kafka
    does not answer.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap: Final = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        self._partitions: dict[str, int] = {}

    def create_topic(self, partitions: int = PARTITIONS) -> str:
        """A new empty topic; its name."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        kept = {"retention.ms": "-1"}  # also records that a row dates back by a year
        self._admin.create_topics([NewTopic(name, partitions, 1, config=kept)])[name].result(_TIMEOUT_S)
        self._partitions[name] = partitions
        wait_until(lambda: self._has_leaders(name), f"leaders of topic {name}", _TIMEOUT_S, 0.05)
        return name

    def delete_topic(self, topic: str) -> None:
        """Removes a topic, so that a long benchmark does not fill the disk."""
        self._admin.delete_topics([topic])[topic].result(_TIMEOUT_S)

    def warm_up(self) -> None:
        """Some seconds of writing, so that the first row does not measure a broker that is still being compiled."""
        topic = self.create_topic()
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 20, **QUIET})
        value = payload(0, template(0))
        for number in range(_WARM_UP_RECORDS):
            producer.produce(topic, value, partition=number % PARTITIONS)
            if not number % 10_000:
                producer.poll(0)
        if left := producer.flush(_TIMEOUT_S):
            raise BenchError(f"Kafka at {self.bootstrap} left {left} records unacknowledged for {_TIMEOUT_S:g} s")
        self.account(topic, 1, _WARM_UP_RECORDS)
        self.delete_topic(topic)

    def record_count(self, topic: str) -> int:
        """Records in a topic: the sum of its end offsets (nothing is compacted, no transactions)."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, partition): latest for partition in range(self._partitions[topic])}
        futures = self._admin.list_offsets(wanted, request_timeout=_TIMEOUT_S)
        return sum(future.result().offset for future in futures.values())

    def wait_for_records(self, topic: str, count: int, timeout_s: float) -> None:
        """Polls until the topic holds ``count`` records."""
        wait_until(lambda: self.record_count(topic) >= count, f"{count} records in Kafka", timeout_s)

    def account(self, topic: str, distinct: int, cycles: int) -> Account:
        """Reads the whole topic: each number below ``distinct`` should be there ``cycles`` times, ascending in each
        round.
        """
        seen = array("I", bytes(4 * distinct))
        last = [-1] * self._partitions[topic]
        descents = [0] * self._partitions[topic]
        records = 0
        for partition, value in self.read(topic):
            seq = seq_of(value)
            seen[seq] += 1
            if seq <= last[partition]:
                descents[partition] += 1
            last[partition] = seq
            records += 1
        return Account(
            records,
            missing=sum(cycles - count for count in seen if count < cycles),
            duplicates=sum(count - cycles for count in seen if count > cycles),
            unordered=sum(count > cycles - 1 for count in descents),
        )

    def read(self, topic: str) -> Iterator[tuple[int, bytes]]:
        """(partition, value) of every record from the start of the topic to its present end."""
        left = self.record_count(topic)
        deadline = time.monotonic() + _TIMEOUT_S
        consumer = Consumer({**_CONSUMER, "bootstrap.servers": self.bootstrap, "group.id": f"{topic}-account"})
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(self._partitions[topic])])
            while left > 0:
                messages = consumer.consume(10_000, timeout=0.2)
                if not messages and time.monotonic() > deadline:
                    raise BenchError(f"{left} records of topic {topic} could not be read within {_TIMEOUT_S:g} s")
                for message in messages:
                    if error := message.error():
                        raise BenchError(f"reading topic {topic}: {error.str()}")
                    partition, value = message.partition(), message.value()
                    assert partition is not None
                    yield partition, value or b""
                left -= len(messages)
        finally:
            consumer.close()

    def _has_leaders(self, topic: str) -> bool:
        found = self._admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        return len(found) == self._partitions[topic] and all(partition.leader >= 0 for partition in found.values())
