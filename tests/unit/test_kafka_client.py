"""aiokafka's client as we change it: one silent broker holds up neither metadata nor connections to the others.

Each test fails as well when aiokafka stops calling what is replaced.
"""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiokafka.client
import pytest
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import BrokerMetadata

from bridge.kafka import client as kafka_client
from bridge.kafka.client import Client
from bridge.kafka.login import KafkaLogin
from config.settings import KafkaSettings


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


class Wire:
    """Connections to brokers 1, 2 and 3 at hosts of these names; what each does is set by the test."""

    def __init__(self) -> None:
        self.silent: set[str] = set()  # takes a connection, answers nothing
        self.unconnectable: set[str] = set()  # a connection is never made
        self.refusing: set[str] = set()
        self.leader = 1  # of a partition
        self.asked: list[str] = []
        self.requests: list[Any] = []
        self.connected: list[str] = []

    async def connect(self, host: str, _port: int, **_options: Any) -> Any:
        if host in self.refusing:
            raise KafkaConnectionError(f"{host} refuses")
        if host in self.unconnectable:
            await for_ever()
        self.connected.append(host)

        async def send(request: Any, **_options: Any) -> Any:
            self.asked.append(host)
            self.requests.append(request)
            if host in self.silent:
                await for_ever()
            return SimpleNamespace(
                API_VERSION=5, controller_id=1, topics=[(0, "telemetry", False, [(0, 0, self.leader, [1], [1], [])])],
                brokers=[(n, str(n), 9092, None) for n in (1, 2, 3)],
            )  # fmt: skip

        async def closed() -> None: ...

        return SimpleNamespace(
            send=send, connected=lambda: True, close=lambda **_: asyncio.ensure_future(closed()),
            session_ends_ns=None, muted_s=0.0, credential=None,
        )  # fmt: skip


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    monkeypatch.setattr(aiokafka.client, "create_conn", None)  # all connections are ours
    monkeypatch.setattr(kafka_client, "open_connection", wire.connect)
    monkeypatch.setattr(kafka_client, "HEDGE_S", 0.5)  # a broker that answers does so in a few turns of the loop
    monkeypatch.setattr(kafka_client, "KNOCK_S", 60.0)
    monkeypatch.setattr(kafka_client.random, "shuffle", lambda nodes: nodes.sort())  # broker 1 is asked first
    return wire


def make(_wire: Wire, **options: Any) -> Client:
    client = Client(KafkaLogin(KafkaSettings()), bootstrap_servers=["1:9092"], metadata_max_age_ms=60_000, **options)
    client.cluster._brokers = {n: BrokerMetadata(n, str(n), 9092, None) for n in (1, 2, 3)}
    client._topics = {"telemetry"}
    return client


@pytest.fixture
async def client(wire: Wire) -> AsyncIterator[Client]:
    client = make(wire)
    yield client
    await client.close()


async def within(seconds: float, work: Any) -> Any:
    async with asyncio.timeout(seconds):
        return await work


async def test_metadata_come_from_the_first_broker_that_answers(wire: Wire, client: Client) -> None:
    assert await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    assert wire.asked == ["1"]


@pytest.mark.parametrize(("leader", "pause_s", "least_s"), [(1, 3600, 0), (-1, 0.1, 0.2)])
async def test_metadata_are_asked_for_with_pauses_while_a_partition_has_no_leader(
    wire: Wire, client: Client, leader: int, pause_s: float, least_s: float
) -> None:
    """aiokafka's fetcher asks at once again."""
    wire.leader, client._retry_backoff = leader, pause_s
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for _ in range(3):
        assert await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    assert loop.time() - began_s >= least_s


async def test_a_silent_broker_is_not_waited_for_and_asked_last_from_then_on(wire: Wire, client: Client) -> None:
    wire.silent = {"1"}
    assert await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    assert wire.asked == ["1", "2"]
    wire.silent = {"1", "2"}
    assert await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    assert wire.asked == ["1", "2", "2", "3"]


async def test_a_broker_that_answers_again_is_asked_like_the_others(wire: Wire, client: Client) -> None:
    client._silent = {1}
    wire.refusing = {"2", "3"}
    assert await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    assert client._silent == {2, 3}
    wire.refusing = set()
    assert await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    assert wire.asked == ["1", "1"]


async def test_without_any_answer_the_renewal_fails(wire: Wire, client: Client) -> None:
    wire.refusing = {"1", "2", "3"}
    assert not await within(60, client._metadata_update(client.cluster, {"telemetry"}))


async def test_a_connection_that_does_not_come_about_holds_up_no_other(wire: Wire, client: Client) -> None:
    """aiokafka holds one lock for all of them."""
    wire.unconnectable = {"1"}
    hanging = asyncio.ensure_future(client.ready(1))
    await asyncio.sleep(0)
    assert await within(60, client.ready(2))
    assert not hanging.done()
    hanging.cancel()


async def test_a_question_does_not_stand_behind_a_batch_that_waits_for_a_frozen_follower(
    wire: Wire, client: Client
) -> None:
    """A broker works off the requests of a connection one after the other, so that its answer would stay out too, and
    the healthy leader be taken for the frozen one."""
    client.contacts.listed((number, str(number), 9092) for number in (1, 2, 3))
    assert await within(60, client.ready(1))
    batches = client._conns[1, ConnectionGroup.DEFAULT]
    batches.send = lambda *_args, **_options: for_ever()
    assert await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    assert wire.asked == ["1"]
    contact = client.contacts.get(1)
    client.contacts.asked(1)  # a batch
    client.probe(contact)
    await within(60, asyncio.gather(*client._probing.values()))
    assert contact.asked_ns == 0, "it answers"
    assert client._conns[1, ConnectionGroup.DEFAULT] is batches


async def test_two_at_once_share_one_connection_to_a_broker(wire: Wire, client: Client) -> None:
    assert await within(60, asyncio.gather(*(client.ready(1) for _ in range(5)))) == [True] * 5
    assert wire.connected == ["1"]


async def test_the_task_that_renews_metadata_is_ours_and_outlives_a_defect(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewing = asyncio.ensure_future(client._md_synchronizer())
    ask = client._ask_for_metadata

    async def defect(_request: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(client, "_ask_for_metadata", defect)
    assert not await within(60, client.force_metadata_update())
    monkeypatch.setattr(client, "_ask_for_metadata", ask)
    assert await within(60, client.force_metadata_update())
    renewing.cancel()


async def test_asking_for_a_topic_does_not_make_it(wire: Wire, client: Client) -> None:
    await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    (request,) = wire.requests
    assert request.prepare({3: (0, 5)}).to_object()["allow_auto_topic_creation"] is False


async def test_a_close_ends_what_is_still_asked(wire: Wire) -> None:
    client = make(wire)
    wire.silent = {"1"}
    await within(60, client._metadata_update(client.cluster, {"telemetry"}))
    (asking,) = client._asking.values()
    await within(60, client.close())
    assert asking.cancelled()
