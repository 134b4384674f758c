"""A session over many connections, on a broker with EMQX's rules: what comes back, what is lost, who is told."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.base.lifecycle import StopVerb
from gateway.mqtt.errors import MqttRefusedError
from gateway.mqtt.reasons import SHORT_LIVED
from gateway.mqtt.session import Session
from gateway.mqtt.session_state import SessionState
from tests.brokers import packets
from tests.brokers.client import Client
from tests.brokers.data_path import MemoryPath, one_session, settings_for
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.packets import Message, Type
from tests.brokers.raw import RawClient
from tests.brokers.scripted import ScriptedBroker, publish
from tests.brokers.scripted_rules import Rules
from tests.waiting import until


@contextlib.asynccontextmanager
async def running(
    *brokers: ScriptedBroker, clients: int = 1, status_topic: str | None = None, **tables: Any
) -> AsyncIterator[tuple[MemoryPath, list[Session]]]:
    """Started sessions ``gateway-0-<n>`` on one path; stopped at the end, the account checked."""
    tables["mqtt"] = {"sessions": clients, **tables.get("mqtt", {})}
    async with MemoryPath(settings_for(*brokers, **tables)) as path:
        sessions = [
            path.session(n, client_id=f"gateway-0-{n}", status_topic=status_topic if n == 0 else None)
            for n in range(clients)
        ]
        async with path.running(*sessions):
            yield path, sessions


async def stop(path: MemoryPath, sessions: list[Session], verb: StopVerb = StopVerb.RESTART) -> None:
    path.verb = verb
    deadline_ns = time.monotonic_ns() + 10_000_000_000
    await asyncio.gather(*(session.stop(deadline_ns) for session in sessions))


def missing(path: MemoryPath, count: int) -> list[int]:
    found = {int(value or b"") for value in path.values}
    return [number for number in range(count) if number not in found]


# --- connections that end ---


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_broken_connection_is_made_again_and_loses_nothing(qos: int) -> None:
    routes = [{"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry", "qos": 2}]
    async with ScriptedBroker() as broker, running(broker, routes=routes) as (path, _):
        for start in range(0, 600, 100):
            publish(broker, range(start, start + 100), qos=qos)
            await asyncio.sleep(0)
            connects = broker.session("gateway-0-0").connects
            broker.link("gateway-0-0").transport.abort()
            await until(lambda n=connects: broker.session("gateway-0-0").connects > n, "it comes back")
        await until(lambda: not missing(path, 600), "all 600")
        await until(lambda: not broker.session("gateway-0-0").flying, "all acknowledged")
        assert broker.session("gateway-0-0").connects == 7
        if qos == 2:
            assert Counter(path.values).most_common(1)[0][1] == 1, "QoS 2 ids survive the reconnect: no copies"
        path.check()


async def test_subscriptions_are_sent_again_also_to_a_session_that_is_present() -> None:
    """The broker may have lost them, and the settings may have changed."""
    async with ScriptedBroker() as broker, running(broker):
        broker.session("gateway-0-0").filters.clear()
        broker.groups.clear()
        broker.link("gateway-0-0").transport.abort()
        await until(lambda: len(broker.subscribes) == 2, "a second SUBSCRIBE")
        assert broker.session("gateway-0-0").filters.keys() == {"$share/gateway/devices/#"}


@pytest.mark.parametrize(("protocol", "filters", "asked"), [("5", 2, 2), ("5", 1, 1), ("3.1.1", 2, 1)])
async def test_several_shared_filters_are_asked_for_twice_on_a_connection(
    protocol: str, filters: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HiveMQ CE may send a member nothing until its second SUBSCRIBE; in 3.1.1 that would bring retained messages."""
    monkeypatch.setattr("gateway.mqtt.session.REPEAT_S", 0.0)
    texts = ["devices/+", "alarms/+"][:filters]
    routes = [{"name": "telemetry", "filters": texts, "topic": "telemetry"}]
    rules, mqtt = Rules(forgets_members=asked == 2), {"protocol": protocol}
    async with ScriptedBroker(rules) as broker, running(broker, mqtt=mqtt, routes=routes) as (path, _):
        publish(broker, range(5))
        await until(lambda: not missing(path, 5), "all five")
        broker.link("gateway-0-0").transport.abort()
        await until(lambda: broker.session("gateway-0-0").connects == 2, "it comes back")
        publish(broker, range(5, 10))
        await until(lambda: not missing(path, 10), "all ten")
        wanted = {f"$share/gateway/{text}" for text in texts}
        assert [{text for text, _ in request.filters} for request in broker.subscribes] == [wanted] * 2 * asked


