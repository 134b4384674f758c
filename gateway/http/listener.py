"""A listening port: a bounded number of connections and TLS handshakes, and TLS with renewable certificates.

asyncio's server accepts any number of connections and TLS handshakes, and keeps its first certificate. So this module
accepts connections itself and gives them to the event loop one by one.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from bridge.waiting import end_tasks
from config.errors import ExitStatus, GatewayError

if TYPE_CHECKING:
    import ssl

    from gateway.http.connection import Connection

_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 64  # then the accepted connections are served first
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S: Final = 0.2  # without free descriptors, an immediate retry would spin
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 60),  # a peer without power is noticed within two minutes
    ("TCP_KEEPINTVL", 15),
    ("TCP_KEEPCNT", 4),
)


class HttpPortError(GatewayError):
    """The port cannot be opened. ``host`` and ``port`` are those of the settings, ``names`` what these are called."""

    exit_status = ExitStatus.UNAVAILABLE

    def __init__(self, host: str, port: int, cause: OSError | UnicodeError, names: tuple[str, str]) -> None:
        super().__init__(_explain(host, port, cause, *names))
        self.host = host
        self.port = port


class Listener:
    """Accepts connections while it is open. Belongs to the event loop.

    Args:
        host: where to listen.
        port: where to listen; 0 takes a free one.
        names: of the settings of both, for HttpPortError.
        connect: makes the protocol of a new connection.
        room: whether one more connection may be accepted, given the number of handshakes under way; may close another.
        context: the TLS context for the next connection, None without TLS.
        handshake_timeout_s: the time a TLS handshake may take.
        failed: called with the error of a connection that ended before it was one, as of a TLS handshake.
        paused: called when descriptors or memory are short. Accepting goes on after a moment.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        names: tuple[str, str],
        connect: Callable[[], Connection],
        room: Callable[[int], bool],
        context: Callable[[], ssl.SSLContext | None],
        handshake_timeout_s: float,
        failed: Callable[[OSError], None],
        paused: Callable[[OSError], None],
    ) -> None:
        self._host = host
        self._port = port
        self._connect = connect
        self._room = room
        self._context = context
        self._handshake_timeout_s = handshake_timeout_s
        self._failed = failed
        self._paused = paused
        self._names = names
        self._socket: socket.socket | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self._joining: dict[asyncio.Task[None], None] = {}  # the oldest first

    @property
    def port(self) -> int:
        """The number of the port, while it is open."""
        assert self._socket is not None, "the port is not open"
        port: int = self._socket.getsockname()[1]
        return port

    async def open(self) -> None:
        """Open the port and accept connections. Raises HttpPortError."""
        try:
            self._socket = await _listening_socket(self._host, self._port)
        except (OSError, UnicodeError) as error:
            raise HttpPortError(self._host, self._port, error, self._names) from error
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

    def drop_oldest(self) -> None:
        """End the oldest handshake under way."""
        oldest = next(iter(self._joining))
        del self._joining[oldest]  # it ends in a later turn of the loop, and others may come in this one
        oldest.cancel()

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
                task = asyncio.create_task(self._join(accepted), name="connection")
                self._joining[task] = None
                task.add_done_callback(partial(self._joined, accepted))
            else:
                accepted.close()

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment, because descriptors or memory are short."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._resuming = loop.call_later(_PAUSE_S, self._resume)
        self._paused(error)

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
            self._failed(error)
        except BaseException:
            accepted.close()
            raise

    def _joined(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._joining.pop(task, None)
        if task.cancelled():
            accepted.close()  # perhaps it had not begun


def _keep_alive(accepted: socket.socket) -> None:
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:  # if the system has the option
            accepted.setsockopt(socket.IPPROTO_TCP, option, value)


async def _listening_socket(host: str, port: int) -> socket.socket:
    """A listening socket on the first address of ``host``. Raises OSError, or UnicodeError for a name that is none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setblocking(False)
        listening.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # otherwise a restart would wait for old connections
        listening.bind(address)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _explain(host: str, port: int, cause: OSError | UnicodeError, host_name: str, port_name: str) -> str:
    """Why the port cannot be opened, and what to do; the names are those of its settings."""
    where = f"The HTTP port ({host_name} = {host}, {port_name} = {port}) cannot be opened"
    if isinstance(cause, socket.gaierror | UnicodeError):
        return f"{where}: the name {host} has no address. Check {host_name}."
    match cause.errno:
        case errno.EADDRINUSE:
            return (
                f"{where}: port {port} is taken, perhaps by another gateway on this machine."
                f" Stop it, or set another {port_name}; 0 takes any free one."
            )
        case errno.EADDRNOTAVAIL:
            return f"{where}: {host} is no address of this machine. Check {host_name}; 0.0.0.0 means all of them."
        case errno.EACCES:
            return f"{where}: ports below 1024 need a privilege. Set {port_name} to a higher one."
        case _:
            return f"{where}: {cause.strerror or cause}."
