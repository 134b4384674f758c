"""QoS 2: PUBREC when it is durable, each message once, ids that belong to the session (MQTT 5.0 section 4.3.3)."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.brokers import packets
from tests.brokers.packets import Packet, Type
from tests.brokers.rig import Rig, make_rig


def qos2(rig: Rig, packet_id: int, payload: bytes, *, dup: bool = False) -> bytes:
    return rig.publish("devices/1", payload, qos=2, packet_id=packet_id, dup=dup)


def ids(answers: list[Packet], kind: Type) -> list[int]:
    return [int.from_bytes(answer.body[:2]) for answer in answers if answer.type is kind]


async def test_pubrec_waits_until_kafka_has_the_message() -> None:
    async with make_rig() as rig:
        rig.path.producer.holding = True
        rig.send(qos2(rig, 7, b"a"))
        await rig.settle()
        assert rig.answers() == [], "paho answers PUBLISH by itself unless the seam holds it back"
        assert rig.connection.unacked == 1
        rig.path.producer.release()
        await rig.settle()
        assert ids(rig.answers(), Type.PUBREC) == [7]
        assert rig.connection.unacked == 0
        rig.path.check()


async def test_a_copy_is_not_forwarded_again_and_its_pubrec_comes_after_the_first_ones_durability() -> None:
    async with make_rig() as rig:
        rig.path.producer.holding = True
        rig.send(qos2(rig, 7, b"a"), qos2(rig, 7, b"a", dup=True))
        await rig.settle()
        rig.send(qos2(rig, 7, b"a", dup=True))
        await rig.settle()
        assert rig.answers() == []
        rig.path.producer.release()
        await rig.settle()
        assert rig.path.values == [b"a"]
        assert ids(rig.answers(), Type.PUBREC) == [7, 7, 7]
        rig.path.check()


async def test_pubrel_is_answered_at_once_and_frees_the_packet_id() -> None:
    async with make_rig() as rig:
        rig.send(qos2(rig, 7, b"a"))
        await rig.settle()
        rig.send(packets.pubrel(7))
        assert [answer.type for answer in rig.answers()] == [Type.PUBREC, Type.PUBCOMP]
        rig.send(qos2(rig, 7, b"b"))
        await rig.settle()
        assert rig.path.values == [b"a", b"b"], "after PUBREL the same id is a new message"
        rig.path.check()


async def test_pubrel_for_an_id_nobody_knows_is_answered_too() -> None:
    """As after our restart: without PUBCOMP the broker would keep the exchange for ever [MQTT-4.3.3-13]."""
    async with make_rig() as rig:
        rig.send(packets.pubrel(999))
        assert ids(rig.answers(), Type.PUBCOMP) == [999]


async def test_pubrel_with_reason_and_properties_is_understood() -> None:
    async with make_rig() as rig:
        rig.send(packets.packet(Type.PUBREL, 2, b"\0\x09\x92\0"))
        assert ids(rig.answers(), Type.PUBCOMP) == [9]


async def test_ids_survive_a_reconnect_before_pubrec() -> None:
    async with make_rig() as rig:
        rig.path.producer.holding = True
        rig.send(qos2(rig, 7, b"a"))
        await rig.settle()
        rig.hang_up()
        rig.connect()
        rig.send(qos2(rig, 7, b"a", dup=True))
        await rig.settle()
        assert rig.answers() == []
        rig.path.producer.release()
        await rig.settle()
        assert rig.path.values == [b"a"], "the copy that came after the reconnect is left out"
        assert ids(rig.answers(), Type.PUBREC) == [7], "the old connection's PUBREC is not sent on the new one"
        rig.send(packets.pubrel(7))
        assert ids(rig.answers(), Type.PUBCOMP) == [7]
        rig.path.check()


async def test_ids_survive_a_reconnect_after_pubrec() -> None:
    async with make_rig() as rig:
        rig.send(qos2(rig, 7, b"a"))
        await rig.settle()
        rig.hang_up()  # the PUBREC may or may not have arrived: the broker sends either again
        rig.connect()
        rig.send(qos2(rig, 7, b"a", dup=True))
        await rig.settle()
        assert ids(rig.answers(), Type.PUBREC) == [7]
        rig.send(packets.pubrel(7), qos2(rig, 7, b"next"))
        await rig.settle()
        assert rig.path.values == [b"a", b"next"]
        rig.path.check()


async def test_ids_of_qos_1_do_not_survive_a_reconnect() -> None:
    async with make_rig() as rig:
        rig.path.producer.holding = True
        rig.send(rig.publish("devices/1", b"old", qos=1, packet_id=1))
        await rig.settle()
        rig.hang_up()
        rig.connect()
        rig.send(rig.publish("devices/2", b"new", qos=1, packet_id=1))
        await rig.settle()
        rig.path.producer.take(b"old")
        await rig.settle()
        assert rig.answers() == [], "the old message's acknowledgement would pass for the new one's: the id is the same"
        rig.path.producer.release()
        await rig.settle()
        assert ids(rig.answers(), Type.PUBACK) == [1]
        rig.path.check()


async def test_a_bad_qos_2_packet_leaves_its_id_free() -> None:
    """Else the broker's next message with this id would be taken for a copy of one that never was."""
    async with make_rig() as rig:
        rig.send(rig.publish("devices/1", b"bad", qos=2, packet_id=7, properties=b"\x23\0\1"))
        assert rig.connection.ended.done()
        rig.hang_up()
        rig.connect()
        rig.send(qos2(rig, 7, b"good"))
        await rig.settle()
        assert rig.path.values == [b"good"]
        rig.path.check()


