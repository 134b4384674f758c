"""The MQTT connection of commands on real and scripted brokers; what arrives is checked with paho."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from bridge.commands.ports import CUT, DENIED, Outgoing
from config.settings import MqttSettings
from gateway.mqtt.login import Login
from gateway.mqtt.publish_link import PublishLink
from tests.brokers.client import Client
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.packets import Type, connack, server_reference
from tests.brokers.scripted import ScriptedBroker
from tests.brokers.scripted_link import Link
from tests.brokers.scripted_rules import Rules
from tests.servers.playing import played
from tests.waiting import until

PROTOCOLS = pytest.mark.parametrize("protocol", ["5", "3.1.1"])
NAME = "commands"


@contextlib.asynccontextmanager
async def link(port: int, *, scheme: str = "mqtt", wait: bool = True, **mqtt: Any) -> AsyncIterator[PublishLink]:
    """A link that is connected; stopped at the end."""
    settings = MqttSettings.model_validate({
        "addresses": [f"{scheme}://127.0.0.1:{port}"], "reconnect_initial": "20ms", "reconnect_max": "50ms", **mqtt,
    })  # fmt: skip
    made = PublishLink(settings, NAME, Login(settings))
    await made.start()
    try:
        if wait:
            await until(lambda: made.connected_ns, "it is connected")
        yield made
    finally:
        await made.stop(time.monotonic_ns() + 2_000_000_000)


class Answers:
    """What became of published messages: exactly one answer each."""

    def __init__(self, made: PublishLink) -> None:
        self.link = made
        self.codes: dict[int, list[int | None]] = {}

    def publish(self, topic: str = "devices/a/req", payload: bytes = b"", qos: int = 1, **properties: Any) -> int:
        number = len(self.codes)
        codes: list[int | None] = []
        self.codes[number] = codes
        self.link.publish(Outgoing(topic, payload, qos, **properties), codes.append)
        assert codes == [], "it is never called from within"
        return number

    async def code(self, number: int) -> int | None:
        await until(lambda: self.codes[number], f"an answer to {number}")
        (code,) = self.codes[number]
        return code

    async def all(self) -> list[int | None]:
        await until(lambda: all(self.codes.values()), "all are answered")
        assert all(len(codes) == 1 for codes in self.codes.values()), self.codes
        return [codes[0] for codes in self.codes.values()]


async def one_code(made: PublishLink, **message: Any) -> int | None:
    answers = Answers(made)
    return await answers.code(answers.publish(**message))


def links_of(broker: ScriptedBroker) -> Link:
    return broker.link(NAME)


# --- reason codes ---


@pytest.mark.parametrize("qos", [0, 1, 2])
@PROTOCOLS
async def test_nobody_is_told_apart_where_the_broker_can(protocol: str, qos: int) -> None:
    async with ScriptedBroker() as broker, link(broker.port, protocol=protocol) as made:
        known = protocol == "5" and qos > 0
        assert await one_code(made, qos=qos) == (0x10 if known else 0)
        await asyncio.to_thread(subscribed, broker.port)
        assert await one_code(made, qos=qos) in {0, 0x10 if known else 0}


def subscribed(port: int) -> None:
    with Client(port) as client:
        client.subscribe("devices/#")


@pytest.mark.parametrize("code", [0x80, 0x87, 0x90, 0x97, 0x99])
@pytest.mark.parametrize("qos", [1, 2])
async def test_the_brokers_refusal_is_told_and_makes_room_again(qos: int, code: int) -> None:
    async with ScriptedBroker(Rules(puback=code)) as broker, link(broker.port) as made:
        room = made.room
        answers = Answers(made)
        for _ in range(3):
            answers.publish(qos=qos)
        assert await answers.all() == [code] * 3
        assert (made.room, made.outstanding) == (room, 0)


@pytest.mark.parametrize("qos", [1, 2])
@PROTOCOLS
def test_mosquitto_takes_each_quality(make_mosquitto: Callable[..., Mosquitto], protocol: str, qos: int) -> None:
    """In the test's thread a paho client receives; in a loop of its own the link publishes."""
    broker = make_mosquitto(tls=True)

    async def publish() -> list[int | None]:
        async with link(broker.tls_port, scheme="mqtts", protocol=protocol, tls={"ca_file": broker.ca_file}) as made:
            answers = Answers(made)
            for number in range(200):
                await until(lambda: made.room)
                answers.publish(f"devices/{number}/req", b"%d" % number, qos)
            return await answers.all()

    with Client(broker.port) as client:
        client.subscribe("devices/#", 2)
        assert asyncio.run(publish()) == [0] * 200
        assert [int(client.receive().payload) for _ in range(200)] == list(range(200))
        assert client.messages.empty()


