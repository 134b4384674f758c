"""The messages between a supervisor and a worker: a JSON object per line, over a pair of connected sockets.

From the worker, by the value of ``say``:

    up                 it listens to the channel; repeated at most once a second while it makes progress in its start
                       or in a step of a reload
    warm               settings checked, modules loaded, Kafka reached, topics there: it needs only the slot
    ready              it has the slot: spool replayed, sessions subscribed
    released           the slot is free: sessions disconnected, spool closed, lock released
    failed             it ends, for the reason in ``sentence``
    stopped            it has stopped, with ``unacked`` messages unacknowledged
    answer             to the question ``number``: ``status``, ``type`` and ``body`` as HTTP has them
    reloaded           the step ``number`` is done, or failed with ``sentence``; ``remarks`` are for the operator

From the supervisor: the settings (before anything else), ``go`` (a successor may take the slot; others take it at
once), ``ask`` (``number``, ``path`` and ``accept`` of an HTTP request), ``reload`` (``number``, ``step`` and
``settings`` of a reload; ``gateway.worker.reload`` has the steps), and ``hasten`` (drain no longer). Stopping goes by
signal, which works from a process's first moment on.

The channel ends with either process: a worker without a supervisor stops in order.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any, Final

Message = dict[str, Any]

_LINE_LIMIT: Final = 64 * 1024 * 1024  # metrics of a worker with thousands of topics are a few MiB


class Channel(asyncio.Protocol):
    """One end. ``heard`` receives each message in the loop; ``lost`` is called once, after the other end has closed.

    An invalid message ends the channel, because the other end is broken or no worker.
    """

    def __init__(self, heard: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self._heard = heard
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def send(self, **message: object) -> None:
        """Sends a message; does nothing after the other end has closed. Does not block."""
        self.send_line(json.dumps(message))

    def send_line(self, text: str) -> None:
        """Sends a message that is JSON already, on one line."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(text.encode() + b"\n")

    def close(self) -> None:
        """Ends the channel, after what was sent."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        self._lost()

    def data_received(self, data: bytes) -> None:
        """asyncio's call. Each line is a message; anything but a JSON object ends the channel."""
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                self._break()
                return
            self._heard(message)
        if len(rest) > _LINE_LIMIT:
            self._break()

    def _break(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def open_channel(sock: socket.socket, heard: Callable[[Message], None], lost: Callable[[], None]) -> Channel:
    """A channel on one socket of a pair, which it owns from now on."""
    sock.setblocking(False)
    _, channel = await asyncio.get_running_loop().create_connection(lambda: Channel(heard, lost), sock=sock)
    return channel


def read_first(sock: socket.socket) -> str:
    """The channel's first line, read before there is a loop; blocks until it arrives. Empty if the other end has
    closed. Nothing may follow it before this end has sent ``up``."""
    received = bytearray()
    while not received.endswith(b"\n"):
        data = sock.recv(65_536)
        if not data:
            return ""
        received += data
    return received.decode()
