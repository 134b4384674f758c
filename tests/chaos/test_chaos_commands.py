"""Commands while things fail. Judged by what devices got and by the status topic alone: none lost, none with two
outcomes, each device's in order, and no copy that the failure does not explain."""

import os
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.client import Client
from tests.brokers.mosquitto import Mosquitto
from tests.chaos.case import in_order
from tests.chaos.command_case import DEVICES, RATE, ROUNDS, Load, begin, flows, in_ms, judge
from tests.chaos.commands import (
    OUTCOMES,
    Device,
    Got,
    Site,
    check_devices,
    check_histories,
    is_silent,
    obeys,
    running,
    share_of,
    summary,
)
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import FULL, in_full_form
from tests.chaos.threaded import ThreadedBroker
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def site(kafka: KafkaCluster, unique: str) -> Site:
    return Site(kafka.bootstrap, unique, partitions=4).create()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_gateway_ends_with_commands_under_way(
    site: Site, mosquitto: Mosquitto, make_gateway: MakeGateway, how: signal.Signals
) -> None:
    """One command of a device is under way at most, so a kill makes one copy of each device at most. SIGTERM none: what
    was sent is in the commit, or its PUBACK was waited for."""
    gateway = begin(make_gateway, site, mosquitto.port)
    rng = random.Random(1)
    with running([Device(mosquitto.port, name) for name in DEVICES]) as devices, Load(site) as load:
        for _ in range(ROUNDS):
            flows(devices)
            passes(rng.random() * 0.5)
            if how is signal.SIGKILL:
                gateway.kill()
            else:
                gateway.stop()
            gateway.start()
        judge(site, load, devices, copies=len(DEVICES) * ROUNDS if how is signal.SIGKILL else 0)


def test_a_gateway_ends_while_it_begins(site: Site, mosquitto: Mosquitto, make_gateway: MakeGateway) -> None:
    """By SIGTERM or SIGKILL before, while and after it joins its group; it never hangs, and loses nothing."""
    gateway = begin(make_gateway, site, mosquitto.port, tables={"shutdown_timeout": "5m"})
    rng = random.Random(2)
    kills = 0
    with running([Device(mosquitto.port, name) for name in DEVICES]) as devices, Load(site) as load:
        gateway.stop()
        for number in range(20 if FULL else 4):
            gateway.start(ready=False)
            wait_until(lambda: gateway.events("lifecycle_changed"), "it begins", poll_s=0.005)
            passes(rng.random() * 1.5)
            kills += number % 2
            if number % 2:
                gateway.kill()
            else:
                assert gateway.stop() == -signal.SIGTERM
            assert not gateway.events("commands_defect")
        gateway.start()
        judge(site, load, devices, copies=len(DEVICES) * kills)


def test_kafka_stands_still(
    make_kafka: Callable[..., KafkaCluster], mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    """Nothing is known of a command until Kafka has its status; its answer waits in Kafka's way up."""
    kafka = make_kafka()
    site = Site(kafka.bootstrap, unique).create()
    gateway = begin(make_gateway, site, mosquitto.port, answer_timeout="2m")
    # Longer than all of it: what is written while Kafka stands still is a backlog, and none of it is to expire.
    devices = [Device(mosquitto.port, name) for name in DEVICES]
    with running(devices), Load(site, expiry_s=3600) as load:
        for _ in range(6 if FULL else 1):
            flows(devices)
            kafka.freeze()
            passes(30 if FULL else 4)
            kafka.thaw()
        load.__exit__()
        site.finished(load.count, 300)
        # Whoever is thought to be gone for the members' session sends again, once for each device.
        judge(site, load, devices, copies=len(DEVICES) * len(gateway.events("commands_lost")))


def test_the_broker_is_killed_under_load(site: Site, mosquitto: Mosquitto, make_gateway: MakeGateway) -> None:
    """Of what it had nobody knows: it is sent again where no PUBACK came. Where one came the device may lack it, for
    its session was lost; then it is timed out."""
    gateway = begin(make_gateway, site, mosquitto.port, answer_timeout="5s", settle="1500ms")
    with running([Device(mosquitto.port, name) for name in DEVICES]) as devices, Load(site) as load:
        for _ in range(ROUNDS):
            flows(devices)
            mosquitto.kill()
            wait_until(lambda: "commands-disconnected" in {one["id"] for one in gateway.problems()}, "it is a problem")
            mosquitto.start()
        load.__exit__()
        history = site.finished(load.count, 180)
        check_histories(history)
        words = summary(history)
        assert words["succeeded"] + words.get("timed_out", 0) == load.count, words
        assert words.get("timed_out", 0) <= len(DEVICES) * ROUNDS, words
        timed_out = {statuses[0]["id"] for statuses in history.values() if statuses[-1]["status"] == "timed_out"}
        expected = {
            device.name: [one for one in load.sent[device.name] if one not in timed_out or one in device.ids]
            for device in devices
        }
        assert check_devices(devices, expected) <= len(DEVICES) * ROUNDS


@pytest.mark.parametrize("window", [1, pytest.param(32, marks=in_full_form)])
def test_the_connection_is_cut_and_taken_over(site: Site, make_gateway: MakeGateway, window: int) -> None:
    """At a broker as EMQX. A copy is of a command whose PUBACK nobody saw: at a break no more than were under way."""
    with ThreadedBroker(in_order(max_inflight=window)) as broker:
        gateway = begin(make_gateway, site, broker.port)
        client_id = gateway.status()["commands"]["client_id"]

        def cut() -> int:
            link = broker.broker.sessions[client_id].link
            if link is None:
                return 0
            link.transport.abort()
            return 1

        with running([Device(broker.port, name) for name in DEVICES]) as devices, Load(site) as load:
            breaks = 0
            for _ in range(5 * ROUNDS):
                flows(devices, 20)
                breaks += broker.call(cut)
                flows(devices, 20)
                with Client(broker.port, client_id=client_id):
                    breaks += 1
            judge(site, load, devices, copies=breaks * min(window, len(DEVICES)))


def test_a_worker_is_killed_and_the_other_one_goes_on(
    site: Site, mosquitto: Mosquitto, make_gateway: MakeGateway
) -> None:
    gateway = begin(make_gateway, site, mosquitto.port, tables={"workers": 2})
    with running([Device(mosquitto.port, name) for name in DEVICES]) as devices, Load(site) as load:
        for number in range(ROUNDS):
            flows(devices, 2 * RATE)
            pid = gateway.pids()[number % 2]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: gateway.pids()[number % 2] not in {None, pid}, "it is back", 60)  # noqa: B023
        judge(site, load, devices, copies=len(DEVICES) * ROUNDS)


