"""The embedded Kafka is a real one: what it listens on, how it starts, and data that stays."""

from pathlib import Path
from typing import Any

import psutil
import pytest
from aiokafka.errors import UnknownTopicOrPartitionError
from confluent_kafka import Message

from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.runtime.errors import EmbeddedError, PortTakenError, StartError
from gateway.local.runtime.ports import reserve_ports
from tests.brokers.reading import read_all
from tests.brokers.topics import admin_client, create_topic, produce


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


async def test_killed_or_stopped_it_has_its_data_and_killed_its_port(tmp_path: Path, unique: str) -> None:
    with KafkaCluster(directory=tmp_path / "kafka") as cluster:
        address = cluster.bootstrap
        await create_topic(address, unique)
        produce(address, unique, [b"before"])
        cluster.kill()
        assert not cluster.alive()
        cluster.restart()
        assert cluster.bootstrap == address
        assert read_all(address, unique, Message.value) == [[b"before"]]
    with KafkaCluster(directory=tmp_path / "kafka") as again:
        assert read_all(again.bootstrap, unique, Message.value) == [[b"before"]]


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
