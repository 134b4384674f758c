"""A client that does what a test says, packet by packet, in the test's own event loop."""

import asyncio
from typing import Self

from tests.brokers import packets
from tests.brokers.packets import Message, Packet, Type
from tests.waiting import DEADLINE_S


class RawClient:
    """An MQTT 5 connection while its ``async with`` block runs; it acknowledges nothing unless told to.

    ``received`` are the PUBLISH packets so far, as (message, packet id, DUP).
    """

    def __init__(
        self, port: int, client_id: str, *, clean: bool = False, expiry: int = 3600, receive_maximum: int = 65535,
        keepalive: int = 60,
    ) -> None:  # fmt: skip
        self._port = port
        self._connect = packets.packet(
            Type.CONNECT, 0,
            packets.text("MQTT") + bytes((5, clean << 1)) + keepalive.to_bytes(2)
            + packets.varint(8) + b"\x11" + expiry.to_bytes(4) + b"\x21" + receive_maximum.to_bytes(2)
            + packets.text(client_id),
        )  # fmt: skip
        self.received: list[tuple[Message, int, bool]] = []
        self.others: list[Packet] = []
        self.session_present = False
        self.connack_properties: dict[int, int] = {}
        self.closed = asyncio.Event()
        self._arrived = asyncio.Event()
        self._next_id = 0

    async def __aenter__(self) -> Self:
        self._reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._task = asyncio.create_task(self._read())
        self.writer.write(self._connect)
        connack = await self.answer(Type.CONNACK)
        if connack.body[1]:
            await self.__aexit__()
            raise AssertionError(f"refused with 0x{connack.body[1]:02X}")
        self.session_present = bool(connack.body[0])
        self.connack_properties = packets.integer_properties(connack.body[3:])
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.writer.close()
        await self._task

    async def _read(self) -> None:
        buffer = bytearray()
        try:
            while data := await self._reader.read(65536):
                buffer += data
                for packet in packets.split(buffer):
                    if packet.type is Type.PUBLISH:
                        message, packet_id = packets.parse_publish(packet.flags, packet.body, v5=True)
                        self.received.append((message, packet_id, bool(packet.flags & 8)))
                    else:
                        self.others.append(packet)
                self._arrived.set()
        except OSError:
            pass
        self.closed.set()
        self._arrived.set()

    async def answer(self, kind: Type) -> Packet:
        """The next packet of a kind."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for packet in self.others:
                    if packet.type is kind:
                        self.others.remove(packet)
                        return packet
                assert not self.closed.is_set(), f"the connection ended before {kind.name}"
                self._arrived.clear()
                await self._arrived.wait()

    async def messages(self, count: int) -> list[bytes]:
        """The payloads received, once there are so many."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.received) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return [message.payload for message, _, _ in self.received]

    async def settled(self) -> None:
        """A ping and its answer: what the broker had to send by now is here."""
        self.writer.write(packets.packet(Type.PINGREQ, 0, b""))
        await self.answer(Type.PINGRESP)

    async def subscribe(self, text: str, qos: int = 1) -> None:
        self.writer.write(packets.packet(Type.SUBSCRIBE, 2, b"\0\1\0" + packets.text(text) + bytes((qos,))))
        assert (await self.answer(Type.SUBACK)).body[-1] == qos

    async def unsubscribe(self, text: str) -> None:
        self.writer.write(packets.packet(Type.UNSUBSCRIBE, 2, b"\0\2\0" + packets.text(text)))
        await self.answer(Type.UNSUBACK)

    async def publish(self, topic: str, payload: bytes) -> int:
        """Publish at QoS 1; the PUBACK's reason code."""
        self._next_id += 1
        self.writer.write(packets.publish(topic, payload, qos=1, packet_id=self._next_id, properties=b""))
        puback = (await self.answer(Type.PUBACK)).body
        return puback[2] if len(puback) > 2 else 0

    def acknowledge(self, *packet_ids: int) -> None:
        for packet_id in packet_ids:
            self.writer.write(packets.packet(Type.PUBACK, 0, packet_id.to_bytes(2)))

    def disconnect(self, expiry: int | None = None) -> None:
        """DISCONNECT, with a new session expiry if given."""
        tail = b"" if expiry is None else b"\x05\x11" + expiry.to_bytes(4)
        self.writer.write(packets.packet(Type.DISCONNECT, 0, b"\0" + tail if tail else b""))