class Model:
    """What a broker remembers of a session's QoS 2 exchanges, and what it will send again."""

    def __init__(self) -> None:
        self.sent: dict[int, bytes] = {}  # PUBLISH sent, PUBREC not seen
        self.received: set[int] = set()  # PUBREC seen, PUBREL sent or to be sent
        self.messages: list[bytes] = []

    def hear(self, answers: list[Packet]) -> None:
        for packet_id in ids(answers, Type.PUBREC):
            if self.sent.pop(packet_id, None) is not None:
                self.received.add(packet_id)
        self.received -= set(ids(answers, Type.PUBCOMP))


operations = st.lists(st.sampled_from(["publish", "publish", "copy", "pubrel", "hold", "release", "lose", "reconnect"]))


@settings(deadline=None, max_examples=150)
@given(operations=operations)
def test_whatever_is_lost_on_the_way_each_message_is_forwarded_exactly_once(operations: list[str]) -> None:
    """Exactly once while the process lives: only a new process forgets the ids, and MQTT into Kafka is then at least
    once."""

    async def scenario() -> None:
        async with make_rig() as rig:
            broker = Model()
            for operation in operations:
                match operation:
                    case "publish":
                        packet_id = min(set(range(1, 200)) - broker.sent.keys() - broker.received)
                        payload = b"%d" % len(broker.messages)
                        broker.sent[packet_id] = payload
                        broker.messages.append(payload)
                        rig.send(qos2(rig, packet_id, payload))
                    case "copy":
                        for packet_id, payload in broker.sent.items():
                            rig.send(qos2(rig, packet_id, payload, dup=True))
                    case "pubrel":
                        for packet_id in sorted(broker.received):
                            rig.send(packets.pubrel(packet_id))
                    case "hold":
                        rig.path.producer.holding = True
                    case "release":
                        rig.path.producer.release()
                    case "lose":
                        await rig.settle()
                        rig.answers()  # sent, but never heard
                        reconnect(rig, broker)
                    case "reconnect":
                        reconnect(rig, broker)
                await rig.settle()
                if operation != "lose":
                    broker.hear(rig.answers())
            rig.path.producer.release()
            for _ in range(3):
                await rig.settle()
                broker.hear(rig.answers())
                rig.send(*(packets.pubrel(packet_id) for packet_id in sorted(broker.received)))
            broker.hear(rig.answers())
            assert rig.path.values == broker.messages
            assert not broker.sent, "every message was received in the end"
            assert not broker.received, "every exchange was completed in the end"
            rig.path.check()

    asyncio.run(scenario())


def reconnect(rig: Rig, broker: Model) -> None:
    """The connection breaks; the broker sends again what it must, in order [MQTT-4.4.0-1]."""
    rig.hang_up()
    rig.connect()
    for packet_id in sorted(broker.received):
        rig.send(packets.pubrel(packet_id))
    for packet_id, payload in broker.sent.items():
        rig.send(qos2(rig, packet_id, payload, dup=True))
