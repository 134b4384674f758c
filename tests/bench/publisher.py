"""Publishers on raw sockets: one that preloads a broker as fast as it takes it, one that keeps an even pace like a
fleet of devices.

Both speak QoS 1 over MQTT 3.1.1 (no receive maximum holds them back) and end when the broker has acknowledged every
message.
"""

import select
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from tests.bench import wire
from tests.bench.outflow import Outflow
from tests.bench.payloads import DEVICES, build_stream, device_topic, payload, template
from tests.brokers import packets

_PRELOAD_WINDOW: Final = 10_000  # PUBACKs the broker may owe us: enough to keep it busy, little enough to keep order
_TICK_NS: Final = 500_000  # the pace is kept in steps of half a millisecond: finer ones cost the machine a core
_TIMEOUT_S: Final = 60.0
_IDS: Final = 65_535


@dataclass(frozen=True, slots=True)
class Pace:
    """``count`` messages at ``rate`` a second, going round the devices' topics."""

    count: int
    rate: int


@dataclass(frozen=True, slots=True)
class Start:
    """Sent to ``paced`` when it may begin."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The publisher is connected."""


@dataclass(frozen=True, slots=True)
class Published:
    """Every message is acknowledged by the broker. ``late_ms`` is how far behind its pace the publisher was at
    worst.
    """

    count: int
    started_ns: int
    ended_ns: int
    late_ms: float


def _connect(port: int, client_id: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(wire.connect(client_id))
    answer = connection.recv(64)
    if answer[:1] != bytes((wire.CONNACK,)) or answer[3:4] != b"\x00":
        raise ConnectionError(f"the broker answered CONNECT with {answer!r}")
    return connection


def preload(pipe: Connection, port: int, count: int) -> None:
    """Publishes ``count`` messages (seq 0 …) as fast as the broker acknowledges them; sends Published."""
    period = next(size for size in range(min(count, _IDS), 0, -1) if count % size == 0)
    flow = Outflow(build_stream(count, qos=1, period=period), 1, window=_PRELOAD_WINDOW)
    deadline = time.monotonic() + _TIMEOUT_S
    with _connect(port, "bench-preload") as connection:
        connection.setblocking(False)
        started_ns = time.monotonic_ns()
        while not flow.done:
            chunk = flow.sendable()
            readable, writable, _ = select.select([connection], [connection] if chunk else [], [], 1.0)
            if readable:
                data = connection.recv(1 << 18)
                if not data:
                    raise ConnectionError(f"the broker closed the connection after {flow.acknowledged} messages")
                flow.received(data)
            if writable:
                flow.sent(connection.send(chunk))
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broker took {flow.acknowledged} of {count} messages in {_TIMEOUT_S:g} s")
        ended_ns = time.monotonic_ns()
        connection.setblocking(True)
        connection.sendall(wire.disconnect())
    pipe.send(Published(count, started_ns, ended_ns, 0.0))


def paced(pipe: Connection, port: int, pace: Pace) -> None:
    """Sends Ready; after a Start publishes at an even pace, each payload made at the moment it leaves; sends
    Published.
    """
    rests = [template(device) for device in range(DEVICES)]
    topics = [device_topic(device) for device in range(DEVICES)]
    with _connect(port, "bench-paced") as connection:
        pipe.send(Ready())
        pipe.recv()
        acknowledgements = _Acknowledgements(connection)
        started_ns = time.monotonic_ns()
        sent = worst_ns = 0
        while sent < pace.count:
            now = time.monotonic_ns()
            due = min(pace.count, (now - started_ns) * pace.rate // 1_000_000_000 + 1)
            if due > sent:
                # How long the oldest message of this step has been due.
                worst_ns = max(worst_ns, now - started_ns - sent * 1_000_000_000 // pace.rate)
                made = [
                    packets.publish(
                        topics[seq % DEVICES], payload(seq, rests[seq % DEVICES]), qos=1, packet_id=seq % _IDS + 1
                    )
                    for seq in range(sent, due)
                ]
                connection.sendall(b"".join(made))
                sent = due
                acknowledgements.take_waiting()
            next_ns = max(now + _TICK_NS, started_ns + sent * 1_000_000_000 // pace.rate)
            time.sleep(max(0, next_ns - time.monotonic_ns()) / 1e9)
        acknowledgements.wait_for(pace.count)
        ended_ns = time.monotonic_ns()
        connection.sendall(wire.disconnect())
    pipe.send(Published(pace.count, started_ns, ended_ns, worst_ns / 1e6))


class _Acknowledgements:
    """Counts the broker's PUBACKs on a blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._packets = wire.PacketBuffer()
        self._count = 0

    def take_waiting(self) -> None:
        """Reads what has arrived, without blocking."""
        while select.select([self._connection], [], [], 0)[0]:
            self._read()

    def wait_for(self, count: int) -> None:
        """Blocks until ``count`` PUBACKs have come since the start."""
        while self._count < count:
            self._read()

    def _read(self) -> None:
        data = self._connection.recv(1 << 16)
        if not data:
            raise ConnectionError(f"the broker closed the connection after {self._count} acknowledgements")
        self._count += sum(first == wire.PUBACK for first, _body in self._packets.feed(data))