async def test_suback_behind_a_window_of_messages_is_waited_for_as_long_as_something_comes() -> None:
    """A resumed session is sent what it held before SUBACK: to cut it then is to begin again for ever."""
    async with ScriptedBroker() as broker, running(broker, mqtt={"connect_timeout": "4s"}) as (path, (session,)):
        broker.rules.answers_subscribe = False
        broker.link("gateway-0-0").transport.abort()
        await until(lambda: len(broker.subscribes) == 2, "a second SUBSCRIBE")
        connects = broker.session("gateway-0-0").connects
        for number in range(25):  # for longer than the time-out
            publish(broker, range(number, number + 1))
            await asyncio.sleep(0.2)
        assert broker.session("gateway-0-0").connects == connects
        assert not session.subscribed
        assert session.awaits_suback
        suback = packets.suback(broker.subscribes[-1].packet_id, b"\1", v5=True)
        broker.link("gateway-0-0").send(suback)
        await until(lambda: session.subscribed, "SUBACK is there")
        assert not session.awaits_suback
        assert not missing(path, 25)
        broker.rules.answers_subscribe = True


async def test_an_overrun_of_the_window_is_shown_for_a_quarter_of_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedBroker() as broker, running(broker, mqtt={"receive_maximum": 5}) as (path, (session,)):
        path.producer.holding = True
        publish(broker, range(5))
        await until(lambda: session.unacked == 5, "a full window")
        assert session.overrun == 0
        monkeypatch.setattr(broker, "_window", lambda *_: 100)
        publish(broker, range(5, 6))
        await until(lambda: session.overrun == 6, "one too many")
        path.producer.release()
        await until(lambda: not missing(path, 6), "all of them")
        assert session.overrun == 6
        monkeypatch.setattr("gateway.mqtt.session.OVERRUN_SHOWN_NS", 0)
        assert session.overrun == 0


async def test_after_a_time_of_silence_suback_is_waited_for_no_longer() -> None:
    async with ScriptedBroker() as broker, running(broker, mqtt={"connect_timeout": "300ms"}) as (path, (session,)):
        broker.rules.answers_subscribe = False
        broker.link("gateway-0-0").transport.abort()
        await until(lambda: len(broker.subscribes) == 2, "a second SUBSCRIBE")
        publish(broker, range(5))
        await until(lambda: not missing(path, 5), "messages, and then nothing")
        await until(lambda: broker.session("gateway-0-0").connects >= 3, "it connects anew")
        broker.rules.answers_subscribe = True
        await until(lambda: session.subscribed, "it is subscribed")


async def test_qos_2_ids_are_forgotten_when_the_broker_has_lost_the_session() -> None:
    """Its ids begin anew: with the old set, new messages would pass for copies and be dropped."""
    routes = [{"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry", "qos": 2}]
    async with ScriptedBroker() as broker, running(broker, routes=routes) as (path, _):
        broker.rules.max_inflight = 5
        path.producer.holding = True
        publish(broker, range(5), qos=2)
        await until(lambda: path.ledger.received == 5, "five received, none answered")
        port = broker.port
        await broker.stop()
        await broker.start()
        assert broker.port == port
        await until(lambda: "gateway-0-0" in broker.sessions and broker.groups, "it is back")
        publish(broker, range(5, 10), qos=2)  # the same packet ids again
        await until(lambda: path.ledger.received == 10, "five more")
        path.producer.release()
        await until(lambda: not missing(path, 10), "all ten")
        await until(lambda: not broker.session("gateway-0-0").flying, "all exchanges completed")


