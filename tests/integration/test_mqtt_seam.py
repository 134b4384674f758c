"""The seam between paho and the bulk path over every transport, against two real brokers.

Each combination carries QoS 0, 1 and 2, small messages and some far larger than a TLS record or a WebSocket frame's
short forms, and every one must arrive whole, once and acknowledged.
"""

import asyncio
import contextlib
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from bridge.commands.ports import Outgoing
from config.settings import MqttSettings
from gateway.local.runtime.ports import reserve_ports
from gateway.mqtt.errors import MqttRefusedError
from gateway.mqtt.login import Login
from gateway.mqtt.publish_link import PublishLink
from gateway.mqtt.session import Session
from gateway.mqtt.stream import PacketStream
from tests.brokers.client import Client
from tests.brokers.data_path import MemoryPath, make_settings
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.proxy import ConnectProxy
from tests.brokers.scripted import ScriptedBroker
from tests.brokers.secured import SecuredMqtt
from tests.waiting import until

SIZES = [0, 1, 100, 126, 127, 5000, 17_000, 66_000, 300_000]
SCHEMES = ["mqtt", "mqtts", "ws", "wss"]
Broker = SecuredMqtt | Mosquitto


@pytest.fixture(scope="module")
def hivemq() -> Iterator[SecuredMqtt]:
    with SecuredMqtt(tls=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def mosquitto() -> Iterator[Mosquitto]:
    with Mosquitto(tls=True) as broker:
        yield broker


def at(broker: Broker, scheme: str = "mqtt") -> dict[str, Any]:
    """Settings of a connection to this listener."""
    ports = {"mqtt": broker.port, "ws": broker.websocket_port, "mqtts": broker.tls_port, "wss": broker.wss_port}
    tls = {"ca_file": broker.ca_file} if scheme in {"mqtts", "wss"} else {}
    return {"addresses": [f"{scheme}://127.0.0.1:{ports[scheme]}"], "tls": tls}


@contextlib.asynccontextmanager
async def session(name: str, *, start: bool = True, **mqtt: Any) -> AsyncIterator[tuple[MemoryPath, Session]]:
    """A session on the topics ``<name>/#``, in a group of its own."""
    fields = {"sessions": 1, "reconnect_initial": "20ms", "reconnect_max": "100ms", "share_group": name, **mqtt}
    route = {"name": "seam", "filters": [f"{name}/#"], "topic": "seam", "qos": 2}
    async with MemoryPath(make_settings(mqtt=fields, routes=[route])) as path:
        made = path.session(client_id=name)
        async with path.running(made, start=start):
            yield path, made


async def carry(path: MemoryPath, made: Session, publisher_port: int, name: str) -> None:
    """Publish messages of every size and QoS, and see that all arrive, once, whole and acknowledged."""
    expected = {}

    def publish() -> None:
        with Client(publisher_port) as client:
            for qos in (0, 1, 2):
                for size in SIZES:
                    topic = f"{name}/{qos}/{size}"
                    expected[topic.encode()] = bytes((size + n) % 251 for n in range(size))
                    client.publish(topic, expected[topic.encode()], qos)
                for number in range(100):
                    topic = f"{name}/{qos}/number/{number}"
                    expected[topic.encode()] = b"%d" % number
                    client.publish(topic, b"%d" % number, qos)

    await asyncio.to_thread(publish)
    await until(lambda: len(path.log) >= len(expected), f"{len(expected)} messages")
    await until(lambda: made.unacked == 0, "everything is acknowledged")
    found = {stored.record.key: stored.record.value for stored in path.log}
    assert found == expected
    assert Counter(stored.record.key for stored in path.log).most_common(1)[0][1] == 1
    path.check()


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["hivemq", "mosquitto"])
async def test_every_transport_carries_every_quality(
    kind: str, scheme: str, protocol: str, unique: str, request: pytest.FixtureRequest
) -> None:
    broker: Broker = request.getfixturevalue(kind)
    async with session(unique, **at(broker, scheme), protocol=protocol) as (path, made):
        await carry(path, made, broker.port, unique)
        shown = made.server_certificate
        assert (shown is not None and shown.ends_s > time.time()) if scheme in {"mqtts", "wss"} else shown is None


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["hivemq", "mosquitto"])
async def test_a_link_s_messages_go_over_every_transport(
    kind: str, scheme: str, unique: str, request: pytest.FixtureRequest
) -> None:
    """Of every size, as the canary publishes: each is acknowledged, and arrives at a session as it was."""
    broker: Broker = request.getfixturevalue(kind)
    settings = MqttSettings.model_validate(at(broker, scheme))
    async with session(unique, **at(broker)) as (path, _):
        link = PublishLink(settings, f"{unique}-canary", Login(settings))
        await link.start()
        try:
            await until(lambda: link.room >= len(SIZES), "it is connected")
            values = {f"{unique}/{size}".encode(): bytes(size % 251 for _ in range(size)) for size in SIZES}
            codes: list[int | None] = []
            for key, value in values.items():
                link.publish(Outgoing(key.decode(), value, 1), codes.append)
            await until(lambda: len(codes) == len(SIZES), "all are acknowledged")
            assert set(codes) == {0}
        finally:
            await link.stop(0)
        await until(lambda: len(path.log) >= len(SIZES), "all have arrived")
        assert {stored.record.key: stored.record.value for stored in path.log} == values


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_burst_is_read_at_once_whatever_frames_it_came_in(
    scheme: str, protocol: str, unique: str, mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers put every packet into a frame of its own: read a frame a tick, 2,000 would take ten seconds."""
    sizes: list[int] = []
    read = PacketStream.read

    def noted(stream: PacketStream) -> bytes | None:
        data = read(stream)
        sizes.append(len(data or b""))
        return data

    monkeypatch.setattr(PacketStream, "read", noted)
    async with session(unique, **at(mosquitto, scheme), protocol=protocol) as (path, _):
        with Client(mosquitto.port) as client:  # nobody reads before the broker has them all
            for number in range(2000):
                info = client.paho.publish(f"{unique}/{number % 7}", b"%d" % number, 1)
            info.wait_for_publish(60)
        await until(lambda: len(path.log) == 2000, "2,000 messages")
    assert max(sizes) > 20 * (len(unique) + 20), "a read takes many packets"


# --- proxy and IPv6 ---


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_through_an_http_proxy(scheme: str, unique: str, mosquitto: Mosquitto) -> None:
    async with ConnectProxy(("gateway", "pass:word")) as proxy:
        where = at(mosquitto, scheme)
        settings = {"host": "127.0.0.1", "port": proxy.port, "username": "gateway", "password": "pass:word"}
        async with session(unique, **where, proxy=settings) as (path, made):
            await carry(path, made, mosquitto.port, unique)
        assert [f"{scheme}://{target}" for target in proxy.targets] == where["addresses"]


@pytest.mark.parametrize(("proxy", "words"), [
    (ConnectProxy(("gateway", "secret")), "407"),
    (ConnectProxy(refuse="403 Forbidden"), "403"),
    (ConnectProxy(refuse="502 Bad Gateway"), "502"),
], ids=["password", "forbidden", "broker not there"])  # fmt: skip
async def test_a_refusing_proxy_is_named(proxy: ConnectProxy, words: str, unique: str, mosquitto: Mosquitto) -> None:
    async with proxy:
        settings = {"host": "127.0.0.1", "port": proxy.port}
        text = await problem(unique, **at(mosquitto), proxy=settings)
        assert f"by way of the proxy 127.0.0.1:{proxy.port}" in text
        assert words in text
        assert "mqtt.proxy" in text


async def problem(name: str, **mqtt: Any) -> str:
    """What a session says that cannot connect, and goes on trying."""
    async with session(name, start=False, **mqtt) as (_, made):
        await until(lambda: made.problem not in (None, "not connected yet"), "a problem is said")
        assert made.problem is not None
        return made.problem


@pytest.fixture(scope="module")
def on_ipv6() -> Iterator[tuple[Mosquitto, int, int]]:
    """A mosquitto that listens on ::1 as well, its TCP and its WebSocket port there."""
    with contextlib.ExitStack() as stack:
        reservation = reserve_ports(2)
        stack.callback(reservation.release)
        plain, websocket = reservation.ports
        broker = Mosquitto(config=f"listener {plain} ::1\nlistener {websocket} ::1\nprotocol websockets")
        yield stack.enter_context(broker), plain, websocket


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
async def test_ipv6(scheme: str, unique: str, request: pytest.FixtureRequest) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
    broker, plain, websocket = request.getfixturevalue("on_ipv6")
    address = f"{scheme}://[::1]:{plain if scheme == 'mqtt' else websocket}"
    async with session(unique, addresses=[address]) as (path, made):
        await carry(path, made, broker.port, unique)


# --- TLS ---


async def test_a_certificate_of_an_unknown_authority_is_refused(
    unique: str, mosquitto: Mosquitto, hivemq: SecuredMqtt
) -> None:
    for tls in ({}, {"ca_file": hivemq.ca_file}):
        text = await problem(unique, **at(mosquitto, "mqtts") | {"tls": tls})
        assert "shows a certificate that is not trusted" in text
        assert "Check mqtt.tls.ca_file." in text


async def test_a_certificate_for_another_name_is_refused(unique: str, mosquitto: Mosquitto) -> None:
    where = at(mosquitto, "mqtts")
    where["tls"]["server_name"] = "broker.example"
    text = await problem(unique, **where)
    assert "broker.example" in text
    assert "mqtt.tls.server_name" in text


async def test_verification_can_be_switched_off(unique: str, mosquitto: Mosquitto) -> None:
    async with session(unique, **at(mosquitto, "mqtts") | {"tls": {"verify": False}}) as (path, made):
        await carry(path, made, mosquitto.port, unique)


@pytest.mark.parametrize(("scheme", "port", "words"), [
    ("mqtt", "tls_port", "listener"), ("ws", "wss_port", "listener"),
    ("mqtts", "port", "TLS|listener for mqtts"), ("wss", "websocket_port", "TLS|listener for wss"),
    ("ws", "port", r"mqtt\.websocket_path \(/mqtt\)"),
])  # fmt: skip
async def test_a_port_for_another_transport_is_explained(
    scheme: str, port: str, words: str, unique: str, mosquitto: Mosquitto
) -> None:
    text = await problem(unique, addresses=[f"{scheme}://127.0.0.1:{getattr(mosquitto, port)}"])
    assert re.search(words, text), text


async def test_a_wrong_websocket_path_is_explained(unique: str, hivemq: SecuredMqtt) -> None:
    address = f"ws://127.0.0.1:{hivemq.websocket_port}"
    text = await problem(unique, addresses=[address], websocket_path="/elsewhere", connect_timeout="2s")
    assert "mqtt.websocket_path (/elsewhere)" in text


async def test_a_client_certificate_is_shown_when_it_is_asked_for(
    unique: str, make_mosquitto: Callable[..., Mosquitto]
) -> None:
    broker = await asyncio.to_thread(make_mosquitto, tls=True, require_certificate=True)
    where, files = at(broker, "mqtts"), broker.certificates
    shown = {**where["tls"], "certificate_file": files.client_certificate, "key_file": files.client_key}
    async with session(unique, **where | {"tls": shown}) as (path, made):
        await carry(path, made, broker.port, unique)
    text = await problem(unique, **where)
    assert "client certificate" in text


async def test_the_server_name_is_sent_and_the_oldest_version_held_to(unique: str, mosquitto: Mosquitto) -> None:
    """SNI would otherwise be the address: behind one port there may be several brokers."""
    asked = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(mosquitto.certificates.server_certificate, mosquitto.certificates.server_key)
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with ScriptedBroker(tls=context) as broker:
        address = f"mqtts://127.0.0.1:{broker.port}"
        tls: dict[str, Any] = {"ca_file": mosquitto.ca_file, "server_name": "localhost"}
        async with session(unique, addresses=[address], tls=tls):
            assert asked == ["localhost"]
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        async with session(unique, addresses=[address], tls=tls):
            pass
        text = await problem(unique, addresses=[address], tls={**tls, "minimum_version": "1.3"})
        assert ": TLS: " in text


# --- users ---


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_users_of_real_brokers(protocol: str, unique: str, make_mosquitto: Callable[..., Mosquitto]) -> None:
    broker = await asyncio.to_thread(
        make_mosquitto, users={"gateway": "right"}, acl=f"user gateway\ntopic read {unique}/#\n"
    )
    fields = {"addresses": [f"mqtt://127.0.0.1:{broker.port}"], "protocol": protocol, "username": "gateway"}
    async with session(unique, password="right", **fields):
        pass
    async with session(unique, start=False, password="wrong", **fields) as (_, made):
        with pytest.raises(MqttRefusedError, match=r"not authorised|bad user name or password"):
            await made.start()


@pytest.mark.parametrize(
    ("kind", "label"),
    [("hivemq", "taken_over"), pytest.param("mosquitto", "closed", id="mosquitto 2.0.11 says nothing")],
)
async def test_a_session_taken_from_us_at_a_real_broker_is_taken_back(
    kind: str, label: str, unique: str, request: pytest.FixtureRequest
) -> None:
    broker: Broker = request.getfixturevalue(kind)
    async with session(unique, **at(broker)) as (path, made):
        thief = await asyncio.to_thread(Client, broker.port, client_id=unique, clean=False)
        try:
            await until(lambda: path.metrics.mqtt_disconnects.child(label).value == 1, "it is told why")
            await until(lambda: made.subscribed, "it takes its session back")
        finally:
            await asyncio.to_thread(thief.close)


@pytest.mark.parametrize("kind", ["hivemq", "mosquitto"])
async def test_a_real_broker_delivers_what_came_while_we_were_away(
    kind: str, unique: str, request: pytest.FixtureRequest
) -> None:
    """The session is found again by its client id, and everything in it comes, over two processes' lives."""
    broker: Broker = request.getfixturevalue(kind)

    def publish(numbers: range) -> None:
        with Client(broker.port) as client:
            for number in numbers:
                client.publish(f"{unique}/x", b"%d" % number, 1)

    async with session(unique, **at(broker)) as (path, _):
        await asyncio.to_thread(publish, range(20))
        await until(lambda: len(path.log) == 20, "twenty")
    await asyncio.to_thread(publish, range(20, 60))
    async with session(unique, **at(broker)) as (path, _):
        await until(lambda: len(path.log) >= 40, "what came meanwhile")
        assert path.values == [b"%d" % number for number in range(20, 60)]
        assert path.metrics.mqtt_session_present.child("0").value == 1


@pytest.mark.parametrize("kind", ["hivemq", "mosquitto"])
async def test_a_real_brokers_retain_flag_arrives(kind: str, unique: str, request: pytest.FixtureRequest) -> None:
    """Kept messages come with it, and so do live ones published with it (Retain As Published); plain ones do not."""
    broker: Broker = request.getfixturevalue(kind)

    def publish(payload: bytes, *, retain: bool) -> None:
        with Client(broker.port) as client:
            client.publish(f"{unique}/{payload.decode()}", payload, 1, retain=retain)

    await asyncio.to_thread(publish, b"kept", retain=True)
    async with session(unique, **at(broker), distribution="partitioned") as (path, _):
        await until(lambda: path.values == [b"kept"], "the kept one")
        await asyncio.to_thread(publish, b"live", retain=True)
        await asyncio.to_thread(publish, b"plain", retain=False)
        await until(lambda: len(path.log) == 3, "all three")
        flags = {stored.record.value: dict(stored.record.headers).get("mqtt.retain") for stored in path.log}
        assert flags == {b"kept": b"1", b"live": b"1", b"plain": None}


# --- windows ---


async def test_a_window_that_is_not_meant_is_given_up(unique: str, make_mosquitto: Callable[..., Mosquitto]) -> None:
    """mosquitto's CONNACK names its max_inflight_messages (20), and it sends as many as we ask for: "300 of 20"."""
    mosquitto = make_mosquitto(config="max_inflight_messages 20\n")
    address = f"mqtt://127.0.0.1:{mosquitto.port}"
    async with session(unique, addresses=[address], receive_maximum=300) as (path, made):
        assert made.window == 20
        path.producer.holding = True

        def publish() -> None:
            with Client(mosquitto.port) as client:
                for number in range(500):
                    client.publish(f"{unique}/a", b"%d" % number, 1)

        await asyncio.to_thread(publish)
        await until(lambda: made.unacked == 300, "the window that we asked for is full")
        assert made.window == 300
        assert path.metrics.mqtt_receive_window.child(made.plan.name).value == 300
        path.producer.release()
        await until(lambda: len(path.log) == 500, "all 500")
        assert made.window == 300
