"""QoS 2: PUBREC when it is durable, each message once, ids that belong to the session (MQTT 5.0 section 4.3.3)."""

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.brokers import packets
from tests.brokers.packets import Packet, Type, ids
from tests.brokers.rig import Rig, make_rig


def qos2(rig: Rig, packet_id: int, payload: bytes, *, dup: bool = False) -> bytes:
    return rig.publish("devices/1", payload, qos=2, packet_id=packet_id, dup=dup)


async def test_a_new_message_with_a_held_id_is_delivered_whatever_its_dup_flag() -> None:
    """A broker came back from an older snapshot: session present, and the packet ids begin again. The first sending
    of a new message may have died with a connection, so that it comes with DUP 1."""
    async with make_rig() as rig:
        await rig.deliver(qos2(rig, 7, b"a"), qos2(rig, 8, b"b"), qos2(rig, 9, b"c"))
        assert ids(rig.answers(), Type.PUBREC) == [7, 8, 9]
        rig.reconnect()
        await rig.deliver(qos2(rig, 7, b"new a"), qos2(rig, 8, b"new b", dup=True), qos2(rig, 9, b"c"))
        assert ids(rig.answers(), Type.PUBREC) == [7, 8, 9]
        await rig.deliver(qos2(rig, 7, b"new a", dup=True))
        assert rig.path.values == [b"a", b"b", b"c", b"new a", b"new b", b"c"]
        assert ids(rig.answers(), Type.PUBREC) == [7], "the new message's copy is a copy"
        rig.path.check()
        ledger = rig.path.ledger
        assert (ledger.delivered, ledger.filtered, ledger.copies) == (6, 0, 1)


async def test_a_copy_is_known_by_topic_properties_and_payload() -> None:
    async with make_rig() as rig:
        for packet_id, (topic, properties) in enumerate([("devices/1", b""), ("devices/2", b"\x01\x01")], 1):
            first = packets.publish(topic, b"p", qos=2, packet_id=packet_id, properties=properties)
            other_topic = packets.publish(
                "devices/3", b"p", qos=2, packet_id=packet_id, dup=True, properties=properties
            )
            others = packets.user_property("n", "1") + properties
            other = packets.publish("devices/3", b"p", qos=2, packet_id=packet_id, dup=True, properties=others)
            rig.send(first, other_topic, other, other)
        await rig.settle()
        assert (rig.path.ledger.delivered, rig.path.ledger.copies) == (6, 2)
        rig.path.check()


async def test_a_copy_whose_message_expiry_was_counted_down_is_a_copy() -> None:
    """As it must be while the broker holds the message [MQTT-3.3.2-6]."""
    before = b"\x01\x01" + packets.user_property("\x02", "\x02") + b"\x0b\x81\x02\x08" + packets.text("answers/here")
    async with make_rig() as rig:
        for left, dup in ((60, False), (50, True), (7, True)):
            properties = before + b"\x02" + left.to_bytes(4) + packets.user_property("k", "v" * 200)
            rig.send(packets.publish("devices/1", b"\x02p", qos=2, packet_id=7, dup=dup, properties=properties))
        await rig.settle()
        assert (rig.path.ledger.delivered, rig.path.ledger.copies) == (1, 2)
        rig.path.check()


async def test_ids_that_are_used_again_are_logged_once_for_each_connection() -> None:
    with capture_logs() as logs:
        async with make_rig() as rig:
            rig.send(*(qos2(rig, packet_id, b"a") for packet_id in (1, 2, 3)))
            for payload in (b"b", b"c"):
                rig.reconnect()
                await rig.deliver(*(qos2(rig, packet_id, payload) for packet_id in (1, 2, 3)))
            assert len(rig.path.values) == 9
    found = [entry["connection"] for entry in logs if entry["event"] == "mqtt_packet_ids_reused"]
    assert found == ["rig:2:", "rig:3:"]


async def test_the_pubrec_of_an_older_message_with_the_same_id_is_not_sent() -> None:
    """The broker would take it for the newer one's, which Kafka does not have yet."""
    async with make_rig(holding=True) as rig:
        await rig.deliver(qos2(rig, 7, b"old") + qos2(rig, 7, b"old", dup=True) + qos2(rig, 8, b"between"))
        await rig.deliver(qos2(rig, 7, b"new"))
        rig.path.producer.take(b"old")
        await rig.settle()
        assert ids(rig.answers(), Type.PUBREC) == [8]
        await rig.release()
        assert ids(rig.answers(), Type.PUBREC) == [7]
        await rig.deliver(qos2(rig, 7, b"new", dup=True))
        assert ids(rig.answers(), Type.PUBREC) == [7]
        assert rig.path.values == [b"old", b"between", b"new"]
        rig.path.check()


async def test_pubrel_is_answered_at_once_and_frees_the_packet_id() -> None:
    async with make_rig() as rig:
        await rig.deliver(qos2(rig, 7, b"a"))
        rig.send(packets.pubrel(7))
        assert [answer.type for answer in rig.answers()] == [Type.PUBREC, Type.PUBCOMP]
        await rig.deliver(qos2(rig, 7, b"a", dup=True))  # alike, and its first sending was lost
        assert rig.path.values == [b"a", b"a"], "after PUBREL the same id is a new message"
        rig.path.check()


async def test_pubrel_for_an_id_nobody_knows_is_answered_too() -> None:
    """As after our restart: without PUBCOMP the broker would keep the exchange for ever [MQTT-4.3.3-13]. It may come
    with a reason and properties."""
    async with make_rig() as rig:
        rig.send(packets.pubrel(999), packets.packet(Type.PUBREL, 2, b"\0\x09\x92\0"))
        told = [(answer.type, bytes(answer.body)) for answer in rig.answers()]
        assert told == [(Type.PUBCOMP, b"\x03\xe7"), (Type.PUBCOMP, b"\0\x09")]


async def test_ids_of_qos_1_do_not_survive_a_reconnect() -> None:
    async with make_rig(holding=True) as rig:
        await rig.deliver(rig.publish("devices/1", b"old", qos=1, packet_id=1))
        rig.reconnect()
        await rig.deliver(rig.publish("devices/2", b"new", qos=1, packet_id=1))
        rig.path.producer.take(b"old")
        await rig.settle()
        assert rig.answers() == [], "the old message's acknowledgement would pass for the new one's: the id is the same"
        await rig.release()
        assert ids(rig.answers(), Type.PUBACK) == [1]
        rig.path.check()


async def test_a_bad_qos_2_packet_leaves_its_id_free() -> None:
    """Else the broker's next message with this id would be taken for a copy of one that never was."""
    async with make_rig() as rig:
        rig.send(rig.publish("devices/1", b"bad", qos=2, packet_id=7, properties=b"\x23\0\1"))
        assert rig.connection.ended.done()
        rig.reconnect()
        await rig.deliver(qos2(rig, 7, b"good"))
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
async def test_whatever_is_lost_on_the_way_each_message_is_forwarded_exactly_once(operations: list[str]) -> None:
    """Exactly once while the process lives: only a new process forgets the ids, and MQTT into Kafka is then at least
    once."""

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


def reconnect(rig: Rig, broker: Model) -> None:
    """The connection breaks; the broker sends again what it must, in order [MQTT-4.4.0-1]."""
    rig.reconnect()
    for packet_id in sorted(broker.received):
        rig.send(packets.pubrel(packet_id))
    for packet_id, payload in broker.sent.items():
        rig.send(qos2(rig, packet_id, payload, dup=True))