def test_workers_are_rolled_and_added_under_load(site: Site, mosquitto: Mosquitto, make_gateway: MakeGateway) -> None:
    """Each goes in good order, so nothing is sent twice; one more takes its share of the partitions."""
    gateway = begin(make_gateway, site, mosquitto.port, answer_timeout="2m", tables={"workers": 1})
    with running([Device(mosquitto.port, name) for name in DEVICES]) as devices, Load(site) as load:
        for _ in range(ROUNDS if FULL else 0):
            flows(devices)
            gateway.commanded("restart")
        flows(devices)
        gateway.configure(workers=2)
        gateway.commanded("restart", "--reload")
        wait_until(
            lambda: [len(share) for share in share_of(gateway)] == [2, 2], lambda: f"two share; {share_of(gateway)}"
        )
        flows(devices)
        judge(site, load, devices, copies=0)


def test_a_gateway_joins_leaves_and_comes_back_under_load(
    site: Site, mosquitto: Mosquitto, make_gateway: MakeGateway
) -> None:
    """Partitions move in good order: nothing is sent twice. What is answered while it is away waits in its session."""
    entry = {"group": site.name, "answer_timeout": "2m"}
    begin(make_gateway, site, mosquitto.port, tables={"instance": "one"}, **entry)
    with running([Device(mosquitto.port, name) for name in DEVICES]) as devices, Load(site) as load:
        other = begin(make_gateway, site, mosquitto.port, tables={"instance": "two"}, **entry)
        for _ in range(ROUNDS):
            wait_until(
                lambda: sum(other.samples("gateway_commands_consumed_total").values()) > 50,
                lambda: f"it shares; {other.tail()}",
            )
            other.stop()
            passes(1)
            other.start()
        judge(site, load, devices, copies=0)


@in_full_form
def test_a_gateway_that_stood_still_does_nothing_more_for_partitions_of_others(
    site: Site, mosquitto: Mosquitto, make_gateway: MakeGateway
) -> None:
    """It wakes with commands that the other one has taken over: due timers, answers in its sockets, and a queue."""
    entry: dict[str, Any] = {"group": site.name, "answer_timeout": "5s", "rate_per_device": 20}
    frozen, _ = (
        begin(make_gateway, site, mosquitto.port, tables={"instance": instance}, **entry) for instance in ("one", "two")
    )
    quick = [Device(mosquitto.port, name) for name in DEVICES[:5]]
    slow = [Device(mosquitto.port, name, answers=is_silent) for name in DEVICES[5:]]
    with running([*quick, *slow]) as devices, Load(site, rate=50) as load:
        passes(2)
        for _ in range(2):
            flows(devices)
            frozen.process.signal(signal.SIGSTOP)
            passes(18)
            for device in slow:
                for got in list(device.got):
                    device.answer(got, 500)
            frozen.process.signal(signal.SIGCONT)
            passes(3)
        for device in slow:
            device.answers = obeys
        load.__exit__()
        history = site.finished(load.count, 240)
        check_histories(history)
        assert sum(summary(history).values()) == load.count
        assert check_devices(devices, load.sent) <= 2 * len(DEVICES)
        assert frozen.events("commands_lost")


