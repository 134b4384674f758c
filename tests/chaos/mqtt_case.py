"""What the failure tests of the MQTT side share: a gateway at the scripted broker, and the verdict at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.brokers.scripted_rules import Rules
from tests.chaos.harness import FULL, Account, Gateway, Watch, account, wait_until
from tests.chaos.threaded import ThreadedBroker

if TYPE_CHECKING:
    from gateway.local.embedded.kafka import KafkaCluster

ROUNDS = 6 if FULL else 2
QUICK = {"reconnect_initial": "50ms", "reconnect_max": "500ms", "stable_after": "0s"}
LIMIT_MIB = 32  # flow.memory_bytes


def in_order(queue: int = 1_000_000) -> ThreadedBroker:
    """EMQX with hash_clientid; the queue is large unless its size is the point."""
    return ThreadedBroker(Rules(strategy="hash_clientid", queue=queue))


def flowing(gateway: Gateway, records: int) -> None:
    """Wait until that many records more are in Kafka."""
    before = gateway.metric("gateway_kafka_records_sent_total")
    wait_until(
        lambda: gateway.metric("gateway_kafka_records_sent_total") >= before + records,
        f"{records} records; {gateway.tail()}",
    )


def all_back(broker: ThreadedBroker, gateway: Gateway, sessions: int = 4) -> None:
    wait_until(lambda: gateway.metric("gateway_mqtt_connected") == sessions, f"sessions are back; {gateway.tail()}")


def watch(gateway: Gateway) -> Watch:
    return Watch(gateway, rss_mib=gateway.rss_mib() + LIMIT_MIB + 30)


def verdict(
    broker: ThreadedBroker, gateway: Gateway, kafka: KafkaCluster, topic: str, *, copies: int, ordered: bool = True
) -> Account:
    """Missing 0, foreign 0, in order, ledger 0, copies within what was unacknowledged; the load has ended here."""
    published = broker.stop_load()
    wait_until(broker.drained, f"everything is acknowledged; {gateway.tail()}")
    wait_until(gateway.settled, "nothing is in flight")
    found = account(kafka.bootstrap, topic, published)
    print(found)
    assert not found.missing, str(found)
    assert not found.strangers, str(found)
    if ordered:
        assert not found.out_of_order, str(found)
    assert found.copies <= copies, f"{found}; unacknowledged at the failures: {copies}"
    assert gateway.imbalance() == 0
    assert not broker.call(lambda: broker.broker.violations)
    assert broker.dropped() == 0
    assert not broker.unrouted(), "somebody was always subscribed"
    return found
