"""Kafka is away for longer than a session's window lasts: the disk takes over, and gives everything back in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.brokers.scripted_rules import Rules
from tests.chaos.harness import FULL, Watch, account, wait_until
from tests.chaos.threaded import ThreadedBroker

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.embedded.kafka import KafkaCluster
    from tests.chaos.fixtures import MakeGateway
    from tests.chaos.harness import Gateway

pytestmark = pytest.mark.slow

RATE = 1500
OUTAGE_S = 60.0 if FULL else 8.0
RSS_MIB = 90 + 32 + 30.0  # base, flow.memory_bytes, and what the account of failures may cost


def spooled(gateway: Gateway) -> float:
    return gateway.metric("gateway_spool_messages")


def finish(broker: ThreadedBroker, gateway: Gateway, published: dict[str, int], kafka: str, topic: str) -> Any:
    wait_until(broker.drained, f"everything is acknowledged; {gateway.tail()}", 90)
    wait_until(gateway.settled, f"nothing is in flight; {gateway.status()['ledger']}", 120)
    assert gateway.imbalance() == 0
    assert spooled(gateway) == 0
    assert not broker.call(lambda: broker.broker.violations)
    assert not broker.dropped(), "a short queue at the broker was enough"
    found = account(kafka, topic, published)
    assert not found.missing, str(found)
    assert not found.strangers, str(found)
    assert not found.out_of_order, str(found)
    return found


def test_a_frozen_kafka_costs_nothing_but_time(
    make_kafka: Callable[..., KafkaCluster], make_gateway: MakeGateway, unique: str
) -> None:
    """The broker queues a second's messages, as EMQX does; the rest of the outage is on disk. The backlog shrinks at
    three times the live rate or more."""
    kafka = make_kafka()
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=1000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique)
        gateway.start()
        broker.start_load(RATE)
        wait_until(lambda: gateway.metric("gateway_kafka_records_sent_total") > RATE, "messages flow")
        with Watch(gateway, rss_mib=RSS_MIB):
            kafka.freeze()
            end = time.monotonic() + OUTAGE_S
            wait_until(lambda: spooled(gateway) > RATE, "the spool takes over", 10)
            wait_until(lambda: time.monotonic() > end, "the outage lasts", OUTAGE_S + 5)
            assert broker.unacknowledged() < RATE, "acknowledgements go on"
            held = spooled(gateway)
            kafka.thaw()
            wait_until(lambda: spooled(gateway) < held * 0.9, "the spool shrinks", 40)
            began, held = time.monotonic(), spooled(gateway)
            wait_until(lambda: spooled(gateway) < RATE / 10, f"the spool is empty; {gateway.tail()}", 60)
            seconds = time.monotonic() - began
            assert held / seconds + RATE > 3 * RATE, f"{held} messages took {seconds:.1f} s beside live traffic"
            found = finish(broker, gateway, broker.stop_load(), kafka.bootstrap, unique)
        assert found.copies <= RATE, str(found)


def test_killed_again_and_again_while_the_spool_is_replayed(
    make_kafka: Callable[..., KafkaCluster], make_gateway: MakeGateway, unique: str
) -> None:
    kafka = make_kafka()
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=100_000)) as broker:
        # A slow replay, so that each kill is in the middle of it.
        spool = {"replay_max_bytes_per_second": 64 * 1024}  # the least
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, spool=spool, kafka={"batch_bytes": 8192})
        gateway.start()
        broker.start_load(RATE)
        wait_until(lambda: gateway.metric("gateway_kafka_records_sent_total") > RATE, "messages flow")
        kafka.freeze()
        wait_until(lambda: spooled(gateway) > 5 * RATE, "much is on disk", 30)
        published = broker.stop_load()
        gateway.kill()
        kafka.thaw()
        for _ in range(3):
            gateway.start()
            recovered = gateway.status()["ledger"]["recovered"]
            assert recovered > 0
            wait_until(lambda: gateway.status()["ledger"]["delivered"] > 100, "the replay goes on", 20)
            assert spooled(gateway) > 100, "it is in the middle"
            gateway.kill()
        gateway.start()
        finish(broker, gateway, published, kafka.bootstrap, unique)


def test_store_and_forward_through_restarts_without_kafka(
    make_kafka: Callable[..., KafkaCluster], make_gateway: MakeGateway, unique: str
) -> None:
    """A site whose link is away for long: everything goes through the disk, also after a restart in the outage."""
    kafka = make_kafka()
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=100_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, spool={"after": "0s"})
        gateway.start()
        broker.start_load(RATE // 3)
        wait_until(lambda: gateway.metric("gateway_kafka_records_sent_total") > RATE, "messages flow")
        kafka.kill()
        for restart in range(2):
            before = spooled(gateway)
            wait_until(lambda n=before: spooled(gateway) > n + RATE, f"the disk takes all; {gateway.tail()}", 20)
            if restart:
                gateway.kill()
            else:
                assert gateway.stop() == -15, "a clean stop: everything was acknowledged"
            gateway.start(ready=False)
            wait_until(gateway.running, f"it takes messages without Kafka; {gateway.tail()}", 20)
            assert any("Kafka" in reason for reason in gateway.reasons())
        wait_until(lambda: spooled(gateway) > 3 * RATE, "the outage goes on", 20)
        kafka.restart()
        wait_until(gateway.ready, f"/readyz is green again; {gateway.tail()}", 60)
        finish(broker, gateway, broker.stop_load(), kafka.bootstrap, unique)
