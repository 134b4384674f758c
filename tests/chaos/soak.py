"""Random faults for minutes or hours under load, and the verdict: nothing missing, nothing growing.

    python -m tests.chaos.soak --minutes 30 --seed 7 --rate 300

Devices publish to mosquitto at QoS 1 and 2, a gateway carries to an embedded Kafka, and one fault follows another
(``soak_faults``): the gateway killed, frozen or restarted, Kafka frozen or killed, the MQTT broker restarted or thrown
back to an older state, connections cut, half-open, held back, delayed and lossy, and where the machine allows it a full
disk and a wrong clock. The order of faults comes from the seed, which is printed. Afterwards nothing may be missing or
foreign, first occurrences must be in order, the ledger 0 at every look, copies no more than what can have been
unacknowledged, and neither memory nor descriptors may grow (see ``soak_verdict``). Everything listens on 127.0.0.1, and
nothing is left behind. The exit status is 0 if all held, 3 if messages are missing, 69 without mosquitto, otherwise 1.
"""

import argparse
import contextlib
import json
import math
import random
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.runtime.ports import reserve_ports
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.proxy import FaultyProxy
from tests.chaos.case import sent
from tests.chaos.gap import Gap
from tests.chaos.harness import Gateway, Looking, account
from tests.chaos.publisher import Publishers
from tests.chaos.soak_faults import Deck, Site, faked_clock, faults_here, small_disk
from tests.chaos.soak_verdict import Life, Outcome, Sample, report
from tests.programs import find
from tests.waiting import wait_until

TOPIC = "soak"
SESSIONS = 4
WINDOW = 200  # messages that a session may have unacknowledged
RECOVER_S = 90.0
ANSWERS = 6  # times 5 s: a machine that is busy with other things keeps a gateway from answering for that long
LIVES = 6  # of the gateway in a run, at most
LIFE_S = 300.0  # shorter ones say little of growth; but in a short run the gateway has to end once, too
DEVICES = 20


# --- looking ---


class Asked(Gateway):
    """A gateway that is asked again when it does not answer in time; how often that was is part of the report."""

    unanswered = 0

    def get(self, path: str) -> tuple[int, str]:
        for _ in range(ANSWERS - 1):
            try:
                return super().get(path)
            except TimeoutError:
                self.unanswered += 1
        return super().get(path)


class Looker(Looking):
    """Samples a gateway's memory, descriptors and ledger, by life of the process."""

    every_s = 0.5

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self.lives: list[Life] = []
        self.imbalances: list[float] = []
        self._one = threading.Lock()

    def lived_s(self) -> float:
        """For how long the present life has been looked at."""
        samples = self.lives[-1].samples if self.lives else []
        return samples[-1].at_s - samples[0].at_s if samples else 0.0

    def look(self) -> None:
        with self._one:
            pid = self._gateway.process.pid
            rss_mib = self._gateway.rss_mib()
            descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            imbalance = self._gateway.imbalance()
            redelivered = self._gateway.metric("gateway_mqtt_redelivered_total")
            if not self.lives or self.lives[-1].pid != pid:
                self.lives.append(Life(pid))
            life = self.lives[-1]
            life.samples.append(Sample(time.monotonic() - self._began_s, rss_mib, descriptors))
            life.redelivered = int(redelivered)
            if imbalance:
                self.imbalances.append(imbalance)


# --- the run ---


def gateway_settings(mqtt_port: int, bootstrap: str) -> dict[str, Any]:
    """Disjoint filters, each session its own: order is promised whatever the broker does."""
    devices = [f"devices/device-{number:04}/#" for number in range(DEVICES)]
    return {
        "mqtt": {
            "addresses": [f"mqtt://127.0.0.1:{mqtt_port}"],
            "sessions": SESSIONS,
            "distribution": "partitioned",
            "receive_maximum": WINDOW,
            "keepalive": "4s",
            "connect_timeout": "2s",
            "reconnect_initial": "100ms",
            "reconnect_max": "2s",
            "stable_after": "1s",
        },
        "kafka": {
            "bootstrap_servers": [bootstrap],
            "request_timeout": "3s",
            "topics": {"create": True, "partitions": 6, "replication": 1},
        },
        "dead_letter": {"topic": f"{TOPIC}-dead"},
        "routes": [{"name": "telemetry", "filters": devices, "topic": TOPIC, "qos": 2}],
    }


