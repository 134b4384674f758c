"""A broker that may do anything to its sessions: whatever it is told is received is in Kafka, and the account balances.

The model forgets its session, comes back from an older snapshot, uses packet ids again, sends more than the window,
repeats what is unacknowledged, and dies at any byte: in the middle of a packet, and before it has read our answers. It
never lies about what it was told: a message counts as received when its PUBACK or PUBREC was read.

``GATEWAY_BROKERS=3000`` tries more scripts than the suite does.
"""

import copy
import os
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.brokers import packets
from tests.brokers.packets import Type
from tests.brokers.rig import Rig, make_rig

WINDOW = 5
IDS = 12  # packet ids in all: they come around soon
HOUR_S = 3600
EXAMPLES = int(os.environ.get("GATEWAY_BROKERS", "100"))


class Message(NamedTuple):
    """Number, which is its payload, and QoS."""

    number: int
    qos: int


@dataclass
class Session:
    """What the broker keeps, and writes into a snapshot."""

    queued: deque[Message] = field(default_factory=deque)
    sent: dict[int, Message] = field(default_factory=dict)  # by packet id: no PUBACK or PUBREC read, in order
    released: dict[int, None] = field(default_factory=dict)  # PUBREC read, PUBCOMP not
    last_id: int = 0

    def free_id(self) -> int | None:
        for step in range(1, IDS + 1):
            packet_id = (self.last_id + step - 1) % IDS + 1
            if packet_id not in self.sent and packet_id not in self.released:
                self.last_id = packet_id
                return packet_id
        return None


