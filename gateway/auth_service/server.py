"""Answers EMQX: ``POST /authn`` and ``POST /authz``, each with a 200 and an explicit result, each in time.

Not with aiohttp's server, which handles one request of a connection at a time: ten pipelined logins for a silent
backend would take ten times the answer time-out, longer than EMQX waits. It also has no time-out for a head or a body,
and no limit for connections. This server takes a third of its CPU.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

import structlog

from bridge.fresh_secret import fresh
from bridge.waiting import end_tasks
from config.error_words import words
from config.values.addresses import is_loopback
from config.values.grammar import nanoseconds
from config.values.secret_files import UNGUESSABLE, VISIBLE
from gateway.auth_service.dialect import DENY, Dialect, UnreadableError
from gateway.auth_service.metrics import RESULTS
from gateway.http.connection import Connection, Exchange
from gateway.http.listener import Listener

if TYPE_CHECKING:
    import ssl

    from auth.model import LoginRequest
    from auth.ports import AccessDecisions
    from config.settings import AuthSettings
    from gateway.auth_service.metrics import AuthMetrics
    from gateway.base.instruments import Cell
    from gateway.http.http1 import Head, Refusal, Request

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

_PHRASES: Final = {
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    411: b"Length Required",
    417: b"Expectation Failed",
    431: b"Request Header Fields Too Large",
}


class _Login(Exchange):
    """A login that waits for a backend or a hash."""

    __slots__ = ("keep_alive", "started_ns", "task")

    def __init__(self, connection: Connection, started_ns: int, *, keep_alive: bool) -> None:
        super().__init__(connection)
        self.started_ns = started_ns
        self.keep_alive = keep_alive
        self.task: asyncio.Task[None] | None = None


class _Endpoint:
    """The metrics of an endpoint."""

    __slots__ = ("name", "observe", "results")

    def __init__(self, name: str, metrics: AuthMetrics) -> None:
        self.name = name
        self.results: dict[str, Cell] = {result: metrics.requests.child(name, result) for result in RESULTS}
        self.observe = metrics.request_seconds.child(name).observe


class AuthServer:
    """A component: the port of ``auth.host`` and ``auth.port``. Belongs to the event loop.

    Args:
        settings: of the service.
        decisions: decides each question.
        metrics: counts the answers.
        context: the TLS context for the next connection; None without TLS.
    """

    name: Final = "auth_server"
    open_max: int = 128  # EMQX sends a hundred by default

    def __init__(
        self,
        settings: AuthSettings,
        decisions: AccessDecisions,
        metrics: AuthMetrics,
        *,
        context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._shared_secret = settings.shared_secret
        mutual = settings.tls is not None and settings.tls.client_ca_file is not None
        self._secret_form: Final = VISIBLE if mutual or is_loopback(settings.host) else UNGUESSABLE
        self._secret: bytes | None = None
        self.renew_secret()
        self._decisions = decisions
        self._dialect = Dialect(settings.client_attributes)
        self._metrics = metrics
        self._limit = settings.limits.connections
        self._body_max = settings.limits.request_bytes
        self._answer_timeout_ns = nanoseconds(settings.answer_timeout)
        self.read_timeout_s = settings.limits.read_timeout.total_seconds()
        self._authn = _Endpoint("authn", metrics)
        self._authz = _Endpoint("authz", metrics)
        self._endpoints = {b"/authn": self._authn, b"/authz": self._authz}
        self._connections: set[Connection] = set()
        self._strangers: dict[Connection, None] = {}  # connections without a request so far, the oldest first
        self._logins: deque[_Login] = deque()  # in the order in which their answers are due
        self._under_way = 0
        self._sweep: asyncio.TimerHandle | None = None  # of late answers
        self._quiet: asyncio.Event | None = None  # set during a stop when nothing is pending
        self._make_head(time.monotonic_ns())
        self._listener = Listener(
            settings.host,
            settings.port,
            names=("auth.host", "auth.port"),
            connect=lambda: Connection(self, asyncio.get_running_loop()),
            room=self._make_room,
            context=(lambda: None) if context is None else context,
            handshake_timeout_s=self.read_timeout_s,
            failed=self._note_failure,
            paused=self._note_pause,
        )
        self._address = f"[{settings.host}]" if ":" in settings.host else settings.host
        self._scheme = "http" if context is None else "https"
        metrics.connections.watch(lambda: len(self._connections))
        metrics.logins_waiting.watch(lambda: self._under_way)

    @property
    def url(self) -> str:
        """The service's address without a path; only between start and stop."""
        return f"{self._scheme}://{self._address}:{self._listener.port}"

    async def start(self) -> None:
        """Opens the port. Raises HttpPortError if it is in use or not permitted, or the host is not this machine's."""
        await self._listener.open()

    async def stop(self, deadline_ns: int) -> None:
        """Stops reading requests, finishes pending answers until the deadline, then closes."""
        await self._listener.close()
        for connection in list(self._connections):
            connection.end()
        self._quiet = asyncio.Event()
        left_s = (deadline_ns - time.monotonic_ns()) / 1e9
        if self._connections and left_s > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._quiet.wait()
            except TimeoutError:
                _log.warning("auth_answers_cut_off", connections=len(self._connections))
        for connection in list(self._connections):
            connection.abort()
        await end_tasks(*(login.task for login in self._logins))
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def renew_secret(self) -> None:
        """Reads a changed file of the shared secret. The former secret becomes invalid. Blocks for one file."""
        if self._shared_secret is not None:
            self._secret = fresh(self._shared_secret, "auth.shared_secret", self._secret_form).encode()

    # ---- as Site: called by connections ----

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._strangers[connection] = None
        if self._quiet is not None:  # its handshake ended during the stop
            connection.end()

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        if self._quiet is not None and not self._connections:
            self._quiet.set()

    def timed_out(self, *, writing: bool) -> None:
        self._lose_connection("slow_reader" if writing else "slow_sender")

    def wanted(self, head: Head) -> bool:
        """As ``Site`` defines it. False for requests that are refused in any case, and for bodies that are too
        large."""
        return head.length <= self._body_max and (self._secret is None or self._knows(head))

    def refuse(self, refusal: Refusal) -> bytes:
        return self._turn_away(None, refusal.status, "malformed", refusal.reason)

    def respond(self, connection: Connection, request: Request) -> bytes | Exchange:
        """The answer's bytes, or an Exchange that gets them once a backend or a hash has decided the login."""
        started_ns = time.monotonic_ns()
        head, body = request
        endpoint = self._endpoints.get(head.target) or self._endpoints.get(head.target.partition(b"?")[0])
        if self._secret is not None and not self._knows(head):
            return self._turn_away(endpoint, 401, "secret", "the shared secret is wrong or missing", head)
        self._strangers.pop(connection, None)
        if endpoint is None:
            return self._turn_away(None, 404, "path", "the path is neither /authn nor /authz", head)
        if head.method != b"POST":
            return self._turn_away(endpoint, 405, "method", "the method is not POST", head)
        try:
            if endpoint is self._authz:
                decided = self._decisions.authorise(self._dialect.access(head.content_type, body))
                return self._finish(endpoint, decided.result, decided.body, started_ns, head.keep_alive)
            question = self._dialect.login(head.content_type, body)
            answer = self._decisions.login_at_once(question)
        except UnreadableError as error:
            _log.warning("auth_request_unreadable", endpoint=endpoint.name, why=str(error), repeat_key=str(error))
            return self._finish(endpoint, "error", DENY, started_ns, head.keep_alive)
        except Exception:  # noqa: BLE001 - EMQX must hear a deny, whatever went wrong
            _log.exception("auth_defect", endpoint=endpoint.name, repeat_key=endpoint.name)
            return self._finish(endpoint, "error", DENY, started_ns, head.keep_alive)
        if answer is None:
            return self._begin(connection, question, started_ns, head.keep_alive)
        return self._finish(endpoint, answer.result, answer.body, started_ns, head.keep_alive)

    def _knows(self, head: Head) -> bool:
        """Whether the request has the shared secret, compared in constant time."""
        given = head.authorization
        assert self._secret is not None
        return given[:7].lower() == b"bearer " and hmac.compare_digest(given[7:], self._secret)

    # ---- logins that wait ----

    def _begin(self, connection: Connection, question: LoginRequest, started_ns: int, keep_alive: bool) -> Exchange:
        """Start a task for a login that has to wait."""
        login = _Login(connection, started_ns, keep_alive=keep_alive)
        login.task = asyncio.get_running_loop().create_task(self._decide(login, question), name="login")
        self._logins.append(login)
        self._under_way += 1
        if self._sweep is None:
            self._arm(login)
        return login

    async def _decide(self, login: _Login, question: LoginRequest) -> None:
        """The task of a login: answer it, unless it was answered late."""
        try:
            answer = await self._decisions.login(question)
            self._end(login, answer.result, answer.body)
        except asyncio.CancelledError:
            # Cancelled after the late answer was sent, or by a stop, which closes the connections. Any other
            # cancellation leaves the login to the timer of late answers.
            raise
        except Exception:  # noqa: BLE001 - as in respond
            _log.exception("auth_defect", endpoint="authn", repeat_key="authn")
            self._end(login, "error", DENY)

    def _end(self, login: _Login, result: str, body: bytes) -> None:
        if not login.answered:
            self._under_way -= 1
            login.answer(self._finish(self._authn, result, body, login.started_ns, login.keep_alive))

    def _arm(self, first: _Login) -> None:
        """Start the timer of late answers; ``first`` is due first."""
        left_ns = first.started_ns + self._answer_timeout_ns - time.monotonic_ns()
        self._sweep = asyncio.get_running_loop().call_later(max(0, left_ns) / 1e9, self._answer_late_ones)

    def _answer_late_ones(self) -> None:
        """Answers overdue logins. All have the same time-out, so the first is due first, and one timer is enough."""
        self._sweep = None
        now_ns = time.monotonic_ns()
        logins = self._logins
        while logins:
            login = logins[0]
            if not login.answered:
                if now_ns < login.started_ns + self._answer_timeout_ns:
                    self._arm(login)
                    return
                self._answer_late_one(login)
            logins.popleft()

    def _answer_late_one(self, login: _Login) -> None:
        """Answer a login as if its backend were down, and cancel its task."""
        answer = self._decisions.backend_down("timeout")
        self._metrics.answers_late.child().value += 1
        _log.warning(
            "auth_answer_late",
            after_seconds=self._answer_timeout_ns / 1e9,
            result=answer.result,
            check="gateway_auth_backend_seconds, gateway_auth_hashing_queue",
            repeat_key="late",
        )
        self._end(login, answer.result, answer.body)
        assert login.task is not None
        login.task.cancel()

    # ---- answers ----

    def _finish(self, endpoint: _Endpoint, result: str, body: bytes, started_ns: int, keep_alive: bool) -> bytes:
        """Count an answer, and return its bytes."""
        now_ns = time.monotonic_ns()
        endpoint.results[result].value += 1
        endpoint.observe(now_ns - started_ns)
        if now_ns >= self._head_until_ns:
            self._make_head(now_ns)
        head = self._head if keep_alive and self._quiet is None else self._last_head
        return b"%s%d\r\n\r\n%s" % (head, len(body), body)

    def _make_head(self, now_ns: int) -> None:
        """Make the common beginning of this second's answers, with the date (RFC 9110, 6.6.1)."""
        self._head_until_ns = now_ns + 1_000_000_000
        common = b"HTTP/1.1 200 OK\r\ndate: %s\r\ncontent-type: application/json\r\n" % _date()
        self._head = common + b"content-length: "
        self._last_head = common + b"connection: close\r\ncontent-length: "

    def _turn_away(
        self, endpoint: _Endpoint | None, status: int, reason: str, why: str, head: Head | None = None
    ) -> bytes:
        """The answer to a request that only a wrongly configured EMQX, or another client, sends. ``head`` is None if
        there is none to read. EMQX does not take it for a refusal and asks its next source, so it is logged and
        counted."""
        self._metrics.requests_refused.child(reason).value += 1
        if endpoint is not None:
            endpoint.results["error"].value += 1
        _log.warning(
            "auth_request_refused", status=status, why=why, consequence="EMQX asks its next source", repeat_key=why
        )
        extra = {401: b"www-authenticate: Bearer\r\n", 405: b"allow: POST\r\n"}.get(status, b"")
        if head is None or not head.keep_alive or self._quiet is not None:
            extra += b"connection: close\r\n"
        return b"HTTP/1.1 %d %s\r\ndate: %s\r\n%scontent-length: 0\r\n\r\n" % (
            status,
            _PHRASES[status],
            _date(),
            extra,
        )

    # ---- connections ----

    def _make_room(self, joining: int) -> bool:
        """Whether one more connection may be accepted. If necessary, closes one that never sent a request."""
        if len(self._connections) + joining < self._limit:
            return True
        if not self._strangers:
            self._lose_connection("full")
            return False
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        oldest.abort()  # it leaves _connections in the next turn of the loop, so there is one too many until then
        self._lose_connection("evicted")
        return True

    def _note_failure(self, error: OSError) -> None:
        self._lose_connection("tls")
        _log.warning("auth_connection_failed", error=words(error), repeat_key="join")

    def _note_pause(self, error: OSError) -> None:
        _log.error(
            "auth_connections_not_taken",
            error=words(error),
            consequence="new connections wait",
            check="the limit of open files (ulimit -n)",
            repeat_key="accept",
        )

    def _lose_connection(self, reason: str) -> None:
        self._metrics.connections_refused.child(reason).value += 1
        _log.warning("auth_connection_refused", reason=reason, repeat_key=reason)


def _date() -> bytes:
    return formatdate(usegmt=True).encode()
