"""The embedded Kafka is a real one: listeners, nodes that die and hang, and data that stays."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError, KafkaError, UnknownTopicOrPartitionError

from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.runtime.errors import EmbeddedError, PortTakenError, StartError
from gateway.local.runtime.ports import reserve_ports
from tests.brokers.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.brokers.fixtures import MakeTopic

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
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        (described,) = await admin.describe_topics([unique])
        assert described["error_code"] == UnknownTopicOrPartitionError.errno
        assert unique not in await admin.list_topics()
    finally:
        await admin.close()


def test_every_socket_is_bound_to_loopback(kafka: KafkaCluster) -> None:
    listening = [c.laddr for c in psutil.Process(kafka.pid()).net_connections() if c.status == psutil.CONN_LISTEN]
    assert len(listening) == 2
    assert {address.ip for address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_an_address_it_does_not_have_is_said(kafka: KafkaCluster) -> None:
    with pytest.raises(EmbeddedError, match="no SASL_PLAINTEXT listener: make it with sasl=True"):
        _ = kafka.sasl_bootstrap
    with pytest.raises(ValueError, match="there is no node 2"):
        kafka.kill(2)
    with pytest.raises(EmbeddedError, match="start it first"):
        _ = KafkaCluster().bootstrap


USERS = {"gateway": 'pass"wörd\\ 1', "other": "second"}


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    """One broker with every listener."""
    with KafkaCluster(sasl=True, tls=True, users=USERS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def context(secured: KafkaCluster) -> ssl.SSLContext:
    assert secured.certificates is not None
    return ssl.create_default_context(cafile=str(secured.certificates.ca_file))


async def carries(bootstrap: str, secured: KafkaCluster, topic: str, **options: Any) -> None:
    await create_topic(secured.bootstrap, topic)
    async with producing(bootstrap, **options) as producer:
        await producer.send_and_wait(topic, b"here", partition=0)
    assert await values(bootstrap, topic, **options) == [b"here"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["gateway", "other"])
async def test_sasl(secured: KafkaCluster, unique: str, mechanism: str, user: str) -> None:
    await carries(
        secured.sasl_bootstrap,
        secured,
        unique,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=USERS[user],
    )


async def test_tls(secured: KafkaCluster, context: ssl.SSLContext, unique: str) -> None:
    await carries(secured.tls_bootstrap, secured, unique, security_protocol="SSL", ssl_context=context)


async def test_sasl_over_tls(secured: KafkaCluster, context: ssl.SSLContext, unique: str) -> None:
    await carries(
        secured.sasl_tls_bootstrap,
        secured,
        unique,
        security_protocol="SASL_SSL",
        ssl_context=context,
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="gateway",
        sasl_plain_password=USERS["gateway"],
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_refused(secured: KafkaCluster, mechanism: str) -> None:
    with pytest.raises(KafkaError):
        async with producing(
            secured.sasl_bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username="gateway",
            sasl_plain_password="wrong",
        ):
            pass


async def test_a_client_without_the_ca_refuses_the_broker(secured: KafkaCluster) -> None:
    with pytest.raises((KafkaConnectionError, IncompatibleBrokerVersion)):
        async with producing(secured.tls_bootstrap, security_protocol="SSL", ssl_context=ssl.create_default_context()):
            pass


def test_the_passwords_are_in_no_command_line_and_no_readable_file(secured: KafkaCluster) -> None:
    process = psutil.Process(secured.pid())
    assert not any("second" in part for part in process.cmdline())
    folder = secured.log_file().parent
    readable = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert not any(b"second" in path.read_bytes() for path in readable)


async def test_a_client_certificate_can_be_required(make_kafka: Callable[..., KafkaCluster], unique: str) -> None:
    cluster = make_kafka(tls=True, settings={"ssl.client.auth": "required"})
    await create_topic(cluster.bootstrap, unique)
    certificates = cluster.certificates
    assert certificates is not None
    context = ssl.create_default_context(cafile=str(certificates.ca_file))
    with pytest.raises(KafkaError):
        async with producing(cluster.tls_bootstrap, security_protocol="SSL", ssl_context=context) as producer:
            await producer.send_and_wait(unique, b"no")
    context.load_cert_chain(certificates.client_certificate, certificates.client_key)
    async with producing(cluster.tls_bootstrap, security_protocol="SSL", ssl_context=context) as producer:
        await producer.send_and_wait(unique, b"yes")
    assert await values(cluster.bootstrap, unique) == [b"yes"]


async def test_killed_and_restarted_it_has_its_data_and_its_port(
    make_kafka: Callable[..., KafkaCluster], unique: str
) -> None:
    cluster = make_kafka()
    address = cluster.bootstrap
    await create_topic(address, unique)
    async with producing(address, acks="all") as producer:
        await producer.send_and_wait(unique, b"before", partition=0)
    cluster.kill()
    assert not cluster.alive()
    with pytest.raises(KafkaConnectionError):
        async with producing(address):
            pass
    cluster.restart()
    assert cluster.bootstrap == address
    assert await values(address, unique) == [b"before"]


async def test_a_directory_can_be_started_again(tmp_path: Path, unique: str) -> None:
    with KafkaCluster(directory=tmp_path / "kafka") as cluster:
        await create_topic(cluster.bootstrap, unique)
        async with producing(cluster.bootstrap, acks="all") as producer:
            await producer.send_and_wait(unique, b"kept", partition=0)
    with KafkaCluster(directory=tmp_path / "kafka") as cluster:
        assert await values(cluster.bootstrap, unique) == [b"kept"]


async def test_a_frozen_broker_answers_nothing_until_it_is_thawed(
    make_kafka: Callable[..., KafkaCluster], unique: str
) -> None:
    cluster = make_kafka()
    await create_topic(cluster.bootstrap, unique)
    async with producing(cluster.bootstrap, acks="all") as producer:
        await producer.send_and_wait(unique, b"1")
        cluster.freeze()
        assert cluster.alive()
        sending = asyncio.ensure_future(producer.send_and_wait(unique, b"2"))
        done, _ = await asyncio.wait([sending], timeout=1.0)
        assert not done, "a frozen broker acknowledged a record"
        cluster.thaw()
        async with asyncio.timeout(DEADLINE):
            await sending


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
        victim = leader % 3 + 1
        cluster.kill(victim)
        await send(b"one is dead")
        cluster.restart(victim)
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

    import gateway.local.embedded.kafka as module

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
