"""A quota of a real Kafka (KIP-219): whoever has used it up is told how long to wait, and not read from meanwhile."""

import asyncio
import os
import time

from bridge.errors import BridgeError
from bridge.kafka.contacts import Contacts
from bridge.kafka.producer import KafkaProducer
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.fixtures import MakeTopic
from tests.brokers.kafka_backend import kafka_settings, read_topic
from tests.brokers.quotas import limit_producer
from tests.producer_port import fill, running, values

QUOTA = 70_000  # bytes a second; Kafka looks at the mean of eleven seconds
BATCH = 256 * 1024
PARTITIONS = 5  # four batches travel in one request, the fifth behind them


async def test_a_broker_over_its_quota_is_left_alone_for_as_long_as_it_asks(
    kafka: KafkaCluster, make_topic: MakeTopic, unique: str
) -> None:
    topic = await make_topic(partitions=PARTITIONS)
    await asyncio.to_thread(limit_producer, kafka.bootstrap, unique, QUOTA)
    settings = kafka_settings(kafka.bootstrap, request_timeout="3500ms", compression="none")
    retried: list[BridgeError] = []
    told: list[tuple[float, int]] = []
    contacts = Contacts()
    producer = KafkaProducer(
        settings, unique, [topic], None, lambda _topic, error: retried.append(error), None, contacts,
        lambda milliseconds: told.append((time.monotonic(), milliseconds)),
    )  # fmt: skip

    def send(size: int, partition: int) -> asyncio.Future[int]:
        batch = fill(producer.create_batch(compressed=False), values(os.urandom(size)))
        return producer.send(topic, partition, batch)

    async with asyncio.timeout(60), running(producer):
        # The fifth batch is on its way when the broker stops reading: its time-out must not run until it reads again.
        await asyncio.gather(*(send(BATCH - 200, partition) for partition in range(PARTITIONS)))
        assert len(told) == 2, told
        (_, first_ms), (answered_s, second_ms) = told
        assert first_ms > 3500, "longer than the request time-out, or nothing is tested"
        # The next one waits here, be it this producer or the next that sends it.
        until_s = producer.held_until_ns(topic, 0) / 1e9
        assert abs(until_s - answered_s - second_ms / 1000) < second_ms / 2000
        asked = contacts.get(producer.leader(topic, 0) or 0)
        assert asked is not None
        assert not asked.asked_ns
        answer = send(100, 0)
        await asyncio.sleep(0)
        assert not asked.asked_ns, "the broker owes no answer to what it was not sent"
    assert answer.cancelled() or not answer.done()
    later = KafkaProducer(settings, unique, [topic], None, lambda _topic, error: retried.append(error), None, contacts)
    async with asyncio.timeout(60), running(later):
        await later.send(topic, 0, fill(later.create_batch(compressed=False), values(b"after")))
        assert time.monotonic() >= until_s
    assert not retried, "what waits for a quota has not failed"
    assert asked.problem is None
    assert asked.held_ns >= (first_ms + second_ms) * 900_000
    found = await asyncio.to_thread(read_topic, kafka.bootstrap, topic)
    assert [len(records) for records in found] == [2, 1, 1, 1, 1], "each once"
