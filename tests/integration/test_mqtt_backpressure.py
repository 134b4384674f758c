"""What must never stop: the window's places are freed on every way out, and pings go on whatever waits."""

import asyncio
import time

import pytest

from gateway.mqtt.connection import LOOKS
from tests.brokers.data_path import one_session
from tests.brokers.packets import Message, Type
from tests.brokers.scripted import ScriptedBroker, publish
from tests.brokers.scripted_rules import Rules
from tests.waiting import until

WAYS_OUT = {
    "stored": Message("devices/oslo/x", b'{"id": "a"}'),
    "stored, empty": Message("plain/oslo/x", b""),
    "stored, no value for its key": Message("devices/oslo/x", b"no JSON"),
    "stored, JSON of another kind": Message("devices/oslo/x", b"[1, 2]"),
    "a Kafka topic that is none": Message("devices/\u00e5s/x", b'{"id": "a"}'),
    "too large for a record": Message("devices/oslo/x", b'{"id": "' + b"a" * 20_000 + b'"}'),
    "no route": Message("old/x", b"{}"),
    "a gateway's own status": Message("gateways/other/status", b"{}"),
}


@pytest.mark.parametrize("qos", [1, 2])
async def test_every_way_out_frees_its_place_in_the_window(qos: int) -> None:
    """A connector that forgets a place on one of them stands still after as many such messages as its window holds."""
    routes = [
        {"name": "made", "filters": ["devices/#"], "topic": "site-${topic[1]}", "key": "${payload.id}", "qos": qos},
        {"name": "plain", "filters": ["plain/#"], "topic": "plain", "qos": qos},
    ]
    rounds = 60  # nearly two windows of each kind
    async with (
        ScriptedBroker() as broker,
        one_session(broker, routes=routes, kafka={"max_record_bytes": 10_000, "batch_bytes": 10_000}) as (
            path,
            session,
        ),
    ):
        for text in ("old/#", "gateways/#"):  # as left over from earlier settings
            broker.session("gateway-0-0").filters[text] = qos
        for _ in range(rounds):
            for message in WAYS_OUT.values():
                broker.publish(Message(message.topic, message.payload, qos, publisher="d"))
        held = broker.session("gateway-0-0")
        await until(lambda: not held.queue and not held.flying, "all are acknowledged")
        assert session.unacked == 0
        ledger = path.ledger
        assert ledger.received == rounds * len(WAYS_OUT)
        assert ledger.delivered == 4 * rounds
        assert ledger.filtered == 2 * rounds
        assert ledger.dead_lettered == 2 * rounds


@pytest.mark.parametrize("qos", [0, 1])
async def test_pings_go_on_while_kafka_takes_nothing(qos: int) -> None:
    """The broker ends a client that it does not hear for one and a half keepalives. With the window full nothing comes
    (QoS 1); with memory full nothing is read (QoS 0)."""
    routes = [{"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry", "qos": qos}]
    async with (
        ScriptedBroker(Rules(queue=10_000)) as broker,
        one_session(broker, routes=routes, flow={"memory_bytes": 1 << 20}, mqtt={"keepalive": "2s"}) as (path, session),
    ):
        path.producer.holding = True
        for number in range(3000):
            broker.publish(Message(f"devices/{number % 5}", bytes(1000), qos, publisher="d"))
        await until(lambda: path.flow.paused if qos == 0 else session.unacked == 32, "it waits for Kafka")
        began = time.monotonic()
        await until(lambda: time.monotonic() > began + 6.5, "more than two of the broker's limits pass")
        assert session.subscribed
        assert broker.session("gateway-0-0").connects == 1, "it was never ended"
        assert path.flow.paused is (qos == 0)
        path.producer.release()
        await until(lambda: len(path.log) == 3000, "everything arrives")


@pytest.mark.parametrize("qos", [1, 2])
async def test_an_empty_queue_is_noticed_while_messages_flow_and_a_full_one_is_not(
    qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.mqtt.connection.LOOK_S", 0.02)
    routes = [{"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry", "qos": qos}]
    async with ScriptedBroker(Rules(max_inflight=8)) as broker, one_session(broker, routes=routes) as (path, session):
        path.producer.holding = True
        publish(broker, range(100), qos=qos)
        held, log = broker.session("gateway-0-0"), broker.link("gateway-0-0").log
        looking = asyncio.create_task(session.emptied())
        await until(lambda: sum(packet.type is Type.PINGREQ for packet in log) > 2 * LOOKS, "it looks")
        assert not looking.done()
        assert len(held.queue) == 92
        path.producer.release()
        number = 100
        deadline = time.monotonic() + 30
        while not looking.done():
            assert time.monotonic() < deadline
            publish(broker, [number], qos=qos)
            number += 1
            await asyncio.sleep(0.005)  # the pace of the messages
        assert not held.queue
        await until(lambda: len(path.log) == number, "everything arrives")