async def test_a_mosquitto_that_is_killed_and_comes_back_from_its_snapshot_loses_none_of_its_new_messages(
    make_mosquitto: Callable[..., Mosquitto],
) -> None:
    """The session is present, its packet ids begin again, and the old exchanges are unfinished here."""
    broker = make_mosquitto(persistence=True)
    routes = [{"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry", "qos": 2}]
    async with one_session(broker, routes=routes) as (path, session):
        broker.save()
        path.producer.holding = True
        await asyncio.to_thread(_publish, broker, range(50))
        await until(lambda: path.ledger.received == 50, "50 received, none answered")
        broker.kill()
        await until(lambda: not session.subscribed, "the end is noticed")
        broker.start()
        await until(lambda: session.subscribed, "it is back")
        assert path.metrics.mqtt_session_present.child("0").value == 1
        await asyncio.to_thread(_publish, broker, range(50, 100))
        await until(lambda: path.ledger.received == 100, "50 new ones with the same ids")
        path.producer.release()
        await until(lambda: not missing(path, 100), "all 100 in Kafka")
        await until(lambda: path.ledger.in_flight() == 0, "everything is acknowledged")
        assert (path.ledger.copies, path.ledger.filtered) == (0, 0)


def _publish(broker: Mosquitto, numbers: range) -> None:
    with Client(broker.port) as client:
        for number in numbers:
            client.publish(f"devices/{number % 10}", b"%d" % number, 2)


async def test_the_next_address_is_tried_when_one_fails() -> None:
    async with ScriptedBroker() as first, ScriptedBroker() as second, running(first, second) as (path, sessions):
        assert not second.sessions
        await first.stop()
        await until(lambda: sessions[0].subscribed and bool(second.sessions), "the second one takes over")
        publish(second, range(10))
        await until(lambda: not missing(path, 10), "messages of the second broker")
        await first.start()
        await second.stop()
        await until(lambda: bool(first.links) and sessions[0].subscribed, "and back")


@pytest.mark.parametrize("answer", [0x87, None], ids=["refused", "not there"])
async def test_a_start_goes_on_to_the_next_address_without_a_wait(answer: int | None) -> None:
    waits = {"reconnect_initial": "30s", "reconnect_max": "30s"}
    async with ScriptedBroker(Rules(refuse_connect=answer)) as first, ScriptedBroker() as second:
        if answer is None:
            await first.stop()
        began = time.monotonic()
        async with running(first, second, mqtt=waits):
            assert time.monotonic() - began < 20
            assert len(first.connects) == (0 if answer is None else 1)
            assert second.links


async def test_connections_that_are_closed_again_and_again_without_a_word_are_said_to_be_odd() -> None:
    """In MQTT 3.1.1 a broker cannot say that another client has taken the session over."""
    async with ScriptedBroker() as broker, running(broker, mqtt={"protocol": "3.1.1"}) as (_, sessions):
        said: list[str] = []
        for number in range(1, 4):
            assert not any(SHORT_LIVED in problem for problem in said), "once or twice is nothing"
            broker.link("gateway-0-0").end()

            def back(number: int = number) -> bool:
                said.append(sessions[0].problem or "")
                return broker.session("gateway-0-0").connects > number and sessions[0].subscribed

            await until(back, "it comes back")
        assert any(SHORT_LIVED in problem for problem in said), said


async def test_a_broker_that_stops_answering_pings_is_left() -> None:
    async with ScriptedBroker(Rules(answers_pings=False)) as broker, running(broker, mqtt={"keepalive": "1s"}) as (
        path, _,
    ):  # fmt: skip
        await until(lambda: path.metrics.mqtt_disconnects.child("keepalive").value == 1, "the silence is noticed")
        await until(lambda: broker.session("gateway-0-0").connects == 2, "it tries again")


async def test_a_broker_that_takes_connections_and_answers_nothing_is_not_called_connected() -> None:
    """As a frozen one does: readiness and page said that the session was connected, and lacked its subscriptions."""
    async with ScriptedBroker() as broker, running(broker, mqtt={"connect_timeout": "300ms"}) as (_, (session,)):
        broker.rules.connack = b""
        broker.link("gateway-0-0").transport.abort()
        await until(lambda: broker.session("gateway-0-0").connects >= 3, "it tries again")
        assert not session.connected
        broker.rules.connack = None
        await until(lambda: session.subscribed, "it is subscribed")
        assert session.connected


async def test_a_keepalive_of_the_servers_is_kept_to() -> None:
    """Else a broker that wants to hear of us more often disconnects a quiet session again and again."""
    async with ScriptedBroker(Rules(server_keepalive=1)) as broker, running(broker) as (_, sessions):
        link = broker.link("gateway-0-0")
        await until(lambda: sum(p.type is Type.PINGREQ for p in link.log) >= 5, "pings in the server's interval")
        assert sessions[0].subscribed
        assert broker.session("gateway-0-0").connects == 1


