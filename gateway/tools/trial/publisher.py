"""The trial's devices: publish marked messages as fast as they come back, each until it is acknowledged."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bridge.waiting import end_tasks
from config.errors import ExitStatus, GatewayError
from gateway.devices.device import DeviceConnectError, DeviceConnection, Way
from gateway.devices.outbox import Outbox
from gateway.mqtt import reasons
from gateway.tools.trial.plan import LINES, TrialPlan

if TYPE_CHECKING:
    from gateway.tools.trial.account import Moments

_WINDOW = 100  # unacknowledged messages of one connection
_TIMEOUT_S = 10.0
_AGAIN_S = 1.0
_FAILURE = 0x80  # MQTT 5.0, 2.4: this and higher reason codes are refusals


class PublishRefusedError(GatewayError):
    """The broker refuses the messages in its acknowledgements."""

    exit_status = ExitStatus.REFUSED


class _Line:
    """One connection. Its outbox numbers its messages; ``numbers`` maps these to the trial's numbers."""

    def __init__(self, publisher: Publisher, client_id: str) -> None:
        self._publisher = publisher
        self._client_id = client_id
        self._connection: DeviceConnection | None = None
        self._window = _WINDOW
        self.outbox = Outbox(1 << 30)
        self.numbers: list[int] = []  # of messages, by their sequence in the outbox
        self.lost = asyncio.Event()
        self._by_packet: dict[int, int] = {}  # numbers of messages by packet id
        self.connects = 0
        self.trouble = ""  # why it cannot connect again, as a sentence; empty while it is connected

    async def connect(self) -> None:
        """Connect, and publish what waits. Raises DeviceConnectError."""
        way, plan = self._publisher.way, self._publisher.plan
        connection = DeviceConnection(self._client_id, self, way)
        await connection.connect(timeout_s=_TIMEOUT_S, login=plan.publisher)
        self.lost.clear()
        self._connection = connection
        self.trouble = ""
        self._window = min(_WINDOW, connection.receive_maximum)
        self.connects += 1
        self.pump()

    @property
    def room(self) -> bool:
        return self._connection is not None and self.outbox.in_flight < self._window and self.outbox.head() is None

    def take(self, number: int, payload: bytes) -> None:
        self.numbers.append(number)
        self.outbox.take(payload)
        self.pump()

    def pump(self) -> None:
        """Publish what waits in the outbox, as far as the window and the socket have room."""
        publisher, connection, outbox = self._publisher, self._connection, self.outbox
        qos = publisher.plan.qos
        while connection is not None and outbox.in_flight < self._window and (message := outbox.head()) is not None:
            number = self.numbers[message.sequence]
            topic = publisher.topics[number % len(publisher.topics)]
            if not qos and connection.unwritten:
                return
            now_ns = time.monotonic_ns()
            packet_id = connection.publish(topic, message.payload, qos=qos)
            if packet_id is None:
                return
            publisher.wrote(number, len(topic) + len(message.payload), now_ns)
            outbox.sent(packet_id)
            if qos:
                self._by_packet[packet_id] = number
            else:
                outbox.settle(packet_id, 0)
                publisher.moments.acknowledged_ns[number] = now_ns

    def on_acknowledged(self, packet_id: int, reason: int) -> None:
        number = self._by_packet.pop(packet_id)
        self.outbox.settle(packet_id, reason)
        if reason >= _FAILURE:
            self._publisher.refuse(reason, number)
            return
        self._publisher.moments.acknowledged_ns[number] = time.monotonic_ns()
        self._publisher.acknowledged += 1
        self.pump()
        self._publisher.moved.set()

    def on_lost(self, why: str) -> None:  # noqa: ARG002 - ``_reconnect`` follows any loss, and tells none
        self._connection = None
        self._by_packet.clear()
        self.outbox.connection_lost()
        self.lost.set()
        self._publisher.moved.set()

    def keep_alive(self) -> None:
        if self._connection is not None:
            self._connection.keep_alive()
            self.pump()

    async def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect()


class Publisher:
    """Devices on a few connections, whose sessions end with them.

    ``moved`` is set when there is something to look at: an acknowledgement, a loss, a refusal, records read back."""

    def __init__(self, plan: TrialPlan, way: Way, moments: Moments) -> None:
        self.plan = plan
        self.way = way
        self.moments = moments
        self.topics = plan.mqtt_topics(way.settings)
        self.sent = 0  # different messages
        self.sent_bytes = 0
        self.acknowledged = 0
        self.moved = asyncio.Event()  # a message was acknowledged, refused or read back, or a connection lost
        self.error: PublishRefusedError | None = None
        self._lines = [_Line(self, f"{plan.instance}-publisher-{number}") for number in range(LINES)]
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        """Connect every line, and from then on reconnect those that are lost. Raises DeviceConnectError."""
        for line in self._lines:
            await line.connect()
        self._tasks = [asyncio.create_task(self._reconnect(line)) for line in self._lines]
        self._tasks.append(asyncio.create_task(self._keep_alive()))

    @property
    def reconnects(self) -> int:
        return sum(max(0, line.connects - 1) for line in self._lines)

    @property
    def trouble(self) -> str:
        """Why a connection cannot be made again, with a space before it; empty while all are there."""
        return next((f" {line.trouble}" for line in self._lines if line.trouble), "")

    def room_for(self, number: int) -> bool:
        """Whether this message can be written now. A device's messages use one connection, in order."""
        return self._line(number).room

    def publish(self, number: int, payload: bytes) -> None:
        """Write message ``number``; after a lost connection it is written again, until it is acknowledged."""
        self._line(number).take(number, payload)

    def _line(self, number: int) -> _Line:
        return self._lines[number % len(self.topics) % len(self._lines)]

    def wrote(self, number: int, size: int, now_ns: int) -> None:
        """Count a PUBLISH, perhaps a repeated one; ``size`` is that of topic and payload."""
        if not self.moments.sent_ns[number]:
            self.moments.sent_ns[number] = now_ns
            self.sent += 1
        # Fixed header with its length, the topic's length, packet id, and in MQTT 5 the length of no properties.
        body = 2 + size + (2 if self.plan.qos else 0) + (self.way.settings.protocol == "5")
        self.sent_bytes += 1 + (1 if body < 128 else 2 if body < 16_384 else 3) + body

    def refuse(self, reason: int, number: int) -> None:
        """Set ``error``: the broker refused this message for that reason code."""
        topic = self.topics[number % len(self.topics)]
        user = self.way.settings.username if self.plan.publisher is None else self.plan.publisher[0]
        self.error = PublishRefusedError(
            f"The MQTT broker does not let us publish to {topic}: {reasons.words(reason)}. Give the publisher a user "
            "that may (--publisher-username, --publisher-password-file), or topics that ours may (--prefix). "
            + self.plan.missing_right(user, "publish")
        )
        self.moved.set()

    async def close(self) -> None:
        """Disconnect; the broker then ends the sessions."""
        await end_tasks(*self._tasks)
        await asyncio.gather(*(line.close() for line in self._lines))

    async def _reconnect(self, line: _Line) -> None:
        while True:
            await line.lost.wait()
            try:
                await line.connect()
            except DeviceConnectError as error:
                line.trouble = f"{error}."
                await asyncio.sleep(_AGAIN_S)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for line in self._lines:
                line.keep_alive()
