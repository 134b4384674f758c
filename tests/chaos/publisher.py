"""Devices in a process of their own, which publish their sequence numbers and repeat what was not acknowledged.

Run as ``python -m tests.chaos.publisher PORT DEVICES RATE QUALITIES``; QUALITIES are the levels of QoS the devices
take in turn, ``1`` or ``12``. Commands come on standard input, a byte each: ``p`` pauses all devices, ``2`` those that
publish at QoS 2, ``g`` goes on; a pause prints ``settled`` when all that these have published is acknowledged. When
standard input closes it waits until everything is acknowledged and prints a JSON object: ``published``, device to
number of messages, and ``repeated``, how many were sent again because a connection had ended.
"""

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from gateway.devices.device import DeviceConnectError, DeviceConnection, Qos, Way
from tests.chaos.harness import payload
from tests.waiting import DEADLINE_S

WINDOW = 50
CONNECT_S = 5.0
NOBODY = 0x10  # PUBACK: no matching subscribers (MQTT 5.0 section 3.4.2.1)


class Device:
    """One device, kept connected."""

    def __init__(self, name: str, port: int, qos: Qos) -> None:
        self.name = name
        self.qos = qos
        self.paused = False
        self.count = 0  # messages made so far
        self.repeated = 0
        self._way = Way.plain("127.0.0.1", port)
        self._connection: DeviceConnection | None = None
        self._unacknowledged: dict[int, None] = {}  # sequence numbers in order
        self._flying: dict[int, int] = {}  # packet id to sequence number, of this connection
        self._lost = asyncio.Event()

    async def keep_connected(self) -> None:
        while True:
            self._lost.clear()
            connection = DeviceConnection(self.name, self, self._way, keepalive_s=5)
            try:
                await connection.connect(timeout_s=CONNECT_S)
            except DeviceConnectError:
                await asyncio.sleep(0.1)
                continue
            self._flying.clear()
            self._connection = connection
            for number in list(self._unacknowledged):
                self.repeated += 1
                self._send(number)
            await self._lost.wait()
            self._connection = None

    def publish(self) -> None:
        """One message more, unless the window is full or the device is paused."""
        if len(self._unacknowledged) < WINDOW and not self.paused:
            number = self.count
            self.count += 1
            self._unacknowledged[number] = None
            self._send(number)

    def _send(self, number: int) -> None:
        if self._connection is not None and number in self._unacknowledged:
            topic, body = f"devices/{self.name}/telemetry", payload(self.name, number)
            packet_id = self._connection.publish(topic, body, qos=self.qos)
            if packet_id is not None:
                self._flying[packet_id] = number

    def keep_alive(self) -> None:
        if self._connection is not None:
            self._connection.keep_alive()

    @property
    def settled(self) -> bool:
        return not self._unacknowledged

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.disconnect()

    def on_acknowledged(self, packet_id: int, reason: int) -> None:
        number = self._flying.pop(packet_id, None)
        if number not in self._unacknowledged:
            return  # sent twice, and acknowledged before
        if reason == NOBODY:
            # mosquitto 2.0.11 restores sessions from its file, but not their shared subscriptions: until the gateway
            # has subscribed again a message reaches nobody, and the broker says so.
            asyncio.get_running_loop().call_later(0.1, self._send, number)
        elif reason < 0x80:
            del self._unacknowledged[number]

    def on_lost(self, _why: str) -> None:
        self._lost.set()


async def publish(port: int, count: int, rate: float, qualities: list[Qos]) -> dict[str, Any]:
    """Publish until standard input closes."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    devices = [Device(f"device-{number:04}", port, qualities[number % len(qualities)]) for number in range(count)]
    unsettled: list[Device] = []  # that a pause waits for

    def command() -> None:
        word = os.read(sys.stdin.fileno(), 1)
        if not word:
            closed.set()
            return
        unsettled[:] = [device for device in devices if word == b"p" or (word == b"2" and device.qos == 2)]
        for device in devices:
            device.paused = device in unsettled

    loop.add_reader(sys.stdin.fileno(), command)
    keepers = [asyncio.create_task(device.keep_connected()) for device in devices]
    began, sent = loop.time(), 0
    while not closed.is_set():
        due = int((loop.time() - began) * rate)
        for number in range(sent, due):
            devices[number % count].publish()
        sent = max(sent, due)
        for device in devices:
            device.keep_alive()
        if unsettled and all(device.settled for device in unsettled):
            unsettled.clear()
            print("settled", flush=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closed.wait(), 0.005)
    loop.remove_reader(sys.stdin.fileno())
    while not all(device.settled for device in devices):
        for device in devices:
            device.keep_alive()
        await asyncio.sleep(0.02)
    for keeper in keepers:
        keeper.cancel()
    await asyncio.gather(*(device.close() for device in devices))
    return {
        "published": {device.name: device.count for device in devices},
        "repeated": sum(device.repeated for device in devices),
    }


class Publishers:
    """That process, seen from a test. It ends when its input closes, so also when this process does."""

    def __init__(self, port: int, *, devices: int = 20, rate: int = 1000, qualities: str = "1") -> None:
        argv = [sys.executable, "-m", "tests.chaos.publisher", str(port), str(devices), str(rate), qualities]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True, bufsize=1
        )
        self.repeated = 0  # messages sent again after a connection had ended; known after ``stop``

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def pause(self, *, only_qos2: bool = False) -> None:
        """Stop publishing until :meth:`resume`; returns when all that was published is acknowledged."""
        self._command("2" if only_qos2 else "p")
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], DEADLINE_S)
        said = self._process.stdout.readline().strip() if ready else "nothing"
        assert said == "settled", f"the publishers said {said!r}, not that all is acknowledged"

    def resume(self) -> None:
        self._command("g")

    def _command(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word)
        self._process.stdin.flush()

    def stop(self, deadline_s: float = 60.0) -> dict[str, int]:
        """End the load: how many messages each device has had acknowledged, numbered from 0."""
        output, _ = self._process.communicate(timeout=deadline_s)
        assert self._process.returncode == 0
        result = json.loads(output)
        self.repeated = result["repeated"]
        return dict(result["published"])


if __name__ == "__main__":
    levels: list[Qos] = [2 if level == "2" else 1 for level in sys.argv[4]]
    print(json.dumps(asyncio.run(publish(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), levels))))
