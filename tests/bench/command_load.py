"""The load side of commands: what writes them to Kafka, and the one client that has the subscriptions of all devices.

The client is on a raw socket, MQTT 3.1.1, and acknowledges each message as it comes.
"""

from __future__ import annotations

import socket
import time
from array import array
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from confluent_kafka import Producer

from tests.bench import wire
from tests.bench.latency import percentile
from tests.bench.payloads import payload, sent_ns_of, seq_of, template
from tests.bench.publisher import Pace, Published
from tests.bench.records import QUIET

_TIMEOUT_S: Final = 60.0
_TICK_NS: Final = 500_000
_TEMPLATES: Final = 1_000
SUBJECT: Final = "set"


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The client has its subscriptions."""


@dataclass(frozen=True, slots=True)
class First:
    """The first command has come."""


@dataclass(frozen=True, slots=True)
class Received:
    """Every command has come. Latencies are those from the making of the record, of the first copy of each, without
    the first ``skip``.
    """

    copies: int
    ns: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def command_topic(device: int) -> str:
    """The MQTT topic of a device's commands."""
    return f"devices/{device}/req/{SUBJECT}"


def preload(bootstrap: str, topic: str, count: int, devices: int, first: int = 0) -> None:
    """Write ``count`` commands, going round the devices from ``first`` on, as fast as Kafka takes them."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000, **QUIET}
    )
    rests = [template(number) for number in range(_TEMPLATES)]
    for seq in range(count):
        _produce(producer, topic, seq, first + seq % devices, rests)
    if left := producer.flush(_TIMEOUT_S):
        raise ConnectionError(f"Kafka left {left} records unacknowledged for {_TIMEOUT_S:g} s")


def paced(pipe: Connection, bootstrap: str, topic: str, pace: Pace, devices: int) -> None:
    """After a Start, writes commands at an even pace, each made at the moment it leaves; sends Published."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", **QUIET})
    producer.list_topics(topic, timeout=_TIMEOUT_S)  # connects
    rests = [template(number) for number in range(_TEMPLATES)]
    pipe.recv()
    started_ns = time.monotonic_ns()
    sent = worst_ns = 0
    while sent < pace.count:
        now = time.monotonic_ns()
        due = min(pace.count, (now - started_ns) * pace.rate // 1_000_000_000 + 1)
        if due > sent:
            worst_ns = max(worst_ns, now - started_ns - sent * 1_000_000_000 // pace.rate)
        for seq in range(sent, due):
            _produce(producer, topic, seq, seq % devices, rests)
        sent = max(sent, due)
        producer.poll(0)
        next_ns = max(now + _TICK_NS, started_ns + sent * 1_000_000_000 // pace.rate)
        time.sleep(max(0, next_ns - time.monotonic_ns()) / 1e9)
    if left := producer.flush(_TIMEOUT_S):
        raise ConnectionError(f"Kafka left {left} records unacknowledged for {_TIMEOUT_S:g} s")
    pipe.send(Published(pace.count, started_ns, time.monotonic_ns(), worst_ns / 1e6))


def _produce(producer: Producer, topic: str, seq: int, device: int, rests: list[bytes]) -> None:
    producer.produce(
        topic, payload(seq, rests[seq % _TEMPLATES]), key=b"%d" % device, headers=[("subject", SUBJECT.encode())]
    )


def received(pipe: Connection, port: int, devices: int, count: int, skip: int, timeout_s: float) -> None:
    """Subscribes to the topic of each device and sends Subscribed; sends First, and Received once every command has
    come.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        packets = wire.PacketBuffer()
        connection.sendall(wire.connect("bench-devices"))
        connection.sendall(b"".join(wire.subscribe(n % 65_535 + 1, command_topic(n), 1) for n in range(devices)))
        subscribed = 0
        while subscribed < devices:
            subscribed += sum(first == wire.SUBACK for first, _ in packets.feed(_read(connection)))
        pipe.send(Subscribed())
        pipe.send(_Receiver(pipe, connection, packets, count, timeout_s).run(skip))
        connection.sendall(wire.disconnect())


def _read(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 18)
    if not data:
        raise ConnectionError("the broker closed the devices' connection")
    return data


class _Receiver:
    """Takes commands until each number below ``count`` has come."""

    def __init__(
        self, pipe: Connection, connection: socket.socket, packets: wire.PacketBuffer, count: int, timeout_s: float
    ) -> None:
        self._pipe, self._connection, self._packets = pipe, connection, packets
        self._took_ns = array("q", [-1]) * count
        self._deadline = time.monotonic() + timeout_s

    def run(self, skip: int) -> Received:
        missing, copies, began_ns, ended_ns = len(self._took_ns), 0, 0, 0
        while missing:
            data = _read(self._connection)
            now = time.monotonic_ns()
            answers = bytearray()
            for first, body in self._packets.feed(data):
                if first & 0xF0 != wire.PUBLISH:
                    continue
                at = 2 + int.from_bytes(body[:2])
                answers += b"\x40\x02" + body[at : at + 2]
                seq = seq_of(value := body[at + 2 :])
                if self._took_ns[seq] < 0:
                    self._took_ns[seq] = now - sent_ns_of(value)
                    missing -= 1
                else:
                    copies += 1
            self._connection.sendall(answers)
            if not began_ns and answers:
                began_ns = now
                self._pipe.send(First())
            ended_ns = now
            if missing and time.monotonic() > self._deadline:
                raise TimeoutError(f"{missing} of {len(self._took_ns)} commands did not reach their devices")
        ordered = sorted(self._took_ns[skip:])
        p50, p99 = percentile(ordered, 0.5), percentile(ordered, 0.99)
        return Received(copies, ended_ns - began_ns, p50 / 1e6, p99 / 1e6, ordered[-1] / 1e6)
