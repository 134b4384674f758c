"""The embedded Kafka is a real one: listeners, nodes that die and hang, and data that stays."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError, UnknownTopicOrPartitionError

from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.runtime.errors import EmbeddedError, PortTakenError, StartError
from gateway.local.runtime.ports import reserve_ports
from tests.brokers.fixtures import MakeTopic
from tests.brokers.kafka_cluster import ClusterAdmin
from tests.brokers.secured import SecuredKafka
from tests.brokers.topics import admin_client, create_topic

DEADLINE = 60.0


@asynccontextmanager
async def producing(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, request_timeout_ms=5000, metadata_max_age_ms=1000, **options
    )
    try:
        await producer.start()
        yield producer
    finally:
        await producer.stop()


async def values(bootstrap: str, topic: str, **options: Any) -> list[bytes]:
    """All that is in the topic's partition 0 now."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, **options)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        found: list[bytes] = []
        while len(found) < end:
            async with asyncio.timeout(DEADLINE):
                found.append((await consumer.getone()).value)
        return found
    finally:
        await consumer.stop()


async def test_what_is_produced_can_be_consumed(kafka: KafkaCluster, make_topic: MakeTopic) -> None:
    topic = await make_topic(partitions=3)
    async with producing(kafka.bootstrap, enable_idempotence=True, acks="all") as producer:
        for number in range(5):
            await producer.send_and_wait(topic, b"%d" % number, partition=0)
    assert await values(kafka.bootstrap, topic) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_topic_nobody_created_is_an_error(kafka: KafkaCluster, unique: str) -> None:
    """A misspelt topic is not to come into being."""
    async with admin_client(kafka.bootstrap) as admin:
        (described,) = await admin.describe_topics([unique])
        assert described["error_code"] == UnknownTopicOrPartitionError.errno
        assert unique not in await admin.list_topics()


def test_every_socket_is_bound_to_loopback(kafka: KafkaCluster) -> None:
    listening = [c.laddr for c in psutil.Process(kafka.pid()).net_connections() if c.status == psutil.CONN_LISTEN]
    assert len(listening) == 2
    assert {address.ip for address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_an_address_it_does_not_have_is_said(kafka: KafkaCluster) -> None:
    with pytest.raises(EmbeddedError, match="no SASL_PLAINTEXT listener"):
        kafka.addresses("SASL_PLAINTEXT")
    with pytest.raises(ValueError, match="there is no node 2"):
        kafka.kill(2)
    with pytest.raises(EmbeddedError, match="start it first"):
        _ = KafkaCluster().bootstrap


USERS = {"gateway": 'pass"wörd\\ 1', "other": "second"}


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredKafka]:
    """One broker with every listener."""
    with SecuredKafka(sasl=True, tls=True, users=USERS) as cluster:
        yield cluster


async def carries(bootstrap: str, secured: SecuredKafka, topic: str, **options: Any) -> None:
    await create_topic(secured.bootstrap, topic)
    async with producing(bootstrap, **options) as producer:
        await producer.send_and_wait(topic, b"here", partition=0)
    assert await values(bootstrap, topic, **options) == [b"here"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["gateway", "other"])
async def test_sasl(secured: SecuredKafka, unique: str, mechanism: str, user: str) -> None:
    await carries(
        secured.sasl_bootstrap,
        secured,
        unique,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=USERS[user],
    )