async def test_a_broker_that_is_not_available_is_not_asked_at_full_speed() -> None:
    mqtt = {"reconnect_initial": "400ms", "reconnect_max": "30s", "reconnect_jitter": 0}
    async with ScriptedBroker() as broker, running(broker, mqtt=mqtt):
        broker.rules.refuse_connect = 0x88
        broker.link("gateway-0-0").transport.abort()
        await until(lambda: len(broker.connects) >= 3, "it is refused twice")
        began = time.monotonic()
        await until(lambda: len(broker.connects) >= 5, "twice more")
        assert time.monotonic() - began > 1, "after waits of 0.8 s and more"


DEFAULT_WAITS = {"reconnect_initial": "500ms", "reconnect_max": "30s"}


async def test_all_sessions_are_back_soon_after_a_restart_without_authenticators() -> None:
    """EMQX forgets its sessions in a restart, and drops what is published until we have subscribed again. Its port
    stays closed for a while, then its listener refuses everybody for a while: neither makes our waits longer."""
    async with ScriptedBroker() as broker, running(broker, clients=4, mqtt=DEFAULT_WAITS) as (path, sessions):
        for _ in range(2):  # the second soon after the first
            await broker.stop()
            broker.rules.refuse_connect = 0x87  # as EMQX says while its authenticators load
            before = len(broker.connects)
            await asyncio.sleep(2)
            await broker.start()
            await until(lambda n=before: len(broker.connects) >= n + 12, "each is refused three times")
            broker.rules.refuse_connect = None
            accepts = time.monotonic()
            await until(lambda: all(s.subscribed for s in sessions), "all four are back")
            late = time.monotonic() - accepts
            # Waits that went on doubling, if only after refusals, would be 16 s now and be noticed.
            assert late < 8, f"the last session was subscribed {late:.2f} s after logins were accepted"
        publish(broker, range(100))
        await until(lambda: not missing(path, 100), "all hundred")
        assert not broker.unrouted


async def test_a_start_while_the_broker_restarts_is_not_ended_by_its_refusals() -> None:
    async with ScriptedBroker(Rules(refuse_connect=0x87)) as broker:
        await broker.stop()
        async with MemoryPath(settings_for(broker, mqtt=DEFAULT_WAITS)) as path:
            session = path.session(client_id="gateway-0-0")
            start = asyncio.create_task(session.start())
            try:
                await until(lambda: "refused the connection" in (session.problem or ""), "it saw the closed port")
                await broker.start()
                await until(lambda: broker.connects, "it is refused")
                broker.rules.refuse_connect = None
                await asyncio.wait_for(start, 60)
            finally:
                await stop(path, [session])


async def test_one_session_that_is_back_wakes_the_others() -> None:
    waits = {"reconnect_initial": "8s", "reconnect_max": "30s", "reconnect_jitter": 0.9}
    async with ScriptedBroker() as broker, running(broker, clients=4, mqtt=waits) as (_, sessions):
        await broker.stop()
        await broker.start()
        await until(lambda: any(s.subscribed for s in sessions), "one is back")
        began = time.monotonic()
        await until(lambda: all(s.subscribed for s in sessions), "the others too")
        assert time.monotonic() - began < 3, "waits of 0.8 to 15.2 s"


# --- order and the window ---


@pytest.mark.parametrize("strategy", ["hash_clientid", "round_robin"])
@pytest.mark.parametrize("clients", [1, 3])
async def test_a_devices_order_is_kept_where_the_broker_keeps_it(strategy: Any, clients: int) -> None:
    rules = Rules(strategy=strategy, queue=3000)
    async with ScriptedBroker(rules) as broker, running(broker, clients=clients) as (path, _):
        for start in range(0, 3000, 30):
            publish(broker, range(start, start + 30))
            await asyncio.sleep(0.001)
        await until(lambda: not missing(path, 3000), "all 3000")
        assert not broker.dropped
        if strategy == "hash_clientid" or clients == 1:
            seen: dict[bytes, int] = {}
            for stored in path.log:
                key, number = stored.record.key, int(stored.record.value or b"")
                assert seen.get(key, -1) < number, f"{key} {number} came after {seen[key]}"
                seen[key] = number
        await until(lambda: not any(s.flying for s in broker.sessions.values()), "all acknowledged")
        for session in broker.sessions.values():
            ids = session.acknowledged
            assert ids == list(range(1, len(ids) + 1)), "in the order of arrival [MQTT-4.6.0-2]"


