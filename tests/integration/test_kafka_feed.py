"""The readers of commands' other topics, on a real Kafka."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from unittest.mock import AsyncMock, Mock

import pytest
from aiokafka.errors import CorruptRecordException

from bridge.commands.model import Status, StatusRecord
from bridge.commands.sink import StatusWriter
from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.errors import TopicMissingError, UnreachableError
from bridge.kafka.feed import StatusTail, TopicFeed
from tests.brokers.kafka_backend import KafkaBackend, kafka_settings
from tests.producer_port import fill, running, sent, values
from tests.waiting import until


async def put(backend: KafkaBackend, topic: str, partition: int, *content: bytes) -> None:
    async with running(backend.producer([topic])) as producer:
        assert await sent(producer, topic, values(*content), partition) is None


class Following:
    """A feed that is read on and on."""

    def __init__(self, feed: TopicFeed) -> None:
        self.feed = feed
        self.records: list[LoggedRecord] = []

    async def read(self, count: int) -> list[bytes | None]:
        async with asyncio.timeout(60):
            while len(self.records) < count:
                self.records += await self.feed.read()
        return sorted(record.value or b"" for record in self.records)


@contextlib.asynccontextmanager
async def started(feed: TopicFeed) -> AsyncIterator[TopicFeed]:
    await feed.start()
    try:
        yield feed
    finally:
        await feed.stop()


async def test_a_feed_has_what_is_new_in_all_its_topics_and_can_go_back(backend: KafkaBackend) -> None:
    one, other = await backend.topic(2), await backend.topic()
    await put(backend, one, 1, b"before")
    async with started(TopicFeed(backend.settings, "gateway-test", [one, other])) as feed:
        following = Following(feed)
        await put(backend, one, 1, b"a")
        await put(backend, other, 0, b"b")
        assert await following.read(2) == [b"a", b"b"]
        assert not await feed.read()
        following.records.clear()
        await feed.rewind(0)
        assert await following.read(3) == [b"a", b"b", b"before"]
        await feed.rewind(time.time_ns() // 1_000_000 + 86_400_000)  # never forward
        await put(backend, one, 0, b"c")
        assert await following.read(4) == [b"a", b"b", b"before", b"c"]
    await feed.stop()


async def test_a_feed_goes_on_when_kafka_comes_back(backend: KafkaBackend) -> None:
    topic = await backend.topic()
    async with started(TopicFeed(backend.settings, "gateway-test", [topic])) as feed:
        following = Following(feed)
        assert not await feed.read()
        backend.freeze()
        try:
            async with asyncio.timeout(60):
                for _ in range(20):
                    assert not await feed.read()
        finally:
            backend.thaw()
        await put(backend, topic, 0, b"a")
        assert await following.read(1) == [b"a"]


async def test_what_kafka_cannot_read_ends_a_feed(backend: KafkaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(TopicFeed(backend.settings, "gateway-test", [await backend.topic()])) as feed:
        monkeypatch.setattr(feed._reader._consumer, "getmany", AsyncMock(side_effect=CorruptRecordException()))
        with pytest.raises(UnreachableError, match="Kafka did not answer about"):
            await feed.read()


async def test_a_defect_of_the_fetcher_ends_a_feed(backend: KafkaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await backend.topic()
    async with started(TopicFeed(backend.settings, "gateway-test", [topic])) as feed:
        assert not await feed.read()
        monkeypatch.setattr(feed._reader._consumer._fetcher, "_get_actions_per_node", Mock(side_effect=KeyError))
        await put(backend, topic, 0, b"a", b"b")
        with pytest.raises(KeyError):
            await Following(feed).read(3)


async def test_a_feed_of_a_missing_topic_and_one_of_no_kafka_are_sentences(
    backend: KafkaBackend, unique: str, free_ports: Callable[[int], list[int]]
) -> None:
    feed = TopicFeed(backend.settings, "gateway-test", [f"{unique}-missing"])
    with pytest.raises(TopicMissingError, match=f"{unique}-missing"):
        await feed.start()
    await feed.stop()
    nowhere = kafka_settings(f"127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(UnreachableError):
        await TopicFeed(nowhere, "gateway-test", ["any"]).start()
    with pytest.raises(UnreachableError):
        await StatusTail(nowhere, "gateway-test", "any").read({0: 0}, pytest.fail)


async def test_the_tail_of_a_status_partition_is_what_was_written_after_an_offset(backend: KafkaBackend) -> None:
    topic = await backend.topic(4)
    await put(backend, topic, 0, *(b"%d" % number for number in range(5)))
    await put(backend, topic, 2, b"x")
    await put(backend, topic, 3, b"all of a topic that was made anew")
    found: list[LoggedRecord] = []
    await StatusTail(backend.settings, "gateway-test", topic).read({0: 3, 1: 0, 2: 1, 3: 2, 4: 0}, found.append)
    assert sorted(record.value or b"" for record in found) == [b"3", b"4", b"all of a topic that was made anew"]


async def test_the_sink_says_where_a_status_is(backend: KafkaBackend) -> None:
    topic = await backend.topic(2)
    async with running(backend.producer([topic])) as producer:
        sink = StatusWriter(topic, producer=lambda: producer, renew=lambda _why: None, broken=pytest.fail)
        offsets: list[int] = []
        await producer.send(topic, 1, fill(producer.create_batch(compressed=False), values(b"another's")))
        for number in range(3):
            place = Place("commands", 1, number)
            record = StatusRecord(f"c{number}", place, "r", "d", Status.ACCEPTED, False, 0, None)
            sink.write(1, record, offsets.append)
        await until(lambda: len(offsets) == 3, "stored")
        assert offsets == [1, 2, 3]
        found: list[LoggedRecord] = []
        await StatusTail(backend.settings, "gateway-test", topic).read({1: 1}, found.append)
        assert [record.key for record in found] == [b"c0", b"c1", b"c2"]
