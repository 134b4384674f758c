"""Proxies for tests: one that speaks HTTP CONNECT and nothing else, and a TCP one that delays, loses and vanishes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import operator
import random
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self

from tests.servers.playing import PlayedServer, accepted_are_known


class ConnectProxy:
    """Listens on 127.0.0.1 while its ``async with`` block runs. ``user``: (name, password) it asks for.

    ``targets`` is what it was asked to connect to, ``refuse`` an HTTP status it answers instead.
    """

    def __init__(self, user: tuple[str, str] | None = None, *, refuse: str | None = None) -> None:
        self.targets: list[str] = []
        self.port = 0
        self._authorization = f"basic {base64.b64encode(':'.join(user).encode()).decode()}" if user else None
        self._refuse = refuse
        self._server = PlayedServer(self._serve)

    async def __aenter__(self) -> Self:
        self.port = await self._server.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._server.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(": ")
            scheme, _, rest = value.partition(" ")
            headers[name.lower()] = f"{scheme.lower()} {rest}"
        assert method == "CONNECT"
        self.targets.append(target)
        if self._authorization is not None and headers.get("proxy-authorization") != self._authorization:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        if self._refuse is not None:
            writer.write(f"HTTP/1.1 {self._refuse}\r\n\r\n".encode())
            return
        host, _, port = target.rpartition(":")
        there, back = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            back.transport.abort()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.write_eof()


SEGMENT_BYTES = 1448  # what a TCP segment carries over Ethernet
RTO_MIN_S = 0.2  # Linux's shortest retransmission time-out
BACKLOG_BYTES = 256 * 1024  # under way in one direction: what TCP's buffers would hold


@dataclass
class Weather:
    """What the way between two ends is like; may be changed while it is used.

    ``rtt_s`` is there and back. ``loss`` is the share of segments lost, in each direction, as TCP shows it to the
    ends: nothing is missing and nothing overtakes, but a lost segment and all behind it come late. With more data
    behind it the loss is noticed after a round trip (duplicate acknowledgements); the last segment of a burst waits
    for the retransmission time-out, a round trip and 200 ms, doubled if that is lost, too. Of congestion control, which
    would send less after each loss, there is nothing: ``to_client_rate`` and ``to_server_rate``, in bytes per second,
    say what goes through at most.
    """

    rtt_s: float = 0.0
    loss: float = 0.0
    to_client_rate: float | None = None
    to_server_rate: float | None = None


class FaultyProxy:
    """A TCP proxy on 127.0.0.1 that fails on request, in a thread of its own, while its ``with`` block runs.

    Everything may be called from any thread. ``target`` is a port of 127.0.0.1. ``seed`` makes losses repeatable.
    """

    def __init__(self, target: int, weather: Weather | None = None, *, seed: int = 0, port: int = 0) -> None:
        """``port``: listen there; any free one unless given."""
        self.weather = weather or Weather()
        self.port = port
        self.accepted = 0
        self.target = target  # may be changed: new connections go there
        self._random = random.Random(seed)
        self._refusing = False
        self._swallowing: tuple[bool, ...] = (False, False)  # to the server, to the client
        self._passing = asyncio.Event()
        self._passing.set()
        self._pipes: set[_Pipe] = set()
        self._transports: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()  # of these and earlier pipes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty proxy")
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_error: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connections(self) -> int:
        return len(self._pipes)

    def cut(self) -> None:
        """Reset every connection, in both directions; new ones are let through."""
        self._run(self._reset_all())

    def refuse(self, refusing: bool = True) -> None:
        """Reset new connections at once."""
        self._refusing = refusing

    def swallow(self, swallowing: bool = True, *, to_server: bool = True, to_client: bool = True) -> None:
        """What comes from now on vanishes, in both directions or one, also on new connections; nobody is told.

        Switched off, new connections work. Those that lost bytes stay half-open for ever: call ``cut`` to end them.
        """
        self._swallowing = (swallowing and to_server, swallowing and to_client)

        def mark() -> None:
            for pipe in self._pipes:
                pipe.swallowed = tuple(map(operator.or_, pipe.swallowed, self._swallowing))

        self._call(mark)

    def hold(self, holding: bool = True) -> None:
        """Pass nothing on, and lose nothing: both ends feel TCP's back-pressure. Switched off, everything goes on."""
        self._call(self._passing.clear if holding else self._passing.set)

    # --- the loop's own ---

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _call(self, function: Callable[[], object]) -> None:
        async def wrapped() -> None:
            function()

        self._run(wrapped())

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await accepted_are_known()
        await self._reset_all()
        for transport in list(self._transports):
            transport.abort()  # closed, and not flushed: a frozen peer takes nothing more

    async def _reset_all(self) -> None:
        pipes = list(self._pipes)
        for pipe in pipes:
            pipe.reset()
        if pipes:
            await asyncio.wait({pipe.task for pipe in pipes})
        self._pipes.difference_update(pipes)  # one whose task had not begun is still there

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: a connection must be known even if its task is cancelled before its first step."""
        self.accepted += 1
        if self._refusing:
            _reset(writer)
            return
        self._transports.add(writer.transport)
        pipe = _Pipe([writer])
        pipe.swallowed = self._swallowing
        self._pipes.add(pipe)
        pipe.task = asyncio.ensure_future(self._carry(pipe, reader, writer))

    async def _carry(self, pipe: _Pipe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            self._transports.add(back.transport)
            pipe.writers.append(back)
            directions = {
                asyncio.ensure_future(self._copy(pipe, reader, back, to_server=True)),
                asyncio.ensure_future(self._copy(pipe, there, writer, to_server=False)),
            }
            pipe.tasks += directions
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass  # an end of one side is an end of both
        finally:
            self._pipes.discard(pipe)
            await pipe.close()

    async def _copy(
        self, pipe: _Pipe, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        """Carry one direction until its source ends, then end both."""
        queue: deque[tuple[float, bytes]] = deque()
        more, less = asyncio.Event(), asyncio.Event()
        sender = asyncio.create_task(self._deliver(queue, more, less, sink))
        sender.add_done_callback(lambda _: less.set())
        arrival_s = 0.0
        try:
            while data := await _read(source):
                if pipe.swallowed[not to_server]:
                    continue
                await self._passing.wait()
                for start in range(0, len(data), SEGMENT_BYTES):
                    segment = data[start : start + SEGMENT_BYTES]
                    last = start + SEGMENT_BYTES >= len(data)
                    arrival_s = self._arrival_s(arrival_s, len(segment), last=last, to_server=to_server)
                    queue.append((arrival_s, segment))
                more.set()
                while sum(len(segment) for _, segment in queue) > BACKLOG_BYTES and not sender.done():
                    less.clear()
                    await less.wait()
                if sender.done():
                    return  # nobody takes it any more
            if any(pipe.swallowed):
                await asyncio.Event().wait()  # the end is not passed on either
            queue.append((arrival_s, b""))
            more.set()
            await sender
        finally:
            sender.cancel()

    def _arrival_s(self, previous_s: float, size: int, *, last: bool, to_server: bool) -> float:
        """When a segment sent now arrives: never before the one in front of it."""
        weather = self.weather
        late_s, timeout_s = 0.0, weather.rtt_s + RTO_MIN_S
        if weather.loss and self._random.random() < weather.loss:
            late_s = timeout_s if last else weather.rtt_s
            while self._random.random() < weather.loss:
                late_s, timeout_s = late_s + 2 * timeout_s, 2 * timeout_s
        rate = weather.to_server_rate if to_server else weather.to_client_rate
        arrival_s = max(previous_s, self._loop.time() + weather.rtt_s / 2 + late_s)
        return arrival_s + size / rate if rate else arrival_s

    async def _deliver(
        self, queue: deque[tuple[float, bytes]], more: asyncio.Event, less: asyncio.Event, sink: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                while not queue:
                    more.clear()
                    await more.wait()
                due_s, data = queue[0]
                if (wait_s := due_s - self._loop.time()) > 0:
                    await asyncio.sleep(wait_s)
                await self._passing.wait()
                queue.popleft()
                less.set()
                if not data:
                    sink.close()
                    return
                sink.write(data)
                await sink.drain()


class _Pipe:
    """One connection through the proxy: the task that carries it, and its two sockets."""

    def __init__(self, writers: list[asyncio.StreamWriter]) -> None:
        self.task: asyncio.Future[None]
        self.tasks: list[asyncio.Future[None]] = []
        self.writers = writers
        self.swallowed: tuple[bool, ...] = (False, False)  # to the server, to the client

    def reset(self) -> None:
        for writer in self.writers:
            _reset(writer)
        self.task.cancel()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for writer in self.writers:
            writer.close()


async def _read(source: asyncio.StreamReader) -> bytes:
    """What has come; empty at the end, also at one that is no proper end."""
    try:
        return await source.read(65536)
    except OSError:
        return b""


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
