"""EMQX's port: a bounded number of connections, and TLS with renewable certificates.

asyncio's server accepts any number of connections and TLS handshakes, and keeps its first certificate. So this module
accepts connections itself and gives them to the event loop one by one.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from bridge.waiting import end_tasks
from config.error_words import words
from gateway.http.server import HttpPortError, listening_socket

if TYPE_CHECKING:
    import ssl

    from gateway.http.connection import Connection

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 64  # then the accepted connections are served first
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S: Final = 0.2  # without free descriptors, an immediate retry would spin
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 60),  # an EMQX node without power is noticed within two minutes
    ("TCP_KEEPINTVL", 15),
    ("TCP_KEEPCNT", 4),
)


class Listener:
    """Accepts connections while it is open. Belongs to the event loop.

    Args:
        host: where to listen.
        port: where to listen; 0 takes a free one.
        connect: makes the protocol of a new connection.
        room: whether one more connection may be accepted, given the number of handshakes under way; may close another.
        context: the TLS context for the next connection, None without TLS.
        handshake_timeout_s: the time a TLS handshake may take.
        refused: called with the reason for closing a connection: ``full`` or ``tls``.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect: Callable[[], Connection],
        room: Callable[[int], bool],  # of the number of handshakes: whether one more is allowed
        context: Callable[[], ssl.SSLContext | None],
        handshake_timeout_s: float,
        refused: Callable[[str], None],  # called with a reason
    ) -> None:
        self._host = host
        self._port = port
        self._connect = connect
        self._room = room
        self._context = context
        self._handshake_timeout_s = handshake_timeout_s
        self._refused = refused
        self._socket: socket.socket | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self._joining: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The number of the port, while it is open."""
        assert self._socket is not None, "the port is not open"
        port: int = self._socket.getsockname()[1]
        return port

    async def open(self) -> None:
        """Open the port and accept connections. Raises HttpPortError."""
        try:
            self._socket = await listening_socket(self._host, self._port, backlog=_BACKLOG)
        except (OSError, UnicodeError) as error:
            raise HttpPortError(self._host, self._port, error, ("auth.host", "auth.port")) from error
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def close(self) -> None:
        """Stop accepting connections and abort handshakes. Established connections stay."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        await end_tasks(*self._joining)

    def _accept(self) -> None:
        """The socket is readable: take the connections that wait, some at a time. Without descriptors, pause."""
        assert self._socket is not None
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                self._pause(error)
                return
            if self._room(len(self._joining)):
                task = asyncio.create_task(self._join(accepted), name="auth connection")
                self._joining.add(task)
                task.add_done_callback(self._joining.discard)
            else:
                accepted.close()
                self._refused("full")

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment, because descriptors or memory are short."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._resuming = loop.call_later(_PAUSE_S, self._resume)
        _log.error(
            "auth_connections_not_taken",
            error=words(error),
            consequence="new connections wait",
            check="the limit of open files (ulimit -n)",
            repeat_key="accept",
        )

    def _resume(self) -> None:
        self._resuming = None
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def _join(self, accepted: socket.socket) -> None:
        """Make an accepted socket a connection, with its TLS handshake."""
        try:
            accepted.setblocking(False)
            _keep_alive(accepted)
            context = self._context()
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connect,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._handshake_timeout_s,
                ssl_shutdown_timeout=None if context is None else self._handshake_timeout_s,
            )
        except OSError as error:  # includes ssl.SSLError, TimeoutError and ConnectionError
            accepted.close()
            self._refused("tls")
            _log.warning("auth_connection_failed", error=words(error), repeat_key="join")
        except BaseException:
            accepted.close()
            raise


def _keep_alive(accepted: socket.socket) -> None:
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:  # if the system has the option
            accepted.setsockopt(socket.IPPROTO_TCP, option, value)
