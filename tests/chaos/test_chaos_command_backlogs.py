"""Commands that wait: very many, in partitions whose commit has no room for more, written again, and while the clock
steps. Judged as in test_chaos_commands.py."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.mosquitto import Mosquitto
from tests.chaos.command_case import DEVICES, RATE, Load, begin, flows, in_ms, judge
from tests.chaos.commands import (
    Device,
    Fleet,
    Site,
    check_device,
    check_devices,
    check_histories,
    is_silent,
    obeys,
    running,
    summary,
)
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import FULL, Gateway
from tests.chaos.soak_faults import faked_clock
from tests.programs import missing
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

WAITING, FLEET = (100_000, 500) if FULL else (3_000, 300)
TIMES = 10 if FULL else 1
METADATA_BYTES = 512 if FULL else 256
EARLY_MS, LATE_MS = 100, 15_000  # how far from its time an outcome may be; the clock steps by 1,800 s
TIMEOUT_MS, LONG_MS = 1500, 300_000


def unfinished(gateway: Gateway) -> float:
    """Commands that the gateway has and that have no outcome."""
    return gateway.metric("gateway_commands_waiting") + gateway.metric("gateway_commands_under_way")


def test_a_hundred_thousand_commands_wait(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    """Or three thousand, over 12 partitions, for devices that are away. A life that ends while all wait costs no copy,
    one that ends while they leave at most one of each device."""
    site = Site(kafka.bootstrap, unique, partitions=12).create()
    names = [f"f{number:03}" for number in range(FLEET)]
    sent: dict[str, list[str]] = {name: [] for name in names}
    for number in range(WAITING):
        name = names[number % FLEET]
        sent[name].append(f"{name}-{number}")
        site.send(name, id_=sent[name][-1], expires_at=in_ms(3_600_000))
    site.flush()
    limits = {"max_waiting": 2 * WAITING, "max_waiting_bytes": "512MiB", "answer_timeout": "5m"}
    gateway = begin(make_gateway, site, mosquitto.port, **limits)
    wait_until(lambda: unfinished(gateway) == WAITING, lambda: f"all wait; {unfinished(gateway)}", 180)
    print(f"{WAITING} wait in {gateway.rss_mib():.0f} MiB")
    gateway.kill()
    gateway.start()
    wait_until(lambda: unfinished(gateway) == WAITING, lambda: f"all wait again; {unfinished(gateway)}", 180)
    with Fleet(mosquitto.port) as fleet:
        fleet.wait(WAITING // 3, 600)
        gateway.kill()
        gateway.start()
        wait_until(lambda: unfinished(gateway) == 0 and len(fleet.got) >= WAITING, "all have left", 900, 0.5)
        history = site.finished(WAITING, 300)
        assert gateway.metric("gateway_commands_imbalance") == 0
    check_histories(history)
    assert summary(history) == {"succeeded": WAITING}
    got = fleet.by_device()
    copies = sum(check_device(name, got[name], sent[name]) for name in names)
    print(f"{copies} copies")
    assert copies <= FLEET


def commit_of(site: Site, group: str) -> tuple[int, str]:
    """What the group has committed of the first partition, by Kafka's own word: offset and metadata."""

    async def ask() -> tuple[int, str]:
        # confluent-kafka 2.16.1 reads such a text beyond its end.
        admin = AIOKafkaAdminClient(bootstrap_servers=site.bootstrap)
        await admin.start()
        try:
            found = (await admin.list_consumer_group_offsets(group))[TopicPartition(site.commands, 0)]
            return found.offset, found.metadata
        finally:
            await admin.close()

    return asyncio.run(ask())


