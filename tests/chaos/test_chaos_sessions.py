"""Somebody else ends our sessions: a second client with our id, an operator, a broker that sends us elsewhere."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.brokers import packets
from tests.brokers.proxy import FaultyProxy
from tests.brokers.scripted_rules import Rules
from tests.chaos.gap import Gap
from tests.chaos.harness import FULL, account, wait_until
from tests.chaos.mqtt_case import QUICK, ROUNDS, all_back, flowing, in_order, verdict, watch
from tests.chaos.threaded import ThreadedBroker

if TYPE_CHECKING:
    from gateway.local.embedded.kafka import KafkaCluster
    from tests.chaos.fixtures import MakeGateway

pytestmark = pytest.mark.slow


def test_two_gateways_with_the_same_client_ids_do_not_fight_at_full_speed(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """Each takes the other's sessions, less and less often, and says what is wrong. Nothing is lost meanwhile."""
    seconds = 20.0 if FULL else 6.0
    mqtt = {"reconnect_initial": "100ms", "reconnect_max": "5s"}
    with in_order() as broker:
        first, second = (make_gateway(broker.port, kafka.bootstrap, unique, mqtt=mqtt) for _ in range(2))
        first.start()
        broker.start_load(300)
        flowing(first, 200)
        before = broker.call(lambda: len(broker.broker.connects))
        second.start(ready=False)
        wait_until(lambda: first.events("mqtt_disconnected"), "the sessions are taken over")
        until = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() > until, "they fight")
        fights = (broker.call(lambda: len(broker.broker.connects)) - before) / 4
        print(f"{fights} connects per session in {seconds:g} s")
        # Two sides whose waits double from 0.1 s to 5 s: 2 x 6 while they grow, then two in 5 s, ± 20 % and change.
        assert fights < 2 * 8 + seconds / 5 * 2 * 1.5, "no fight at full speed"
        (reason, *_) = [line for line in first.events("mqtt_disconnected") if line["reason"] == "taken_over"]
        assert "same instance and worker" in reason["detail"], "what to look for is said"
        wait_until(second.settled, "what it took is in Kafka")
        assert second.imbalance() == 0
        by_second = second.metric("gateway_mqtt_redelivered_total")
        second.kill()
        all_back(broker, first)
        redelivered = int(by_second + first.metric("gateway_mqtt_redelivered_total"))
        verdict(broker, first, kafka, unique, copies=redelivered + 4 * 32)


def test_kicked_again_and_again(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """DISCONNECT 0x98 while the session is kept: it comes back, and nothing is missing."""
    with in_order() as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt=QUICK)
        gateway.start()
        broker.start_load(800)
        unacknowledged = 0

        def kick() -> int:
            flying = 0
            for link in list(broker.broker.links):
                assert link.session is not None
                flying += len(link.session.flying)
                link.end(0x98)
            return flying

        with watch(gateway):
            for _ in range(3 * ROUNDS):
                flowing(gateway, 200)
                unacknowledged += broker.call(kick)
                all_back(broker, gateway)
        lines = gateway.events("mqtt_disconnected")
        assert {line["reason"] for line in lines} == {"administrative"}
        assert "EMQX throws away what a session holds" in lines[0]["detail"]
        verdict(broker, gateway, kafka, unique, copies=unacknowledged)


def test_kicked_by_rest_loses_what_the_broker_throws_away_and_nothing_else(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """EMQX ends the session with all it holds; that no subscriber can mend. Missing is exactly that."""
    with ThreadedBroker(Rules(queue=1_000_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt=QUICK)
        gateway.start()
        broker.start_load(800)
        flowing(gateway, 300)
        for _ in range(ROUNDS):
            victim = broker.call(lambda: min(broker.broker.sessions))
            broker.call(lambda victim=victim: broker.broker.kick(victim))
            all_back(broker, gateway)
            flowing(gateway, 300)
        published = broker.stop_load()
        wait_until(broker.drained, "everything is acknowledged")
        wait_until(gateway.settled, "nothing is in flight")
        thrown_away = {message.payload for message in broker.call(lambda: list(broker.broker.lost_messages))}
        found = account(kafka.bootstrap, unique, published, deadline_s=5)
        missing = set(found.missing)
        documents = [json.loads(value) for value in thrown_away]
        lost = {(document["device"], document["seq"]) for document in documents}
        print(found, f"thrown away by the broker: {len(lost)}")
        assert missing <= lost, f"missing beyond what the broker threw away: {sorted(missing - lost)[:5]}"
        assert not found.strangers
        assert gateway.imbalance() == 0


def test_sent_to_another_server_and_back_under_load(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """A cluster of two doors: each empties itself in turn with DISCONNECT 0x9C and the other's address."""
    with in_order() as broker, FaultyProxy(broker.port) as proxy:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique)  # default waits: a redirection knows none
        gateway.start()
        broker.start_load(800)
        unacknowledged = 0

        def send_away(port: int) -> int:
            flying = 0
            for link in list(broker.broker.links):
                assert link.session is not None
                flying += len(link.session.flying)
                link.end(0x9C, packets.server_reference(f"nowhere.invalid:x 127.0.0.1:{port}"))
            return flying

        flowing(gateway, 200)
        with watch(gateway), Gap(kafka.bootstrap, unique) as gap:
            for door in (proxy.port, broker.port):
                flowing(gateway, 300)
                unacknowledged += broker.call(lambda port=door: send_away(port))
                wait_until(
                    lambda port=door: (
                        len([line for line in gateway.events("mqtt_redirected") if line["to"].endswith(f":{port}")])
                        == 4
                    ),
                    f"all four go; {gateway.tail()}",
                )
                all_back(broker, gateway)
                assert proxy.connections == (4 if door == proxy.port else 0)
            flowing(gateway, 300)
        assert gap.longest_s < 1.5, "at once, without a wait"
        verdict(broker, gateway, kafka, unique, copies=unacknowledged)
