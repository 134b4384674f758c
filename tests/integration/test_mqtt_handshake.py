"""CONNECT and SUBSCRIBE: what we ask for, and what we say when a broker refuses; on one that refuses by script."""

import asyncio
import base64
import contextlib
import gc
import hashlib
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from config.errors import ExitStatus
from gateway.base.metrics import CONNECT_FAILURES
from gateway.mqtt.client import Handshake
from gateway.mqtt.errors import ConnectError, MqttRefusedError
from gateway.mqtt.session import Session
from tests.brokers import packets
from tests.brokers.data_path import MemoryPath, settings_for
from tests.brokers.scripted import ScriptedBroker
from tests.brokers.scripted_rules import Rules
from tests.servers.playing import played
from tests.waiting import until


@contextlib.asynccontextmanager
async def session(
    broker: ScriptedBroker, *, status_topic: str | None = None, routes: list[Any] | None = None, **mqtt: Any
) -> AsyncIterator[tuple[MemoryPath, Session]]:
    """A session of ours, not started, with a path of its own; stopped at the end."""
    tables: dict[str, Any] = {"routes": routes} if routes else {}
    async with MemoryPath(settings_for(broker, mqtt=mqtt, **tables)) as path:
        made = path.session(client_id="gateway-0-0", status_topic=status_topic)
        try:
            yield path, made
        finally:
            await made.stop(time.monotonic_ns() + 5_000_000_000)
        assert not path.defects, path.defects


async def refusal(broker: ScriptedBroker, **mqtt: Any) -> ConnectError:
    """Why the start ends."""
    async with session(broker, **mqtt) as (_, made):
        with pytest.raises(ConnectError) as caught:
            await asyncio.wait_for(made.start(), 60)
        return caught.value


async def problem(broker: ScriptedBroker, words: str = "", **mqtt: Any) -> str:
    """What a session says that goes on trying, once these words are in it."""
    async with session(broker, **mqtt) as (path, made):
        starting = asyncio.create_task(made.start())
        try:
            await until(lambda: made.problem not in (None, "not connected yet") and words in made.problem, "it is said")
            said = made.problem
            assert not starting.done(), "it goes on trying"
            await until(lambda: len(broker.connects) >= 2 or not broker.rules.answers_connect, "it tries again")
        finally:
            starting.cancel()
        assert said is not None
        assert sum(path.metrics.mqtt_connect_failures.child(label).value for label in CONNECT_FAILURES) >= 1
        return said


# --- what we ask for ---


async def test_a_persistent_session_asks_to_be_kept() -> None:
    async with ScriptedBroker() as broker, session(broker, session_expiry="90s") as (_, made):
        await made.start()
        (connect,) = broker.connects
        assert connect.client_id == "gateway-0-0"
        assert connect.v5
        assert not connect.clean, "paho cleans the session on a client's first connect unless told so"
        assert connect.expiry == 90
        assert connect.receive_maximum == 1000
        assert connect.keepalive == 30
        assert connect.username is None


async def test_a_session_that_is_not_persistent_is_not_kept() -> None:
    async with ScriptedBroker() as broker, session(broker, persistent=False) as (_, made):
        await made.start()
        (connect,) = broker.connects
        assert connect.clean
        assert connect.expiry == 0


@pytest.mark.parametrize("persistent", [True, False])
async def test_in_3_1_1_the_clean_flag_says_it(persistent: bool) -> None:
    async with ScriptedBroker() as broker, session(broker, protocol="3.1.1", persistent=persistent) as (_, made):
        await made.start()
        (connect,) = broker.connects
        assert not connect.v5
        assert connect.clean is not persistent


async def test_the_subscription_is_shared_and_keeps_the_retain_flag() -> None:
    routes = [
        {"name": "a", "filters": ["devices/+/up"], "topic": "telemetry", "qos": 1},
        {"name": "b", "filters": ["alarms/#"], "topic": "telemetry", "qos": 2},
    ]
    async with ScriptedBroker() as broker, session(broker, routes=routes, share_group="fleet") as (_, made):
        await made.start()
        (request,) = broker.subscribes
        asked = dict(request.filters)
        assert asked.keys() == {"$share/fleet/devices/+/up", "$share/fleet/alarms/#"}
        for text, options in asked.items():
            assert options & 3 == (2 if "alarms" in text else 1)
            assert options & 8, "Retain As Published, or the retain flag is lost"


