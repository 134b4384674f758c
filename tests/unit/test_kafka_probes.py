"""Which broker answers is noted with every question, and one that owes an answer is asked beside the data path."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from aiokafka.client import ConnectionGroup

from bridge.kafka.contacts import Contact, Contacts
from tests.brokers.rig import until
from tests.unit.test_kafka_client import Wire, make, wire, within

if TYPE_CHECKING:
    from bridge.kafka.client import Client

__all__ = ["wire"]  # a fixture

HERE = [(1, "1", 9092), (2, "2", 9092), (3, "3", 9092)]


async def client_and_contacts(wire: Wire) -> tuple[Client, Contacts]:
    contacts = Contacts()
    contacts.listed(HERE)
    return await make(wire, contacts=contacts), contacts


def of(contacts: Contacts, broker: int) -> Contact:
    contact = contacts.get(broker)
    assert contact is not None
    return contact


async def probed(client: Client, contact: Contact) -> None:
    client.probe(contact)
    await within(5, asyncio.gather(*client._probing.values()))


async def test_who_was_asked_for_metadata_and_who_answered_is_noted(wire: Wire) -> None:
    client, contacts = await client_and_contacts(wire)
    wire.silent = {"1"}
    assert await within(5, client._metadata_update(client.cluster, {"telemetry"}))
    assert of(contacts, 1).asked_ns
    assert (of(contacts, 2).asked_ns, of(contacts, 2).answered_ns > 0) == (0, True)
    assert (of(contacts, 3).asked_ns, of(contacts, 3).answered_ns) == (0, 0), "nobody asked it"
    await client.close()


async def test_a_broker_that_cannot_be_connected_to_says_why(wire: Wire) -> None:
    client, contacts = await client_and_contacts(wire)
    wire.refusing = {"1"}
    assert await within(5, client._metadata_update(client.cluster, {"telemetry"}))
    assert of(contacts, 1).problem == "1 refuses"
    await client.close()


async def test_a_probe_takes_the_connection_for_questions_if_it_stands(wire: Wire) -> None:
    """And never that of the batches, where it would wait behind them."""
    client, contacts = await client_and_contacts(wire)
    assert await client._get_conn(1) is not None
    assert client.connected(1)
    await probed(client, of(contacts, 1))
    assert wire.connected == ["1", "1"]
    assert await client._get_conn(1, group=ConnectionGroup.COORDINATION) is not None
    await probed(client, of(contacts, 1))
    assert wire.connected == ["1", "1", "1"]
    assert of(contacts, 1).answered_ns > 0
    await client.close()


async def test_a_frozen_broker_takes_connections_and_is_probed_once_at_a_time(wire: Wire) -> None:
    client, contacts = await client_and_contacts(wire)
    wire.silent = {"2"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        contact = of(contacts, 2)
        contact.host, contact.port = server.getsockname()
        wire.silent.add(contact.host)
        client.probe(contact)
        await until(lambda: wire.asked, "it was asked")
        client.probe(contact)
        assert len(client._probing) == 1
        assert (contact.accepts, contact.refuses, contact.asked_ns > 0) == (True, False, True)
        await within(5, client.close())
    assert not client._probing


async def test_a_stopped_broker_refuses(wire: Wire) -> None:
    client, contacts = await client_and_contacts(wire)
    with socket.create_server(("127.0.0.1", 0)) as server:
        contact = of(contacts, 3)
        contact.host, contact.port = server.getsockname()
    await probed(client, contact)
    assert (contact.accepts, contact.refuses, contact.asked_ns > 0) == (False, True, True)
    await client.close()


async def test_a_probe_of_its_own_leaves_no_connection(wire: Wire) -> None:
    client, contacts = await client_and_contacts(wire)
    with socket.create_server(("127.0.0.1", 0)) as server:
        contact = of(contacts, 3)
        contact.host, contact.port = server.getsockname()
        await probed(client, contact)
    assert contact.answered_ns > 0
    assert (3, ConnectionGroup.DEFAULT) not in client._conns
    await client.close()


@pytest.mark.parametrize("broker", [1, 7])
async def test_nobody_is_connected_before_somebody_asks(wire: Wire, broker: int) -> None:
    client, _ = await client_and_contacts(wire)
    assert not client.connected(broker)
    await client.close()
