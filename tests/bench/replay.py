"""The replay broker: accepts MQTT sessions and plays a ready stream of PUBLISH packets to them as fast as they take it.

One thread, no queues, packets made beforehand, acknowledgements checked against what is due: a core is left for
Kafka and one for the client that is measured.
"""

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from tests.bench import wire
from tests.bench.account import Span, SpanClock
from tests.bench.outflow import Outflow
from tests.bench.payloads import Stream, build_stream, device_topic
from tests.brokers import packets

_READ: Final = 256 * 1024
_SAMPLE_TOPIC: Final = device_topic(0).decode()


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What to play. ``count`` packets round ``topics`` topics, ``cycles`` times in all; split by whole cycles among
    ``sessions`` sessions.

    window: messages in flight at most on a session; a smaller receive maximum in an MQTT 5 CONNECT lowers it.
    warm_up: messages before the span, QoS 1 alone.
    ordered: acknowledgements must come in order [MQTT-4.6.0-2].
    """

    count: int
    cycles: int
    qos: int
    period: int = 50_000
    topics: int = 1_000
    properties: bytes | None = None
    sessions: int = 1
    window: int = 65_535
    warm_up: int = 0
    ordered: bool = True

    @property
    def messages(self) -> int:
        return self.count * self.cycles


@dataclass(frozen=True, slots=True)
class Listening:
    port: int


@dataclass(frozen=True, slots=True)
class Subscribed:
    """All sessions have subscribed; ``at_ns`` is the monotonic moment of the last SUBSCRIBE."""

    at_ns: int
    window: int


@dataclass(frozen=True, slots=True)
class Go:
    """Start now. ``pid`` is the client's process, whose CPU clock is read at the first byte out and at the last
    acknowledgement in.
    """

    pid: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measured span: first byte of the first message to the last acknowledgement (QoS 0: to the last byte out)."""

    sent: int
    acknowledged: int
    out_of_order: int
    span: Span


class _Session:
    """One client connection: its handshake, its replies and, while the stream is played to it, its outflow."""

    def __init__(self, connection: socket.socket, plan: ReplayPlan) -> None:
        self.socket = connection
        self.outflow: Outflow | None = None
        self.subscribed = False
        self.window = plan.window
        self._client_id = ""
        self._plan = plan
        self._packets = wire.PacketBuffer()
        self._replies = bytearray()
        self._version5 = False

    def wants_write(self) -> bool:
        """Whether there is something that may be sent now."""
        return bool(self._replies) or (self.outflow is not None and bool(self.outflow.sendable()))

    def write(self) -> None:
        """One send(), if the socket takes anything. A reply goes between two packets of the stream."""
        flow = self.outflow
        try:
            if flow is not None and not (self._replies and not flow.rest_of_packet()):
                flow.sent(self.socket.send(flow.rest_of_packet() if self._replies else flow.sendable()))
            else:
                del self._replies[: self.socket.send(self._replies)]
        except BlockingIOError:
            return

    def read(self) -> bool:
        """One recv() and what follows from it; False when the client has gone. Raises WireError for what must not
        come.
        """
        try:
            data = self.socket.recv(_READ)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        if not data:
            return False
        found = self._packets.feed(data) if self.outflow is None else self.outflow.received(data)
        for first, body in found:
            if first & 0xF0 == wire.DISCONNECT:
                return False
            self._answer(first, body)
        return True

    def play(self, stream: Stream, cycles: int) -> Outflow:
        """Begins the stream; its first bytes leave at the next ``write``."""
        self.outflow = Outflow(stream, cycles, window=self.window, ordered=self._plan.ordered)
        return self.outflow

    def _answer(self, first: int, body: bytes) -> None:
        match first & 0xF0:
            case wire.CONNECT:
                asked = packets.parse_connect(body)
                self._client_id, self._version5 = asked.client_id, asked.v5
                self.window = min(self._plan.window, asked.receive_maximum)
                self._replies += packets.connack(properties=b"" if asked.v5 else None)
            case wire.SUBSCRIBE:
                request = packets.parse_subscribe(body, v5=self._version5)
                granted = bytes(min(options & 3, self._plan.qos) for _filter, options in request.filters)
                self._check_subscription(request)
                self._replies += packets.suback(request.packet_id, granted, v5=self._version5)
                self.subscribed = True
            case wire.UNSUBSCRIBE:
                packet_id, filters = packets.parse_unsubscribe(body, v5=self._version5)
                self._replies += packets.unsuback(packet_id, len(filters), v5=self._version5)
            case wire.PUBLISH if first & 6:  # a status message: taken and forgotten
                at = 2 + int.from_bytes(body[:2], "big")
                self._replies += b"\x40\x02" + body[at : at + 2]
            case wire.PUBLISH:
                pass
            case _ if first == wire.PINGREQ[0]:
                self._replies += wire.PINGRESP
            case _:
                raise wire.WireError(
                    f"client {self._client_id!r} sent a packet of type 0x{first:02x}, which is not due"
                )

    def _check_subscription(self, request: packets.Subscribe) -> None:
        matching = [options & 3 for text, options in request.filters if wire.covers(text, _SAMPLE_TOPIC)]
        if not matching or max(matching) < self._plan.qos:
            raise wire.WireError(
                f"client {self._client_id!r} subscribed to {request.filters}: "
                f"that does not receive {_SAMPLE_TOPIC} at QoS {self._plan.qos}"
            )