async def test_a_window_of_32_is_kept_moving_at_four_thousand_messages_a_second() -> None:
    """EMQX's queue of 1000 is a quarter of a second at this rate: whoever dawdles loses messages."""
    async with ScriptedBroker() as broker, running(broker, clients=4) as (path, _):
        rate, seconds = 4000, 3
        moment, sent, due = time.monotonic(), 0, 0.0
        while sent < rate * seconds:
            before, moment = moment, time.monotonic()
            # Devices wait for a machine that stands still: broker and gateway stand still with it.
            due = min(due + min(moment - before, 0.005) * rate, rate * seconds)
            publish(broker, range(sent, int(due)))
            sent = int(due)
            await asyncio.sleep(0.001)
        await until(lambda: not missing(path, sent) or bool(broker.dropped), "all of them")
        assert not broker.dropped, f"{len(broker.dropped)} messages were dropped that devices had acknowledged"
        assert not missing(path, sent)


# --- stopping ---


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_a_restart_keeps_the_session_and_what_comes_meanwhile(protocol: str) -> None:
    mqtt = {"protocol": protocol}
    async with ScriptedBroker() as broker:
        async with running(broker, mqtt=mqtt) as (path, sessions):
            publish(broker, range(200))
            await until(lambda: path.values, "some are in Kafka")
            link = broker.link("gateway-0-0")
            await stop(path, sessions)
            first = list(path.values)
            await until(lambda: not broker.links, "the connection is closed")
            assert [p.type for p in link.log if p.type in (Type.UNSUBSCRIBE, Type.DISCONNECT)] == [Type.DISCONNECT], (
                "no UNSUBSCRIBE: EMQX drops what is published to a group without members"
            )
        assert not broker.session("gateway-0-0").flying.keys() & set(broker.session("gateway-0-0").acknowledged)
        assert broker.groups, "still a member"
        publish(broker, range(200, 300))
        async with running(broker, mqtt=mqtt) as (path, _):
            await until(lambda: len(set(first) | set(path.values)) == 300, "all 300 over two lives")
            duplicates = len(first) + len(path.values) - 300
            assert duplicates == 0, "an orderly stop acknowledges everything it has put into Kafka"


async def test_a_retiring_session_leaves_nothing_behind() -> None:
    """Also not what the broker had queued for it: EMQX loses that when the expiry drops to 0."""
    async with ScriptedBroker() as broker, running(broker, clients=2) as (path, sessions):
        path.producer.holding = True
        publish(broker, range(400))
        await until(lambda: path.ledger.received == 64, "both windows are full")
        leaving = asyncio.create_task(stop(path, sessions[:1], StopVerb.RETIRE))
        await until(lambda: len(broker.groups["gateway", "devices/#"]) == 1, "it has left the group")
        publish(broker, range(400, 500))
        assert not leaving.done()
        path.producer.release()
        await asyncio.wait_for(leaving, 60)
        await until(lambda: not missing(path, 500), "all 500")
        assert "gateway-0-0" not in broker.sessions
        await until(lambda: not broker.session("gateway-0-1").flying, "the other one goes on")


async def test_retiring_in_3_1_1_ends_the_session_too() -> None:
    async with ScriptedBroker() as broker, running(broker, mqtt={"protocol": "3.1.1"}) as (path, sessions):
        publish(broker, range(100))
        await stop(path, sessions, StopVerb.RETIRE)
        await until(lambda: not broker.sessions, "the session is gone")
        assert not missing(path, 100)


async def test_a_session_of_3_1_1_that_could_not_be_ended_is_said() -> None:
    """That takes another connection, which the broker may refuse; the stop itself did what it could."""
    async with ScriptedBroker() as broker, running(broker, mqtt={"protocol": "3.1.1"}) as (path, sessions):
        broker.rules.refuse_connect = 3
        with capture_logs() as lines:
            await stop(path, sessions, StopVerb.RETIRE)
        (line,) = [line for line in lines if line["event"] == "session_not_ended"]
        assert "refused client" in line["reason"]


