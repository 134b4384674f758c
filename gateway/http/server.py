"""The operator's HTTP port: ``/metrics``, ``/healthz``, ``/readyz``, ``/status``, the page at ``/`` and the runbook.

A worker without a supervisor has one, and so have a supervisor and the access service, the latter without page.
``gateway.http.guard`` decides who may read what. Only GET and HEAD exist: nothing can be changed here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog

from bridge.waiting import end_tasks, until_set
from config.error_words import words
from gateway.http.answers import PATHS, Answer, Answers, json_answer
from gateway.http.connection import Connection, Exchange
from gateway.http.guard import Guard, Question, Verdict
from gateway.http.listener import Listener
from gateway.http.tls import TlsContext

if TYPE_CHECKING:
    from config.settings import HttpSettings
    from gateway.http.http1 import Head, Refusal, Request
    from gateway.http.page import Document

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

_LINGER_S: Final = 0.5  # a stop waits so long for answers under way; none takes more than milliseconds
_CONNECTIONS: Final = 100  # beyond them the oldest is closed: whoever can reach the port cannot use up the descriptors
_HANDSHAKES: Final = 100  # TLS handshakes under way, each with buffers of 0.25 MB; beyond them the oldest is ended
_HANDSHAKE_S: Final = 10.0

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


class HttpServer:
    """A component that answers on ``http.host`` and ``http.port``, or on the settings that ``names`` names."""

    name: Final = "http"
    open_max: int = 1  # or one peer has a hundred answers made at once, of megabytes each
    read_timeout_s: float = 60.0  # for a request, and for the peer to read its answer: some have megabytes

    def __init__(
        self,
        settings: HttpSettings,
        answers: Answers,
        *,
        names: tuple[str, str] = ("http.host", "http.port"),  # of the settings, for messages
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
        self._listener: Listener | None = None
        self._connections: dict[Connection, None] = {}  # the oldest first
        self._responding: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._stopping = False

    @property
    def port(self) -> int:
        """The port that was opened, which ``http.port = 0`` leaves to the system; only between start and stop."""
        assert self._listener is not None, "the HTTP port is not open"
        return self._listener.port

    @property
    def url(self) -> str:
        """The address of this server, without a path; only between start and stop."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    def adopt(self, settings: HttpSettings) -> None:
        """Use another token from the next request on. Address and TLS stay."""
        self._guard = Guard(settings, self._names[0])

    async def start(self) -> None:
        """Opens the port.

        Raises:
            HttpPortError: the port is taken, not permitted, or the host is none of this machine's.
            ConfigError: a file of ``http.tls`` cannot be used.
        """
        context = None if self._tls is None else TlsContext(self._tls, "http.tls", optional=True).following()
        loop = asyncio.get_running_loop()
        self._listener = Listener(
            self._host,
            self._port,
            names=self._names,
            connect=lambda: Connection(self, loop),
            room=self._make_room,
            context=lambda: context,
            handshake_timeout_s=_HANDSHAKE_S,
            failed=lambda _error: None,  # a stranger's handshake harms nobody else
            paused=self._note_pause,
        )
        await self._listener.open()
        _log.info("http_listening", url=self.url)

    async def stop(self, deadline_ns: int) -> None:
        """Finishes the answers under way, for half a second at most, and closes the port."""
        self._stopping = True
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.end()
        if self._connections:
            left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
            await until_set(self._empty, left_s + _LINGER_S)
        for connection in list(self._connections):
            connection.abort()
        await end_tasks(*self._responding)

    # ---- called by the listener ----

    def _make_room(self, handshakes: int) -> bool:
        """Whether one more may be accepted: always. Of too many TLS handshakes the oldest is ended."""
        if handshakes >= _HANDSHAKES and self._listener is not None:
            self._listener.drop_oldest()
            _log.warning("http_connections_many", limit=_HANDSHAKES, consequence="the oldest is closed", repeat_key="")
        return True

    def _note_pause(self, error: OSError) -> None:
        _log.error(
            "http_connections_not_taken",
            error=words(error),
            consequence="new connections wait",
            check="the limit of open files (ulimit -n)",
            repeat_key="",
        )

    # ---- as Site: called by connections ----

    def opened(self, connection: Connection) -> None:
        """As ``Site`` defines it. Of too many connections the oldest is closed."""
        if len(self._connections) >= _CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]  # it is lost in the next turn of the loop, and others may come in this one
            oldest.abort()
            _log.warning("http_connections_many", limit=_CONNECTIONS, consequence="the oldest is closed", repeat_key="")
        self._connections[connection] = None
        self._empty.clear()
        if self._stopping:  # its handshake ended during the stop
            connection.end()

    def lost(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._empty.set()

    def timed_out(self, *, writing: bool) -> None:
        """As ``Site`` defines it. The peer's slowness harms nobody else."""

    def wanted(self, head: Head) -> bool:  # noqa: ARG002 - as Site defines it
        """As ``Site`` defines it: a body is never read."""
        return False

    def refuse(self, refusal: Refusal) -> bytes:
        return _encode(_sentence(refusal.status, f"This is no request: {refusal.reason}."), {}, last=True)

    def respond(self, connection: Connection, request: Request) -> Exchange:
        """As ``Site`` defines it: the exchange gets its answer from a task."""
        exchange = Exchange(connection)
        task = asyncio.create_task(self._respond(exchange, connection, request.head), name="http answer")
        self._responding.add(task)
        task.add_done_callback(self._responding.discard)
        return exchange

    async def _respond(self, exchange: Exchange, connection: Connection, head: Head) -> None:
        """Answer an exchange; after a defect with status 500."""
        try:
            answer, headers = await self._answer(connection, head)
        except Exception:  # noqa: BLE001 - the port goes on
            _log.exception("http_defect", repeat_key="")
            answer, headers = _sentence(500, "This answer failed; the log of the gateway says why."), {}
        last = self._stopping or not head.keep_alive
        exchange.answer(_encode(answer, headers, last=last, bare=head.method == b"HEAD"))

    async def _answer(self, connection: Connection, head: Head) -> tuple[Answer, Mapping[str, str]]:
        """The answer to a request, and headers of its own."""
        path, method = _text(head.target.partition(b"?")[0]), _text(head.method)
        if path not in self._paths:
            return _sentence(404, f"There is nothing at {path[:100]}. There is: {', '.join(self._paths)}."), {}
        if method not in _READING:
            sentence = f"{path} is only read: GET or HEAD, and not {method[:20]}."
            return _sentence(405, sentence), {"Allow": ", ".join(_READING)}
        verdict = self._guard.judge(_question(path, connection, head))
        if verdict.tried:
            peer = (connection.extra_info("peername") or ("",))[0]
            _log.warning("http_token_wrong", path=path, peer=peer, repeat_key=peer)
        if verdict.status != 200:
            return _sentence(verdict.status, verdict.sentence), _challenge(verdict)
        if path in PAGES:
            return await self._show(path)
        found = await self._answers.answer(path, _text(head.fields.get(b"accept", b"")))
        if verdict.terse and path == "/readyz":
            found = json_answer({"ready": found.status == 200}, status=found.status)
        return found, {}

    async def _show(self, path: str) -> tuple[Answer, Mapping[str, str]]:
        """The status page or the runbook, read at its first request."""
        if path not in self._pages:
            self._pages[path] = await asyncio.to_thread(_load_page, path)
        page = self._pages[path]
        if page is None:
            return _sentence(404, "This installation has no runbook; it is docs/runbook.md of the gateway."), {}
        return Answer(200, "text/html; charset=utf-8", page.html), {"Content-Security-Policy": page.policy}


def _question(path: str, connection: Connection, head: Head) -> Question:
    fields = head.fields
    return Question(
        path=path,
        host=_text(fields.get(b"host", b"")),
        authorization=_text(head.authorization),
        fetch_site=_text(fields.get(b"sec-fetch-site", b"")),
        fetch_dest=_text(fields.get(b"sec-fetch-dest", b"")),
        # Empty unless one was asked for, shown, and verified: see TlsContext.
        certified=bool(connection.extra_info("peercert")),
    )


def _text(value: bytes) -> str:
    """The text of a header field. No encoding is agreed, so any bytes pass: a token compares as it was sent."""
    return value.decode("utf-8", "surrogateescape").strip()


def _sentence(status: int, sentence: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{sentence}\n")


def _encode(answer: Answer, headers: Mapping[str, str], *, last: bool, bare: bool = False) -> bytes:
    """The bytes of an answer: the ``last`` one of its connection; ``bare``, without the body."""
    body = answer.body.encode("utf-8", "backslashreplace")
    fields = {**_HEADERS, "Content-Type": answer.type, "Content-Length": len(body), "Date": formatdate(usegmt=True)}
    fields |= {**headers, **({"Connection": "close"} if last else {})}
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}", *(f"{k}: {v}" for k, v in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if bare else body)


def _challenge(verdict: Verdict) -> Mapping[str, str]:
    """The header that makes a browser ask for a password."""
    return {"WWW-Authenticate": 'Basic realm="gateway", charset="UTF-8"'} if verdict.status == 401 else {}


def _load_page(path: str) -> Document | None:
    from gateway.http.page import runbook, status_page

    return status_page() if path == "/" else runbook.runbook_page()
