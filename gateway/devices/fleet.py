"""The simulated devices: hundreds of MQTT clients on one asyncio loop, each with its own physics and counts."""

import asyncio
import csv
import json
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from bridge.backoff import Backoff
from bridge.waiting import end_tasks
from config.error_words import words
from config.errors import ConfigError
from gateway.devices.commands import AnswerShares, Obedience
from gateway.devices.device import DeviceConnectError, DeviceConnection, Heard, Way
from gateway.devices.mischief import FaultShares, Mischief
from gateway.devices.outbox import DeviceLedger, Outbox
from gateway.devices.physics import FAULTY_SIGNAL, START_S, TIME_SCALE, DeviceModel, DeviceType, build_fleet
from gateway.devices.profiles import PROFILES

_CONNECTS_AT_ONCE = 16  # more only queue in the broker's accept backlog
_CONNECT_TIMEOUT_S = 10.0
_BACKOFF_FIRST_NS, _BACKOFF_MAX_NS = 200_000_000, 5_000_000_000
_REFUSED_PAUSE_S = 0.5  # pause after a refused message (quota)
_WAKE_S = 0.002  # readings due within this time are taken in one wake-up
_READINGS_IN_A_ROW = 64  # then the sockets are served, also if the schedule is late
_BEHIND_NS = 1_000_000_000  # a later schedule is moved: a real fleet would not send a burst
_DEVICE_MEMORY = 10_000  # most messages that a device keeps while it cannot send
_FIRMWARE = "1.4.2"
_FAULT = 1.5  # what a sensor without its calibration multiplies with
_FAILURE = 0x80  # MQTT 5.0, 2.4: reason codes from here on are failures
_GOOD = AnswerShares()


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings of the simulation, and the broker."""

    host: str
    port: int
    devices: int
    rate: float
    """Messages per second of each device."""
    seed: int
    window: int = 20
    """Most unacknowledged messages of a device (or the broker's receive maximum, if that is less)."""
    secrets_file: str = ""
    """CSV file with name and secret of each device for its login; "" for no login."""
    qos: Literal[0, 1, 2] = 1
    profile: str = "steady"
    """Their rate: a name of ``gateway.devices.profiles``."""
    only: DeviceType | None = None
    """The type of all devices; None for the mix."""
    prefix: str = "devices"
    """The beginning of their MQTT topics."""
    status: bool = True
    """Whether they publish birth and death messages, retained by the broker."""
    commands: bool = False
    """Whether they subscribe to their commands (PREFIX/NAME/req/#), obey and answer them. It needs MQTT 5."""
    faulty_from: int = 0
    """The reading from which on the first device measures a voltage half too high, until a command recalibrates it. 0:
    none does."""


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
    commands: int = 0
    command_copies: int = 0
    answers: int = 0
    """Those that the broker has acknowledged."""
    never_connected: int = 0
    """Devices that have not had a connection yet. They have taken no readings."""


class _Device:
    """One device. Its readings go into its outbox, which is sent while it is connected."""

    def __init__(
        self,
        model: DeviceModel,
        settings: FleetSettings,
        connects: asyncio.Semaphore,  # how many devices connect at a time
        secret: str | None,
        way: Way,
        faults: FaultShares | None,
        answers: AnswerShares,
    ) -> None:
        self.model = model
        self.obedience = Obedience(answers, settings.seed, model.device)
        self.answered = 0  # answers that the broker has acknowledged
        self._moments = 0  # for readings; not every one is taken
        self.mischief = None if faults is None else Mischief(faults, settings.seed, model.device)
        self.readings = 0
        self.faulty_from = 0  # the reading from which on it measures wrong; 0: never
        self.cuts = 0  # intentionally lost connections
        self._secret = secret
        self._way = way
        self.outbox = Outbox(_DEVICE_MEMORY)
        self.connection: DeviceConnection | None = None
        self.connects = 0  # how often it has connected
        self.last_error = ""
        self.failure: DeviceConnectError | None = None  # of the last attempt to connect
        self._settings = settings
        self._connect_slots = connects
        rng = Random(f"{settings.seed}/reconnect/{model.device}")
        self._backoff = Backoff(_BACKOFF_FIRST_NS, _BACKOFF_MAX_NS, 0.5, rng=rng)
        self._telemetry_topic = f"{settings.prefix}/{model.device}/telemetry"
        self._status_topic = f"{settings.prefix}/{model.device}/status"
        self._status_ids: set[int] = set()
        self._answer_ids: set[int] = set()
        self._window = settings.window
        self._paused = False  # after the broker refused a reading
        self._lost = asyncio.Event()
        self._settled = asyncio.Event()  # nothing waits to be acknowledged, or the connection is lost

    async def run(self) -> None:
        """Connect, and reconnect after each lost connection. Ends only by cancellation."""
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
        """Connect, and publish what waits. Raises DeviceConnectError."""
        connection = DeviceConnection(self.model.device, self, self._way)
        if self._settings.status:
            connection.will(self._status_topic, self._status("offline", "connection lost"))
        login = None if self._secret is None else (self.model.device, self._secret)
        await connection.connect(timeout_s=_CONNECT_TIMEOUT_S, login=login)
        self.connection = connection
        self.connects += 1
        self._window = min(self._settings.window, connection.receive_maximum)
        if self._settings.commands:
            connection.subscribe(f"{self._settings.prefix}/{self.model.device}/req/#", self._obey)
        self._publish_status("online", "started" if self.connects == 1 else "reconnected")
        self.pump()

    def _obey(self, heard: Heard) -> None:
        reply = self.obedience.obey(heard.command_id, heard.payload)
        if reply.status is not None:
            asyncio.get_running_loop().call_later(reply.delay_s, self._answer, heard, reply.payload, reply.status)

    def _answer(self, heard: Heard, payload: bytes, status: int) -> None:
        if self.connection is not None:
            packet_id = self.connection.answer(heard, payload, status)
            if packet_id is not None:
                self._answer_ids.add(packet_id)

    def take_reading(self, model_s: float) -> None:
        """Measure and send; keep the reading while the device is offline. Does nothing before the first connection."""
        if self.connects == 0 or self.outbox.full:
            return
        self._moments += 1
        if self._moments % self.obedience.every:
            return
        measured = self.model.read(model_s)
        if 0 < self.faulty_from <= self.readings and not self.obedience.recalibrated:
            measured[FAULTY_SIGNAL] = round(measured[FAULTY_SIGNAL] * _FAULT, 3)
        body = {
            "device": self.model.device,
            "seq": self.readings,
            "ts": time.time_ns() // 1_000_000,
            "type": self.model.type,
            **measured,
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
        """End the readings, and send the held back ones."""
        for payload in self.mischief.rest() if self.mischief is not None else ():
            self.outbox.take(payload)
        self.pump()

    def pump(self) -> None:
        """Send waiting messages, as far as connection and window allow."""
        connection, outbox, qos = self.connection, self.outbox, self._settings.qos
        if connection is None or self._paused:
            return
        while outbox.in_flight < self._window and (message := outbox.head()) is not None:
            if not qos and connection.unwritten:
                return  # without acknowledgements the socket's buffer is the window
            packet_id = connection.publish(self._telemetry_topic, message.payload, qos=qos)
            if packet_id is None:
                return
            outbox.sent(packet_id)
            if not qos:
                outbox.settle(packet_id, 0)
        if not qos:
            self._tell_settled()

    async def drain(self) -> None:
        """Wait until all taken messages are acknowledged."""
        while not self._is_settled:
            self._settled.clear()
            await self._settled.wait()

    async def say_goodbye(self) -> None:
        """Publish the death message, wait for its acknowledgement, and disconnect."""
        self._publish_status("offline", "stopped")
        await self.drain()
        if self.connection is not None:
            await self.connection.disconnect()
            self.connection = None

    def abandon(self) -> None:
        """Drop a present connection without DISCONNECT."""
        if self.connection is not None:
            self.connection.abort()
            self.connection = None

    def on_acknowledged(self, packet_id: int, reason: int) -> None:
        """The broker's answer to a status, an answer or a reading, and its reason code."""
        if packet_id in self._status_ids:
            self._status_ids.discard(packet_id)
        elif packet_id in self._answer_ids:
            self._answer_ids.discard(packet_id)
            self.answered += reason < _FAILURE
        elif not self.outbox.settle(packet_id, reason):
            self._paused = True
            asyncio.get_running_loop().call_later(_REFUSED_PAUSE_S, self._resume)
        self.pump()
        self._tell_settled()

    @property
    def _is_settled(self) -> bool:
        return self.outbox.empty and not self._status_ids and not self._answer_ids

    def _tell_settled(self) -> None:
        if self._is_settled:
            self._settled.set()

    def on_lost(self, why: str) -> None:
        """The connection has ended; its unacknowledged readings are sent again on the next."""
        self.last_error = f"device {self.model.device}: connection lost: {why}"
        self.connection = None
        self._status_ids.clear()
        self._answer_ids.clear()  # the gateway sees a time-out
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
        """The payload of a status message."""
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

    def __init__(
        self,
        settings: FleetSettings,
        *,
        way: Way | None = None,
        faults: FaultShares | None = None,
        answers: AnswerShares = _GOOD,
    ) -> None:
        """``way`` replaces ``host`` and ``port``. ``faults`` are the shares of the devices' faults, ``answers`` those
        of their answers to commands."""
        self._settings = settings
        connects = asyncio.Semaphore(_CONNECTS_AT_ONCE)
        secrets = _secrets(settings.secrets_file)
        way = way or Way.plain(settings.host, settings.port)
        self._devices = [
            _Device(model, settings, connects, secrets.get(model.device), way, faults, answers)
            for model in build_fleet(settings.devices, settings.seed, only=settings.only)
        ]
        self._devices[0].faulty_from = settings.faulty_from
        self._tasks: list[asyncio.Task[None]] = []
        self._clock: asyncio.Task[None] | None = None
        self._keepalive: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to connect. Each device measures and publishes from its first connection on."""
        self._tasks = [asyncio.create_task(device.run()) for device in self._devices]
        self._clock = asyncio.create_task(self._take_readings())
        self._keepalive = asyncio.create_task(self._keep_alive())

    async def stop(self, timeout_s: float) -> None:
        """End the readings, wait for acknowledgements, publish the deaths and disconnect, within ``timeout_s``.

        :meth:`ledger` then shows the rest as unacknowledged.
        """
        await end_tasks(self._clock)
        for device in self._devices:
            device.take_rest()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(device.drain() for device in self._devices))
                await asyncio.gather(*(device.say_goodbye() for device in self._devices))
        except TimeoutError:
            pass  # the ledger shows the unacknowledged messages
        await end_tasks(*self._tasks, self._keepalive)
        for device in self._devices:
            device.abandon()

    def failure(self) -> BaseException | None:
        """The defect that ended one of the fleet's tasks, or None."""
        for task in (*self._tasks, self._clock, self._keepalive):
            if task is not None and task.done() and not task.cancelled():
                return task.exception()
        return None

    def counts(self) -> FleetCounts:
        """All devices' counts, added up."""
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
            commands=sum(device.obedience.received for device in devices),
            command_copies=sum(device.obedience.copies for device in devices),
            answers=sum(device.answered for device in devices),
            never_connected=sum(device.connects == 0 for device in devices),
        )

    def last_error(self) -> str:
        """Why a device is not connected; empty if all are."""
        return next((d.last_error for d in self._devices if d.connection is None and d.last_error), "")

    def refusal(self) -> DeviceConnectError | None:
        """The error of a device that has never connected; None without one."""
        return next((d.failure for d in self._devices if d.connects == 0 and d.failure is not None), None)

    @property
    def readings(self) -> int:
        return sum(device.readings for device in self._devices)

    def ledger(self) -> Mapping[str, DeviceLedger]:
        return {device.model.device: device.outbox.ledger() for device in self._devices}

    def mischief(self) -> Mapping[str, Mischief]:
        """The faults by device; empty for a fleet without ``faults``."""
        return {device.model.device: device.mischief for device in self._devices if device.mischief is not None}

    @property
    def cuts(self) -> int:
        """Number of intentionally lost connections."""
        return sum(device.cuts for device in self._devices)

    async def _take_readings(self) -> None:
        """Take the readings of all devices. They have one period and different phases, so their order is constant."""
        moment_s = PROFILES[self._settings.profile].moment_s  # the real second of a second of an even rate
        period_ns = int(1e9 / self._settings.rate)
        random = Random(f"{self._settings.seed}/phases")
        phases = sorted((random.randrange(period_ns), index) for index in range(len(self._devices)))
        started_ns = origin_ns = time.monotonic_ns()  # the second moves while readings are late
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
                    await asyncio.sleep(0)  # late, but the sockets must be served
                    in_a_row = 0
                    origin_ns += max(0, now_ns - due_ns - _BEHIND_NS)
                wall_s = (time.monotonic_ns() - started_ns) / 1e9
                self._devices[index].take_reading(START_S + wall_s * TIME_SCALE)
            steady_ns += period_ns

    async def _keep_alive(self) -> None:
        """Each second let paho ping, and send what waits; until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            for device in self._devices:
                if device.connection is not None:
                    device.connection.keep_alive()
                    device.pump()  # without acknowledgements (QoS 0) nothing else reports free space


def allow_a_socket_per_device() -> None:
    """Raise this process's limit of open files as far as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # the system's own limit may be below the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _secrets(file: str) -> dict[str, str]:
    """Passwords by device, from a CSV file; none without a file. Raises ConfigError."""
    if not file:
        return {}
    try:
        with Path(file).open(newline="", encoding="utf-8") as rows:
            return {row[0]: row[1] for row in list(csv.reader(rows))[1:] if row}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {words(error)}.") from None
    except (ValueError, IndexError, csv.Error):
        raise ConfigError(f"{file} is no CSV in UTF-8 with a heading, and a name and a secret in each row.") from None