def test_mosquittos_rules_refuse(make_mosquitto: Callable[..., Mosquitto]) -> None:
    """Its 2.0.11 ends the connection behind a refusal of QoS 2, and looks for subscribers after its PUBREC."""
    broker = make_mosquitto(acl="topic readwrite devices/#\n")

    async def publish(qos: int) -> list[int | None]:
        async with link(broker.port) as made:
            answers = Answers(made)
            answers.publish("devices/a", qos=qos)
            answers.publish("other/a", qos=qos)
            return await answers.all()

    assert asyncio.run(publish(1)) == [0x10, 0x87]
    assert asyncio.run(publish(2)) in ([0, 0x87], [None, 0x87])


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_broker_that_disconnects_instead_has_denied_the_first_unanswered_message(qos: int) -> None:
    async with ScriptedBroker() as broker, link(broker.port) as made:
        answers = Answers(made)
        answers.publish(qos=qos)
        assert await answers.all() == [0x10]
        broker.rules.disconnects_publishers = 0x87
        for _ in range(3):
            answers.publish(qos=qos)
        assert await answers.all() == [0x10, DENIED, None, None]


async def test_of_3_1_1_a_message_above_the_brokers_limit_is_the_first_unanswered_one(
    make_mosquitto: Callable[..., Mosquitto],
) -> None:
    broker = make_mosquitto(config="max_packet_size 2000")
    async with link(broker.port, protocol="3.1.1") as made:
        answers = Answers(made)
        for size in (10, 200_000, 10):
            answers.publish(payload=bytes(size))
        assert await answers.all() == [0, CUT, None]


# --- what arrives ---


def test_all_properties_arrive(mosquitto: Mosquitto) -> None:
    message: dict[str, Any] = {
        "topic": "devices/ä/req/schalte", "payload": bytes(range(256)) * 300, "qos": 2, "expiry_s": 77,
        "content_type": "text/plän", "response_topic": "devices/ä/res", "correlation_data": b"\x00token\xff",
        "user": [("a", "1"), ("a", "2"), ("ü", ""), ("", "x")],
    }  # fmt: skip

    async def publish() -> int | None:
        async with link(mosquitto.port) as made:
            return await one_code(made, **message)

    with Client(mosquitto.port) as client:
        client.subscribe("devices/#", 2)
        assert asyncio.run(publish()) == 0
        found = client.receive()
    properties: Any = found.properties
    assert (found.topic, found.payload, found.qos, found.retain) == (message["topic"], message["payload"], 2, False)
    assert properties.MessageExpiryInterval in range(60, 78)
    assert properties.ContentType == message["content_type"]
    assert properties.ResponseTopic == message["response_topic"]
    assert properties.CorrelationData == message["correlation_data"]
    assert properties.UserProperty == message["user"]


async def test_3_1_1_has_no_properties() -> None:
    async with ScriptedBroker() as broker, link(broker.port, protocol="3.1.1") as made:
        await one_code(made, payload=b"on", expiry_s=5, user=[("a", "b")], correlation_data=b"t")
        assert broker.unrouted[0].payload == b"on"


# --- room ---


async def test_the_brokers_receive_maximum_bounds_what_is_under_way() -> None:
    async with ScriptedBroker(Rules(max_inflight=3, answers_publishers=False)) as broker, link(broker.port) as made:
        heard: list[int] = []
        made.watch(lambda: heard.append(made.room))
        answers = Answers(made)
        while made.room:
            answers.publish()
        assert (len(answers.codes), made.outstanding) == (3, 3)
        await until(lambda: len(links_of(broker).unanswered) == 3)
        links_of(broker).answer_publisher(1)
        await until(lambda: made.room == 1)
        assert heard[-1] == 1
        links_of(broker).answer_publisher(2)
        await answers.all()


async def test_of_qos_2_a_message_is_under_way_until_pubcomp() -> None:
    async with ScriptedBroker(Rules(max_inflight=2)) as broker, link(broker.port) as made:
        answers = Answers(made)
        for _ in range(50):
            await until(lambda: made.room)
            answers.publish(qos=2)
        assert await answers.all() == [0x10] * 50
        await until(lambda: made.room == 2)
        sent = [packet for packet in links_of(broker).log if packet.type is Type.PUBREL]
        assert len(sent) == 50


async def test_of_qos_2_what_has_no_pubcomp_is_unknown() -> None:
    """Its session ends with the connection: a broker may forget what it has no PUBREL of, as mosquitto does."""
    async with ScriptedBroker(Rules(answers_publishers=False)) as broker, link(broker.port) as made:
        answers = Answers(made)
        for _ in range(3):
            answers.publish(qos=2)
        there = links_of(broker)
        await until(lambda: len(there.unanswered) == 3)
        for packet in (b"\x50\x02\x00\x01", b"\x50\x03\x00\x02\x10", b"\x50\x02\x00\x03", b"\x70\x03\x00\x03\x92"):
            there.send(packet)
        # The broker answers the PUBRELs of the first two as well.
        assert await answers.all() == [0, 0x10, None]