def misbehaves(device: Device, got: Got) -> Iterable[int]:
    """Answers twice, late, with garbage, for another device, or never."""
    number = int(got.id.rpartition("-")[2]) // len(BAD)
    match number % 6:
        case 0:
            return (200, 500, 200)
        case 1:
            threading.Timer(6, device.answer, (got, 200)).start()
        case 2:
            device.answer(got._replace(token="garbage" + got.token), 200)
            device.paho.publish(f"devices/{device.name}/res/{got.token}/%%%", b"\xff", 1)
            return (777,)
        case 3:
            device.answer(got, 200, as_device="d00")
        case 4:
            return (102, 102, 404, 102)
        case _:
            pass
    return ()


BAD = ["b0", "b1", "b2"]


def test_devices_misbehave_and_others_are_not_held_up(
    site: Site, mosquitto: Mosquitto, make_gateway: MakeGateway
) -> None:
    """One flaps, three answer as they like, one is stormed, one is away; ten others have none of it."""
    gateway = begin(make_gateway, site, mosquitto.port, answer_timeout="4s")
    flapping, away = Device(mosquitto.port, "flapping"), "away"
    bad = [Device(mosquitto.port, name, answers=misbehaves) for name in BAD]
    stormed = Device(mosquitto.port, "stormed")
    waits_s: dict[str, float] = {}
    sent_s: dict[str, float] = {}

    def prompt(_device: Device, got: Got) -> Iterable[int]:
        waits_s[got.id] = got.at_s - sent_s[got.id]
        return (200,)

    good = [Device(mosquitto.port, name, answers=prompt) for name in DEVICES]
    storm = 2000 if FULL else 500
    with running([*bad, stormed, *good]):
        for number in range(storm):
            site.send("stormed", id_=f"stormed-{number}", expires_at=in_ms(300_000))
        for number in range(6 * len(BAD)):
            name = BAD[number % len(BAD)]
            site.send(name, id_=f"{name}-{number}")
        for number in range(20):
            site.send("flapping", id_=f"flapping-{number}", expires_at=in_ms(120_000))
            site.send(away, id_=f"away-{number}", expires_at=in_ms(3000 + 100 * number))
        for number in range(100):
            name = DEVICES[number % len(DEVICES)]
            sent_s[f"{name}-{number}"] = time.monotonic()
            site.send(name, id_=f"{name}-{number}")
            if number % 20 == 0:
                flapping.come()
                passes(0.2)
                flapping.leave()
            passes(0.02)
        with flapping:
            history = site.finished(storm + 6 * len(BAD) + 20 + 20 + 100, 180)
        passes(2)
        history = site.history()
    check_histories(history)
    by_device: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for statuses in history.values():
        by_device[statuses[-1]["device"]].append(statuses[-1])
    assert {status["status"] for status in by_device[away]} == {"expired"}
    assert {status["status"] for status in by_device["stormed"]} == {"succeeded"}
    assert stormed.ids == [f"stormed-{number}" for number in range(storm)]
    for name in DEVICES:
        assert {status["status"] for status in by_device[name]} == {"succeeded"}
    for name in BAD:
        found = [status["status"] for status in sorted(by_device[name], key=lambda one: int(one["id"].split("-")[1]))]
        assert found == ["succeeded", "succeeded", "timed_out", "timed_out", "rejected", "timed_out"]
    assert {status["status"] for status in by_device["flapping"]} <= {"succeeded", "timed_out"}
    first = list(dict.fromkeys(flapping.ids))
    assert first == sorted(first, key=lambda one: int(one.split("-")[1]))
    waits = sorted(waits_s.values())
    print(f"others: p50 {waits[50] * 1000:.0f} ms, p99 {waits[98] * 1000:.0f} ms")
    ended_ms = {name: max(status["appended_ms"] for status in found) for name, found in by_device.items()}
    assert max(ended_ms[name] for name in DEVICES) < min(ended_ms[name] for name in BAD), "behind four that time out"
    assert {status["status"] for statuses in history.values() for status in statuses if status["terminal"]} <= OUTCOMES
    assert gateway.metric("gateway_commands_imbalance") == 0
    assert not gateway.events("commands_defect")


def test_what_is_silent_during_the_end_of_a_gateway_is_timed_once(
    site: Site, mosquitto: Mosquitto, make_gateway: MakeGateway
) -> None:
    """What waits for an answer at a kill -9 is timed by the next life, not sent again, and a late answer finds it."""
    gateway = begin(make_gateway, site, mosquitto.port, answer_timeout="4s")
    with running([Device(mosquitto.port, name, answers=is_silent) for name in DEVICES]) as devices:
        for name in DEVICES:
            site.send(name, id_=name)
        site.flush()

        def are_sent() -> bool:  # beyond "accepted": what Kafka does not know as sent is sent again
            return sum(one["status"] == "sent" for told in site.history().values() for one in told) == len(DEVICES)

        wait_until(are_sent, "all are sent", poll_s=0.2)
        gateway.kill()
        gateway.start()
        for name in DEVICES:
            site.outcome(name, "timed_out")
        for device in devices:
            device.answer(device.got[0], 200)
        for name in DEVICES:
            assert site.outcome(name, "succeeded")["late"]
        check_histories(site.history())
        assert [device.ids for device in devices] == [[name] for name in DEVICES]
