"""Kafka fails under load: frozen, killed, absent at the start. Nothing is lost, memory is bounded, /readyz tells."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.brokers.scripted_rules import Rules
from tests.chaos.harness import FULL, Gateway, Watch, account, wait_until
from tests.chaos.threaded import ThreadedBroker

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.local.embedded.kafka import KafkaCluster
    from tests.chaos.fixtures import MakeGateway

pytestmark = pytest.mark.slow

RATE = 1000
OUTAGE_S = 30.0 if FULL else 10.0
RSS_MIB = 110.0  # of a worker that holds what it may; 64 and 76 MiB when this was written


def outage(seconds: float) -> None:
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, "the outage lasts", seconds + 5)


def finish(broker: ThreadedBroker, gateway: Gateway, published: dict[str, int], kafka: str, topic: str) -> Any:
    wait_until(broker.drained, f"everything is acknowledged; {gateway.tail()}", 90)
    wait_until(gateway.settled, f"nothing is in flight; {gateway.status()['ledger']}")
    assert gateway.imbalance() == 0
    assert not broker.call(lambda: broker.broker.violations)
    found = account(kafka, topic, published)
    assert not found.missing, str(found)
    assert not found.strangers, str(found)
    assert not found.out_of_order, str(found)
    return found


def test_frozen(make_kafka: Callable[..., KafkaCluster], make_gateway: MakeGateway, unique: str) -> None:
    """SIGSTOP, as behind a dead network: connections stand, nothing answers. Without a spool the windows hold back."""
    kafka = make_kafka()
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=1_000_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, spool={"enabled": False})
        gateway.start()
        broker.start_load(RATE)
        wait_until(lambda: gateway.metric("gateway_kafka_records_sent_total") > RATE, "messages flow")
        with Watch(gateway, rss_mib=RSS_MIB):
            kafka.freeze()
            frozen = time.monotonic()
            wait_until(lambda: not gateway.ready(), "/readyz turns red", 20)
            assert any("Kafka" in reason for reason in gateway.reasons()), gateway.reasons()
            outage(OUTAGE_S - (time.monotonic() - frozen))
            assert broker.unacknowledged() == 4 * 32, "the windows are full, and nothing was acknowledged meanwhile"
            kafka.thaw()
            wait_until(gateway.ready, f"/readyz is green again; {gateway.reasons()}", 60)
            finish(broker, gateway, broker.stop_load(), kafka.bootstrap, unique)


def test_frozen_under_a_flood_without_a_window(
    make_kafka: Callable[..., KafkaCluster], make_gateway: MakeGateway, unique: str
) -> None:
    """QoS 0 knows no window: memory is bounded by not reading, and TCP holds the broker back."""
    kafka = make_kafka()
    with ThreadedBroker(Rules(strategy="hash_clientid")) as broker:
        gateway = make_gateway(
            broker.port, kafka.bootstrap, unique, flow={"memory_bytes": 8 << 20}, spool={"enabled": False}
        )
        gateway.start()
        kafka.freeze()
        with Watch(gateway, rss_mib=RSS_MIB):
            broker.start_load(3000, qos=0, size=5000)
            wait_until(
                lambda: gateway.samples("gateway_buffer_bytes")['{store="memory"}'] > 8 << 20, "the buffer is full", 30
            )
            outage(2.0)
            assert gateway.samples("gateway_buffer_bytes")['{store="memory"}'] < 12 << 20
            received = gateway.metric("gateway_ledger_messages_total")
            published = broker.stop_load()
            assert received < sum(published.values()), "reading has paused"
            kafka.thaw()
            wait_until(lambda: gateway.status()["ledger"]["delivered"] == sum(published.values()), "all is delivered")
            finish(broker, gateway, published, kafka.bootstrap, unique)


def test_killed_and_restarted(make_kafka: Callable[..., KafkaCluster], make_gateway: MakeGateway, unique: str) -> None:
    """Connections are reset and refused, then everything is there again."""
    kafka = make_kafka()
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=1_000_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique)
        gateway.start()
        broker.start_load(RATE)
        for _ in range(3 if FULL else 1):
            before = gateway.metric("gateway_kafka_records_sent_total")
            wait_until(lambda n=before: gateway.metric("gateway_kafka_records_sent_total") > n + RATE, "messages flow")
            kafka.kill()
            wait_until(lambda: not gateway.ready(), "/readyz turns red", 20)
            kafka.restart()
            wait_until(gateway.ready, f"/readyz is green again; {gateway.tail()}", 60)
        found = finish(broker, gateway, broker.stop_load(), kafka.bootstrap, unique)
        assert gateway.alive, str(found)


def test_absent_at_the_start(make_kafka: Callable[..., KafkaCluster], make_gateway: MakeGateway, unique: str) -> None:
    """/readyz is red from its first answer until Kafka is there; the sessions are not opened before."""
    kafka = make_kafka()
    kafka.kill()
    with ThreadedBroker(Rules(strategy="hash_clientid")) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique)
        gateway.start(ready=False)
        answers = 0

        def answered() -> bool:
            with contextlib.suppress(AssertionError):
                assert gateway.reasons(), "/readyz was green with Kafka dead"
                return True
            return False

        wait_until(answered, "/readyz answers")
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert not gateway.ready()
            answers += 1
        assert answers > 10
        assert any("Kafka has not answered" in reason for reason in gateway.reasons())
        assert gateway.get("/healthz")[0] == 200, "it lives, and says so"
        assert not broker.call(lambda: broker.broker.sessions), "no message is taken that could not be delivered"
        (line, *_) = gateway.events("kafka_not_ready")
        assert kafka.bootstrap in line["error"]
        assert "Is the broker running" in line["error"]
        kafka.restart()
        gateway.wait_ready()
        broker.start_load(500)
        wait_until(lambda: gateway.metric("gateway_kafka_records_sent_total") > 500, "messages flow")
        finish(broker, gateway, broker.stop_load(), kafka.bootstrap, unique)