async def test_a_message_above_the_brokers_limits_is_not_sent() -> None:
    """It would end the connection, each time that it is sent again."""
    rules = Rules(connack=connack(properties=b"\x27" + (100).to_bytes(4) + b"\x24\x01"))
    async with ScriptedBroker(rules) as broker, link(broker.port) as made:
        answers = Answers(made)
        with pytest.raises(ValueError, match="Maximum Packet Size"):
            answers.publish(payload=bytes(100))
        with pytest.raises(ValueError, match="its QoS is 2, and the broker takes 1 at most"):
            answers.publish(qos=2)
        answers.codes.clear()
        assert made.outstanding == 0
        assert await answers.code(answers.publish(payload=bytes(50))) == 0x10
        assert len(broker.unrouted) == 1


async def test_a_text_that_mqtt_does_not_allow_is_not_sent() -> None:
    async with ScriptedBroker() as broker, link(broker.port) as made:
        with pytest.raises(ValueError, match="65,535"):
            made.publish(Outgoing("a", b"", 1, user=[("x", "y" * 70_000)]), lambda _code: None)
        assert await one_code(made) == 0x10


async def test_of_qos_0_what_waits_for_a_broker_that_takes_nothing_is_bounded() -> None:
    reads_on = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(connack(properties=b""))
        await reads_on.wait()
        while await reader.read(1 << 20):
            pass

    async with played(play) as port, link(port) as made:
        heard: list[int] = []
        made.watch(lambda: heard.append(made.room))
        answers = Answers(made)
        while made.room:
            answers.publish(payload=bytes(1 << 16), qos=0)
            await asyncio.sleep(0)
            assert len(answers.codes) < 1000
        reads_on.set()
        await until(lambda: made.room, "there is room again")
        assert heard
        assert set(await answers.all()) == {0}


# --- breaks ---


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("how", ["cut", "disconnect", "restart"])
async def test_at_a_break_each_unanswered_message_is_unknown_once(how: str, qos: int) -> None:
    async with ScriptedBroker(Rules(answers_publishers=False)) as broker, link(broker.port) as made:
        told: list[bool] = []
        made.watch(lambda: told.append(made.connected_ns is not None))
        answers = Answers(made)
        for _ in range(5):
            answers.publish(qos=qos)
        await until(lambda: len(links_of(broker).unanswered) == 5)
        links_of(broker).answer_publisher(2)
        await until(lambda: made.outstanding == 3)
        assert len(links_of(broker).log) == (8 if qos == 2 else 6), "CONNECT, 5 PUBLISH, and of QoS 2 2 PUBREL"
        if how == "cut":
            links_of(broker).transport.abort()
        elif how == "disconnect":
            links_of(broker).end(0x8B)
        else:
            await broker.stop()
        assert await answers.all() == [0x10, 0x10, CUT, None, None]
        if how == "restart":
            assert made.room == 0
            await broker.start()
        await until(lambda: made.connected_ns, "it is back")
        assert told[-2:] == [False, True]
        broker.rules.answers_publishers = True
        assert await one_code(made, qos=qos) == 0x10


async def test_it_follows_a_redirection() -> None:
    async with ScriptedBroker() as here, ScriptedBroker() as there, link(here.port) as made:
        links_of(here).end(0x9C, server_reference(f"127.0.0.1:{there.port}"))
        await until(lambda: there.connects and made.connected_ns, "it is at the other one")
        assert await one_code(made) == 0x10
        assert there.unrouted


async def test_another_client_with_its_id_takes_over_and_it_says_so() -> None:
    async with ScriptedBroker() as broker, link(broker.port, reconnect_initial="5s", reconnect_max="5s") as made:

        def rival() -> None:
            with Client(broker.port, client_id=NAME):
                pass

        await asyncio.to_thread(rival)
        await until(lambda: made.problem)
        assert "taken over" in str(made.problem)


async def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    async with ScriptedBroker() as broker, link(broker.port) as made:
        for packet in (b"\x40\x02\x00\x09", b"\x50\x02\x00\x09", b"\x70\x02\x00\x09"):
            links_of(broker).send(packet)
        assert await one_code(made) == 0x10
        assert made.connected_ns is not None


