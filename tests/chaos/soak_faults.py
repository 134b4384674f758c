"""What a soak breaks. A fault returns when its cause is over; recovery is waited for later."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.brokers.proxy import FaultyProxy, Weather
from tests.waiting import wait_until

if TYPE_CHECKING:
    import random

    from gateway.local.embedded.kafka import KafkaCluster
    from tests.brokers.mosquitto import Mosquitto
    from tests.chaos.harness import Gateway
    from tests.chaos.publisher import Publishers

SETTLE_S = 60.0
DISK_BYTES = 48 << 20
RECEIVED = "gateway_mqtt_messages_received_total"
REDELIVERED = "gateway_mqtt_redelivered_total"


@dataclass
class Site:
    """Everything a soak runs on. ``disk`` and ``clock`` are there where the machine allows these faults."""

    kafka: KafkaCluster
    broker: Mosquitto
    proxy: FaultyProxy
    gateway: Gateway
    publishers: Publishers
    look: Callable[[], None]  # takes a sample of the gateway's life
    rng: random.Random
    rate: int  # messages a second
    held: int  # messages that the gateway takes in without acknowledging one: half of its windows
    disk: Path | None = None  # the small file system with the gateway's data
    clock: Path | None = None  # what the gateway's clock is off by, for libfaketime
    rolled_back: int = 0  # messages the broker sent again after it had forgotten that they were acknowledged

    def pause(self, at_least_s: float, at_most_s: float) -> None:
        time.sleep(self.rng.uniform(at_least_s, at_most_s))  # the length of a fault is the fault


# --- the gateway ---


def kill_gateway(site: Site) -> None:
    site.look()  # the last of this life
    site.gateway.kill()
    site.pause(0.0, 1.0)
    site.gateway.start(ready=False)


def restart_gateway(site: Site) -> None:
    site.look()
    assert site.gateway.stop() == -signal.SIGTERM, site.gateway.tail()
    site.gateway.start(ready=False)


def freeze_gateway(site: Site) -> None:
    site.gateway.process.signal(signal.SIGSTOP)
    site.pause(0.5, 6.0)
    site.gateway.process.signal(signal.SIGCONT)


# --- Kafka ---


def freeze_kafka(site: Site) -> None:
    site.kafka.freeze()
    site.pause(0.5, 8.0)
    site.kafka.thaw()


def kill_kafka(site: Site) -> None:
    site.kafka.kill()
    site.pause(0.0, 2.0)
    site.kafka.restart()


# --- the MQTT broker ---


def restart_broker(site: Site) -> None:
    # mosquitto 2.0.11 restores sessions from its file, but not their shared subscriptions. A device hears of a message
    # that reached nobody at QoS 1 (PUBACK 0x10); paho hides PUBREC's reason, so those at QoS 2 wait meanwhile.
    site.publishers.pause(only_qos2=True)
    site.broker.shut_down()
    site.pause(0.0, 2.0)
    site.broker.start()
    wait_until(site.gateway.ready, f"subscribed after a restart; {site.gateway.tail(20)}", SETTLE_S)
    site.publishers.resume()


def roll_back_broker(site: Site) -> None:
    """The broker comes back with sessions as they were a while ago, and counts packet ids from there again.

    Its file and its end both find messages that the gateway holds unacknowledged. What the broker has accepted since
    its file was written is gone with it, so it ends only when the gateway has received all of that.
    """
    site.kafka.freeze()
    site.pause(0.2, 0.8)
    site.broker.save()
    site.kafka.thaw()
    site.pause(0.2, 2.0)
    site.publishers.pause()
    wait_until(lambda: settled(site), f"nothing is in flight before a roll-back; {site.gateway.tail(20)}", SETTLE_S)
    site.kafka.freeze()
    site.publishers.resume()
    site.pause(0.1, min(0.6, site.held / site.rate))
    site.publishers.pause()
    wait_until(lambda: quiet(site, 0.1), "the gateway has received all that was published", SETTLE_S)
    site.broker.kill()
    site.kafka.thaw()
    before = site.gateway.metric(RECEIVED) - site.gateway.metric(REDELIVERED)
    site.broker.start()
    wait_until(site.gateway.ready, f"subscribed after a roll-back; {site.gateway.tail(20)}", SETTLE_S)
    wait_until(lambda: settled(site), f"the broker has sent again what it kept; {site.gateway.tail(20)}", SETTLE_S)
    # Those with DUP=1 are counted as redelivered; the broker's queue behind its window comes again without it.
    site.rolled_back += int(site.gateway.metric(RECEIVED) - site.gateway.metric(REDELIVERED) - before)
    site.publishers.resume()


def quiet(site: Site, for_s: float) -> bool:
    """Whether nothing came for so long. Devices are paused."""
    end = time.monotonic() + for_s
    received = site.gateway.metric(RECEIVED)
    while time.monotonic() < end:
        if site.gateway.metric(RECEIVED) != received:
            return False
        time.sleep(0.02)
    return True


def settled(site: Site) -> bool:
    """Whether nothing is in flight, and nothing came for half a second. Devices are paused."""
    return site.gateway.settled() and quiet(site, 0.5) and site.gateway.settled()


# --- the network between gateway and MQTT broker ---


def cut_connections(site: Site) -> None:
    for _ in range(site.rng.randint(1, 4)):
        site.proxy.cut()
        site.pause(0.0, 0.5)


def half_open(site: Site) -> None:
    site.proxy.swallow()
    site.pause(0.0, 3.0)
    site.proxy.swallow(False)


def hold_connections(site: Site) -> None:
    site.proxy.hold()
    site.pause(0.2, 3.0)
    site.proxy.hold(False)


def bad_weather(site: Site) -> None:
    site.proxy.weather = Weather(rtt_s=site.rng.uniform(0.02, 0.2), loss=site.rng.uniform(0, 0.03))
    site.pause(1.0, 4.0)
    site.proxy.weather = Weather()


# --- the gateway's machine ---


def fill_disk(site: Site) -> None:
    """No room for the spool while Kafka is away: the broker has to wait."""
    assert site.disk is not None
    filler = site.disk / "filler"
    site.kafka.freeze()
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    site.pause(1.0, 6.0)
    filler.unlink()
    site.kafka.thaw()


def wrong_clock(site: Site) -> None:
    """Hours ahead or behind, with Kafka away for a part of it, and right again. Kafka refuses times far ahead."""
    assert site.clock is not None
    site.clock.write_text(site.rng.choice(("+10800", "+1800", "-10800")))
    site.pause(0.5, 3.0)
    site.kafka.freeze()
    site.pause(1.5, 3.0)
    site.kafka.thaw()
    site.pause(0.0, 2.0)
    site.clock.write_text("+0")


def faults_here(site: Site) -> list[Callable[[Site], None]]:
    """The faults that this machine allows."""
    found = [
        kill_gateway, restart_gateway, freeze_gateway, freeze_kafka, kill_kafka, restart_broker, roll_back_broker,
        cut_connections, half_open, hold_connections, bad_weather,
    ]  # fmt: skip
    if site.disk is not None:
        found.append(fill_disk)
    if site.clock is not None:
        found.append(wrong_clock)
    return found


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of 48 MiB at ``folder``; None where it cannot be mounted, as for anybody but root."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        is_there = os.geteuid() == 0 and not subprocess.run(command, check=False, capture_output=True).returncode
        yield folder if is_there else None
    finally:
        if folder.is_mount():  # also where a signal came while it was mounted
            subprocess.run(["umount", "--lazy", folder], check=True)


def faked_clock(clock: Path) -> dict[str, str]:
    """The environment of a process whose wall clock is off by what ``clock`` says; empty without libfaketime."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        return {}
    clock.write_text("+0")
    return {
        "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip


class Deck:
    """Each fault once in random order, then again: a short run has variety, too.

    Those that end the gateway wait until its life has lasted ``life_s``: whether something grows is seen in long lives.
    """

    def __init__(self, faults: list[Callable[[Site], None]], rng: random.Random, life_s: float) -> None:
        self._faults = faults
        self._rng = rng
        self._life_s = life_s
        self._cards: list[Callable[[Site], None]] = []

    def draw(self, lived_s: float) -> Callable[[Site], None]:
        """The next fault for a gateway that has lived so long."""
        while True:
            if not self._cards:
                self._cards = self._rng.sample(self._faults, len(self._faults))
            fault = self._cards.pop()
            if fault not in (kill_gateway, restart_gateway) or lived_s >= self._life_s:
                return fault
