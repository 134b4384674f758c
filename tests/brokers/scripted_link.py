"""One connection of the scripted broker's: what comes on it, and what the broker's rules answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.brokers import packets
from tests.brokers.packets import Packet, Type
from tests.brokers.scripted_rules import NOBODY, Node, Session

if TYPE_CHECKING:
    from tests.brokers.scripted import ScriptedBroker

_HIGH_WATER = 1 << 20  # EMQX's tcp_options.high_watermark


class Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, broker: ScriptedBroker, node: Node) -> None:
        self.broker = broker
        self.node = node
        self.ended = asyncio.Event()  # the connection is no more, and the broker knows
        self.blocked = False  # its client takes less than is sent
        self.buffer = bytearray()
        self.session: Session | None = None
        self.connect: packets.Connect | None = None
        self.goodbye = False  # a DISCONNECT came: no will
        self.heard = asyncio.get_running_loop().time()
        self.acknowledged = False  # it has acknowledged something
        self.subscribes = 0
        self.written = 0
        self.progress = (0, self.heard)  # bytes that have left the buffer, and when that was last seen to move
        self.log: list[Packet] = []
        self.unanswered: list[bytes] = []  # PUBACK and PUBREC that wait

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(_HIGH_WATER)
        self.broker.links.append(self)
        self.broker.empty.clear()

    def data_received(self, data: bytes) -> None:
        self.heard = asyncio.get_running_loop().time()
        self.buffer += data
        for packet in packets.split(self.buffer):
            if self.transport.is_closing():
                return
            self.log.append(packet)
            try:
                self._take(packet)
            except AssertionError as error:
                self.broker.violations.append(str(error))
                self.transport.abort()

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        if self.session is not None:
            self.broker.opens_mailbox(self.session)

    def connection_lost(self, exc: Exception | None) -> None:
        self.broker.links.remove(self)
        if not self.broker.links:
            self.broker.empty.set()
        self.broker.lost(self)
        self.ended.set()

    def send(self, data: bytes) -> None:
        """Any bytes. Packet by packet, as EMQX writes."""
        if not self.transport.is_closing():
            self.written += len(data)
            self.transport.write(data)

    def blocked_s(self, now: float) -> float:
        """How long nothing has left the buffer although something is in it."""
        left = self.transport.get_write_buffer_size()
        gone = self.written - left
        if not left or gone != self.progress[0]:
            self.progress = (gone, now)
        return now - self.progress[1]

    def end(self, code: int | None = None, properties: bytes = b"") -> None:
        """Close, with an MQTT 5 DISCONNECT if a code is given."""
        if code is not None and self.v5:
            self.send(packets.disconnect(code, properties))
        self.transport.close()

    @property
    def v5(self) -> bool:
        return self.connect is not None and self.connect.v5

    def _take(self, packet: Packet) -> None:
        broker, body, session = self.broker, packet.body, self.session
        if packet.type is Type.CONNECT:
            self.connect = packets.parse_connect(body)
            broker.connected(self, self.connect)
            return
        assert session is not None, f"{packet.type.name} came before CONNECT was accepted"
        match packet.type:
            case Type.PUBLISH:
                self._publish(session, packet)
            case Type.PUBACK | Type.PUBREC | Type.PUBCOMP:
                self.acknowledged = True
                broker.answered(session, packet.type, int.from_bytes(body[:2]))
            case Type.PUBREL:
                session.incoming.discard(int.from_bytes(body[:2]))
                self.send(packets.packet(Type.PUBCOMP, 0, body[:2]))
            case Type.SUBSCRIBE:
                broker.subscribe(self, session, packets.parse_subscribe(body, v5=self.v5))
            case Type.UNSUBSCRIBE:
                packet_id, filters = packets.parse_unsubscribe(body, v5=self.v5)
                for text in filters:
                    broker.unsubscribe(session, text)
                self.send(packets.unsuback(packet_id, len(filters), v5=self.v5))
            case Type.PINGREQ:
                if broker.rules.answers_pings:
                    self.send(packets.PINGRESP)
            case Type.DISCONNECT:
                self.goodbye = True
                expiry = packets.disconnect_expiry(body) if self.v5 else None
                if expiry is not None:
                    if expiry == 0 < session.expiry:
                        broker.lost_messages += [flying.message for flying in session.flying.values()]
                        session.flying.clear()  # what EMQX loses
                    session.expiry = expiry
                self.transport.close()
            case _:
                raise AssertionError(f"a client sent {packet.type.name}")

    def _publish(self, session: Session, packet: Packet) -> None:
        message, packet_id = packets.parse_publish(packet.flags, packet.body, v5=self.v5, publisher=session.client_id)
        rules = self.broker.rules
        if rules.disconnects_publishers is not None:
            self.end(rules.disconnects_publishers)
            return
        if rules.puback is not None:
            self._acknowledge(message.qos, packet_id, bytes((rules.puback,)))
            return
        if message.qos == 2:
            if packet_id in session.incoming:
                self._acknowledge(2, packet_id)
                return
            session.incoming.add(packet_id)
        reached = self.broker.publish(message)
        if message.qos:
            self._acknowledge(message.qos, packet_id, bytes((NOBODY,)) if self.v5 and not reached else b"")

    def _acknowledge(self, qos: int, packet_id: int, code: bytes = b"") -> None:
        """PUBACK or PUBREC."""
        answer = packets.packet(Type.PUBACK if qos == 1 else Type.PUBREC, 0, packet_id.to_bytes(2) + code)
        if self.broker.rules.answers_publishers:
            self.send(answer)
        else:
            self.unanswered.append(answer)

    def answer_publisher(self, count: int) -> None:
        """Send the first of the answers that wait."""
        for answer in self.unanswered[:count]:
            self.send(answer)
        del self.unanswered[:count]
