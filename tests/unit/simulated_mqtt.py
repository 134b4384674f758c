"""The simulation's MQTT side: sessions that keep what is not acknowledged, and the connections that read them."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.mqtt.ingest import Ingest
from tests.brokers.packets import publish, pubrel, user_property

if TYPE_CHECKING:
    from bridge.produce.batch import Span
    from tests.unit.simulation import World

WINDOW = 60
MAX_RECORD = 20_000


@dataclass
class Message:
    """What a device published, and where it must end: a Kafka topic, the dead letters, or nowhere (None)."""

    number: int
    topic: str
    qos: int
    payload: bytes
    fate: str | None

    @property
    def properties(self) -> bytes:
        return user_property("n", f"{self.number:07}")


class Session:
    """A persistent session at the MQTT broker, and the connection that reads it, as ``gateway.mqtt`` has them."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.connections = 0
        self.begin_life()
        self.queued: deque[Message] = deque()
        self.unacked: dict[bytes, Message] = {}  # sent and not acknowledged, in order
        self.received: list[bytes] = []  # PUBREC came, PUBCOMP did not
        self.connection: Connection | None = None
        self.ids = iter(range(number + 1, 1 << 30))
        self.redelivered = 0

    def begin_life(self) -> None:
        """The gateway's side of the session, made anew."""
        group = self.group = self.world.gateway.groups[self.number % 2]
        self.ingest = Ingest(
            group.dispatcher, group.accumulator, group.dead_letters, v5=True, max_packet=1 << 20, max_record=MAX_RECORD
        )

    def cut(self) -> None:
        """The gateway is gone: nobody is left to be told."""
        if self.connection is not None:
            self.connection.cut()
            self.connection = None

    def connect(self) -> None:
        connection = self.connection = Connection(self)
        self.group.flow.add(connection)
        connection.hear(b"".join(pubrel(int.from_bytes(packet_id)) for packet_id in self.received))
        again, self.unacked = self.unacked, {}
        for packet_id, message in again.items():
            self.redelivered += 1
            self.send(message, packet_id, dup=True)
        self.fill()

    def break_off(self) -> None:
        if self.connection is not None:
            self.connection.end()

    def fill(self) -> None:
        """Send what the window allows."""
        while self.connection is not None and self.queued and len(self.unacked) + len(self.received) < WINDOW:
            message = self.queued.popleft()
            packet_id = b""
            while message.qos and (not packet_id or packet_id in self.unacked or packet_id in self.received):
                packet_id = (next(self.ids) % 65_535 + 1).to_bytes(2)
            self.send(message, packet_id)

    def send(self, message: Message, packet_id: bytes, *, dup: bool = False) -> None:
        if packet_id:
            self.unacked[packet_id] = message
        self.connection.expected += [packet_id] if packet_id else []
        data = publish(
            message.topic, message.payload, qos=message.qos, packet_id=int.from_bytes(packet_id), dup=dup,
            properties=message.properties,
        )  # fmt: skip
        self.connection.hear(data)

    def acknowledged(self, ids: list[bytes], qos: int) -> None:
        for packet_id in ids:
            message = self.unacked.pop(packet_id)
            assert message.qos == qos
            self.world.check_durable(message)
            if qos == 2:
                self.received.append(packet_id)
                self.connection.hear(pubrel(int.from_bytes(packet_id)))
        self.fill()

    def completed(self, answers: bytes) -> None:
        for at in range(0, len(answers), 4):
            self.received.remove(answers[at + 2 : at + 4])
        self.fill()


class Connection:
    """Between its session's bytes and the data path (``gateway.mqtt.flow.Paced``,
    ``bridge.produce.accumulator.Owner``)."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.world = session.world
        self.group = session.group
        session.connections += 1
        self.prefix = b"%d:%d:" % (session.number, session.connections)
        self.pace_ns = 500_000
        self.idle_ticks = 0
        self.handshaking = False
        self.ended = False
        self.listening = False
        self.expected: list[bytes] = []  # packet ids in the order sent: the order of their acknowledgements
        self._wire = bytearray()
        self._rest = b""
        self._scheduled = False
        self._release1: list[bytes] = []
        self._release2: list[bytes] = []
        session.ingest.answers.clear()

    def hear(self, data: bytes) -> None:
        self._wire += data
        self._schedule()

    def listen(self) -> None:
        self.listening = True
        self._schedule()

    def ignore(self) -> None:
        self.listening = False

    def _schedule(self) -> None:
        if self.listening and self._wire and not self._scheduled:
            self._scheduled = True
            delay_s = self.world.random.choice((0, 0, 0.0005, 0.002))
            asyncio.get_running_loop().call_later(delay_s, self.read)

    def read(self) -> None:
        self._scheduled = False
        if self.ended or not self.listening or not self._wire:
            return
        size = self.world.random.choice((7, 100, 1000, 50_000))
        data, self._wire = bytes(self._wire[:size]), self._wire[size:]
        data = self._rest + data
        ingest = self.session.ingest
        self.group.dispatcher.delivery_prefix = self.prefix
        used, messages = ingest.feed(data)
        self._rest = data[used:]
        if ingest.answers:
            answers = bytes(ingest.answers)
            ingest.answers.clear()
            self.session.completed(answers)
        pressed = len(self.session.unacked) >= WINDOW // 2
        self.group.flow.took(messages, size, pressed=pressed)
        self._schedule()

    def hand_over(self, span: Span) -> None:
        ingest = self.session.ingest
        if ingest.ids or ingest.ids2:
            span.owed.append((self, ingest.ids, ingest.ids2))
            ingest.ids, ingest.ids2 = [], []

    def release(self, ids: list[bytes], ids2: list[bytes]) -> None:
        if not self.ended:
            self._release1 += ids
            self._release2 += ids2

    def send_acknowledgements(self) -> None:
        ids, self._release1 = self._release1, []
        ids2, self._release2 = self._release2, []
        for qos, these in ((1, ids), (2, ids2)):
            if these:  # in the order of the PUBLISH packets of that quality [MQTT-4.6.0-2, -3]
                sent = [i for i in self.expected if i in self.session.unacked and self.session.unacked[i].qos == qos]
                assert these == sent[: len(these)]
                self.session.acknowledged(these, qos)

    def cut(self) -> None:
        """What was released and not written is not written any more."""
        self.ended = True
        self._release1, self._release2 = [], []

    def end(self) -> None:
        """The network broke it: what had not been read is lost with it."""
        self.ended = True
        self.session.connection = None
        self.group.flow.remove(self)
        self.group.flow.returned(self.group.accumulator.returned(self))
        self.group.dispatcher.returned(self.prefix)
        self.group.flow.flush()