async def test_the_subscription_is_plain_where_each_session_has_filters_of_its_own() -> None:
    async with ScriptedBroker() as broker, session(broker, distribution="partitioned") as (_, made):
        await made.start()
        ((text, options),) = broker.subscribes[0].filters
        assert text == "devices/#"
        assert options >> 4 & 3 == 1, "retained messages for a new subscription only: each reconnect would repeat them"


async def test_the_window_is_what_the_broker_says_of_it() -> None:
    async with ScriptedBroker(Rules(max_inflight=17)) as broker, session(broker) as (path, made):
        await made.start()
        assert path.metrics.mqtt_receive_window.child("0").value == 17


# --- refused at CONNECT ---

REFUSALS = {
    0x86: ("bad user name or password", "mqtt.username ('somebody') and mqtt.password"),
    0x87: ("not authorised", "mqtt.username ('somebody') and mqtt.password"),
    0x85: ("client identifier not valid", "gateway-0-0"),
    0x84: ("unsupported protocol version", "gateway-0-0"),
    0x95: ("packet too large", "gateway-0-0"),
    0x9A: ("retain not supported", "mqtt.status.enabled = false"),
}


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_refused_connect_names_the_reason_and_what_to_check(code: int) -> None:
    async with ScriptedBroker(Rules(refuse_connect=code)) as broker:
        error = await refusal(broker, username="somebody", password="wrong-one")
        assert isinstance(error, MqttRefusedError)
        assert error.exit_status is ExitStatus.REFUSED
        for words in REFUSALS[code]:
            assert words in str(error)
        assert f"mqtt://127.0.0.1:{broker.port}" in str(error)
        assert "wrong-one" not in str(error)


@pytest.mark.parametrize(
    ("code", "words"), [(2, "client identifier not valid"), (4, "bad user name or password"), (5, "not authorised")]
)
async def test_a_refused_3_1_1_connect_is_said_in_the_same_words(code: int, words: str) -> None:
    """And does not send paho into a blocking reconnect."""
    async with ScriptedBroker(Rules(refuse_connect=code)) as broker:
        error = await refusal(broker, protocol="3.1.1", username="somebody")
        assert isinstance(error, MqttRefusedError)
        assert words in str(error)
        assert len(broker.connects) == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [(0x88, "server unavailable"), (0x89, "server busy"), (0x9F, "rate"), (0x8A, "the broker's list of bans")],
)
async def test_a_broker_that_says_no_for_now_is_asked_again(code: int, words: str) -> None:
    async with ScriptedBroker(Rules(refuse_connect=code)) as broker:
        assert words in await problem(broker)


async def test_a_broker_that_refuses_the_protocol_version_in_3_1_1_is_explained() -> None:
    async with ScriptedBroker(Rules(refuse_connect=1)) as broker:
        assert "mqtt.protocol" in await problem(broker, protocol="3.1.1")


async def test_a_broker_that_only_knows_3_1_1_is_explained() -> None:
    """It answers an MQTT 5 CONNECT with a 3.1.1 CONNACK: return code 1."""
    async with ScriptedBroker(Rules(connack=packets.connack(1))) as broker:
        assert "unsupported protocol version" in str(await refusal(broker))


async def test_durable_sessions_of_emqx_that_take_no_shared_subscription_are_explained() -> None:
    """The open-source EMQX says so in SUBACK alone: its CONNACK promises shared subscriptions."""
    rules = Rules(suback=lambda request: packets.suback(request.packet_id, b"\x9e", v5=True))
    async with ScriptedBroker(rules) as broker:
        error = await refusal(broker)
        assert "shared subscriptions not supported (0x9E)" in str(error)
        assert 'mqtt.distribution = "partitioned"' in str(error)
        assert "durable_sessions" in str(error)


async def test_a_broker_without_shared_subscriptions_is_refused_with_the_way_out() -> None:
    async with ScriptedBroker(Rules(shared=False)) as broker:
        error = await refusal(broker)
        assert "shared subscriptions" in str(error)
        assert 'mqtt.distribution = "partitioned"' in str(error)
        assert error.exit_status is ExitStatus.REFUSED


async def test_a_broker_without_shared_subscriptions_is_fine_when_none_is_asked_for() -> None:
    async with ScriptedBroker(Rules(shared=False)) as broker, session(broker, distribution="partitioned") as (_, made):
        await asyncio.wait_for(made.start(), 60)


