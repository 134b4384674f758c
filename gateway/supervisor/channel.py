"""What a supervisor and a worker say to each other: a JSON object per line, over a pair of connected sockets.

From the worker, ``say`` being what:

    up                 it listens to the channel; said again, at most once a second, when it has got on meanwhile: in
                       its start, or while it is at a step of a reload
    warm               settings checked, modules loaded, Kafka reached, topics there: it needs only the slot
    ready              it has the slot: spool replayed, sessions subscribed
    released           the slot is free: sessions disconnected, spool closed, lock given back
    failed             it ends, of ``sentence``
    stopped            it has stopped, with ``unacked`` messages unacknowledged
    answer             to the question ``number``: ``status``, ``type`` and ``body`` as HTTP has them
    reloaded           the step ``number`` is done, or not because of ``sentence``; ``remarks`` are for the operator

From the supervisor: the settings (before anything else), ``go`` (a successor may take the slot; others take it at
once), ``ask`` (``number``, ``path`` and ``accept`` of an HTTP request), and ``reload`` (``number``, ``step`` and
``settings`` of a reload; ``gateway.worker.reload`` has the steps). Stopping goes by signal, which works from a
process's first moment on.

The end of the channel is the end of the other: a worker without a supervisor stops in good order.
"""

from __future__ import annotations

__all__ = ["Channel", "Message", "open_channel", "read_first"]

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

Message = dict[str, Any]

_LINE_LIMIT: Final = 64 * 1024 * 1024  # metrics of a worker with thousands of topics are a few MiB


class Channel(asyncio.Protocol):
    """One end. ``heard`` gets each message in the loop, ``lost`` is called once, when the other end has gone.

    What comes that is no message ends the channel: the other end is no worker of ours, or broken.
    """

    def __init__(self, heard: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self._heard = heard
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def send(self, **message: object) -> None:
        """Sends a message; does nothing when the other end has gone. Does not block."""
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

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        self._lost()

    def data_received(self, data: bytes) -> None:
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
    """The channel's first line, read before there is a loop; blocks until it is there. Empty when the other end has
    gone. Nothing may follow it until this end has said ``up``."""
    received = bytearray()
    while not received.endswith(b"\n"):
        data = sock.recv(65_536)
        if not data:
            return ""
        received += data
    return received.decode()
