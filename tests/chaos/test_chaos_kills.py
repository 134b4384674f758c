"""kill -9 at random moments: start, steady running, a burst, an outage, a stop, a reconnect. 200 in the full form."""

import os
import random
import signal

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from tests.chaos.case import Case, in_order
from tests.chaos.fixtures import MakeCase
from tests.chaos.harness import FULL
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow

KILLS = 200 if FULL else 12
MOMENTS = ("start", "steady", "burst", "outage", "stop", "reconnect")


class Killer:
    """Brings a gateway to a moment of its life and kills it there.

    Steady and in a burst it dies at a random acknowledgement, as the broker reads it; in an outage with Kafka frozen,
    when what is not in Kafka yet is in its memory alone: whoever acknowledges too early is found out there.
    """

    def __init__(self, case: Case, kafka: KafkaCluster, rng: random.Random) -> None:
        self._case = case
        self._kafka = kafka
        self._rng = rng

    def kill_at(self, moment: str) -> None:
        case, gateway, burst = self._case, self._case.gateway, self._case.broker.burst
        if moment == "start":
            gateway.start(ready=False)
            self._pause(2.0)
        else:
            gateway.start()
            self._pause(0.3)
            if moment == "steady":
                self._die_at_acknowledgement(self._rng.randrange(1, 200))
            elif moment == "burst":
                burst(self._rng.randrange(1000, 5000))
                self._die_at_acknowledgement(self._rng.randrange(1, 1000))
            elif moment == "outage":
                self._kafka.freeze()
                burst(self._rng.randrange(1000, 5000))
                self._pause(1.0)
            elif moment == "stop":
                gateway.terminate()
                self._pause(0.3)
            else:
                case.end_links()
                self._pause(0.6)
        gateway.kill()
        self._kafka.thaw()
        case.kill()

    def _die_at_acknowledgement(self, number: int) -> None:
        """In the very moment when the broker reads it: what is acknowledged must be in Kafka by then."""
        pid, broker = self._case.gateway.process.pid, self._case.broker

        def arm() -> None:
            broker.broker.trap = (number, lambda: os.kill(pid, signal.SIGKILL))

        broker.call(arm)
        wait_until(lambda: not self._case.gateway.alive, "the trap is sprung")

    def _pause(self, at_most_s: float) -> None:
        passes(self._rng.uniform(0, at_most_s))


def test_killed_at_random_moments(kafka: KafkaCluster, make_case: MakeCase) -> None:
    """Missing 0, foreign 0, first occurrences in order, copies no more than what was unacknowledged at the kills."""
    seed = int(os.environ.get("CHAOS_SEED", "11"))
    print(f"CHAOS_SEED={seed}")
    case = make_case(in_order(10_000_000), rate=300)
    killer = Killer(case, kafka, random.Random(seed))
    case.kill()
    try:
        for number in range(KILLS):
            killer.kill_at(MOMENTS[number % len(MOMENTS)])
    finally:
        kafka.thaw()  # it is not this test's alone
    case.gateway.start()
    case.finish()
    print(f"{KILLS} kills; unacknowledged at them: {case.unacknowledged}")
