"""Which broker answers is noted with every question, and one that owes an answer is asked beside the data path."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiokafka.client import ConnectionGroup

from bridge.kafka.client import Client
from bridge.kafka.contacts import Contact, Contacts
from tests.kinds import there
from tests.unit.test_kafka_client import Wire, make, wire, within
from tests.waiting import until

__all__ = ["wire"]  # a fixture

HERE = [(1, "1", 9092), (2, "2", 9092), (3, "3", 9092)]


@pytest.fixture
async def client(wire: Wire) -> AsyncIterator[Client]:
    contacts = Contacts()
    contacts.listed(HERE)
    client = make(wire, contacts=contacts)
    yield client
    await client.close()


def of(client: Client, broker: int) -> Contact:
    return there(client.contacts.get(broker))


async def probed(client: Client, contact: Contact) -> None:
    client.probe(contact)
    await within(60, asyncio.gather(*client._probing.values()))


async def test_who_was_asked_for_metadata_and_who_answered_is_noted(wire: Wire, client: Client) -> None:
    wire.silent = {"1"}
    assert await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    assert of(client, 1).asked_ns
    assert (of(client, 2).asked_ns, of(client, 2).answered_ns > 0) == (0, True)
    assert (of(client, 3).asked_ns, of(client, 3).answered_ns) == (0, 0), "nobody asked it"


async def test_a_broker_that_cannot_be_connected_to_says_why(wire: Wire, client: Client) -> None:
    wire.refusing = {"1"}
    assert await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    assert of(client, 1).problem == "1 refuses"


async def test_a_probe_takes_the_connection_for_questions_if_it_stands(wire: Wire, client: Client) -> None:
    """And never that of the batches, where it would wait behind them."""
    assert not client.connected(1)
    assert not client.connected(7), "which there is not"
    assert await client._get_conn(1) is not None
    assert client.connected(1)
    await probed(client, of(client, 1))
    assert wire.connected == ["1", "1"]
    assert await client._get_conn(1, group=ConnectionGroup.COORDINATION) is not None
    await probed(client, of(client, 1))
    assert wire.connected == ["1", "1", "1"]
    assert of(client, 1).answered_ns > 0


async def test_a_frozen_broker_takes_connections_and_is_probed_once_at_a_time(wire: Wire, client: Client) -> None:
    wire.silent = {"2"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        contact = of(client, 2)
        contact.host, contact.port = server.getsockname()
        wire.silent.add(contact.host)
        client.probe(contact)
        await until(lambda: wire.asked, "it was asked")
        client.probe(contact)
        assert len(client._probing) == 1
        assert (contact.accepts, contact.refuses, contact.asked_ns > 0) == (True, False, True)
        await within(60, client.close())
    assert not client._probing


async def test_a_probe_of_its_own_leaves_no_connection_and_a_stopped_broker_refuses(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        contact = of(client, 3)
        contact.host, contact.port = server.getsockname()
        await probed(client, contact)
    assert contact.answered_ns > 0
    assert (3, ConnectionGroup.DEFAULT) not in client._conns
    await probed(client, contact)
    assert (contact.accepts, contact.refuses, contact.asked_ns > 0) == (False, True, True)
