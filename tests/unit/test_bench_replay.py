"""The replay broker, over loopback: it speaks enough MQTT to be subscribed to, plays all of its stream, and notices
a cheat.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.bench import replay, wire
from tests.bench.account import SpanClock
from tests.brokers import packets
from tests.kinds import is_a

_WAIT_S = 60.0


def connect5(receive_maximum: int) -> bytes:
    """An MQTT 5 CONNECT with receive maximum and a user property."""
    properties = b"\x21" + receive_maximum.to_bytes(2, "big") + b"\x26\x00\x01a\x00\x01b"
    body = b"\x00\x04MQTT\x05\x02\x00\x1e" + bytes((len(properties),)) + properties + b"\x00\x04five"
    return bytes((wire.CONNECT, len(body))) + body


def subscribe5(topic_filter: str) -> bytes:
    body = b"\x00\x07\x00" + len(topic_filter).to_bytes(2, "big") + topic_filter.encode() + b"\x09"
    return bytes((wire.SUBSCRIBE | 2, len(body))) + body


@contextmanager
def serving(plan: replay.ReplayPlan) -> Iterator[tuple[Connection, int, list[Exception]]]:
    """The broker in a thread of this process: the pipe to it, its port, and what it raised."""
    ours, theirs = Pipe()
    raised: list[Exception] = []

    def serve() -> None:
        try:
            replay.serve(theirs, plan)
        except EOFError:
            pass
        except Exception as error:  # noqa: BLE001  (the test looks at it)
            raised.append(error.with_traceback(None))  # its frames hold the pipe

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield ours, told(ours).port, raised
    finally:
        ours.close()
        thread.join(_WAIT_S)
        assert not thread.is_alive(), "the broker did not end when its pipe was closed"


class Client:
    """A blocking MQTT client that keeps the packets it was not asked for."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S)
        self._buffer = wire.PacketBuffer()
        self._packets: list[tuple[int, bytes]] = []

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def packet(self) -> tuple[int, bytes]:
        while not self._packets:
            data = self.socket.recv(65536)
            assert data, "the broker closed the connection"
            self._packets += self._buffer.feed(data)
        return self._packets.pop(0)


@contextmanager
def client(port: int) -> Iterator[Client]:
    made = Client(port)
    with made.socket:
        yield made


def told(pipe: Connection) -> Any:
    assert pipe.poll(_WAIT_S)
    return pipe.recv()


def play(
    pipe: Connection, session: Client, connect: bytes, subscribe: bytes, limit_s: float = _WAIT_S
) -> replay.Subscribed:
    """Subscribe, and let the stream begin."""
    session.send(connect + subscribe)
    assert [session.packet()[0] for _ in range(2)] == [wire.CONNACK, wire.SUBACK]
    found = is_a(replay.Subscribed, told(pipe))
    pipe.send(replay.Go(os.getpid(), limit_s))
    return found


def acknowledge_all(session: Client, count: int, hold: int) -> list[int]:
    """Takes ``count`` messages, acknowledging in groups of ``hold``; the packet ids in order."""
    ids: list[int] = []
    held = b""
    for _ in range(count):
        _first, body = session.packet()
        at = 2 + int.from_bytes(body[:2], "big")
        ids.append(int.from_bytes(body[at : at + 2], "big"))
        held += b"\x40\x02" + body[at : at + 2]
        if len(held) == 4 * hold:
            session.send(held)
            held = b""
    session.send(held)
    return ids


def test_qos1_stream_is_played_whole_within_the_receive_maximum() -> None:
    plan = replay.ReplayPlan(20, 3, 1, period=20)
    with serving(plan) as (pipe, port, raised), client(port) as session:
        assert play(pipe, session, connect5(8), subscribe5("$share/g/devices/#")).window == 8
        # Acknowledged in groups of eight: a broker that stops below its window would leave both waiting.
        ids = acknowledge_all(session, 60, hold=8)
        outcome = told(pipe)
    assert ids == [k % 20 + 1 for k in range(60)]
    assert (outcome.sent, outcome.acknowledged, outcome.out_of_order) == (60, 60, 0)
    assert outcome.span.ns > 0
    assert not raised