async def test_a_stop_that_is_out_of_time_acknowledges_nothing_and_leaves_the_session() -> None:
    async with ScriptedBroker() as broker, running(broker) as (path, sessions):
        path.producer.holding = True
        publish(broker, range(20))
        await until(lambda: sessions[0].unacked == 20, "twenty unacknowledged")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await sessions[0].stop(time.monotonic_ns() + 10**9)
        await sessions[0].stop(time.monotonic_ns() - 1)
        await until(lambda: not broker.links, "the connection is closed")
        assert len(broker.session("gateway-0-0").flying) == 20
        assert not broker.session("gateway-0-0").acknowledged
        path.producer.release()


# --- status ---


def status(broker: ScriptedBroker) -> dict[str, Any]:
    message = broker.retained.get("gateways/plant/status")
    return json.loads(message.payload) if message else {}


async def test_birth_will_and_farewell() -> None:
    topic = "gateways/plant/status"
    async with ScriptedBroker() as broker:
        async with running(broker, status_topic=topic) as (path, sessions):
            await until(lambda: status(broker).get("state") == "online", "the birth message")
            born = status(broker)
            assert born["instance"] == "gateway"
            assert abs(born["time_ms"] / 1000 - time.time()) < 60
            will = broker.connects[0].will
            assert will is not None
            assert (will.topic, will.retain, json.loads(will.payload)["state"]) == (topic, True, "offline")
            broker.link("gateway-0-0").transport.abort()
            await until(lambda: status(broker).get("state") == "offline", "the will")
            await until(lambda: status(broker).get("state") == "online", "and back")
            await stop(path, sessions)
            await until(lambda: status(broker).get("state") == "stopped", "the farewell")
        assert status(broker)["state"] == "stopped", "no will after an orderly stop"


async def test_a_status_message_that_may_not_be_published_is_said_and_harms_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with ScriptedBroker(Rules(puback=0x87)) as broker, running(broker, status_topic="gateways/x/status") as (
        path, sessions,
    ):  # fmt: skip
        publish(broker, range(5))
        await until(lambda: not missing(path, 5), "messages")
        assert sessions[0].subscribed
        assert broker.session("gateway-0-0").connects == 1
    out = "".join(capsys.readouterr())
    assert out.count("mqtt_status_refused") == 1, "what was refused is not sent at the stop"
    assert "not authorised (0x87)" in out


async def test_a_broker_that_disconnects_who_may_not_publish_is_told_nothing_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with (
        ScriptedBroker(Rules(disconnects_publishers=0x87)) as broker,
        running(broker, status_topic="gateways/x/status") as (path, sessions),
    ):
        await until(lambda: broker.session("gateway-0-0").connects == 2 and sessions[0].subscribed, "it is back")
        publish(broker, range(5))
        await until(lambda: not missing(path, 5), "messages")
        await stop(path, sessions)
        assert broker.session("gateway-0-0").connects == 2
    out = "".join(capsys.readouterr())
    assert "mqtt.status.topic" in out, "why the first connection ended"
    assert out.count("mqtt_status_refused") == 1


async def test_the_gateway_stays_connected_to_mosquitto_where_its_status_is_refused(
    make_mosquitto: Callable[..., Mosquitto],
) -> None:
    broker = make_mosquitto(acl="topic readwrite devices/#\n")
    async with running(broker, status_topic="gateways/x/status") as (path, (session,)):
        await until(lambda: path.metrics.mqtt_disconnects.child("closed").value == 1, "it ends such a connection")
        await until(lambda: session.subscribed, "the next one stays")
        await asyncio.to_thread(_publish, broker, range(10))
        await until(lambda: not missing(path, 10), "messages")
        assert path.metrics.mqtt_disconnects.child("closed").value == 1


async def test_a_broker_that_refuses_the_will_is_told_of_its_topic() -> None:
    """HiveMQ answers CONNECT so where the client may not publish there."""
    async with ScriptedBroker(Rules(refuse_connect=0x87)) as broker:
        with pytest.raises(MqttRefusedError, match=r"about publishing to gateways/p/status \(mqtt\.status\)"):
            async with running(broker, status_topic="gateways/p/status"):
                pass


async def test_only_the_session_with_a_status_topic_has_a_will() -> None:
    async with ScriptedBroker() as broker, running(broker, clients=3, status_topic="gateways/plant/status"):
        wills = {connect.client_id: connect.will is not None for connect in broker.connects}
        assert wills == {"gateway-0-0": True, "gateway-0-1": False, "gateway-0-2": False}


