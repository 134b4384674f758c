"""kill -9 at random moments: start, steady running, a burst, an outage, a stop, a reconnect. 200 in the full form."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.brokers.scripted_rules import Rules
from tests.chaos.harness import FULL, Gateway, account, wait_until
from tests.chaos.threaded import ThreadedBroker

if TYPE_CHECKING:
    from gateway.local.embedded.kafka import KafkaCluster
    from tests.chaos.fixtures import MakeGateway

pytestmark = pytest.mark.slow

KILLS = 200 if FULL else 12
MOMENTS = ("start", "steady", "burst", "outage", "stop", "reconnect")


class Killer:
    """Brings a gateway to a moment of its life and kills it there; ``unacknowledged`` adds up what comes again.

    Steady and in a burst it dies at a random acknowledgement, as the broker reads it; in an outage with Kafka frozen,
    when what is not in Kafka yet is in its memory alone: whoever acknowledges too early is found out there.
    """

    def __init__(self, gateway: Gateway, kafka: KafkaCluster, broker: ThreadedBroker, rng: random.Random) -> None:
        self._gateway = gateway
        self._kafka = kafka
        self._broker = broker
        self._rng = rng
        self.unacknowledged = 0

    def kill_at(self, moment: str) -> None:
        gateway, broker = self._gateway, self._broker
        if moment == "start":
            gateway.start(ready=False)
            self._pause(2.0)
        else:
            gateway.start()
            self._pause(0.3)
            if moment == "steady":
                self._die_at_acknowledgement(self._rng.randrange(1, 200))
            elif moment == "burst":
                broker.burst(self._rng.randrange(1000, 5000))
                self._die_at_acknowledgement(self._rng.randrange(1, 1000))
            elif moment == "outage":
                self._kafka.freeze()
                broker.burst(self._rng.randrange(1000, 5000))
                self._pause(1.0)
            elif moment == "stop":
                gateway.terminate()
                self._pause(0.3)
            else:
                self.unacknowledged += broker.unacknowledged()
                broker.call(self._cut)
                self._pause(0.6)
        gateway.kill()
        self._kafka.thaw()
        wait_until(lambda: broker.call(lambda: not broker.broker.links), "the broker notices")
        self.unacknowledged += broker.unacknowledged()

    def _die_at_acknowledgement(self, number: int) -> None:
        """In the very moment when the broker reads it: what is acknowledged must be in Kafka by then."""
        pid = self._gateway.process.pid

        def arm() -> None:
            self._broker.broker.trap = (number, lambda: os.kill(pid, signal.SIGKILL))

        self._broker.call(arm)
        wait_until(lambda: not self._gateway.alive, "the trap is sprung")

    def _cut(self) -> None:
        for link in list(self._broker.broker.links):
            link.transport.abort()

    def _pause(self, at_most_s: float) -> None:
        end = time.monotonic() + self._rng.uniform(0, at_most_s)
        wait_until(lambda: time.monotonic() > end, "the moment comes")


def test_killed_at_random_moments(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """Missing 0, foreign 0, first occurrences in order, copies no more than what was unacknowledged at the kills."""
    seed = int(os.environ.get("CHAOS_SEED", "11"))
    print(f"CHAOS_SEED={seed}")
    rng = random.Random(seed)
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=10_000_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique)
        gateway.start()  # the sessions are there before the first message
        killer = Killer(gateway, kafka, broker, rng)
        broker.start_load(300)
        gateway.kill()
        killer.unacknowledged += broker.unacknowledged()
        try:
            for number in range(KILLS):
                killer.kill_at(MOMENTS[number % len(MOMENTS)])
        finally:
            kafka.thaw()  # it is not this test's alone
        gateway.start()
        published = broker.stop_load()
        wait_until(broker.drained, f"everything is acknowledged; {gateway.tail()}", 120)
        wait_until(gateway.settled, "nothing is in flight")
        found = account(kafka.bootstrap, unique, published)
        print(f"{KILLS} kills: {found}; unacknowledged at them: {killer.unacknowledged}")
        assert not found.missing, str(found)
        assert not found.strangers, str(found)
        assert not found.out_of_order, str(found)
        assert found.copies <= killer.unacknowledged, str(found)
        assert gateway.imbalance() == 0
        assert broker.dropped() == 0
        assert broker.unrouted() == 0
        assert not broker.call(lambda: broker.broker.violations)
