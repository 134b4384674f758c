"""The simulated devices: hundreds of MQTT clients on one asyncio loop, each with its physics and its own account."""

from __future__ import annotations

__all__ = ["Fleet", "FleetCounts", "FleetSettings", "allow_a_socket_per_device"]

import asyncio
import csv
import json
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal

from bridge.backoff import Backoff
from gateway.devices.device import DeviceConnectError, DeviceConnection
from gateway.devices.mischief import Mischief
from gateway.devices.outbox import DeviceLedger, Outbox
from gateway.devices.physics import START_S, TIME_SCALE, DeviceModel, build_fleet
from gateway.devices.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.devices.device import Way
    from gateway.devices.mischief import FaultShares
    from gateway.devices.physics import DeviceType

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
    qos: Literal[0, 1, 2] = 1
    profile: str = "steady"
    """When they send: a name of ``gateway.devices.profiles``."""
    only: DeviceType | None = None
    """All of one type; None for the mix."""
    prefix: str = "devices"
    """What their MQTT topics begin with."""
    status: bool = True
    """Whether they publish retained birth and death messages, which stay at the broker."""


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
        self,
        model: DeviceModel,
        settings: FleetSettings,
        connects: asyncio.Semaphore,
        secret: str | None,
        way: Way | None,
        faults: FaultShares | None,
    ) -> None:
        self.model = model
        self.mischief = None if faults is None else Mischief(faults, settings.seed, model.device)
        self.readings = 0
        self.cuts = 0  # connections that it lost on purpose
        self._secret = secret
        self._way = way
        self.outbox = Outbox(_DEVICE_MEMORY)
        self.connection: DeviceConnection | None = None
        self.connects = 0
        self.last_error = ""
        self.failure: DeviceConnectError | None = None  # of the last attempt to connect
        self._settings = settings
        self._connect_slots = connects
        rng = Random(f"{settings.seed}/reconnect/{model.device}")
        self._backoff = Backoff(_BACKOFF_FIRST_NS, _BACKOFF_MAX_NS, 0.5, rng=rng)
        self._telemetry_topic = f"{settings.prefix}/{model.device}/telemetry"
        self._status_topic = f"{settings.prefix}/{model.device}/status"
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
                self.last_error, self.failure = str(error), error
            else:
                self._backoff.started(time.monotonic_ns())
                await self._lost.wait()
            await asyncio.sleep(self._backoff.next_ns(time.monotonic_ns()) / 1e9)

    async def _connect(self) -> None:
        way = self._way
        connection = DeviceConnection(self.model.device, self, way=way)
        if self._settings.status:
            connection.will(self._status_topic, self._status("offline", "connection lost"))
        if way is not None:
            secret = None if self._secret is None else (self.model.device, self._secret)
            await connection.connect_by(timeout_s=_CONNECT_TIMEOUT_S, login=secret)
        else:
            if self._secret is not None:
                connection.login(self.model.device, self._secret)
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
            "seq": self.readings,
            "ts": time.time_ns() // 1_000_000,
            "type": self.model.type,
            **self.model.read(model_s),
        }
        self.readings += 1
        if self.mischief is None:
            self.outbox.take(json.dumps(body, separators=(",", ":")).encode())
            self.pump()
            return
        for payload in self.mischief.payloads(body):
            self.outbox.take(payload)
        self.pump()
        if self.connection is not None and self.mischief.disconnects():
            self.cuts += 1
            self.connection.abort()
            self.on_lost("cut on purpose")

    def take_rest(self) -> None:
        """No more readings: what was held back goes out."""
        for payload in self.mischief.rest() if self.mischief is not None else ():
            self.outbox.take(payload)
        self.pump()

    def pump(self) -> None:
        """Sends what waits, as far as connection and window allow."""
        connection, outbox, qos = self.connection, self.outbox, self._settings.qos
        if connection is None or self._paused:
            return
        while outbox.in_flight < self._window and (message := outbox.head()) is not None:
            if not qos and connection.unwritten:
                return  # nothing is acknowledged, so that the socket's own buffer is the window
            packet_id = connection.publish(self._telemetry_topic, message.payload, qos=qos)
            if packet_id is None:
                return
            outbox.sent(packet_id)
            if not qos:
                outbox.settle(packet_id, 0)
        if not qos:
            self._tell_settled()

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
        self._tell_settled()

    def _tell_settled(self) -> None:
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
        if self.connection is not None and self._settings.status:
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

    def __init__(self, settings: FleetSettings, *, way: Way | None = None, faults: FaultShares | None = None) -> None:
        """``way`` leads to the broker instead of ``host`` and ``port``; with ``faults`` devices do things wrong."""
        self._settings = settings
        connects = asyncio.Semaphore(_CONNECTS_AT_ONCE)
        secrets = _secrets(settings.secrets_file)
        self._devices = [
            _Device(model, settings, connects, secrets.get(model.device), way, faults)
            for model in build_fleet(settings.devices, settings.seed, only=settings.only)
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
        for device in self._devices:
            device.take_rest()
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

    def refusal(self) -> DeviceConnectError | None:
        """Why a device that never connected could not; None if there is none."""
        return next((d.failure for d in self._devices if d.connects == 0 and d.failure is not None), None)

    @property
    def readings(self) -> int:
        """Readings that devices took."""
        return sum(device.readings for device in self._devices)

    def ledger(self) -> Mapping[str, DeviceLedger]:
        """Each device's own account, by device."""
        return {device.model.device: device.outbox.ledger() for device in self._devices}

    def mischief(self) -> Mapping[str, Mischief]:
        """What each device did wrong, by device; nothing of a fleet without ``faults``."""
        return {device.model.device: device.mischief for device in self._devices if device.mischief is not None}

    @property
    def cuts(self) -> int:
        """Connections that devices lost on purpose."""
        return sum(device.cuts for device in self._devices)

    async def _take_readings(self) -> None:
        """One clock for all devices: they share the period and differ in phase, so the order they are due in stays."""
        moment_s = PROFILES[self._settings.profile].moment_s
        period_ns = int(1e9 / self._settings.rate)
        random = Random(f"{self._settings.seed}/phases")
        phases = sorted((random.randrange(period_ns), index) for index in range(len(self._devices)))
        started_ns = origin_ns = time.monotonic_ns()
        steady_ns = in_a_row = 0
        while True:
            for phase_ns, index in phases:
                due_ns = origin_ns + int(moment_s((steady_ns + phase_ns) / 1e9) * 1e9)
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
            steady_ns += period_ns

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for device in self._devices:
                if device.connection is not None:
                    device.connection.keep_alive()
                    device.pump()  # with QoS 0 no acknowledgement says that there is room again


def allow_a_socket_per_device() -> None:
    """Raises this process's limit of open files as far as the system lets it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # the system's own ceiling may be below the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