async def test_status_messages_are_no_routes_even_with_the_widest_filter() -> None:
    routes = [{"name": "all", "filters": ["#"], "topic": "telemetry"}]
    async with ScriptedBroker() as broker, running(broker, routes=routes, status_topic="gateways/plant/status") as (
        path, _,
    ):  # fmt: skip
        publish(broker, range(3))
        await until(lambda: len(path.log) == 3, "the three")
        await until(lambda: path.ledger.filtered >= 1, "the birth message came and was left out")
        assert {stored.record.key for stored in path.log} == {b"devices/0", b"devices/1", b"devices/2"}


@pytest.mark.parametrize("stops_in", [SessionState.RENEWING, SessionState.CONNECTING])
async def test_a_stop_within_a_renewal_leaves_the_status_stopped(stops_in: SessionState) -> None:
    topic = "gateways/plant/status"
    async with ScriptedBroker() as broker, running(broker, status_topic=topic) as (path, (session,)):
        await until(lambda: topic in broker.retained, "it is announced")
        broker.rules.answers_connect = False
        link = broker.link("gateway-0-0")
        renewal = asyncio.create_task(session.renew(10))
        while session.state is not stops_in:  # noqa: ASYNC110 - a state of one turn of the event loop
            await asyncio.sleep(0)
        await stop(path, [session])
        await renewal
        assert json.loads(broker.retained[topic].payload)["state"] == "stopped"
        assert [packet.type for packet in link.log].count(Type.DISCONNECT) == 1
        assert link.log[-1].type is Type.DISCONNECT


async def test_bytes_that_still_wait_as_a_connection_is_left_are_read_no_more() -> None:
    """Those of a TLS layer, or of a pause, are read in the next turn of the event loop. The next connection would
    acknowledge what came in them, though the broker may have given its packet ids to other messages."""
    async with ScriptedBroker() as broker, running(broker) as (path, (session,)):
        connection = session._connection
        assert connection is not None
        connection._stream.put_back(packets.publish("devices/1", b"7777", qos=1, packet_id=7777, properties=b""))
        connection.listen()
        assert await session.renew(10)
        await until(lambda: broker.session("gateway-0-0").connects == 2, "it comes back")
        publish(broker, range(5))
        await until(lambda: not missing(path, 5), "all five")
        await until(lambda: not broker.session("gateway-0-0").flying, "all acknowledged")
        assert 7777 not in map(int, path.values), "the broker sends it again"


# --- memory ---


async def test_a_session_comes_back_while_reading_is_paused_for_want_of_memory() -> None:
    """During a long outage of Kafka the broker may drop the connection; the session must not be away until it ends."""
    routes = [{"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry", "qos": 0}]
    tables: dict[str, Any] = {"routes": routes, "flow": {"memory_bytes": 1 << 20}, "mqtt": {"keepalive": "1s"}}
    async with ScriptedBroker(Rules(max_mailbox=None)) as broker, running(broker, **tables) as (path, sessions):
        path.producer.holding = True
        for number in range(3000):
            broker.publish(Message(f"devices/{number % 5}", bytes(1000), 0))
        await until(lambda: path.flow.paused, "reading is paused")
        broker.link("gateway-0-0").transport.abort()
        await until(lambda: broker.session("gateway-0-0").connects == 2, "it comes back")
        await until(lambda: sessions[0].subscribed, "and is subscribed")
        assert path.flow.paused
        path.producer.release()
        await until(lambda: not path.flow.paused, "reading goes on")


async def test_status_messages_that_nobody_is_subscribed_to_are_counted() -> None:
    topic = "gateways/gw/status"
    async with ScriptedBroker() as broker, running(broker, status_topic=topic) as (_, (session,)):
        await until(lambda: session.unheard == 1, "PUBACK said 0x10")
        assert [message.topic for message in broker.unrouted] == [topic]
        assert topic in broker.retained, "it was taken all the same"
        async with RawClient(broker.port, "listener") as listener:
            await listener.subscribe(topic)
            session.standing.clear()
            broker.link("gateway-0-0").transport.abort()
            await asyncio.wait_for(session.standing.wait(), 60)
            await listener.messages(3)  # what was retained, the will, and that it is back
            await listener.settled()
            assert session.unheard == 1
