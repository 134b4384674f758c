"""A member of a consumer group on a real Kafka: the suite of its port, and what only a real coordinator does."""

import asyncio
import itertools
import struct
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.codec import gzip_encode
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, LeaveGroupRequest
from aiokafka.record.util import calc_crc32c
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from bridge.commands.ports import Committed, PartitionListener
from bridge.dead_letters.reading import LoggedRecord
from bridge.errors import RefusedError, UnreachableError
from bridge.kafka import group as group_module
from bridge.kafka.feed import StatusTail, TopicFeed
from bridge.kafka.fetched import _Batch
from bridge.kafka.group import GroupMember
from bridge.kafka.group_admin import delete_group, remove_members
from config.settings import KafkaSettings
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.kafka_backend import kafka_settings, set_rights
from tests.brokers.kafka_cluster import ClusterAdmin
from tests.brokers.topics import add_partitions, consumer_groups, create_topic, delete_before, produce, produce_aborted
from tests.group_port import GroupPort, Member, running
from tests.waiting import until, wait_until


class KafkaGroupBackend:
    """``tests.group_port.Backend`` on a running cluster."""

    def __init__(self, bootstrap: str, name: str, settings: KafkaSettings | None = None) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.settings = settings or kafka_settings(bootstrap, request_timeout="30s")
        self._numbers = itertools.count()

    async def topic(self, partitions: int = 1) -> str:
        topic = f"{self.name}-{next(self._numbers)}"
        await create_topic(self.bootstrap, topic, partitions=partitions)
        return topic

    async def grow(self, topic: str, partitions: int) -> None:
        await add_partitions(self.bootstrap, topic, partitions)

    async def put(self, topic: str, partition: int, *values: bytes) -> None:
        await asyncio.to_thread(produce, self.bootstrap, topic, values, partition=partition)

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        await asyncio.to_thread(delete_before, self.bootstrap, topic, partition, offset)

    def member(self, instance: str, topics: Sequence[str], listener: PartitionListener) -> GroupMember:
        return GroupMember(
            self.settings, "gateway-test", group=self.name, instance=instance, topics=topics, listener=listener,
            table="commands.test",
        )  # fmt: skip

    async def remove(self, instance: str) -> None:
        await remove_members(self.settings, "gateway-test", self.name, [instance, "never-there"])


@pytest.fixture
def backend(kafka: KafkaCluster, unique: str) -> KafkaGroupBackend:
    return KafkaGroupBackend(kafka.bootstrap, unique)


class TestRealGroup(GroupPort):
    """Ours, on aiokafka's client."""


def test_aiokafkas_own_requests_still_have_no_instance_id() -> None:
    """Otherwise bridge/kafka/group_protocol.py would be shorter."""
    for request in (HeartbeatRequest, LeaveGroupRequest, OffsetCommitRequest):
        assert not [kind for kind in request._CLASSES if "group_instance_id" in kind.SCHEMA.names]


async def test_a_member_that_does_not_read_is_put_out_and_comes_back(
    backend: KafkaGroupBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "READ_S", 1.0)
    monkeypatch.setattr(group_module, "SESSION_S", 6.0)  # Kafka's least
    topic = await backend.topic()
    member = Member(backend, "one", topic)
    async with running(member):
        await member.owns(1)
        assert member.reading is not None
        member.reading.cancel()
        await until(lambda: not member.owned, "put out")
        assert member.told[-1][0] == "lost"
        member.reading = asyncio.create_task(member._read())
        await member.owns(1)


async def test_a_member_that_the_coordinator_has_forgotten_joins_again(backend: KafkaGroupBackend) -> None:
    """It ended with an error, was a critical problem, and another one had to look at all topics first."""
    topic = await backend.topic()
    member = Member(backend, "one", topic)
    async with running(member):
        await member.owns(1)
        await backend.remove("one")
        await until(lambda: len(member.told) == 3, "it has joined again")
        assert [name for name, _ in member.told] == ["assigned", "lost", "assigned"]
        await member.owns(1)


async def test_a_group_is_deleted_when_its_last_member_has_left(backend: KafkaGroupBackend) -> None:
    topic = await backend.topic()
    delete = partial(delete_group, backend.settings, "gateway-test", backend.name)
    member = Member(backend, "one", topic)
    async with running(member):
        await member.owns(1)
        await member.group.commit({(topic, 0): Committed(0, "")})
        with pytest.raises(UnreachableError, match=r"did not delete group .*NonEmptyGroup"):
            await delete()
    await backend.remove("one")
    assert backend.name in consumer_groups(backend.bootstrap)
    await delete()
    assert backend.name not in consumer_groups(backend.bootstrap)
    await delete()