# --- refused at SUBSCRIBE ---


@pytest.mark.parametrize(
    ("code", "words"),
    [(0x87, "not authorised"), (0x9E, "shared subscriptions not supported"), (0x8F, "topic filter invalid")],
)
async def test_a_refused_subscription_names_filter_and_reason(code: int, words: str) -> None:
    async with ScriptedBroker(Rules(refuse_subscribe=code)) as broker:
        error = await refusal(broker)
        assert f"$share/gateway/devices/# ({words}" in str(error)
        assert error.exit_status is ExitStatus.REFUSED


async def test_a_refused_subscription_in_3_1_1_names_the_filter() -> None:
    async with ScriptedBroker(Rules(refuse_subscribe=0x80)) as broker:
        assert "$share/gateway/devices/#" in str(await refusal(broker, protocol="3.1.1"))


async def test_one_refused_filter_among_several_is_named_alone() -> None:
    routes = [{"name": n, "filters": [f"{n}/#"], "topic": "telemetry"} for n in ("good", "bad")]

    def suback(request: packets.Subscribe) -> bytes:
        codes = bytes(0x87 if "bad" in text else 1 for text, _ in request.filters)
        return packets.suback(request.packet_id, codes, v5=True)

    async with ScriptedBroker(Rules(suback=suback)) as broker:
        text = str(await refusal(broker, routes=routes))
        assert "$share/gateway/bad/# (not authorised (0x87))" in text
        assert "good/#" not in text


async def test_a_suback_with_too_few_codes_is_no_consent() -> None:
    async with ScriptedBroker(Rules(suback=lambda r: packets.suback(r.packet_id, b"", v5=True))) as broker:
        assert "0 reason codes" in await problem(broker)


async def test_a_lower_qos_than_asked_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The guarantee is gone then; but it may be what somebody wants."""
    async with ScriptedBroker(Rules(max_qos=0)) as broker, session(broker) as (_, made):
        await made.start()
    assert re.search(r"mqtt_qos_lowered.*\$share/gateway/devices/# \(QoS 0\)", "".join(capsys.readouterr()))


# --- no answer, or none that makes sense ---


async def test_a_broker_that_never_answers_connect_is_given_up_in_time() -> None:
    async with ScriptedBroker(Rules(answers_connect=False)) as broker:
        began = time.monotonic()
        await problem(broker, "did not answer our CONNECT within mqtt.connect_timeout", connect_timeout="300ms")
        assert time.monotonic() - began < 9


async def test_a_broker_that_never_answers_subscribe_is_given_up_in_time() -> None:
    async with ScriptedBroker(Rules(answers_subscribe=False)) as broker:
        await problem(broker, "did not answer our SUBSCRIBE", connect_timeout="300ms")


async def connecting_threads_end() -> None:
    await until(lambda: "mqtt-connect" not in {thread.name for thread in threading.enumerate()}, "the threads end")


async def test_a_tls_port_that_never_speaks_is_given_up_in_time() -> None:
    """The handshake blocks in a thread, for which the whole time-out holds as well."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with ScriptedBroker(Rules(answers_connect=False)) as broker:
            began = time.monotonic()
            address = f"mqtts://127.0.0.1:{listening.getsockname()[1]}"
            assert "mqtt.connect_timeout" in await problem(broker, addresses=[address], connect_timeout="300ms")
            assert time.monotonic() - began < 9
            await connecting_threads_end()


async def test_a_websocket_that_answers_a_byte_at_a_time_is_given_up_in_time() -> None:
    """Each byte renews paho's own time-out."""

    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with played(drip) as port, ScriptedBroker() as broker:
        broker.rules.answers_connect = False  # only so that `problem` does not wait for a second CONNECT
        began = time.monotonic()
        text = await problem(broker, addresses=[f"ws://127.0.0.1:{port}"], connect_timeout="300ms")
        assert "mqtt.connect_timeout" in text
        assert time.monotonic() - began < 9
        await connecting_threads_end()


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"\x15\x03\x01\x00\x02\x02\x16", b"\x20\x01\x00"],
    ids=["HTTP", "SSH", "TLS", "half a CONNACK"],
)
async def test_a_port_that_speaks_something_else_is_explained(answer: bytes) -> None:
    async with ScriptedBroker(Rules(connack=answer)) as broker:
        text = await problem(broker)
        assert f"mqtt://127.0.0.1:{broker.port}" in text
        assert re.search("listener|Is it an MQTT broker", text), text