class Broker:
    """The model, at the other end of a rig's connection."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.session = Session()
        self.snapshot = Session()
        self.count = 0
        self.lost: set[int] = set()  # by the broker itself
        self.told: set[int] = set()  # received, by what we told
        self.again: set[int] = set()  # may be in Kafka twice: QoS 1, or from a session that was rolled back
        self.out = bytearray()
        self.left_s = HOUR_S

    # --- what it does in order

    def publish(self, count: int, qos: int) -> None:
        for _ in range(count):
            self.session.queued.append(Message(self.count, qos))
            if qos == 1:
                self.again.add(self.count)
            self.count += 1

    def deliver(self, most: int) -> None:
        session = self.session
        while session.queued and len(session.sent) + len(session.released) < most:
            packet_id = session.free_id()
            if packet_id is None:
                return
            message = session.sent[packet_id] = session.queued.popleft()
            self._write(packet_id, message, dup=False)

    def repeat(self) -> None:
        for packet_id, message in self.session.sent.items():
            self._write(packet_id, message, dup=True)

    def release(self) -> None:
        for packet_id in self.session.released:
            self.out += packets.pubrel(packet_id)

    def flush(self) -> None:
        data, self.out = bytes(self.out), bytearray()
        self.rig.send(data)

    def hear(self) -> None:
        """Read our answers. Whatever is told to be received must be in Kafka by then."""
        session = self.session
        for answer in self.rig.answers():
            packet_id = int.from_bytes(answer.body[:2])
            if answer.type in (Type.PUBACK, Type.PUBREC):
                message = session.sent.get(packet_id)
                if message is None or (message.qos == 2) is not (answer.type is Type.PUBREC):
                    continue
                del session.sent[packet_id]
                if message.qos == 2:
                    session.released[packet_id] = None
                self.told.add(message.number)
                assert b"%d" % message.number in self.rig.path.values, f"acknowledged, and not in Kafka: {message}"
            elif answer.type is Type.PUBCOMP:
                session.released.pop(packet_id, None)

    def _write(self, packet_id: int, message: Message, *, dup: bool) -> None:
        self.left_s -= 1  # counted down while it holds the message [MQTT-3.3.2-6]
        self.out += self.rig.publish(
            f"devices/{message.number % 3}", b"%d" % message.number, qos=message.qos, packet_id=packet_id, dup=dup,
            **({"properties": b"\x02" + self.left_s.to_bytes(4)} if self.rig.v5 else {}),
        )  # fmt: skip

    # --- what goes wrong

    def drop_one(self) -> None:
        """A QoS 2 message goes while it is on its way, as an expired one may, and its id is used for the next.

        That one has to be sent before anything else happens: a PUBREC that is on its way already would be taken for it,
        whatever the receiver does. So not while the receiver does not read, and only if one waits and has room.
        """
        self.hear()
        session = self.session
        has_room = len(session.sent) + len(session.released) <= WINDOW
        if self.rig.connection.silent_s() == 0 or not session.queued or not has_room:
            return
        for packet_id, message in session.sent.items():
            if message.qos == 2:
                self.lost.add(message.number)
                del session.sent[packet_id]
                session.last_id = packet_id - 1
                return

    def die(self, at: int) -> None:
        """Only a part of what it wrote arrives, and nothing of what we answered is read."""
        if self.out:
            self.rig.send(bytes(self.out[: at % (len(self.out) + 1)]))
            self.out.clear()
        self.rig.hang_up()

    def come_back(self, *, present: bool = True) -> None:
        self.rig.connect()
        if not present:
            self.rig.ingest.qos2.clear()  # as the session does when CONNACK says so
        self.release()
        self.repeat()

    def forget(self) -> None:
        before = self.session
        self.lost |= {message.number for message in (*before.queued, *before.sent.values())}
        self.session = Session()

    def roll_back(self, *, ids_begin_again: bool) -> None:
        before = self.session
        self.session = copy.deepcopy(self.snapshot)
        if ids_begin_again:
            self.session.last_id = 0
        kept = {message.number for message in (*self.session.queued, *self.session.sent.values())}
        self.lost |= {message.number for message in (*before.queued, *before.sent.values())} - kept
        self.again |= kept


operations = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 8), st.sampled_from([1, 2, 2])),
        st.tuples(st.sampled_from(["deliver", "deliver", "overrun", "repeat", "pubrel", "drop", "snapshot"])),
        st.tuples(st.sampled_from(["hold", "release", "take", "hear", "flush", "settle", "lose"])),
        st.tuples(st.sampled_from(["break", "roll back", "begin again", "forget"]), st.integers(0, 1 << 16)),
    ),
    min_size=30,
    max_size=60,
)


@settings(deadline=None, max_examples=EXAMPLES)
@given(operations=operations, v5=st.booleans())
async def test_whatever_a_broker_does_what_it_was_told_is_received_is_in_kafka(
    operations: list[tuple], v5: bool
) -> None:
    limits = {"limit": WINDOW} if v5 else {}
    async with make_rig(window=WINDOW, **limits, mqtt={"protocol": "5" if v5 else "3.1.1"}) as rig:
        broker = Broker(rig)
        for operation in operations:
            match operation:
                case ("publish", count, qos):
                    broker.publish(count, qos)
                case ("deliver",):
                    broker.deliver(WINDOW)
                case ("overrun",):
                    broker.deliver(IDS)
                case ("repeat",):
                    broker.repeat()
                case ("pubrel",):
                    broker.release()
                case ("drop",):
                    broker.drop_one()
                    broker.deliver(WINDOW)
                    broker.flush()
                case ("snapshot",):
                    broker.snapshot = copy.deepcopy(broker.session)
                case ("hold",):
                    rig.path.producer.holding = True
                case ("release",):
                    rig.path.producer.release()
                case ("take",):
                    rig.path.producer.take_first()
                case ("lose",):
                    broker.flush()
                    await rig.settle()
                    rig.answers()  # written, and never read
                    broker.die(0)
                    broker.come_back()
                case ("flush",):
                    broker.flush()
                case ("settle",):
                    await rig.settle()
                case ("hear",):
                    broker.flush()
                    await rig.settle()
                    broker.hear()
                case (wrong, at):
                    broker.die(at)
                    if wrong == "forget":
                        broker.forget()
                    elif wrong != "break":
                        broker.roll_back(ids_begin_again=wrong == "begin again")
                    broker.come_back(present=wrong != "forget")
            rig.path.check()
        await drain(rig, broker)


async def drain(rig: Rig, broker: Broker) -> None:
    """In the end all goes well: everything that the broker still has is received, and every exchange completed."""
    rig.path.producer.release()
    broker.die(0)
    broker.come_back()
    for _ in range(2 * broker.count + 4):
        broker.deliver(WINDOW)
        broker.release()
        broker.flush()
        await rig.settle()
        broker.hear()
        rig.path.check()
    assert not [*broker.session.queued, *broker.session.sent.values()], "never received"
    assert not broker.session.released, "never completed"
    missing = set(range(broker.count)) - broker.lost - broker.told
    assert not missing, missing
    values = [int(value or b"") for value in rig.path.values]
    assert broker.told <= set(values)
    ledger = rig.path.ledger.snapshot()
    assert (ledger.in_flight, ledger.filtered, ledger.dead_lettered) == (0, 0, 0)
    assert min(ledger.as_dict().values()) >= 0, ledger
    twice = {number for number, count in Counter(values).items() if count > 1} - broker.again
    assert not twice, "in Kafka twice, although QoS 2 and the broker forgot nothing"