class _Broker:
    """The event loop: connections, the harness's pipe, and the account at both ends of the span."""

    def __init__(self, pipe: Connection, plan: ReplayPlan, stack: ExitStack) -> None:
        self._pipe = pipe
        self._plan = plan
        self._go: Go | None = None
        self._sessions: list[_Session] = []
        self._stack = stack
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(pipe, selectors.EVENT_READ)

    def run(self, stream: Stream) -> None:
        """Plays the stream once, then keeps the sessions alive until the pipe closes (EOFError)."""
        self._pipe.send(Listening(self._listener.getsockname()[1]))
        self._until(lambda: len(self._players()) == self._plan.sessions)
        self._pipe.send(Subscribed(time.monotonic_ns(), min(session.window for session in self._players())))
        self._until(lambda: self._go is not None)
        assert self._go is not None
        self._pipe.send(self._play(stream, self._go))
        self._until(lambda: False)

    def _players(self) -> list[_Session]:
        return [session for session in self._sessions if session.subscribed][: self._plan.sessions]

    def _play(self, stream: Stream, go: Go) -> Outcome:
        flows = [session.play(stream, self._plan.cycles // self._plan.sessions) for session in self._players()]
        deadline = time.monotonic() + go.timeout_s
        if self._plan.warm_up:
            self._watch_writes()
            self._until(
                lambda: sum(flow.acknowledged for flow in flows) >= self._plan.warm_up or time.monotonic() > deadline
            )
        clock = SpanClock(go.pid)
        self._watch_writes()
        self._until(lambda: all(flow.done for flow in flows) or time.monotonic() > deadline)
        span = clock.stop()
        sent, acknowledged = sum(flow.sent_messages for flow in flows), sum(flow.acknowledged for flow in flows)
        if not all(flow.done for flow in flows):
            raise TimeoutError(
                f"after {go.timeout_s:g} s {sent} of {self._plan.messages} messages were sent, "
                f"{acknowledged} acknowledged"
            )
        out_of_order = sum(flow.out_of_order for flow in flows)
        return Outcome(sent, acknowledged, out_of_order, span)

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            for key, events in self._selector.select(1.0):
                if key.fileobj is self._pipe:
                    self._go = self._pipe.recv()
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._serve(key.data, events)

    def _accept(self) -> None:
        connection, _address = self._listener.accept()
        self._stack.callback(connection.close)
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        session = _Session(connection, self._plan)
        self._sessions.append(session)
        self._selector.register(connection, selectors.EVENT_READ, session)

    def _serve(self, session: _Session, events: int) -> None:
        if events & selectors.EVENT_READ and not session.read():
            self._selector.unregister(session.socket)
            session.socket.close()
            self._sessions.remove(session)
            if session.outflow is not None and not session.outflow.done:
                raise ConnectionError(
                    f"the client closed its connection after acknowledging "
                    f"{session.outflow.acknowledged} of {session.outflow.total} messages"
                )
            return
        if events & selectors.EVENT_WRITE:
            session.write()
        self._watch(session)

    def _watch_writes(self) -> None:
        for session in self._sessions:
            self._watch(session)

    def _watch(self, session: _Session) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.wants_write() else 0)
        if self._selector.get_key(session.socket).events != wanted:
            self._selector.modify(session.socket, wanted, session)


def serve(pipe: Connection, plan: ReplayPlan) -> None:
    """The replay broker's process: sends Listening, Subscribed, and after a Go an Outcome; ends when the pipe
    closes.
    """
    if plan.cycles % plan.sessions:
        raise ValueError(f"{plan.cycles} cycles cannot be split among {plan.sessions} sessions")
    stream = build_stream(plan.count, qos=plan.qos, period=plan.period, topics=plan.topics, properties=plan.properties)
    with ExitStack() as stack:
        _Broker(pipe, plan, stack).run(stream)
