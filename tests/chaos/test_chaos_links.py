"""The way to the MQTT broker fails: half-open, reset, away, slow, lossy, a message at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.brokers import packets
from tests.brokers.proxy import FaultyProxy, Weather
from tests.brokers.scripted_rules import Rules
from tests.chaos.gap import Gap
from tests.chaos.harness import FULL, Watch, account, payload, read_topic, wait_until
from tests.chaos.mqtt_case import QUICK, ROUNDS, all_back, flowing, in_order, verdict, watch
from tests.chaos.threaded import ThreadedBroker

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.local.embedded.kafka import KafkaCluster
    from tests.chaos.fixtures import MakeGateway

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "direction",
    [
        "both",
        pytest.param("to_server", marks=pytest.mark.skipif(not FULL, reason="in the full form (CHAOS=full)")),
        pytest.param("to_client", marks=pytest.mark.skipif(not FULL, reason="in the full form (CHAOS=full)")),
    ],
)
def test_a_half_open_connection_is_noticed_by_its_silence(
    direction: str, kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """The peer is gone without a word, as behind a firewall that forgot the connection; the broker does not know
    either, and has its old connection taken over."""
    with in_order() as broker, FaultyProxy(broker.port) as proxy:
        gateway = make_gateway(proxy.port, kafka.bootstrap, unique, mqtt={**QUICK, "keepalive": "2s"})
        gateway.start()
        broker.start_load(500)
        unacknowledged = 0
        flowing(gateway, 200)
        with watch(gateway), Gap(kafka.bootstrap, unique) as gap:
            for _ in range(ROUNDS):
                flowing(gateway, 300)
                ended = gateway.metric("gateway_mqtt_disconnects_total")
                proxy.swallow(to_server=direction != "to_client", to_client=direction != "to_server")
                unacknowledged += 4 * 32  # what was sent into the void, at most
                proxy.swallow(False)
                wait_until(
                    lambda n=ended: gateway.metric("gateway_mqtt_disconnects_total") == n + 4, "all four notice", 20
                )
                all_back(broker, gateway)
            flowing(gateway, 300)
        assert {line["reason"] for line in gateway.events("mqtt_disconnected")} == {"keepalive"}
        assert gap.longest_s < 4, "a keepalive of 2 s, a wait and a reconnect"
        verdict(broker, gateway, kafka, unique, copies=unacknowledged)


def test_connections_reset_in_the_middle_of_packets(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """A link that is always full of 5 kB packets: a cut falls into one. What came whole before it is used."""
    with in_order() as broker, FaultyProxy(broker.port, Weather(rtt_s=0.02, to_client_rate=500_000)) as proxy:
        gateway = make_gateway(proxy.port, kafka.bootstrap, unique, mqtt=QUICK)
        gateway.start()
        broker.start_load(600, size=5000)
        unacknowledged = 0
        with watch(gateway):
            for _ in range(5 * ROUNDS):
                flowing(gateway, 100)
                unacknowledged += 4 * 32
                proxy.cut()
                all_back(broker, gateway)
            proxy.weather.to_client_rate = None
            flowing(gateway, 200)
        assert gateway.metric("gateway_mqtt_redelivered_total") > 0
        verdict(broker, gateway, kafka, unique, copies=unacknowledged)


def test_the_broker_away_for_a_second_and_back(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """Port closed, connections cut without DISCONNECT; its sessions live on, as with a broker that has them on disk."""
    with in_order() as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt=QUICK)
        gateway.start()
        broker.start_load(800)
        unacknowledged = 0
        flowing(gateway, 200)
        with watch(gateway), Gap(kafka.bootstrap, unique) as gap:
            for _ in range(ROUNDS):
                flowing(gateway, 500)
                broker.run(broker.broker.stop(keep_sessions=True))
                unacknowledged += broker.unacknowledged()
                failed = gateway.metric("gateway_mqtt_connect_failures_total")
                wait_until(
                    lambda n=failed: gateway.metric("gateway_mqtt_connect_failures_total") > n, "it tries in vain"
                )
                assert not gateway.ready()
                broker.run(broker.broker.start())
                all_back(broker, gateway)
            flowing(gateway, 500)
        assert gap.longest_s < 3
        verdict(broker, gateway, kafka, unique, copies=unacknowledged)


def test_quality_of_service_2_under_cuts_and_a_kill(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """Its packet ids outlive connections, so cuts make no copies at all; a kill forgets them, and may."""
    routes = [{"name": "telemetry", "filters": ["devices/#"], "topic": unique, "qos": 2}]
    with in_order() as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt=QUICK, routes=routes)
        gateway.start()
        broker.start_load(600, qos=2)

        def cut() -> None:
            for link in list(broker.broker.links):
                link.transport.abort()

        for _ in range(3 * ROUNDS):
            flowing(gateway, 150)
            broker.call(cut)
            all_back(broker, gateway)
        flowing(gateway, 150)
        before_kill = read_topic(kafka.bootstrap, unique)
        identities = [identity for partition in before_kill for identity in partition]
        assert len(identities) == len(set(identities)) > 500, "no copies"
        gateway.kill()
        wait_until(lambda: broker.call(lambda: not broker.broker.links), "the broker notices")
        unacknowledged = broker.unacknowledged()
        gateway.start()
        flowing(gateway, 300)
        verdict(broker, gateway, kafka, unique, copies=unacknowledged)


@pytest.mark.parametrize("slow_start", [False, True], ids=["window 1", "one until the first acknowledgement"])
def test_a_window_of_one_message(slow_start: bool, kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """Whoever waits for a batch to fill up stands still: each message is flushed and acknowledged by itself."""
    rules = Rules(
        strategy="hash_clientid", queue=1_000_000, slow_start=slow_start, max_inflight=32 if slow_start else 1
    )
    with ThreadedBroker(rules) as broker:
        gateway = make_gateway(
            broker.port, kafka.bootstrap, unique, mqtt={**QUICK, "receive_maximum": 1000 if slow_start else 1}
        )
        gateway.start()
        with watch(gateway):
            broker.start_load(200)
            flowing(gateway, 2000 if FULL else 600)
            for link in broker.call(lambda: list(broker.broker.links)) if slow_start else []:
                broker.call(link.transport.abort)  # a new connection starts slowly again
            all_back(broker, gateway)
            flowing(gateway, 200)
        verdict(broker, gateway, kafka, unique, copies=4 * rules.max_inflight)


def test_a_window_of_one_message_and_a_kafka_that_answers_late(
    make_kafka: Callable[..., KafkaCluster], make_gateway: MakeGateway, unique: str
) -> None:
    """A message per Kafka round trip and session, and nothing worse than that."""
    kafka = make_kafka()
    with ThreadedBroker(Rules(strategy="hash_clientid", max_inflight=1, queue=1_000_000, slow_start=True)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt={"receive_maximum": 1})
        gateway.start()
        with watch(gateway):
            broker.start_load(8)
            seconds = 30.0 if FULL else 5.0
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                for frozen, pause_s in ((True, 0.3), (False, 0.1)):
                    (kafka.freeze if frozen else kafka.thaw)()
                    pulse = time.monotonic() + pause_s
                    wait_until(lambda pulse=pulse: time.monotonic() > pulse, "Kafka is slow")
            received = gateway.metric("gateway_kafka_records_sent_total")
            assert received > 4 * seconds, f"{received} records in {seconds:g} s"
        verdict(broker, gateway, kafka, unique, copies=0)


def test_150_ms_away_with_one_percent_loss(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """Window 32, four sessions, 150 ms: 850 messages a second at most. Losses delay, and nothing else happens."""
    with (
        ThreadedBroker(Rules(strategy="hash_clientid")) as broker,  # queue 1000: nothing may be dropped
        FaultyProxy(broker.port, Weather(rtt_s=0.15, loss=0.01)) as proxy,
    ):
        gateway = make_gateway(proxy.port, kafka.bootstrap, unique)
        gateway.start()
        broker.start_load(400)
        flowing(gateway, 200)
        with watch(gateway), Gap(kafka.bootstrap, unique) as gap:
            flowing(gateway, 8000 if FULL else 1600)
        assert gap.longest_s < 2
        verdict(broker, gateway, kafka, unique, copies=0)
        assert not gateway.events("mqtt_disconnected")


@pytest.mark.parametrize("direction", ["to_server_rate", "to_client_rate"])
def test_a_slow_link(direction: str, kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """Acknowledgements that trickle, or messages that do, more than fit: back-pressure, no break, no growth."""
    with in_order() as broker, FaultyProxy(broker.port) as proxy:
        gateway = make_gateway(proxy.port, kafka.bootstrap, unique, mqtt={"keepalive": "2s"})
        gateway.start()
        # 100 acknowledgements of 4 bytes, or messages of some 400, per second and session; 600 per second are offered.
        setattr(proxy.weather, direction, 400 if direction == "to_server_rate" else 40_000)
        broker.start_load(600, size=300)
        with watch(gateway):
            flowing(gateway, 3000 if FULL else 1000)
            setattr(proxy.weather, direction, None)
            flowing(gateway, 500)
        verdict(broker, gateway, kafka, unique, copies=0)
        assert not gateway.events("mqtt_disconnected"), "slow is not dead"


def test_a_broker_that_gives_up_on_a_gateway_that_does_not_read(
    make_kafka: Callable[..., KafkaCluster], make_gateway: MakeGateway, unique: str
) -> None:
    """Kafka frozen, memory full, reading paused: EMQX ends a connection that takes nothing for 15 s (here 2). The
    sessions come back, wait for Kafka, and QoS 1 is complete."""
    kafka = make_kafka()
    # A mailbox that holds what comes meanwhile: at its default of 1000 EMQX would kill the session with all it holds.
    rules = Rules(strategy="hash_clientid", queue=1_000_000, send_timeout_s=2.0, max_mailbox=100_000)
    with ThreadedBroker(rules) as broker:
        flow, spool = {"memory_bytes": 4 << 20}, {"enabled": False}
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt=QUICK, flow=flow, spool=spool)
        gateway.start()
        broker.start_load(300)
        flowing(gateway, 100)
        kafka.freeze()
        with Watch(gateway, rss_mib=gateway.rss_mib() + 4 + 30):

            def pour() -> None:
                for number in range(100):
                    value = payload(f"flood-{number % 8}", 0, 20_000)
                    broker.broker.publish(packets.Message(f"devices/flood-{number % 8}/x", value, 0, publisher="f"))

            for _ in range(15):  # 30 MB: more than memory and sockets hold
                broker.call(pour)
            wait_until(lambda: broker.call(lambda: broker.broker.blocked) >= 1, "the broker gives it up", 30)
            kafka.thaw()
            all_back(broker, gateway)
            flowing(gateway, 500)
        published = broker.stop_load()
        wait_until(broker.drained, f"everything is acknowledged; {gateway.tail()}")
        wait_until(gateway.settled, "nothing is in flight")
        assert gateway.imbalance() == 0
        found = account(kafka.bootstrap, unique, published)
        assert not found.missing, str(found)
        assert not found.out_of_order, str(found)
        assert {device for device, _ in found.strangers} <= {f"flood-{number}" for number in range(8)}