def test_the_passwords_are_in_no_command_line_and_no_readable_file(secured: SecuredKafka) -> None:
    process = psutil.Process(secured.pid())
    assert not any("second" in part for part in process.cmdline())
    folder = secured.log_file().parent
    readable = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert not any(b"second" in path.read_bytes() for path in readable)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A broker to be frozen, killed and stopped, in a folder of its own; the test that stops it comes last."""
    folder = tmp_path_factory.mktemp("own") / "kafka"
    with SecuredKafka(directory=folder, tls=True, settings={"ssl.client.auth": "required"}) as cluster:
        yield cluster


async def test_a_client_certificate_can_be_required(own: SecuredKafka, unique: str) -> None:
    await create_topic(own.bootstrap, unique)
    certificates = own.certificates
    assert certificates is not None
    context = ssl.create_default_context(cafile=str(certificates.ca_file))
    with pytest.raises(KafkaError):
        async with producing(own.tls_bootstrap, security_protocol="SSL", ssl_context=context) as producer:
            await producer.send_and_wait(unique, b"no")
    context.load_cert_chain(certificates.client_certificate, certificates.client_key)
    async with producing(own.tls_bootstrap, security_protocol="SSL", ssl_context=context) as producer:
        await producer.send_and_wait(unique, b"yes")
    assert await values(own.bootstrap, unique) == [b"yes"]


async def test_a_frozen_broker_answers_nothing_until_it_is_thawed(own: SecuredKafka, unique: str) -> None:
    await create_topic(own.bootstrap, unique)
    async with producing(own.bootstrap, acks="all") as producer:
        await producer.send_and_wait(unique, b"1")
        own.freeze()
        assert own.alive()
        sending = asyncio.ensure_future(producer.send_and_wait(unique, b"2"))
        done, _ = await asyncio.wait([sending], timeout=1.0)
        assert not done, "a frozen broker acknowledged a record"
        own.thaw()
        async with asyncio.timeout(DEADLINE):
            await sending


async def test_killed_or_stopped_it_has_its_data_and_killed_its_port(own: SecuredKafka, unique: str) -> None:
    address = own.bootstrap
    await create_topic(address, unique)
    async with producing(address, acks="all") as producer:
        await producer.send_and_wait(unique, b"before", partition=0)
    own.kill()
    assert not own.alive()
    with pytest.raises(KafkaConnectionError):
        async with producing(address):
            pass
    own.restart()
    assert own.bootstrap == address
    assert await values(address, unique) == [b"before"]
    directory = own.log_file().parent
    own.stop()
    with KafkaCluster(directory=directory) as again:
        assert await values(again.bootstrap, unique) == [b"before"]


@pytest.mark.slow
async def test_three_nodes_survive_the_loss_of_one(make_kafka: Callable[..., KafkaCluster], unique: str) -> None:
    """Killed or hanging, one node of three is done without; three replicas, two of them in sync, keep every record."""
    cluster = make_kafka(3)
    assert len(set(cluster.bootstrap.split(","))) == 3
    await create_topic(cluster.bootstrap, unique)
    async with producing(cluster.bootstrap, acks="all", enable_idempotence=True) as producer:

        async def send(value: bytes) -> float:
            begin = time.monotonic()
            async with asyncio.timeout(DEADLINE):
                await producer.send_and_wait(unique, value, partition=0)
            return time.monotonic() - begin

        await send(b"all")
        leader = (await producer.partitions_for(unique)) and producer._metadata.leader_for_partition(
            TopicPartition(unique, 0)
        )
        cluster.freeze(leader)
        gap = await send(b"one hangs")
        assert gap < 30, f"a hanging leader was replaced after {gap:.1f} s only"
        cluster.thaw(leader)
        await send(b"thawed")
        operator = ClusterAdmin(cluster)
        await asyncio.to_thread(operator.wait_in_sync, unique)  # with one still behind, a second loss would be two
        victim = leader % 3 + 1
        cluster.kill(victim)
        await send(b"one is dead")
        cluster.restart(victim)
        await asyncio.to_thread(operator.wait_in_sync, unique)
        cluster.stop_node(leader)
        await send(b"another left")
        cluster.restart(leader)
    assert await values(cluster.bootstrap, unique) == [b"all", b"one hangs", b"thawed", b"one is dead", b"another left"]


def test_a_wrong_setting_is_told_with_the_log(tmp_path: Path) -> None:
    cluster = KafkaCluster(settings={"log.retention.hours": "many"})
    with pytest.raises(
        StartError, match=r"(?s)setting given to it is wrong.*log\.retention\.hours.*\(log: (.+)\)"
    ) as caught:
        cluster.start()
    log = str(caught.value).rpartition("(log: ")[2].rstrip(")")
    assert Path(log).exists(), "the log it names is gone"
    assert not cluster.alive()


def test_a_taken_port_is_told(kafka: KafkaCluster) -> None:
    port = int(kafka.address(1).rpartition(":")[2])
    cluster = KafkaCluster(port=port)
    with pytest.raises(PortTakenError, match=f"Port {port} on 127.0.0.1 is in use"):
        cluster.start()
    assert kafka.alive()


def test_a_port_taken_behind_our_back_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something binds a port between our look and Kafka's bind: other ports are tried."""
    import socket

    import gateway.local.runtime.server as module

    thieves: list[socket.socket] = []

    def stolen(count: int) -> Any:
        reservation = reserve_ports(count)
        if not thieves:
            thief = socket.create_server(("127.0.0.1", reservation.ports[0]))
            thieves.append(thief)
        return reservation

    monkeypatch.setattr(module, "reserve_ports", stolen)
    with KafkaCluster() as cluster:
        assert cluster.alive()
        assert str(thieves[0].getsockname()[1]) not in cluster.bootstrap
    thieves[0].close()