async def test_a_connection_that_is_closed_at_once_is_explained() -> None:
    async def slam(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with played(slam) as port, ScriptedBroker(Rules(answers_connect=False)) as broker:
        text = await problem(broker, addresses=[f"mqtt://127.0.0.1:{port}"])
        assert re.search("closed|ended|reset", text), text


async def test_a_dead_port_is_explained_and_tried_again(free_ports: Any) -> None:
    (port,) = free_ports(1)
    async with ScriptedBroker(Rules(answers_connect=False)) as broker:
        text = await problem(broker, addresses=[f"mqtt://127.0.0.1:{port}"])
        assert text == f"mqtt://127.0.0.1:{port} refused the connection. Is the broker running, and is this its port?"


@pytest.mark.parametrize("silent", ["answers_connect", "answers_subscribe"])
async def test_a_stop_while_the_broker_does_not_answer_is_immediate(silent: str) -> None:
    async with ScriptedBroker(Rules(**{silent: False})) as broker, MemoryPath(settings_for(broker)) as path:
        made = path.session(client_id="x")
        starting = asyncio.create_task(made.start())
        await until(lambda: broker.connects if silent == "answers_connect" else broker.subscribes, "it asks")
        began = time.monotonic()
        await made.stop(time.monotonic_ns() + 10**10)
        starting.cancel()
        assert time.monotonic() - began < 9
        await until(lambda: not broker.links, "the connection is closed")


# --- the seam's own duty ---


async def test_what_follows_suback_in_the_same_segment_is_taken() -> None:
    """A broker with a session sends its queue right behind CONNACK and SUBACK; paho must not swallow any of it."""
    after = b"".join(packets.publish("devices/1", b"%d" % n, properties=b"") for n in range(50))
    async with ScriptedBroker(Rules(after_suback=after)) as broker, session(broker) as (path, made):
        await made.start()
        await until(lambda: len(path.log) == 50, "all fifty")
        assert path.values == [b"%d" % n for n in range(50)]
        path.check()


async def test_a_refusal_that_comes_just_as_a_session_stops_is_not_logged_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    refused = Handshake._refusal

    async def stopped() -> None:
        async with ScriptedBroker(Rules(refuse_connect=0x88)) as broker, session(broker) as (_, made):
            starting = asyncio.create_task(made.start())

            def stop_too(*arguments: Any) -> ConnectError:
                assert made._task is not None
                made._task.cancel()
                return refused(*arguments)

            monkeypatch.setattr(Handshake, "_refusal", stop_too)
            await until(lambda: made._task is not None and made._task.cancelled(), "it has ended")
            starting.cancel()

    await stopped()
    monkeypatch.undo()  # the last that refers to the session
    gc.collect()
    assert not complaints


async def test_a_websocket_server_that_pings_is_answered_with_a_mask() -> None:
    """RFC 6455 section 5.1: it must close for a frame without one."""
    answered = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = re.search(rb"Sec-WebSocket-Key: (\S+)", await reader.readuntil(b"\r\n\r\n"))
        assert found is not None
        accept = base64.b64encode(hashlib.sha1(found[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n" % accept
        writer.write(head + b"\x89\x01x")
        while (start := await reader.readexactly(6))[0] != 0x8A:  # CONNECT's frame
            await reader.readexactly(start[1] & 0x7F)
        if start[1] == 0x81 and (await reader.readexactly(1))[0] ^ start[2] == ord("x"):
            answered.set()
        await reader.read()

    async with played(play) as port, MemoryPath(settings_for(mqtt={"addresses": [f"ws://127.0.0.1:{port}"]})) as path:
        made = path.session(client_id="gateway-0-0")
        async with path.running(made, start=False):
            await asyncio.wait_for(answered.wait(), 60)


async def test_a_websocket_answer_that_paho_cannot_read_is_tried_again() -> None:
    """HTTP allows a header without a space behind its colon; paho raises IndexError for it."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept:x\r\n\r\n")

    async with played(play) as port, MemoryPath(settings_for(mqtt={"addresses": [f"ws://127.0.0.1:{port}"]})) as path:
        made = path.session(client_id="gateway-0-0")
        async with path.running(made, start=False):
            await until(lambda: "WebSocket handshake error" in (made.problem or ""), "it is said")