async def test_a_frozen_coordinator_costs_the_membership_and_it_comes_back(
    make_kafka: Callable[..., KafkaCluster], unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell whether the partitions are another member's by then."""
    monkeypatch.setattr(group_module, "SESSION_S", 6.0)
    cluster = make_kafka()
    backend = KafkaGroupBackend(cluster.bootstrap, unique, kafka_settings(cluster.bootstrap))
    topic = await backend.topic(2)
    member = Member(backend, "one", topic)
    async with running(member):
        await member.owns(2)
        await member.group.commit({(topic, 0): Committed(0, "before")})
        cluster.freeze()
        try:
            with pytest.raises(UnreachableError):
                await member.group.commit({(topic, 0): Committed(0, "frozen")})
            await until(lambda: not member.owned, "lost")
            with pytest.raises(RefusedError):
                await member.group.commit({(topic, 0): Committed(0, "lost")})
        finally:
            cluster.thaw()
        await member.owns(2)
        await backend.put(topic, 0, b"a")
        await until(lambda: member.values(topic) == [b"a"], "it goes on")


def crash(member: Member) -> None:
    """End a member without a word."""
    assert isinstance(member.group, GroupMember)
    for task in member.group._tasks:
        task.cancel()


@pytest.mark.parametrize("ends", ["by a crash", "by a stop in a rebalance that has no time"])
async def test_a_crashed_members_partitions_wait_for_its_session(
    backend: KafkaGroupBackend, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(group_module, "SESSION_S", 6.0)
    topic = await backend.topic(2)
    first, second = Member(backend, "one", topic), Member(backend, "two", topic)
    async with running(first, second):
        await second.owns(1)
        await first.owns(1)
        if ends == "by a crash":
            crash(first)
        else:
            first.group._settled.clear()  # type: ignore[attr-defined]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await first.group.stop()
        crashed = set(first.owned)
        await second.owns(2)
        assert crashed <= set(second.owned)


async def test_two_stops_at_once_are_one(backend: KafkaGroupBackend) -> None:
    """One after an error, and that of the worker. The second ended the connection of the first one's last commit."""
    topic = await backend.topic()
    member = Member(backend, "one", topic)
    async with running(member):
        await member.owns(1)
        member.held.clear()
        ends = [asyncio.create_task(member.group.stop()) for _ in range(2)]
        await until(lambda: len(member.told) == 2, "revoked")
        member.held.set()
        await asyncio.gather(*ends)
    assert [name for name, _ in member.told] == ["assigned", "revoked"]


async def test_what_a_member_was_giving_up_when_it_crashed_is_shared_out(backend: KafkaGroupBackend) -> None:
    """It comes back within its session, and Kafka gives it its last share, without a rebalance."""
    topic = await backend.topic(4)
    first, second = Member(backend, "one", topic), Member(backend, "two", topic)
    async with running(first):
        await first.owns(4)
        first.held.clear()
        async with running(second):
            await until(lambda: len(first.told) == 2, "revoked")
            crash(first)
            again = Member(backend, "one", topic)
            async with running(again):
                await again.owns(2)
                await second.owns(2)
                first.held.set()


async def test_a_slow_listener_loses_what_moves(backend: KafkaGroupBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "REVOKED_S", 0.5)
    topic = await backend.topic(2)
    first, second = Member(backend, "one", topic), Member(backend, "two", topic)
    async with running(first):
        await first.owns(2)
        first.held.clear()
        async with running(second):
            await second.owns(1)
            assert [name for name, _ in first.told] == ["assigned", "revoked", "lost"]
            assert first.told[1][1] == first.told[2][1] == tuple(second.owned)
            first.held.set()


async def test_a_member_gets_nothing_of_a_topic_that_it_does_not_want(backend: KafkaGroupBackend) -> None:
    """As while the settings of one worker after another are changed."""
    old, new = await backend.topic(2), await backend.topic(2)
    first, second = Member(backend, "one", old), Member(backend, "two", old, new)
    async with running(first, second):
        await first.owns(1)
        await second.owns(1)
        await first.stop()
        first = Member(backend, "one", old, new)
        async with running(first):
            await first.owns(2)
            await second.owns(2)


async def test_a_group_that_is_not_allowed_is_named(secured_kafka: KafkaCluster, unique: str) -> None:
    settings = kafka_settings(
        secured_kafka.sasl_bootstrap,
        security="SASL_PLAINTEXT",
        sasl={"username": "gateway", "password": "gateway-secret"},
    )
    backend = KafkaGroupBackend(secured_kafka.bootstrap, unique, settings)
    topic = await backend.topic()
    rights = {AclOperation.READ: AclPermissionType.DENY}
    await asyncio.to_thread(set_rights, secured_kafka.bootstrap, unique, rights, kind=ResourceType.GROUP)
    member = Member(backend, "one", topic)
    with pytest.raises(RefusedError, match="Read on the group"):  # noqa: PT012 - at the start, or the first join
        async with running(member):
            assert member.reading is not None
            await member.reading
    with pytest.raises(RefusedError, match="Read on the group"):
        await backend.remove("one")


async def test_a_kafka_that_is_not_there_is_a_sentence(free_ports: Callable[[int], list[int]], unique: str) -> None:
    backend = KafkaGroupBackend(f"127.0.0.1:{free_ports(1)[0]}", unique)
    member = Member(backend, "one", "commands")
    with pytest.raises(UnreachableError, match="cannot be reached"):
        await member.start()
    with pytest.raises(UnreachableError, match="cannot be reached"):
        await backend.remove("one")


async def test_what_is_assigned_during_a_long_read_is_left_to_the_next(
    backend: KafkaGroupBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader would drop records of partitions that it does not know, and they were lost."""
    monkeypatch.setattr(group_module, "POLL_MS", 3000)
    topic = await backend.topic(2)
    for number in range(2):
        await backend.put(topic, number, b"a")
    first, second = Member(backend, "one", topic), Member(backend, "two", topic)
    async with running(first, second):
        await second.owns(1)
        await until(lambda: second.records, "its own is read")
        second.records.clear()
        await first.stop(retire=True)
        await second.owns(2)
        await until(lambda: second.records, "the other one's is read")


async def test_what_was_deleted_of_what_is_assigned_during_a_long_read_is_told_by_the_next(
    backend: KafkaGroupBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listener has not read the statuses yet: it did not know the partition, and forgot that records are gone."""
    monkeypatch.setattr(group_module, "POLL_MS", 3000)
    topic = await backend.topic(2)
    first, second = Member(backend, "one", topic), Member(backend, "two", topic)
    async with running(first, second):
        await asyncio.gather(first.owns(1), second.owns(1))
        ((_, number),) = first.owned
        await backend.put(topic, number, b"0", b"1", b"2")
        await first.group.commit({(topic, number): Committed(1, "")})
        await backend.delete_before(topic, number, 2)
        await first.stop(retire=True)
        await until(lambda: second.missing, "it is told")
        assert second.missing == [((topic, number), 1, 2)]
        await until(lambda: second.values(topic, number) == [b"2"], "what is left")


async def test_what_its_writer_took_back_is_not_read(backend: KafkaGroupBackend) -> None:
    """A command of a transaction that was aborted went to its device."""
    topic = await backend.topic()
    await asyncio.to_thread(produce_aborted, backend.bootstrap, topic, b"aborted", partition=0)
    await backend.put(topic, 0, b"on")
    member = Member(backend, "one", topic)
    async with running(member):
        await until(lambda: b"on" in member.values(topic), "it is read")
        assert member.values(topic) == [b"on"]


@pytest.mark.parametrize("is_read_on", [False, True])
async def test_what_its_writer_took_back_is_not_missed_when_kafka_deletes_it(
    backend: KafkaGroupBackend, is_read_on: bool
) -> None:
    """It counted as commands deleted unread, and records deleted behind it ended the reading of its partition."""
    topic = await backend.topic()
    await backend.put(topic, 0, b"0")
    await asyncio.to_thread(produce_aborted, backend.bootstrap, topic, b"1, and 2 is the end", partition=0)
    first, second = Member(backend, "one", topic), Member(backend, "one", topic)
    async with running(first):
        await until(lambda: first.records, "it is read")
        end = {(topic, 0): 3}
        await until(lambda: first.group.positions == end, "it is passed over")  # type: ignore[attr-defined]
        await first.group.commit({(topic, 0): Committed(3, "")})
        if is_read_on:
            first.group.pause([(topic, 0)])
            await backend.put(topic, 0, b"3", b"4")
            await backend.delete_before(topic, 0, 4)
            first.group.pause([])
            await until(lambda: first.values(topic) == [b"0", b"4"], "what is left")
            assert first.missing == [((topic, 0), 3, 4)]
    if not is_read_on:
        await backend.delete_before(topic, 0, 3)
        async with running(second):
            await backend.put(topic, 0, b"3")
            await until(lambda: second.values(topic) == [b"3"], "it is read")
            assert not second.missing


@pytest.mark.slow
async def test_a_partition_without_a_leader_keeps_no_other_from_being_read(unique: str) -> None:
    """One such partition, of commands, statuses or answers, stopped all commands of a worker at its start."""
    with KafkaCluster(3, heap_mib=256) as cluster:
        backend, operator = KafkaGroupBackend(cluster.bootstrap, unique), ClusterAdmin(cluster)
        topic = f"{unique}-topic"
        away = await asyncio.to_thread(operator.coordinator, unique) % 3 + 1
        led = away % 3 + 1
        await asyncio.to_thread(operator.create, topic, [[led], [away]], min_insync_replicas="1")
        for number in range(2):
            await backend.put(topic, number, b"a")
        await asyncio.to_thread(cluster.kill, away)
        await asyncio.to_thread(wait_until, lambda: operator.leaders(topic)[1] == -1, "a partition has no leader")
        member, statuses = Member(backend, "one", topic), StatusTail(backend.settings, "gateway-test", topic)
        feed = TopicFeed(backend.settings, "gateway-test", [topic])
        async with running(member):
            await until(lambda: member.values(topic, 0), "the other is read")
            assert member.group.leaderless() == [(topic, 1)]  # type: ignore[attr-defined]
            found: list[LoggedRecord] = []
            assert await statuses.read({0: 0, 1: 0}, found.append) == (2, {1})
            assert [record.place for record in found] == [(topic, 0, 0)]
            await feed.start()
            assert (feed.positions, feed.leaderless) == ({(topic, 0): 1}, [(topic, 1)])
            await feed.rewind(0)
            assert [record.place for record in await feed.read()] == [(topic, 0, 0)]
            assert not feed.can_read_more()
            await asyncio.to_thread(cluster.restart, away)
            await until(lambda: member.values(topic, 1), "it is read when it has a leader")
            await until(feed.can_read_more, "its feed is told")
            assert not member.group.leaderless()  # type: ignore[attr-defined]
            await feed.stop()


def renamed(batch: bytes, codec: int) -> bytearray:
    """A batch with another byte for each "?" of its records, compressed."""
    head, records = bytearray(batch[:61]), batch[61:].replace(b"?", b"\xff")
    records = gzip_encode(records) if codec else records
    head[22] = codec
    struct.pack_into(">i", head, 8, len(head) + len(records) - 12)
    struct.pack_into(">I", head, 17, calc_crc32c(bytes(head[21:]) + records))
    return head + records


async def test_a_damaged_batch_is_told_and_loses_nothing_of_other_partitions(
    backend: KafkaGroupBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had been fetched of them with it was passed over, and not said to be missing."""
    monkeypatch.setattr(_Batch, "validate_crc", lambda batch: b"damaged" not in bytes(batch._data), raising=False)
    topic = await backend.topic(partitions=2)
    await backend.put(topic, 0, b"0")
    await backend.put(topic, 1, b"damaged")
    member = Member(backend, "one", topic)
    async with running(member):
        for number in (1, 2):
            await backend.put(topic, 0, b"%d" % number)
            await until(lambda number=number: len(member.values(topic, 0)) > number, "the other partition is read")
        assert member.values(topic, 0) == [b"0", b"1", b"2"]
        assert "Invalid CRC" in member.group.trouble  # type: ignore[attr-defined]
        assert not member.values(topic, 1)


async def test_a_header_whose_name_is_no_utf_8_keeps_nothing_from_being_read(backend: KafkaGroupBackend) -> None:
    """One such record of any producer ended every read of its partition, and all commands behind it waited."""
    topic = await backend.topic()
    async with AIOKafkaProducer(bootstrap_servers=backend.bootstrap) as producer:
        for codec in (0, 1):
            batch = producer.create_batch()
            for name in ("good", "b?d", "good"):
                batch.append(timestamp=None, key=b"k", value=name.encode(), headers=[(name, b"v")])
            batch._buffer = renamed(bytes(batch._build()), codec)
            await (await producer.send_batch(batch, topic, partition=0))
    member = Member(backend, "one", topic)
    async with running(member):
        await until(lambda: len(member.records) == 6, "all of them are read")
        assert [record.headers[0][0] for record in member.records] == ["good", "b\ufffdd", "good"] * 2
