"""The operator's HTTP port: ``/metrics``, ``/healthz``, ``/readyz``, ``/status``, the page at ``/`` and the runbook.

A worker without a supervisor has one, and so have a supervisor and the access service, the latter without page.
``gateway.http.guard`` decides who may read what. Only GET and HEAD exist: nothing can be changed here.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from config.errors import ExitStatus, GatewayError
from gateway.http.answers import PATHS, Answer, Answers, json_answer
from gateway.http.guard import Guard, Question, Verdict
from gateway.http.tls import TlsContext

if TYPE_CHECKING:
    import ssl

    from aiohttp import web

    from config.settings import HttpSettings
    from gateway.http.page import Document

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

_LINGER_S: Final = 0.5  # a stop waits so long for answers under way; none takes more than milliseconds
_CONNECTIONS: Final = 100  # beyond them the oldest is closed: whoever can reach the port cannot use up the descriptors
_HANDSHAKE_S: Final = 10.0
_KEEPALIVE_S: Final = 75.0  # longer than scrapes are apart

PAGES: Final = ("/", "/runbook")
_READING: Final = ("GET", "HEAD")
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "gateway",  # without versions of libraries
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


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
    """A component that answers on ``http.host`` and ``http.port``, or on the settings that ``names`` names.

    The import of aiohttp takes 0.4 s. So :meth:`start` opens the port, which shows whether it is taken, and imports
    aiohttp in a thread while other components start. Requests wait in the socket's queue meanwhile.
    """

    name: Final = "http"

    def __init__(
        self,
        settings: HttpSettings,
        answers: Answers,
        *,
        names: tuple[str, str] = ("http.host", "http.port"),
        page: bool = False,
    ) -> None:
        """``page``: whether ``/`` is the status page, which asks ``/status`` of ``answers``."""
        self._host = settings.host
        self._port = settings.port
        self._tls = settings.tls
        self._guard = Guard(settings, names[0])
        self._answers = answers
        self._names = names
        self._paths = (*PAGES, *PATHS) if page else PATHS
        self._pages: dict[str, Document | None] = {}
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[_Site] | None = None

    @property
    def port(self) -> int:
        """The port that was opened, which ``http.port = 0`` leaves to the system; only between start and stop."""
        assert self._socket is not None, "the HTTP port is not open"
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The address of this server, without a path; only between start and stop."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    def adopt(self, settings: HttpSettings) -> None:
        """Use another token from the next request on. Address and TLS stay."""
        self._guard = Guard(settings, self._names[0])

    async def start(self) -> None:
        """Opens the port and returns; the first answer comes when aiohttp is loaded.

        Raises:
            HttpPortError: the port is taken, not permitted, or the host is none of this machine's.
            ConfigError: a file of ``http.tls`` cannot be used.
        """
        context = None if self._tls is None else TlsContext(self._tls, "http.tls", optional=True).following()
        try:
            self._socket = await listening_socket(self._host, self._port)
        except (OSError, UnicodeError) as error:
            raise HttpPortError(self._host, self._port, error, self._names) from error
        self._serving = asyncio.create_task(self._serve(self._socket, context), name="http")
        self._serving.add_done_callback(_report_failure)
        _log.info("http_listening", url=self.url)

    async def answering(self) -> None:
        """Returns when requests are answered, or when that has failed, which the log says."""
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

    async def _close(self, serving: asyncio.Task[_Site], deadline_ns: int) -> None:
        if not serving.done():
            serving.cancel()
            await asyncio.wait({serving})
        if serving.cancelled() or serving.exception():
            return
        left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
        cleaning = asyncio.create_task(serving.result().stop(), name="http cleanup")
        # It closes the listening socket first and waits for answers last, so what is cut off is the waiting.
        await asyncio.wait({cleaning}, timeout=left_s + _LINGER_S)
        cleaning.cancel()

    async def _serve(self, listening: socket.socket, context: ssl.SSLContext | None) -> _Site:
        aiohttp_web = await asyncio.to_thread(_import_libraries)
        application = aiohttp_web.Application()
        application.router.add_route("*", "/{path:.*}", self._respond)
        runner: web.AppRunner = aiohttp_web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_LINGER_S,
            keepalive_timeout=_KEEPALIVE_S,
        )
        await runner.setup()
        site = _Site(runner)
        await site.start(listening, context)
        return site

    async def _respond(self, request: web.Request) -> web.Response:
        from aiohttp import web

        answer, headers = await self._answer(request)
        headers = {**_HEADERS, "Content-Type": answer.type, **headers}
        return web.Response(body=answer.body.encode(), status=answer.status, headers=headers)

    async def _answer(self, request: web.Request) -> tuple[Answer, Mapping[str, str]]:
        """The answer to a request, and headers of its own."""
        path = request.path
        if path not in self._paths:
            return _sentence(404, f"There is nothing at {path[:100]}. There is: {', '.join(self._paths)}."), {}
        if request.method not in _READING:
            sentence = f"{path} is only read: GET or HEAD, and not {request.method[:20]}."
            return _sentence(405, sentence), {"Allow": ", ".join(_READING)}
        verdict = self._guard.judge(_question(request))
        if verdict.tried:
            _log.warning("http_token_wrong", path=path, peer=request.remote, repeat_key=request.remote)
        if verdict.status != 200:
            return _sentence(verdict.status, verdict.sentence), _challenge(verdict)
        if path in PAGES:
            return await self._show(path)
        found = await self._answers.answer(path, ",".join(request.headers.getall("Accept", ())))
        if verdict.terse and path == "/readyz":
            found = json_answer({"ready": found.status == 200}, status=found.status)
        return found, {}

    async def _show(self, path: str) -> tuple[Answer, Mapping[str, str]]:
        if path not in self._pages:
            self._pages[path] = await asyncio.to_thread(_load_page, path)
        page = self._pages[path]
        if page is None:
            return _sentence(404, "This installation has no runbook; it is docs/runbook.md of the gateway."), {}
        return Answer(200, "text/html; charset=utf-8", page.html), {"Content-Security-Policy": page.policy}


class _Site:
    """Accepts a runner's connections from a socket, _CONNECTIONS at a time at most."""

    def __init__(self, runner: web.AppRunner) -> None:
        assert runner.server is not None, "the runner is not set up"
        self._runner = runner
        self._server = runner.server
        self._accepting: asyncio.Server | None = None

    async def start(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        """From now on connections are answered."""
        handshake_s = None if context is None else _HANDSHAKE_S
        self._accepting = await asyncio.get_running_loop().create_server(
            self._connect, sock=listening, ssl=context, ssl_handshake_timeout=handshake_s
        )

    async def stop(self) -> None:
        """Closes the listening socket, then the connections, those with answers under way last."""
        if self._accepting is not None:
            self._accepting.close()
        await self._runner.cleanup()

    def _connect(self) -> asyncio.BaseProtocol:
        open_now = self._server.connections  # in the order in which they came
        if len(open_now) >= _CONNECTIONS:
            open_now[0].force_close()
            _log.warning("http_connections_many", limit=_CONNECTIONS, consequence="the oldest is closed", repeat_key="")
        return self._server()


def _question(request: web.Request) -> Question:
    headers, transport = request.headers, request.transport
    shown = headers.getall("Authorization", [])
    return Question(
        path=request.path,
        host=headers.get("Host", ""),
        # Two of them are none: a proxy in front may have looked at the other one.
        authorization=shown[0] if len(shown) == 1 else "",
        fetch_site=headers.get("Sec-Fetch-Site", ""),
        fetch_dest=headers.get("Sec-Fetch-Dest", ""),
        # Empty unless one was asked for, shown, and verified: see TlsContext.
        certified=transport is not None and bool(transport.get_extra_info("peercert")),
    )


def _sentence(status: int, sentence: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{sentence}\n")


def _challenge(verdict: Verdict) -> Mapping[str, str]:
    """The header that makes a browser ask for a password."""
    return {"WWW-Authenticate": 'Basic realm="gateway", charset="UTF-8"'} if verdict.status == 401 else {}


def _load_page(path: str) -> Document | None:
    from gateway.http.page import runbook, status_page

    return status_page() if path == "/" else runbook.runbook_page()


def _import_libraries() -> Any:
    import prometheus_client.exposition  # noqa: F401 - or the first scrape would hold up the event loop for it
    from aiohttp import web

    return web


def _report_failure(serving: asyncio.Task[_Site]) -> None:
    if not serving.cancelled() and (error := serving.exception()):
        _log.error("http_failed", consequence="no metrics, and /readyz does not answer", exc_info=error)


async def listening_socket(host: str, port: int, *, backlog: int = 128) -> socket.socket:
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
