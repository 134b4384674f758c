"""The simulated devices: hundreds of MQTT clients on one asyncio loop, each with its physics and its own account."""

from __future__ import annotations

__all__ = ["Fleet", "FleetCounts", "FleetSettings"]

import asyncio
import csv
import json
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal

from bridge.backoff import Backoff
from gateway.demo.outbox import DeviceLedger, Outbox
from gateway.demo.physics import START_S, TIME_SCALE, DeviceModel, build_fleet
from gateway.mqtt.device import DeviceConnectError, DeviceConnection

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONNECTS_AT_ONCE = 16  # more only queue in the broker's accept backlog
_CONNECT_TIMEOUT_S = 10.0
_BACKOFF_FIRST_NS, _BACKOFF_MAX_NS = 200_000_000, 5_000_000_000
_REFUSED_PAUSE_S = 0.5  # a broker that refuses a message (quota) is asked again after this
_WAKE_S = 0.002  # readings due within this are taken in one wake-up
_READINGS_IN_A_ROW = 64  # then the sockets are served, even when the schedule is behind
_BEHIND_NS = 1_000_000_000  # a schedule this late is moved, not caught up in a burst no real fleet would send
_DEVICE_MEMORY = 10_000  # messages a device keeps while it cannot send; then it takes no more readings
_FIRMWARE = "1.4.2"


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What to simulate and where to connect."""

    host: str
    port: int
    devices: int
    rate: float
    """Messages per second of each device."""
    seed: int
    window: int = 20
    """Unacknowledged messages a device has under way at most (or the broker's receive maximum, if that is less)."""
    secrets_file: str = ""
    """CSV file with name and secret of each device, to log in with; "" logs in without."""


@dataclass(frozen=True, slots=True)
class FleetCounts:
    """Sums over all devices at one moment."""

    connected: int
    published: int
    acknowledged: int
    in_flight: int
    waiting_devices: int
    reconnects: int
    unheard: int
    refused: int


class _Device:
    """One device: readings go into its outbox, the outbox goes out while it is connected."""

    def __init__(
        self, model: DeviceModel, settings: FleetSettings, connects: asyncio.Semaphore, secret: str | None
    ) -> None:
        self.model = model
        self._secret = secret
        self.outbox = Outbox(_DEVICE_MEMORY)
        self.connection: DeviceConnection | None = None
        self.connects = 0
        self.last_error = ""
        self._settings = settings
        self._connect_slots = connects
        rng = Random(f"{settings.seed}/reconnect/{model.device}")
        self._backoff = Backoff(_BACKOFF_FIRST_NS, _BACKOFF_MAX_NS, 0.5, rng=rng)
        self._telemetry_topic = f"devices/{model.device}/telemetry"
        self._status_topic = f"devices/{model.device}/status"
        self._status_ids: set[int] = set()
        self._window = settings.window
        self._paused = False
        self._lost = asyncio.Event()
        self._settled = asyncio.Event()

    async def run(self) -> None:
        """Connects, and connects again whenever the connection is lost. Ends only by cancellation."""
        while True:
            self._lost.clear()
            try:
                async with self._connect_slots:
                    await self._connect()
            except DeviceConnectError as error:
                self.last_error = str(error)
            else:
                self._backoff.started(time.monotonic_ns())
                await self._lost.wait()
            await asyncio.sleep(self._backoff.next_ns(time.monotonic_ns()) / 1e9)

    async def _connect(self) -> None:
        connection = DeviceConnection(self.model.device, self)
        if self._secret is not None:
            connection.login(self.model.device, self._secret)
        connection.will(self._status_topic, self._status("offline", "connection lost"))
        await connection.connect(self._settings.host, self._settings.port, timeout_s=_CONNECT_TIMEOUT_S)
        self.connection = connection
        self.connects += 1
        self._window = min(self._settings.window, connection.receive_maximum)
        self._publish_status("online", "started" if self.connects == 1 else "reconnected")
        self.pump()

    def take_reading(self, model_s: float) -> None:
        """Measures and sends, or keeps the reading while the device is offline. Nothing before the first connection."""
        if self.connects == 0 or self.outbox.full:
            return
        body = {
            "device": self.model.device,
            "seq": self.outbox.next_sequence(),
            "ts": time.time_ns() // 1_000_000,
            "type": self.model.type,
            **self.model.read(model_s),
        }
        self.outbox.take(json.dumps(body, separators=(",", ":")).encode())
        self.pump()

    def pump(self) -> None:
        """Sends what waits, as far as connection and window allow."""
        connection, outbox = self.connection, self.outbox
        if connection is None or self._paused:
            return
        while outbox.in_flight < self._window and (message := outbox.head()) is not None:
            packet_id = connection.publish(self._telemetry_topic, message.payload)
            if packet_id is None:
                return
            outbox.sent(packet_id)

    async def drain(self) -> None:
        """Waits until everything taken is acknowledged."""
        while not self.outbox.empty or self._status_ids:
            self._settled.clear()
            await self._settled.wait()

    async def say_goodbye(self) -> None:
        """Publishes the death message, waits for its acknowledgement and disconnects."""
        self._publish_status("offline", "stopped")
        await self.drain()
        if self.connection is not None:
            await self.connection.disconnect()
            self.connection = None

    def abandon(self) -> None:
        """Drops a connection that is still there, without a word."""
        if self.connection is not None:
            self.connection.abort()
            self.connection = None

    def on_acknowledged(self, packet_id: int, reason: int) -> None:
        if packet_id in self._status_ids:
            self._status_ids.discard(packet_id)
        elif not self.outbox.settle(packet_id, reason):
            self._paused = True
            asyncio.get_running_loop().call_later(_REFUSED_PAUSE_S, self._resume)
        self.pump()
        if self.outbox.empty and not self._status_ids:
            self._settled.set()

    def on_lost(self, why: str) -> None:
        self.last_error = f"device {self.model.device}: connection lost: {why}"
        self.connection = None
        self._status_ids.clear()
        self.outbox.connection_lost()
        self._settled.set()
        self._lost.set()

    def _resume(self) -> None:
        self._paused = False
        self.pump()

    def _publish_status(self, status: Literal["online", "offline"], reason: str) -> None:
        if self.connection is not None:
            packet_id = self.connection.publish(self._status_topic, self._status(status, reason), retain=True)
            if packet_id is not None:
                self._status_ids.add(packet_id)

    def _status(self, status: Literal["online", "offline"], reason: str) -> bytes:
        body = {
            "device": self.model.device,
            "type": self.model.type,
            "firmware": _FIRMWARE,
            "status": status,
            "reason": reason,
            "ts": time.time_ns() // 1_000_000,
        }
        return json.dumps(body, separators=(",", ":")).encode()


class Fleet:
    """All devices. Create and use it on one running loop: :meth:`start`, watch :meth:`counts`, :meth:`stop`."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        connects = asyncio.Semaphore(_CONNECTS_AT_ONCE)
        secrets = _secrets(settings.secrets_file)
        self._devices = [
            _Device(model, settings, connects, secrets.get(model.device))
            for model in build_fleet(settings.devices, settings.seed)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._clock: asyncio.Task[None] | None = None
        self._keepalive: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts connecting; each device measures and publishes from its first connection on."""
        self._tasks = [asyncio.create_task(device.run()) for device in self._devices]
        self._clock = asyncio.create_task(self._take_readings())
        self._keepalive = asyncio.create_task(self._keep_alive())

    async def stop(self, timeout_s: float) -> None:
        """No more readings; waits for acknowledgements, publishes the deaths and disconnects, within ``timeout_s``.

        What was not acknowledged by then stands in :meth:`ledger` as unacknowledged.
        """
        await _cancel([self._clock])
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(device.drain() for device in self._devices))
                await asyncio.gather(*(device.say_goodbye() for device in self._devices))
        except TimeoutError:
            pass  # the ledger says what was left unacknowledged
        await _cancel([*self._tasks, self._keepalive])
        for device in self._devices:
            device.abandon()

    def failure(self) -> BaseException | None:
        """What ended one of the fleet's own tasks, which nothing should."""
        for task in (*self._tasks, self._clock, self._keepalive):
            if task is not None and task.done() and not task.cancelled():
                return task.exception()
        return None

    def counts(self) -> FleetCounts:
        devices = self._devices
        return FleetCounts(
            connected=sum(device.connection is not None for device in devices),
            published=sum(device.outbox.published for device in devices),
            acknowledged=sum(device.outbox.acknowledged for device in devices),
            in_flight=sum(device.outbox.in_flight for device in devices),
            waiting_devices=sum(device.outbox.head() is not None for device in devices),
            reconnects=sum(max(0, device.connects - 1) for device in devices),
            unheard=sum(device.outbox.unheard for device in devices),
            refused=sum(device.outbox.refused for device in devices),
        )

    def last_error(self) -> str:
        """Why a device that is not connected is not, in words; empty if there is nothing to tell."""
        return next((d.last_error for d in self._devices if d.connection is None and d.last_error), "")

    def ledger(self) -> Mapping[str, DeviceLedger]:
        """Each device's own account, by device."""
        return {device.model.device: device.outbox.ledger() for device in self._devices}

    async def _take_readings(self) -> None:
        """One clock for all devices: they share the period and differ in phase, so the order they are due in stays."""
        period_ns = int(1e9 / self._settings.rate)
        random = Random(f"{self._settings.seed}/phases")
        phases = sorted((random.randrange(period_ns), index) for index in range(len(self._devices)))
        started_ns = origin_ns = time.monotonic_ns()
        in_a_row = 0
        while True:
            for phase_ns, index in phases:
                due_ns = origin_ns + phase_ns
                now_ns = time.monotonic_ns()
                in_a_row += 1
                if now_ns < due_ns:
                    await asyncio.sleep(max(_WAKE_S, (due_ns - now_ns) / 1e9))
                    in_a_row = 0
                elif in_a_row >= _READINGS_IN_A_ROW:
                    await asyncio.sleep(0)  # behind: the sockets must have their turn
                    in_a_row = 0
                    origin_ns += max(0, now_ns - due_ns - _BEHIND_NS)
                wall_s = (time.monotonic_ns() - started_ns) / 1e9
                self._devices[index].take_reading(START_S + wall_s * TIME_SCALE)
            origin_ns += period_ns

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for device in self._devices:
                if device.connection is not None:
                    device.connection.keep_alive()


def _secrets(file: str) -> dict[str, str]:
    if not file:
        return {}
    with Path(file).open(newline="") as rows:
        return {row[0]: row[1] for row in list(csv.reader(rows))[1:]}


async def _cancel(tasks: list[asyncio.Task[None] | None]) -> None:
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
