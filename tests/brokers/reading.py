"""A topic read by another client than the gateway's."""

import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.waiting import DEADLINE_S

T = TypeVar("T")
_NO_LEADER = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART}


def read_all(bootstrap: str, topic: str, pick: Callable[[Message], T]) -> list[list[T]]:
    """What ``pick`` makes of each message, by partition, in order; to the end of this moment. Blocks. Nothing if there
    is no such topic as yet."""
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False, "check.crcs": True,
        "fetch.wait.max.ms": 10, "log_level": 0,
    }  # fmt: skip
    consumer = Consumer(settings)
    try:
        found = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic]
        if found.error is not None and found.error.code() not in _NO_LEADER:
            raise KafkaException(found.error)
        places = [TopicPartition(topic, n, OFFSET_BEGINNING) for n in sorted(found.partitions)]
        deadline = time.monotonic() + DEADLINE_S
        ends = [_end(consumer, place, deadline) for place in places]
        consumer.assign(places)
        picked: list[list[T]] = [[] for _ in places]
        at = [0] * len(places)
        while any(here < end for here, end in zip(at, ends, strict=True)):
            assert time.monotonic() < deadline, f"{topic}: read {at} of {ends}"
            for message in consumer.consume(10_000, 0.1):
                if message.error():
                    raise KafkaException(message.error())
                picked[message.partition()].append(pick(message))
                at[message.partition()] = message.offset() + 1
        return picked
    finally:
        consumer.close()


def _end(consumer: Consumer, place: TopicPartition, deadline: float) -> int:
    """The offset behind a partition's last record. One that was just made has no leader as yet."""
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, timeout=DEADLINE_S)[1])
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline:
                raise
        time.sleep(0.02)
