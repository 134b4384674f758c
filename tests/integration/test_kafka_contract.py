"""What the producer makes of a Kafka in trouble, on a real one; and which facts about aiokafka no longer matter.

The design was made for aiokafka's producer, which is not used any more. What it built on, and what became of it:

- *after a rejected batch every later one fails*: Kafka's own rule still; a rejected batch gives its sequence numbers
  back, so it does not come to that (test_kafka_adapter: a gap in the sequence holds up its partition alone);
- *a leaderless partition's batch expires with its numbers used*: ``send`` refuses it before it takes any
  (producer_port: a partition that metadata does not know);
- *a built batch cannot be sent by a second producer*: still so; its records are taken out of its bytes
  (producer_port: records can be taken out of a batch again);
- *pending futures never expire, ``stop()`` hangs*: gone with it; ours closes at once and leaves nothing
  (test_kafka_adapter: a closed producer leaves no task and no socket);
- *concurrent sends to a partition invert*: gone with it; the sender has one batch of a partition under way;
- *an unknown partition is only an ``assert``*: gone with it (producer_port, as above);
- *an invalid topic name blocks for the request time-out*: gone with it (below);
- *new partitions are seen after ``metadata_max_age_ms``*: still so (producer_port: metadata is renewed by itself);
- *a deleted topic is made again where the broker auto-creates*: asking does not allow it any more (below);
- *request size is not limited*: ours is (below);
- *a black-holed broker stalls for 40 s and more*: the request time-out, and less where another leads
  (tests/unit/test_kafka_requests.py, tests/chaos/test_chaos_cluster.py).
"""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.errors import BridgeError, ReplicasMissingError
from bridge.kafka.batch import REQUEST_BYTES
from bridge.kafka.producer import KafkaProducer
from bridge.kafka.session import Told
from tests.brokers.kafka_backend import KafkaBackend
from tests.brokers.secured import SecuredKafka
from tests.brokers.topics import delete_topics
from tests.integration.test_kafka_adapter import wrap_send
from tests.producer_port import fill, running, sent, values
from tests.waiting import DEADLINE_S, until


class Retries:
    """What ``on_retry`` was told, and when."""

    def __init__(self) -> None:
        self.errors: list[BridgeError] = []
        self.times_s: list[float] = []

    def __call__(self, _topic: str, error: BridgeError) -> None:
        self.errors.append(error)
        self.times_s.append(time.monotonic())


async def test_too_few_replicas_is_tried_again_ever_more_slowly_and_said(backend: KafkaBackend) -> None:
    topic = await backend.topic()
    retries = Retries()
    too_few = SimpleNamespace(topics=[(topic, [(0, 19, -1)])])

    looked = asyncio.Event()

    async def around(send: Any, number: int) -> object:
        if number <= 7:
            return too_few
        await looked.wait()
        return await send()

    async with running(KafkaProducer(backend.settings, "gateway-test", [topic], None, retries)) as producer:
        assert isinstance(producer, KafkaProducer)
        wrap_send(producer, around)
        answer = producer.send(topic, 0, fill(producer.create_batch(compressed=True), values(b"x")))
        await until(lambda: len(retries.errors) >= 7, "tried again seven times")
        assert {type(error) for error in retries.errors} == {ReplicasMissingError}
        assert "NOT_ENOUGH_REPLICAS" in (producer.trouble(topic) or "")
        assert producer.trouble("another") is None
        pauses_s = [later - earlier for earlier, later in zip(retries.times_s, retries.times_s[1:], strict=False)]
        middles_s = (0.1, 0.2, 0.4, 0.8, 0.83, 0.83)  # spread by 20 %, and none beyond 1 s
        assert all(pause > 0.79 * middle for pause, middle in zip(pauses_s, middles_s, strict=False)), pauses_s
        assert not answer.done()
        looked.set()
        async with asyncio.timeout(DEADLINE_S):
            await answer
        assert producer.trouble(topic) is None
    assert await backend.read(topic) == values(b"x")


async def test_a_right_that_is_missing_is_said_until_it_is_there(backend: KafkaBackend) -> None:
    topic, other = await backend.topic(), await backend.topic()
    async with running(backend.producer([topic, other])) as producer:
        assert isinstance(producer, KafkaProducer)
        await backend.forbid(topic)
        assert await sent(producer, topic, values(b"refused")) is not None
        assert await sent(producer, other, values(b"beside")) is None, "another topic is held, too"
        assert "ACLs" in (producer.trouble(topic) or "")
        await backend.forbid(topic, forbidden=False)

        async def taken() -> bool:
            return await sent(producer, topic, values(b"after")) is None

        await until(taken, "it is taken")
        assert producer.trouble(topic) is None


async def test_batches_for_a_broker_travel_in_requests_of_bounded_size(
    backend: KafkaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await backend.topic(12)
    large = values(*(b"." * 10_000 for _ in range(40)))
    sizes: list[int] = []
    async with running(backend.producer([topic], batch_bytes=1 << 19)) as producer:
        assert isinstance(producer, KafkaProducer)
        assert producer._client is not None
        ask = producer._client.ask

        def noting(node: int, request: Any, told: Told) -> object:
            sizes.append(sum(len(data) for _, many in request._topics for _, data in many))
            return ask(node, request, told)

        monkeypatch.setattr(producer._client, "ask", noting)
        answers = [producer.send(topic, n, fill(producer.create_batch(compressed=False), large)) for n in range(12)]
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*answers)
    assert all(size <= REQUEST_BYTES for size in sizes), sizes
    assert all(size > REQUEST_BYTES // 2 for size in sizes[:6]), sizes  # more may follow: a broker just thawed refuses
    assert [await backend.read(topic, n) for n in range(12)] == [large] * 12


async def test_a_name_no_topic_can_have_is_unknown_at_once_and_disturbs_no_other(backend: KafkaBackend) -> None:
    topic = await backend.topic()
    async with running(backend.producer([topic], request_timeout=timedelta(minutes=2))) as producer:
        producer.watch_topic("no topic!")
        async with asyncio.timeout(DEADLINE_S):
            assert await producer.refresh_metadata()
        assert producer.partition_count("no topic!") is None
        assert producer.partition_count(topic) == 1
        assert await sent(producer, topic, values(b"x")) is None


async def test_asking_for_a_topic_makes_none_where_the_broker_would(
    make_kafka: Callable[..., SecuredKafka], unique: str, free_ports: Callable[[int], list[int]]
) -> None:
    cluster = make_kafka(sasl=True, settings={"auto.create.topics.enable": "true"})
    backend = KafkaBackend(cluster, unique, free_ports(1)[0])
    topic = await backend.topic()
    async with running(backend.producer([topic, f"{unique}-missing"])) as producer:
        assert await sent(producer, topic, values(b"x")) is None
        await delete_topics(cluster.bootstrap, [topic])
        await until(lambda: producer.partition_count(topic) is None, "the topic is gone")
        for _ in range(5):
            assert await producer.refresh_metadata()
        assert producer.partition_count(topic) is None
        assert producer.partition_count(f"{unique}-missing") is None
