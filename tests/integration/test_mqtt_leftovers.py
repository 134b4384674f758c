"""A connection that has ended leaves nothing in memory, at once and without the garbage collector.

The collector comes seldom in a worker (``gateway.base.process.memory``): 100 objects and 8 KiB of each connection would
wait for it, with the beginning of a packet that may be a megabyte."""

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from gateway.mqtt.client import Handshake, PahoClient
from gateway.mqtt.connection import Connection
from gateway.mqtt.stream import PacketStream
from tests.brokers.scripted import ScriptedBroker
from tests.integration.test_mqtt_session import publish, running
from tests.waiting import until

OURS = (Connection, PahoClient, PacketStream, Handshake)


def alive() -> Counter[str]:
    """How many of each of our classes there are, reachable or not."""
    return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in OURS)


@pytest.fixture
def others() -> Iterator[Counter[str]]:
    """What is alive of other tests, while the collector rests."""
    gc.collect()
    gc.disable()
    yield alive()
    gc.enable()


async def test_connections_that_broke_are_gone(others: Counter[str]) -> None:
    async with ScriptedBroker() as broker, running(broker) as (_, sessions):
        for number in range(20):
            publish(broker, range(number, number + 1))
            await asyncio.sleep(0)
            broker.link("gateway-0-0").transport.abort()
            await until(lambda n=number: broker.session("gateway-0-0").connects > n + 1, "it comes back")
        await until(lambda: sessions[0].subscribed and not sessions[0].unacked, "all is acknowledged")
        # The handshake belongs to nobody any more, but its client tells it of answers as long as it lives. The thread
        # that made the connection before may hold that a moment longer.
        await until(lambda: alive() - others == Counter({cls.__name__: 1 for cls in OURS}), "they are gone")


async def test_connections_that_did_not_come_about_are_gone(others: Counter[str]) -> None:
    async with ScriptedBroker() as broker, running(broker) as (path, sessions):
        failures = path.metrics.mqtt_connect_failures

        def failed() -> float:
            return sum(failures.child(reason).value for reason in ("unreachable", "unavailable", "protocol", "timeout"))

        def gone() -> bool:
            # All but the attempt of this moment. The thread that tried may hold the one before a moment longer.
            return all(count <= 1 for count in (alive() - others).values())

        await broker.stop()
        await until(lambda: failed() >= 10, "ten attempts at a broker that is away")
        await until(gone, "they are gone")
        broker.rules.refuse_connect = 0x88
        await broker.start()
        await until(lambda: failed() >= 20, "ten attempts at one that is not available")
        await until(gone, "they are gone")
        broker.rules.refuse_connect = None
        await until(lambda: sessions[0].subscribed, "it is back")
