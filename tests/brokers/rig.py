"""One connection of the gateway's on a socket pair: the test is the broker at the other end, byte by byte.

Paho's client, our stream, ingest, window and flow are the real ones; no network, no thread.
"""

import asyncio
import contextlib
import socket
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from gateway.mqtt.client import PahoClient
from gateway.mqtt.connection import MOST_IDS, Connection
from gateway.mqtt.ingest import Ingest
from tests.brokers import packets
from tests.brokers.data_path import MemoryPath, make_settings
from tests.brokers.packets import Packet, Type


class _PairClient(PahoClient):
    """Paho, with one end of a socket pair where it would open a connection."""

    pair: socket.socket

    def _create_socket_connection(self) -> socket.socket:
        return self.pair


class Rig:
    """A path and one open connection on it; ``await Rig.make()`` inside ``async with``.

    ``send`` delivers bytes and lets the connection read them at once; ``answers`` is what it has sent so far.
    """

    def __init__(
        self, path: MemoryPath, *, window: int = 1000, keepalive_s: float = 60.0, limit: int = MOST_IDS
    ) -> None:
        self.path = path
        self.window = window
        self.limit = limit
        self.keepalive_s = keepalive_s
        self.ingest: Ingest = path.ingest()
        self.v5 = path.settings.mqtt.protocol == "5"
        self._peers: list[socket.socket] = []
        self._received = bytearray()
        self._count = 0

    async def __aenter__(self) -> Self:
        await self.path.__aenter__()
        self.connect()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.connection.close()
        for peer in self._peers:
            peer.close()
        await self.path.__aexit__(*error)

    def connect(self) -> None:
        """Open a connection, the first or the next one of the same session."""
        ours, self.peer = socket.socketpair()
        self._peers.append(self.peer)
        self.peer.setblocking(False)
        self._received.clear()
        version = paho.MQTTv5 if self.v5 else paho.MQTTv311
        client = _PairClient(CallbackAPIVersion.VERSION2, client_id="rig", protocol=version, reconnect_on_failure=False)
        client.pair = ours
        client.connect("pair", 1, int(self.keepalive_s) or 1)
        assert client.stream is not None
        self.client = client
        self._count += 1
        self.connection = Connection(
            client, client.stream, self.ingest, self.path.flow, self.path.accumulator, self.path.dispatcher,
            label=b"rig:%d:" % self._count, window=self.window, keepalive_s=self.keepalive_s,
            limit=self.limit,
        )  # fmt: skip
        self.connection.open()
        assert [packet.type for packet in self.answers()] == [Type.CONNECT]
        self.send(packets.connack(properties=b"" if self.v5 else None))

    def publish(self, topic: str, payload: bytes = b"", **options: Any) -> bytes:
        """The bytes of a PUBLISH in the connection's protocol."""
        if self.v5:
            options.setdefault("properties", b"")
        return packets.publish(topic, payload, **options)

    def send(self, *chunks: bytes) -> None:
        """Deliver chunks, each read before the next comes; what follows the connection's end goes nowhere."""
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest and not self.connection.ended.done():
                with contextlib.suppress(BlockingIOError):
                    rest = rest[self.peer.send(rest) :]
                self.connection.read()

    async def deliver(self, *chunks: bytes) -> None:
        """Send chunks, and settle."""
        self.send(*chunks)
        await self.settle()

    async def release(self) -> None:
        """Let the producer store what it holds, and settle."""
        self.path.producer.release()
        await self.settle()

    def reconnect(self) -> None:
        self.hang_up()
        self.connect()

    def hang_up(self) -> None:
        """Close the broker's end."""
        self.peer.close()
        self.connection.read()
        self.connection.close()

    def answers(self) -> list[Packet]:
        """The whole packets that came since the last call."""
        with contextlib.suppress(BlockingIOError):
            while data := self.peer.recv(1 << 20):
                self._received += data
        return packets.split(self._received)

    async def settle(self) -> None:
        """Flush what was read, let every callback run that is due, and write acknowledgements that wait for a tick."""
        self.path.flow.flush()
        for _ in range(5):
            await asyncio.sleep(0)
        self.connection.send_acknowledgements()


def make_rig(
    *, window: int = 1000, keepalive_s: float = 60.0, limit: int = MOST_IDS, holding: bool = False, **tables: Any
) -> Rig:
    """A rig on settings of their own, see ``make_settings``; its producer may begin by holding what it gets."""
    rig = Rig(MemoryPath(make_settings(**tables)), window=window, keepalive_s=keepalive_s, limit=limit)
    rig.path.producer.holding = holding
    return rig