@pytest.mark.parametrize("packet", [b"\x40\x01\x00", b"\x40\x00", b"\xf0\xff\xff\xff\xff\xff", b"\x00\x00"])
async def test_after_what_is_not_mqtt_it_connects_again(packet: bytes) -> None:
    async with ScriptedBroker() as broker, link(broker.port) as made:
        answers = Answers(made)
        broker.rules.answers_publishers = False
        answers.publish()
        await until(lambda: links_of(broker).unanswered)
        links_of(broker).send(packet)
        assert await answers.all() == [CUT]
        broker.rules.answers_publishers = True
        await until(lambda: len(broker.connects) == 2 and made.connected_ns, "it connects again")
        assert await one_code(made) == 0x10


@pytest.mark.parametrize("size", [1, 3])
async def test_answers_may_come_in_pieces(size: int) -> None:
    async with ScriptedBroker(Rules(answers_publishers=False)) as broker, link(broker.port) as made:
        answers = Answers(made)
        for _ in range(4):
            answers.publish()
        there = links_of(broker)
        await until(lambda: len(there.unanswered) == 4)
        data = b"".join(there.unanswered)
        for at in range(0, len(data), size):
            there.send(data[at : at + size])
            await asyncio.sleep(0.002)
        assert await answers.all() == [0x10] * 4


# --- silence, and the end ---


async def test_an_idle_link_pings_and_a_silent_broker_is_left() -> None:
    async with ScriptedBroker() as broker, link(broker.port, keepalive="3s") as made:
        await until(lambda: any(packet.type is Type.PINGREQ for packet in links_of(broker).log), "it pings")
        assert len(broker.connects) == 1
        first = made.connected_ns
        broker.rules.answers_pings = False
        await until(lambda: made.connected_ns != first, "it notices")
        broker.rules.answers_pings = True
        await until(lambda: made.connected_ns, "it comes back")


async def test_while_it_publishes_it_notices_a_broker_that_has_fallen_silent() -> None:
    async with ScriptedBroker() as broker, link(broker.port, keepalive="1s") as made:
        broker.rules.answers_pings = broker.rules.answers_publishers = False
        answers = Answers(made)
        first, end = made.connected_ns, time.monotonic() + 60
        while made.connected_ns == first:  # it may be back before the next look
            assert time.monotonic() < end, "it notices"
            if made.room:
                answers.publish()
            await asyncio.sleep(0.05)
        assert set(await answers.all()) == {CUT, None}


async def test_a_connection_that_is_given_up_is_followed_by_another() -> None:
    async with ScriptedBroker() as broker, link(broker.port) as made:
        broker.rules.answers_publishers = False
        answers = Answers(made)
        answers.publish()
        first = made.connected_ns
        made.give_up("it acknowledged nothing")
        assert await answers.all() == [CUT]
        await until(lambda: made.connected_ns not in {None, first}, "it has another")
        broker.rules.answers_publishers = True
        assert await one_code(made) is not None


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
async def test_a_listener_that_stays_silent_holds_nothing_up(scheme: str) -> None:
    accepted = 0

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await reader.read()

    async with played(silent) as port:
        async with link(port, scheme=scheme, wait=False, connect_timeout="1s") as made:
            await until(lambda: made.problem != "not connected yet", "it says so")
            assert made.room == 0
        before = accepted
        async with link(port, scheme=scheme, wait=False, connect_timeout="2m") as made:
            await until(lambda: accepted > before, "it waits for an answer")
            async with asyncio.timeout(60):
                await made.stop(time.monotonic_ns())


async def test_nobody_listens_and_it_says_so() -> None:
    async with ScriptedBroker() as broker:
        await broker.stop()
        async with link(broker.port, wait=False) as made:
            await until(lambda: made.problem != "not connected yet", "it says so")
            await broker.start()
            await until(lambda: made.connected_ns, "it is connected")
            assert made.problem is None


async def test_the_stop_waits_for_answers_and_then_says_goodbye() -> None:
    async with ScriptedBroker(Rules(answers_publishers=False)) as broker, link(broker.port) as made:
        answers = Answers(made)
        answers.publish()
        there = links_of(broker)
        await until(lambda: there.unanswered)
        stopping = asyncio.create_task(made.stop(time.monotonic_ns() + 60_000_000_000))
        await asyncio.sleep(0.05)
        assert not stopping.done()
        assert made.room == 0
        there.answer_publisher(1)
        await stopping
        assert await answers.all() == [0x10]
        await there.ended.wait()
        assert there.goodbye


async def test_the_stop_ends_at_its_deadline() -> None:
    async with ScriptedBroker(Rules(answers_publishers=False)) as broker, link(broker.port) as made:
        answers = Answers(made)
        answers.publish()
        async with asyncio.timeout(60):
            await made.stop(time.monotonic_ns() + 200_000_000)
        assert await answers.all() == [CUT]


@pytest.fixture(autouse=True)
def no_defects(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No error of the event loop's callbacks."""
    yield
    assert not [record for record in caplog.records if record.name == "asyncio" and record.levelname == "ERROR"]
