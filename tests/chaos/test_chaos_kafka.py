"""Kafka fails under load: frozen, killed, absent at the start. Nothing is lost, memory is bounded, /readyz tells."""

import contextlib
import math
import time
from collections.abc import Callable

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from tests.chaos.case import in_order
from tests.chaos.fixtures import MakeCase
from tests.chaos.harness import FULL
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow

RATE = 1000
OUTAGE_S = 30.0 if FULL else 10.0


def test_frozen(make_kafka: Callable[..., KafkaCluster], make_case: MakeCase) -> None:
    """SIGSTOP, as behind a dead network: connections stand, nothing answers. Without a spool the windows hold back."""
    kafka = make_kafka()
    case = make_case(rate=RATE, bootstrap=kafka.bootstrap, spool={"enabled": False})
    gateway = case.gateway
    case.flows(RATE)
    with case.watch():
        kafka.freeze()
        frozen = time.monotonic()
        wait_until(lambda: not gateway.ready(), "/readyz turns red")
        assert any("Kafka" in reason for reason in gateway.reasons()), gateway.reasons()
        passes(OUTAGE_S - (time.monotonic() - frozen))
        assert case.broker.unacknowledged() == 4 * 32, "the windows are full, and nothing was acknowledged meanwhile"
        kafka.thaw()
        wait_until(gateway.ready, f"/readyz is green again; {gateway.reasons()}", 60)
        case.finish(copies=0)  # the same producer went on, with the same numbers
        assert gateway.metric("gateway_kafka_producer_incarnations_total") == 1


def test_frozen_under_a_flood_without_a_window(make_kafka: Callable[..., KafkaCluster], make_case: MakeCase) -> None:
    """QoS 0 knows no window: memory is bounded by not reading, and TCP holds the broker back."""
    kafka = make_kafka()
    case = make_case(
        in_order(max_mailbox=None, send_timeout_s=600), bootstrap=kafka.bootstrap, flow={"memory_bytes": 8 << 20},
        spool={"enabled": False},
    )  # fmt: skip
    gateway = case.gateway

    def buffered() -> float:
        return gateway.samples("gateway_buffer_bytes")['{store="memory"}']

    kafka.freeze()
    with case.watch(8):
        case.broker.start_load(3000, qos=0, size=5000)
        wait_until(lambda: buffered() > 8 << 20, "the buffer is full")
        passes(2.0)
        assert buffered() < 12 << 20
        received = gateway.metric("gateway_ledger_messages_total")
        published = case.broker.stop_load()
        assert received < sum(published.values()), "reading has paused"
        kafka.thaw()
        wait_until(lambda: gateway.status()["ledger"]["delivered"] == sum(published.values()), "all is delivered")
        case.finish(published, copies=math.inf)


def test_absent_at_the_start(make_kafka: Callable[..., KafkaCluster], make_case: MakeCase) -> None:
    """/readyz is red from its first answer until Kafka is there; the sessions are not opened before."""
    kafka = make_kafka()
    kafka.kill()
    case = make_case(start=False, bootstrap=kafka.bootstrap)
    gateway = case.gateway
    gateway.start(ready=False)
    answers = 0

    def answered() -> bool:
        with contextlib.suppress(AssertionError):
            assert gateway.reasons(), "/readyz was green with Kafka dead"
            return True
        return False

    wait_until(answered, "/readyz answers")
    end = time.monotonic() + 3
    while time.monotonic() < end or answers <= 10:
        assert not gateway.ready()
        answers += 1
    wait_until(lambda: gateway.events("kafka_not_ready"), "it has asked")
    assert any("Kafka has not answered" in reason for reason in gateway.reasons())
    assert gateway.get("/healthz")[0] == 200, "it lives, and says so"
    assert not case.client_ids, "no message is taken that could not be delivered"
    (line, *_) = gateway.events("kafka_not_ready")
    assert kafka.bootstrap in line["error"]
    assert "Is the broker running" in line["error"]
    kafka.restart()
    gateway.wait_ready()
    case.broker.start_load(500)
    case.flows(500)
    case.finish(copies=math.inf)