def recovered(site: Site) -> bool:
    """Whether it is ready and, since the call before, records have come into Kafka."""
    if not site.gateway.alive:
        raise AssertionError(f"the gateway ended with {site.gateway.process.returncode}; {site.gateway.tail(30)}")
    try:
        return site.gateway.ready() and sent(site.gateway) > 0
    except OSError:  # a busy machine: the next look counts
        return False


def inflict(site: Site, fault: Callable[[Site], None], gap: Gap, outcome: Outcome) -> None:
    name = fault.__name__.replace("_", " ")
    gap.restart()
    began_s = time.monotonic()
    fault(site)
    wait_until(lambda: recovered(site), f"recovery from: {name}; {site.gateway.tail(20)}", RECOVER_S)
    before = sent(site.gateway)
    wait_until(lambda: sent(site.gateway) > before + 50, f"records after: {name}; {site.gateway.tail(20)}", RECOVER_S)
    outcome.faults.setdefault(name, []).append(gap.restart())
    print(f"  {time.monotonic() - began_s:6.1f} s  {name}", flush=True)


def soak(seconds: float, seed: int, rate: int, *, one_life: bool = False) -> Outcome:
    """The whole run; blocks. Raises AssertionError when something does not recover."""
    outcome = Outcome(seed)
    rng = random.Random(seed)
    life_s = math.inf if one_life else min(seconds / 2, max(seconds / LIVES, LIFE_S))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-soak-")))
        kafka = stack.enter_context(KafkaCluster())
        broker = stack.enter_context(Mosquitto(persistence=True, max_inflight=WINDOW))
        proxy = stack.enter_context(FaultyProxy(broker.port, seed=seed))
        ports = reserve_ports(1)
        stack.callback(ports.release)
        disk = stack.enter_context(small_disk(folder / "data"))
        gateway = stack.enter_context(Asked(folder, ports.ports[0], gateway_settings(proxy.port, kafka.bootstrap)))
        clock = folder / "clock"
        gateway.environment = faked_clock(clock)
        gateway.start()
        publishers = stack.enter_context(Publishers(broker.port, devices=DEVICES, rate=rate, qualities="12"))
        wait_until(lambda: sent(gateway) > 50, "messages flow")
        with Looker(gateway) as looker, Gap(kafka.bootstrap, TOPIC) as gap:
            held = SESSIONS * WINDOW // 2
            site = Site(kafka, broker, proxy, gateway, publishers, looker.try_look, rng, rate, held, disk)
            site.clock = clock if gateway.environment else None
            deck = Deck(faults_here(site), rng, life_s)
            began_s = time.monotonic()
            while time.monotonic() < began_s + seconds or len(outcome.faults) < 2:  # the first may take long
                inflict(site, deck.draw(looker.lived_s()), gap, outcome)
                site.pause(0.2, 2.0)
            published = publishers.stop(120.0)
            wait_until(gateway.settled, f"nothing is in flight; {gateway.tail()}", RECOVER_S)
            looker.try_look()
            outcome.seconds = time.monotonic() - began_s
        outcome.account = account(kafka.bootstrap, TOPIC, published)
        outcome.repeated = publishers.repeated + site.rolled_back
        outcome.final_imbalance = gateway.imbalance()
        outcome.unanswered = gateway.unanswered
        outcome.lives, outcome.imbalances, outcome.looks = looker.lives, looker.imbalances, looker.looks
        status = gateway.stop()
        assert status == -signal.SIGTERM, f"the last stop ended with {status}; {gateway.tail()}"
    return outcome


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="soak", description="Random faults under load, and the account at the end.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults go on (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="order and length of faults (default: random, printed)")
    parser.add_argument("--rate", type=int, default=300, help="messages per second in all (default: 300)")
    parser.add_argument("--one-life", action="store_true", help="leave the gateway alone: shows what grows in it best")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object as well")
    options = parser.parse_args(arguments)
    if not (0 < options.minutes <= 7 * 24 * 60 and 1 <= options.rate <= 5000):
        parser.error("--minutes is above 0 and at most a week, --rate from 1 to 5000")
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    try:
        find("mosquitto", "mosquitto")
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 69
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the with blocks: nothing is left behind
    print(f"soak: {options.minutes:g} minutes, {options.rate} messages/s, --seed {seed}", flush=True)
    outcome = soak(options.minutes * 60, seed, options.rate, one_life=options.one_life)
    print(report(outcome))
    if options.json:
        print(json.dumps(outcome.as_dict()))
    return outcome.status


if __name__ == "__main__":
    sys.exit(main())
