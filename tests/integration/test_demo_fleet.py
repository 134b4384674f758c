"""The simulated devices against a real MQTT broker: what they say, and that they lose nothing when it goes away.

The broker is mosquitto, which starts in no time; the demo's tests have the devices at the embedded one.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from gateway.base.process.child import Child
from gateway.devices.account import Tally
from gateway.devices.device import DeviceConnectError, DeviceConnection, Way
from gateway.devices.fleet import Fleet, FleetSettings
from gateway.local.demo.account import examine
from tests.brokers.client import Client
from tests.brokers.mosquitto import Mosquitto
from tests.waiting import DEADLINE_S, until

DEVICES = 12


def settings(port: int, rate: float = 5.0) -> FleetSettings:
    return FleetSettings(host="127.0.0.1", port=port, devices=DEVICES, rate=rate, seed=3)


def statuses(port: int) -> dict[str, dict[str, Any]]:
    """The retained status of every device."""
    found: dict[str, dict[str, Any]] = {}
    with Client(port) as client:
        client.subscribe("devices/+/status")
        while len(found) < DEVICES:
            message = client.receive()
            # What was retained comes first, and beside it what is published at this moment, maybe without such a one.
            found.setdefault(message.topic.split("/")[1], json.loads(message.payload))
    return found


def has_published(fleet: Fleet, each: int) -> bool:
    """Whether all devices are there, and have published so many messages each on the average."""
    counts = fleet.counts()
    return counts.connected == DEVICES and counts.published >= each * DEVICES


async def test_devices_say_hello_measure_and_say_goodbye(mosquitto: Mosquitto) -> None:
    with Client(mosquitto.port) as client:
        client.subscribe("devices/+/telemetry")
        fleet = Fleet(settings(mosquitto.port))
        fleet.start()
        await until(lambda: has_published(fleet, 5), "every device, and the first messages")
        online = await asyncio.to_thread(statuses, mosquitto.port)
        assert {status["status"] for status in online.values()} == {"online"}
        await fleet.stop(DEADLINE_S)
        ledger = fleet.ledger()
        published = sum(entry.published for entry in ledger.values())
        messages = [await asyncio.to_thread(client.receive) for _ in range(published)]
    assert fleet.failure() is None
    assert fleet.counts().acknowledged == published
    tally: Tally[str] = Tally()
    for message in messages:
        body = json.loads(message.payload)
        assert message.topic == f"devices/{body['device']}/telemetry"
        assert {"device", "type", "seq", "ts"} <= set(body)
        assert abs(body["ts"] / 1000 - time.time()) < 120.0
        tally.add(body["device"], body["seq"])
    stage = examine("mqtt", tally, ledger, ordered=True)
    assert (stage.missing, stage.foreign, stage.reordered) == (0, 0, 0)
    gone = await asyncio.to_thread(statuses, mosquitto.port)
    assert {(status["status"], status["reason"]) for status in gone.values()} == {("offline", "stopped")}
    assert set(gone) == set(ledger)


async def test_what_a_killed_broker_did_not_acknowledge_is_sent_again(mosquitto: Mosquitto) -> None:
    fleet = Fleet(settings(mosquitto.port, rate=50.0))
    fleet.start()
    await until(lambda: has_published(fleet, 20), "every device, and the first messages")
    await asyncio.to_thread(mosquitto.kill)
    await until(lambda: fleet.counts().connected == 0, "the devices to notice")
    before = fleet.counts()
    assert "cannot reach" in fleet.last_error() or "connection lost" in fleet.last_error()
    await until(lambda: fleet.counts().waiting_devices == DEVICES, "readings kept by every device")
    await asyncio.to_thread(mosquitto.start)
    await until(lambda: fleet.counts().connected == DEVICES, "every device to come back")
    await fleet.stop(DEADLINE_S)
    counts = fleet.counts()
    assert counts.published > before.published
    assert counts.acknowledged == counts.published
    assert counts.reconnects >= DEVICES
    assert all(not entry.unacknowledged for entry in fleet.ledger().values())


async def test_a_stop_is_bounded_and_tells_what_was_left_open(mosquitto: Mosquitto) -> None:
    fleet = Fleet(settings(mosquitto.port, rate=50.0))
    fleet.start()
    await until(lambda: fleet.counts().acknowledged >= 10 * DEVICES, "the first messages")
    await asyncio.to_thread(mosquitto.freeze)
    await until(lambda: fleet.counts().in_flight > 0, "messages without an answer")
    begun = time.monotonic()
    await fleet.stop(0.5)
    assert time.monotonic() - begun < 30.0
    ledger = fleet.ledger()
    assert sum(len(entry.unacknowledged) for entry in ledger.values()) > 0
    assert sum(entry.acknowledged for entry in ledger.values()) == fleet.counts().acknowledged


async def test_a_killed_fleet_is_announced_by_its_wills(mosquitto: Mosquitto, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    child = Child("gateway.devices.fleet_process", "The fleet", tmp_path / "fleet.log")
    arguments = {"host": "127.0.0.1", "port": mosquitto.port, "devices": DEVICES, "rate": 1.0, "seed": 3}
    await child.start(arguments, lines.append)
    await until(lambda: bool(lines) and lines[-1]["connected"] == DEVICES, "every device")
    online = await asyncio.to_thread(statuses, mosquitto.port)
    assert {status["status"] for status in online.values()} == {"online"}
    await child.kill()
    lost = {("offline", "connection lost")}
    await until(
        lambda: {(it["status"], it["reason"]) for it in statuses(mosquitto.port).values()} == lost, "every will"
    )


class _Nobody:
    def on_acknowledged(self, packet_id: int, reason: int) -> None: ...

    def on_lost(self, why: str) -> None: ...


async def connect(port: int, *, timeout_s: float = DEADLINE_S) -> None:
    await DeviceConnection("a", _Nobody(), Way.plain("127.0.0.1", port)).connect(timeout_s=timeout_s)


async def test_a_refused_connection_says_why(make_mosquitto: Callable[..., Mosquitto]) -> None:
    broker = make_mosquitto(users={"somebody": "else"})
    with pytest.raises(DeviceConnectError, match=r"device a: the MQTT broker refused the connection: .+"):
        await connect(broker.port)


async def test_an_absent_broker_is_told_with_its_address(free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    with pytest.raises(DeviceConnectError, match=f"^mqtt://127.0.0.1:{port} refused the connection"):
        await connect(port)


async def test_a_silent_broker_is_given_up(mosquitto: Mosquitto) -> None:
    await asyncio.to_thread(mosquitto.freeze)
    with pytest.raises(DeviceConnectError, match=r"^mqtt://127\.0\.0\.1:\d+ did not answer"):
        await connect(mosquitto.port, timeout_s=0.5)


async def test_devices_obey_their_commands_and_answer(mosquitto: Mosquitto) -> None:
    fleet = Fleet(replace(settings(mosquitto.port), commands=True))
    fleet.start()
    await until(lambda: fleet.counts().connected == DEVICES, "the connections")
    name = next(iter(fleet.ledger()))
    told = Properties(PacketTypes.PUBLISH)
    told.ResponseTopic, told.CorrelationData = f"devices/{name}/res", b"token"
    told.UserProperty = ("command-id", "c1")
    client = await asyncio.to_thread(Client, mosquitto.port)

    async def is_heard() -> bool:
        return await asyncio.to_thread(client.publish_heard, f"devices/{name}/req/set", b'{"every": 3}', told)

    try:
        await asyncio.to_thread(client.subscribe, "devices/+/res")
        await until(is_heard, "the device has subscribed")
        assert await is_heard()
        answers = [await asyncio.to_thread(client.receive) for _ in range(2)]
    finally:
        client.close()
        await fleet.stop(5.0)
    assert {(one.topic, one.properties.CorrelationData) for one in answers} == {(f"devices/{name}/res", b"token")}
    assert all(one.properties.UserProperty == [("status", "200")] for one in answers)
    assert all(json.loads(one.payload) == {"every": 3} for one in answers)
    counts = fleet.counts()
    assert (counts.commands, counts.command_copies, counts.answers) == (1, 1, 2)