def test_a_partition_whose_commit_has_no_room_waits_and_goes_on(
    make_kafka: Callable[..., KafkaCluster], mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    """A device is silent, so that every other command is finished and the commit's metadata grow to what the broker
    takes. What a life that ends then has not committed is in the status topic: a copy of what was under way at most."""
    kafka = make_kafka(settings={"offset.metadata.max.bytes": str(METADATA_BYTES)})
    site = Site(kafka.bootstrap, unique, partitions=1).create()
    gateway = begin(make_gateway, site, mosquitto.port, group=unique, answer_timeout="10m")
    slow, quick = Device(mosquitto.port, "slow"), Device(mosquitto.port, "quick")

    def paused() -> bool:
        return gateway.metric("gateway_commands_paused_partitions") == 1

    def nothing_is_taken() -> bool:
        at, ahead = gateway.metric("gateway_commands_consumed_total"), load.count
        wait_until(lambda: load.count > ahead + RATE // 2, "more is written")
        return gateway.metric("gateway_commands_consumed_total") == at

    with running([slow, quick]) as devices, Load(site, devices=["slow", "quick"]) as load:
        for number in range(TIMES):
            slow.answers = is_silent
            wait_until(paused, lambda: f"the partition waits; {commit_of(site, unique)}", 120)
            assert "commands-paused" in {problem["id"] for problem in gateway.problems()}
            wait_until(nothing_is_taken, "what the last read had is taken", 120)
            assert paused()
            offset, metadata = commit_of(site, unique)
            print(f"paused at {offset}, {len(metadata)} bytes: {metadata[:60]}")
            assert offset < load.count - RATE // 2
            assert 0 < len(metadata) <= METADATA_BYTES
            if number % 2:
                gateway.stop()
            else:
                gateway.kill()
            gateway.start()
            wait_until(paused, "it waits again", 120)
            slow.answers = obeys
            slow.answer(slow.got[-1], 200)
            wait_until(lambda: commit_of(site, unique)[0] > offset, "the commit goes on", 120)  # noqa: B023
            flows(devices)
        judge(site, load, devices, copies=len(devices) * ((TIMES + 1) // 2))
        wait_until(lambda: commit_of(site, unique)[0] == load.count, "all is committed")


def test_copies_of_a_record_are_refused_by_the_next_life_too(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    """As a producer without idempotence writes them: before a kill -9, at the kill and after it."""
    site = Site(kafka.bootstrap, unique).create()
    gateway = begin(make_gateway, site, mosquitto.port, answer_timeout="5m")

    def send() -> None:
        for name in DEVICES:
            site.send(name, id_=name)
        site.flush()

    with running([Device(mosquitto.port, name, answers=is_silent) for name in DEVICES]) as devices:
        for _ in range(3):
            send()
        each = {"sent": len(DEVICES), "refused": 2 * len(DEVICES)}
        wait_until(lambda: summary(site.history()) == each, "each is sent or refused", poll_s=0.2)
        send()
        gateway.kill()
        send()
        gateway.start()
        send()
        site.finished(5 * len(DEVICES))
        for device in devices:
            device.answer(device.got[0], 200)
        history = site.finished(6 * len(DEVICES))
        check_histories(history)
        assert summary(history) == {"succeeded": len(DEVICES), "refused": 5 * len(DEVICES)}
        reasons = {one["reason"] for statuses in history.values() for one in statuses if one["status"] == "refused"}
        assert reasons == {"duplicate"}
        assert [device.ids for device in devices] == [[name] for name in DEVICES]


def test_the_clock_steps_while_commands_wait_and_expire(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str, tmp_path: Path
) -> None:
    """By half an hour, forward and back. What was taken before expires and times out at its time, by the broker's
    clock, and what waits longer is sent with the seconds that are left."""
    clock = tmp_path / "clock"
    environment = faked_clock(clock)
    if not environment:
        missing("libfaketime is not installed (Debian: apt-get install libfaketime)")
    site = Site(kafka.bootstrap, unique).create()
    gateway = begin(make_gateway, site, mosquitto.port, environment=environment, answer_timeout=f"{TIMEOUT_MS}ms")
    silent = Device(mosquitto.port, "silent", answers=is_silent)
    quick = [Device(mosquitto.port, name, answers=is_silent) for name in DEVICES]
    steps = ["+1800", "-1800", "+0"]
    each = TIMES * len(steps)
    deadlines_ms: dict[str, int] = {}

    def send(command_id: str, after_ms: int) -> None:
        expires_at = in_ms(after_ms)
        deadlines_ms[command_id] = int(expires_at)
        site.send(command_id.partition("-")[0], id_=command_id, expires_at=expires_at)

    with running([silent, *quick]), Load(site, expiry_s=7200, answer=False) as load:
        for first in range(0, each, len(steps)):
            for number in range(first, first + len(steps)):
                send(f"silent-{number}", LONG_MS)
                send(f"away-{number}", 1500 * (number - first + 1))
            site.flush()
            silent.wait(first + 1, 60)
            waits = [f"{name}-{first + number}" for name in ("silent", "away") for number in range(len(steps))]
            wait_until(lambda: all(map(site.of, waits)), "what waits is taken", poll_s=0.1)  # noqa: B023
            for number, step in enumerate(steps, first):
                clock.write_text(step)
                site.outcome(f"away-{number}", "expired", 60)
            for number in range(first, first + len(steps)):
                site.outcome(f"silent-{number}", "timed_out", 60)
            flows(quick)
        load.__exit__()
        history = site.finished(load.count + 2 * each)
    check_histories(history)
    assert check_devices(quick, load.sent) == 0
    assert summary(history) == {"sent": load.count, "expired": each, "timed_out": each}
    assert silent.ids == [f"silent-{number}" for number in range(each)]
    began_s = time.time() - time.monotonic()
    for got in silent.got:
        left_s = deadlines_ms[got.id] / 1000 - began_s - got.at_s
        assert got.expiry_s is not None
        assert left_s - 1 <= got.expiry_s <= left_s + LATE_MS / 1000, f"{got.id}: {got.expiry_s} of {left_s:.1f} s"
    ended_ms = {statuses[0]["id"]: statuses[-1]["appended_ms"] for statuses in history.values()}
    off_ms = [ended_ms[f"away-{number}"] - deadlines_ms[f"away-{number}"] for number in range(each)]
    before_ms = 0
    for number in range(each):  # one leaves when it is written and the one before has an outcome
        began_ms = max(before_ms, deadlines_ms[f"silent-{number}"] - LONG_MS)
        before_ms = ended_ms[f"silent-{number}"]
        off_ms.append(before_ms - began_ms - TIMEOUT_MS)
    print(f"{min(off_ms)} to {max(off_ms)} ms behind their times")
    assert min(off_ms) >= -EARLY_MS
    assert max(off_ms) <= LATE_MS
    assert gateway.metric("gateway_commands_imbalance") == 0
    assert not gateway.events("commands_defect")
