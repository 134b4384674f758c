"""The gateway itself fails or is restarted, under load, at a broker with EMQX's rules and defaults."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.brokers.scripted_rules import Rules
from tests.chaos.gap import Gap
from tests.chaos.harness import FULL, Gateway, account, in_full_form, wait_until
from tests.chaos.threaded import ThreadedBroker

if TYPE_CHECKING:
    from gateway.local.embedded.kafka import KafkaCluster
    from tests.chaos.fixtures import MakeGateway

pytestmark = pytest.mark.slow

RATE = 1500
SECONDS = 10.0 if FULL else 1.0  # of load before, between and after failures


def load_for(broker: ThreadedBroker, seconds: float, sessions: int) -> None:
    """Let the load run, and see that the gateway keeps up with it."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, "time passes")
    members = broker.call(lambda: sum(len(group) for group in broker.broker.groups.values()))
    assert members == sessions


def finish(broker: ThreadedBroker, gateway: Gateway, published: dict[str, int], kafka: str, topic: str) -> Any:
    """Everything is acknowledged, the gateway's own account balances, and here is ours."""
    wait_until(broker.drained, f"everything is acknowledged; {gateway.tail()}")
    wait_until(gateway.settled, f"nothing is in flight; {gateway.status()['ledger']}")
    assert gateway.imbalance() == 0
    assert broker.dropped() == 0
    assert not broker.call(lambda: broker.broker.violations)
    found = account(kafka, topic, published)
    assert not found.missing, str(found)
    assert not found.strangers, str(found)
    return found


@pytest.mark.parametrize(
    ("strategy", "sessions"),
    [
        ("hash_clientid", 4),
        pytest.param("round_robin", 4, marks=in_full_form),
        pytest.param("round_robin", 1, marks=in_full_form),
    ],
)
def test_killed_three_times_under_load(
    strategy: Any, sessions: int, kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """Missing 0; duplicates no more than what was unacknowledged at each kill; order where DESIGN promises it."""
    rules = Rules(strategy=strategy, queue=1_000_000)
    with ThreadedBroker(rules) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt={"sessions": sessions})
        gateway.start()
        broker.start_load(RATE)
        unacknowledged = 0
        for _ in range(3):
            load_for(broker, SECONDS, sessions)
            gateway.kill()
            wait_until(lambda: broker.call(lambda: not broker.broker.links), "the broker notices")
            unacknowledged += broker.unacknowledged()
            gateway.start()
        load_for(broker, SECONDS, sessions)
        found = finish(broker, gateway, broker.stop_load(), kafka.bootstrap, unique)
        assert found.copies <= unacknowledged, f"{found}; unacknowledged at the kills: {unacknowledged}"
        if strategy == "hash_clientid" or sessions == 1:
            assert not found.out_of_order, str(found)


def test_restarted_under_load(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """The only gateway, by SIGTERM: missing 0, and no duplicates, for an orderly stop acknowledges what it has sent."""
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=1_000_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique)
        gateway.start()
        broker.start_load(RATE)
        load_for(broker, SECONDS, 4)
        with Gap(kafka.bootstrap, unique) as gap:
            for _ in range(3 if FULL else 2):
                load_for(broker, SECONDS, 4)
                began = time.monotonic()
                assert gateway.stop() == -signal.SIGTERM, gateway.tail()
                assert time.monotonic() - began < 10
                (stopped,) = gateway.events("worker_stopped")
                assert stopped["clean"]
                assert "imbalance 0" in stopped["ledger"]
                gateway.start()
            load_for(broker, SECONDS, 4)
        assert gap.longest_s < 5, "the only gateway, stopped and started again by whoever runs it"
        found = finish(broker, gateway, broker.stop_load(), kafka.bootstrap, unique)
        assert found.copies == 0, str(found)
        assert not found.out_of_order, str(found)


def test_an_emqx_at_its_defaults_drops_nothing_during_a_short_restart(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """Window 32, queue 1000 in each of four sessions: 4,000 messages, which is two seconds and more at this rate."""
    with ThreadedBroker() as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique)
        gateway.start()
        broker.start_load(600)
        load_for(broker, 1.0, 4)
        gateway.stop()
        gateway.start()
        load_for(broker, 1.0, 4)
        found = finish(broker, gateway, broker.stop_load(), kafka.bootstrap, unique)
        assert found.copies == 0, str(found)


@pytest.mark.parametrize("strategy", ["hash_clientid", "round_robin"])
def test_four_thousand_messages_a_second_from_an_emqx_at_its_defaults(
    strategy: Any, kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """The queue of 1000 is a quarter of a second at this rate: whoever dawdles makes EMQX drop messages."""
    with ThreadedBroker(Rules(strategy=strategy)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique)
        gateway.start()
        broker.start_load(4000, devices=200, size=200)
        seconds = 20.0 if FULL else 5.0
        load_for(broker, seconds, 4)
        found = finish(broker, gateway, broker.stop_load(), kafka.bootstrap, unique)
        assert found.copies == 0, str(found)
        assert found.published > 0.8 * 4000 * seconds, "the load was what it should be"
        if strategy == "hash_clientid":
            assert not found.out_of_order, str(found)


def test_retired_under_load_the_other_gateway_takes_over(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """Scale-in: what the leaving one's sessions hold is delivered, and nothing waits in a session nobody returns to."""
    with ThreadedBroker() as broker:
        tables = [{"instance": f"gateway-{n}", "mqtt": {"client_id": f"{n}-${{session}}"}} for n in (1, 2)]
        leaving, staying = (make_gateway(broker.port, kafka.bootstrap, unique, **table) for table in tables)
        leaving.start()
        staying.start()
        broker.start_load(1000)
        load_for(broker, SECONDS, 8)
        leaving.process.signal(signal.SIGUSR1)  # what `gateway retire` sends
        assert leaving.process.wait(30) == 0, leaving.tail()
        assert broker.call(lambda: set(broker.broker.sessions)) == {f"2-{n}" for n in range(4)}
        load_for(broker, 1.0, 4)
        found = finish(broker, staying, broker.stop_load(), kafka.bootstrap, unique)
        assert found.copies == 0, str(found)
