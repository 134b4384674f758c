"""The MQTT side fails or lies: brokers restarted, frozen, and bytes that no broker may send."""

import math
import random
from collections.abc import Callable

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from tests.brokers import packets
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.packets import Type
from tests.chaos.case import QUICK, flowing, judge
from tests.chaos.fixtures import MakeCase, MakeGateway
from tests.chaos.harness import FULL, account, payload
from tests.chaos.publisher import Publishers
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow


def test_mosquitto_restarted_under_load(
    kafka: KafkaCluster, make_mosquitto: Callable[..., Mosquitto], make_gateway: MakeGateway, unique: str
) -> None:
    """With persistence, stopped in order: sessions and queues outlive it. Devices repeat what was not acknowledged."""
    broker = make_mosquitto(persistence=True, max_inflight=100)
    gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt=QUICK)
    gateway.start()
    with Publishers(broker.port, rate=800) as publishers:
        for _ in range(3 if FULL else 2):
            flowing(gateway, 1000)
            broker.shut_down()
            wait_until(lambda: not gateway.ready(), "/readyz turns red")
            assert any("not connected" in reason for reason in gateway.reasons())
            broker.start()
            gateway.wait_ready()
        flowing(gateway, 1000)
        published = publishers.stop()
    judge(gateway, kafka.bootstrap, unique, published)


def test_a_frozen_broker_is_left_and_found_again(
    kafka: KafkaCluster, make_mqtt_broker: Callable[..., MqttBroker], make_gateway: MakeGateway, unique: str
) -> None:
    """Longer than the keepalive: the gateway notices, and takes up its sessions when the broker answers again."""
    broker = make_mqtt_broker(max_inflight=100)
    mqtt = {**QUICK, "keepalive": "2s", "connect_timeout": "1s"}
    gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt=mqtt)
    gateway.start()
    with Publishers(broker.port, rate=500) as publishers:
        flowing(gateway, 500)
        broker.freeze()
        wait_until(
            lambda: "keepalive" in {line["reason"] for line in gateway.events("mqtt_disconnected")},
            "the silence is noticed",
        )
        wait_until(lambda: not gateway.ready(), "/readyz turns red")
        wait_until(lambda: bool(gateway.events("mqtt_connect_failed")), "attempts fail in time")
        broker.thaw()
        gateway.wait_ready()
        flowing(gateway, 500)
        published = publishers.stop()
    judge(gateway, kafka.bootstrap, unique, published)


HOSTILE = {
    "random bytes": random.Random(1).randbytes(300),  # repeatable junk
    "zeros": bytes(200),
    "text": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "a remaining length without end": b"\x30\xff\xff\xff\xff\xff",
    "a packet of 256 MiB": b"\x30\xff\xff\xff\x7f" + bytes(1000),
    "QoS 3": packets.packet(Type.PUBLISH, 6, packets.text("devices/x") + b"\0\1\0"),
    "packet id 0": packets.publish("devices/hostile", payload("hostile", 0), qos=1, properties=b""),
    "a topic alias": packets.publish("", b"{}", properties=b"\x23\0\1"),
    "properties beyond the packet": packets.packet(Type.PUBLISH, 0, packets.text("devices/x") + b"\x7f\x26"),
    "a CONNECT": packets.packet(Type.CONNECT, 0, packets.text("MQTT") + b"\5\2\0\x1e\0\0\0"),
    "a SUBACK of nothing": packets.packet(Type.SUBACK, 0, b""),
    "a DISCONNECT with an unknown code": packets.disconnect(0x33),
    "AUTH": packets.packet(Type.AUTH, 0, b"\x18\0"),
}


def test_hostile_packets_under_load(make_case: MakeCase) -> None:
    """No crash: each ends its connection with a reason in the log, the session comes back, nothing is lost."""
    # Of a length that is wrong nothing can be known before the rest does not come: half a keepalive or two.
    case = make_case(rate=800, mqtt={**QUICK, "keepalive": "2s"})
    broker, gateway = case.broker, case.gateway

    def ended(*reasons: str) -> int:
        return sum(line["reason"] in reasons for line in gateway.events("mqtt_disconnected"))

    with case.watch(0):
        for name, junk in HOSTILE.items():
            refused, tries = ended("protocol"), 0
            while ended("protocol") == refused:  # a machine that stands still for two seconds ends it, too
                tries += 1
                assert tries < 4, f"{name} is not refused; {gateway.tail()}"
                case.flows(100)
                before = ended("protocol", "keepalive")
                victim = min(case.client_ids)
                broker.call(lambda victim=victim, junk=junk: broker.broker.link(victim).send(junk))
                wait_until(lambda n=before: ended("protocol", "keepalive") > n, f"{name} ends its connection")
                wait_until(lambda: case.links == 4, "the session is back")
                assert gateway.alive, f"{name}: {gateway.tail()}"
    found = account(case.bootstrap, case.topic, case.drain())
    assert not found.missing, str(found)
    assert not found.out_of_order, str(found)
    assert set(found.strangers) <= {("hostile", 0)}, str(found)
    assert ended("protocol", "keepalive") == len(gateway.events("mqtt_disconnected"))
    assert ended("protocol") == len(HOSTILE)
    assert not gateway.events("mqtt_read_failed"), "junk was taken for a defect of ours"
    assert not gateway.events("worker_failed")


def test_a_connection_that_dies_in_the_middle_of_a_packet(make_case: MakeCase) -> None:
    """Half a packet belongs to the dead connection; in front of the next one's bytes it would poison them."""
    case = make_case(rate=500, mqtt={**QUICK, "sessions": 1})
    gateway = case.gateway
    whole = packets.publish("devices/half/telemetry", bytes(5000), properties=b"")
    for cut in (1, 2, 3, 10, 40, 3000, len(whole) - 1) if FULL else (1, 3, 40, len(whole) - 1):
        case.flows(50)
        ended = gateway.metric("gateway_mqtt_disconnects_total")

        def send(cut: int = cut) -> None:
            link = next(iter(case.broker.broker.links))
            link.send(whole[:cut])
            link.transport.close()

        case.broker.call(send)
        wait_until(lambda n=ended: gateway.metric("gateway_mqtt_disconnects_total") > n, "the end is noticed")
    case.finish(copies=math.inf)
    assert {line["reason"] for line in gateway.events("mqtt_disconnected")} == {"closed"}


def test_large_packets_and_small_ones_in_turn(make_case: MakeCase) -> None:
    """A megabyte between telemetry: whole, in order, and without holding the others up."""
    case = make_case(mqtt={"sessions": 2})
    case.broker.start_load(400, devices=4)
    passes(2)
    small = case.broker.stop_load()
    case.broker.start_load(12, devices=3, size=900_000)
    passes(2)
    large = case.drain()
    # Both loads number from 0, so the first large ones are copies of small ones by identity.
    published = {device: max(small.get(device, 0), large.get(device, 0)) for device in {*small, *large}}
    found = case.finish(published, copies=math.inf, ordered=False)
    assert found.copies == sum(large.values()), str(found)
    assert case.gateway.metric("gateway_dlq_records_total") == 0