def test_span_begins_when_the_warm_up_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def clock(pid: int) -> SpanClock:
        begun.set()
        return SpanClock(pid)

    monkeypatch.setattr(replay, "SpanClock", clock)
    plan = replay.ReplayPlan(20, 1, 1, period=20, warm_up=10)
    with serving(plan) as (pipe, port, raised), client(port) as session:
        play(pipe, session, connect5(10), subscribe5("devices/#"))
        acknowledge_all(session, 9, hold=1)
        session.send(wire.PINGREQ)
        received = 9
        while session.packet() != (wire.PINGRESP[0], b""):  # the broker has read all nine
            received += 1
        assert not begun.is_set()
        session.send(b"\x40\x02\x00\x0a")
        assert begun.wait(_WAIT_S)
        for _ in range(20 - received):
            session.packet()
        session.send(b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in range(11, 21)))
        assert told(pipe).acknowledged == 20
    assert not raised


def test_qos0_stream_needs_no_acknowledgement() -> None:
    plan = replay.ReplayPlan(20, 2, 0, period=20)
    with serving(plan) as (pipe, port, _raised), client(port) as session:
        play(pipe, session, wire.connect("three"), wire.subscribe(1, "devices/#", 0))
        assert {session.packet()[0] for _ in range(40)} == {wire.PUBLISH}
        assert told(pipe).sent == 40


def test_stream_is_split_by_whole_rounds_among_sessions() -> None:
    plan = replay.ReplayPlan(10, 4, 0, period=10, sessions=2)
    with serving(plan) as (pipe, port, _raised), client(port) as one, client(port) as other:
        one.send(wire.connect("one") + wire.subscribe(1, "devices/#", 0))
        play(pipe, other, wire.connect("other"), wire.subscribe(1, "devices/#", 0))
        assert [one.packet()[0] for _ in range(22)][2:] == [wire.PUBLISH] * 20
        assert [other.packet()[0] for _ in range(20)] == [wire.PUBLISH] * 20


def test_status_message_of_the_client_is_acknowledged() -> None:
    with serving(replay.ReplayPlan(10, 1, 1, period=10)) as (_pipe, port, _raised), client(port) as session:
        session.send(wire.connect("three") + packets.publish(b"gateways/x/status", b"{}", qos=1, packet_id=9))
        assert [session.packet() for _ in range(2)][1] == (wire.PUBACK, b"\x00\x09")


@pytest.mark.parametrize(("sent", "message"), [
    (b"\x40\x02\x00\x02", "packet id 2 while 1 was due"),
    (wire.disconnect(), "closed its connection after acknowledging 0 of 10"),
])  # fmt: skip
def test_client_that_cheats_ends_the_run(sent: bytes, message: str) -> None:
    with serving(replay.ReplayPlan(10, 1, 1, period=10)) as (pipe, port, raised), client(port) as session:
        play(pipe, session, wire.connect("three"), wire.subscribe(1, "devices/#", 1))
        for _ in range(10):
            session.packet()
        session.send(sent)
        assert session.socket.recv(1) == b"", "the broker ends, and its connections with it"
    assert message in str(raised[0])


def test_subscription_that_does_not_cover_the_stream_is_refused() -> None:
    with serving(replay.ReplayPlan(10, 1, 1, period=10)) as (_pipe, port, raised), client(port) as session:
        session.send(wire.connect("three"))
        assert session.packet()[0] == wire.CONNACK
        session.send(wire.subscribe(1, "devices/+", 1))
        assert session.socket.recv(1) == b""
    assert "does not receive devices/0/telemetry" in str(raised[0])


def test_client_that_never_acknowledges_is_given_up_at_the_deadline() -> None:
    with serving(replay.ReplayPlan(10, 1, 1, period=10)) as (pipe, port, raised), client(port) as session:
        play(pipe, session, wire.connect("three"), wire.subscribe(1, "devices/#", 1), limit_s=0.05)
        while session.socket.recv(65536):
            pass
    assert "of 10 messages were sent, 0 acknowledged" in str(raised[0])
