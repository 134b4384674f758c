"""The operator's HTTP port of a worker that runs alone, of a supervisor, or of the service that EMQX asks:
``/metrics``, ``/healthz``, ``/readyz``, ``/status``.

On the loopback interface unless the settings say otherwise: nothing here asks who is calling.
"""

from __future__ import annotations

__all__ = ["HttpPortError", "HttpServer", "listening_socket"]

import asyncio
import errno
import socket
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from config.errors import ExitStatus, GatewayError
from gateway.answers import PATHS

if TYPE_CHECKING:
    from aiohttp import web

    from config.settings import HttpSettings
    from gateway.answers import Answers

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

_LINGER_S: Final = 0.5  # a stop waits so long for answers under way; none takes more than milliseconds


class HttpPortError(GatewayError):
    """The port cannot be opened. ``host`` and ``port`` are those of the settings, ``names`` what these are called."""

    exit_status = ExitStatus.UNAVAILABLE

    def __init__(
        self, host: str, port: int, cause: OSError | UnicodeError, names: tuple[str, str] = ("http.host", "http.port")
    ) -> None:
        super().__init__(_explain(host, port, cause, *names))
        self.host = host
        self.port = port


class HttpServer:
    """A component that answers on ``http.host`` and ``http.port``, or those that ``names`` says, as ``answers`` says
    when a request comes.

    The start of a worker must not wait for aiohttp, whose import takes 0.4 s. So :meth:`start` opens the port, which is
    when a taken one shows, and imports aiohttp in a thread while the other components connect. A request that comes
    meanwhile waits in the socket's queue.
    """

    name: Final = "http"

    def __init__(
        self, settings: HttpSettings, answers: Answers, *, names: tuple[str, str] = ("http.host", "http.port")
    ) -> None:
        self._host = settings.host
        self._port = settings.port
        self._answers = answers
        self._names = names
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[web.AppRunner] | None = None

    @property
    def port(self) -> int:
        """The port that was opened, which ``http.port = 0`` leaves to the system; only between start and stop."""
        assert self._socket is not None, "the HTTP port is not open"
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Where to reach this server, without a path; only between start and stop."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Opens the port and returns; the first answer comes when aiohttp is loaded.

        Raises:
            HttpPortError: the port is taken, not permitted, or the host is none of this machine's.
        """
        try:
            self._socket = await listening_socket(self._host, self._port)
        except (OSError, UnicodeError) as error:
            raise HttpPortError(self._host, self._port, error, self._names) from error
        self._serving = asyncio.create_task(self._serve(self._socket), name="http")
        self._serving.add_done_callback(_report_failure)
        _log.info("http_listening", url=self.url)

    async def answering(self) -> None:
        """Returns when requests are answered, or never will be, which the log then says."""
        if self._serving is not None:
            await asyncio.wait({self._serving})

    async def stop(self, deadline_ns: int) -> None:
        """Finishes the answers under way, for half a second at most, and closes the port."""
        serving, self._serving = self._serving, None
        try:
            if serving is not None:
                await self._close(serving, deadline_ns)
        finally:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    async def _close(self, serving: asyncio.Task[web.AppRunner], deadline_ns: int) -> None:
        if not serving.done():
            serving.cancel()
            await asyncio.wait({serving})
        if serving.cancelled() or serving.exception():
            return
        left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        cleaning = asyncio.create_task(serving.result().cleanup(), name="http cleanup")
        # cleanup() closes the listening socket first and waits for answers last, so what is cut off is the waiting.
        await asyncio.wait({cleaning}, timeout=left_s + _LINGER_S)
        cleaning.cancel()

    async def _serve(self, listening: socket.socket) -> web.AppRunner:
        aiohttp_web = await asyncio.to_thread(_import_libraries)
        application = aiohttp_web.Application()
        for path in PATHS:
            application.router.add_get(path, self._answer)
        runner: web.AppRunner = aiohttp_web.AppRunner(
            application, access_log=None, handle_signals=False, shutdown_timeout=_LINGER_S
        )
        await runner.setup()
        await aiohttp_web.SockSite(runner, listening).start()
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        from aiohttp import web

        found = await self._answers.answer(request.path, ",".join(request.headers.getall("Accept", ())))
        headers = {"Content-Type": found.type, "Cache-Control": "no-store"}
        return web.Response(body=found.body.encode(), status=found.status, headers=headers)


def _import_libraries() -> Any:
    import prometheus_client.exposition  # noqa: F401 - or the first scrape would hold up the event loop for it
    from aiohttp import web

    return web


def _report_failure(serving: asyncio.Task[web.AppRunner]) -> None:
    if not serving.cancelled() and (error := serving.exception()):
        _log.error("http_failed", consequence="no metrics, and /readyz does not answer", exc_info=error)


async def listening_socket(host: str, port: int, *, backlog: int = 128) -> socket.socket:
    """A listening socket on the first address of ``host``. Raises OSError, or UnicodeError for a name that is none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a restart would wait for old connections
        listening.bind(address)
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening


def _explain(host: str, port: int, cause: OSError | UnicodeError, host_name: str, port_name: str) -> str:
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
