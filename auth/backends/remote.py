"""The base of authenticators that ask another server: connections, time-outs, the breaker, probes.

Invariants, each with a test:

- A question ends within its backend's time-out: connecting, waiting for a free connection and the answer together.
- A connection is closed after a failed question (an error, a time-out, a cancelled caller), so that no other question
  gets its late answer.
- A connection that broke while idle costs no login: the question only reads, and is asked again over a new connection.
- A backend that is down gets probes only, one at a time, and no logins of devices.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Generic, TypeVar

import structlog

from auth.backends.breaker import RETRY_INITIAL_NS, Breaker, BreakerState, Ticket
from auth.backends.network_causes import causes, network_cause
from auth.errors import BackendDownError, DownCause, OverloadedError
from auth.model import Ignore, LoginRequest, Verdict
from bridge.waiting import end_tasks
from config.error_words import words
from config.errors import ConfigError, forget_frames

log = structlog.get_logger("auth")

C = TypeVar("C")
A = TypeVar("A")
T = TypeVar("T")

IDLE_MAX_NS: Final = 60_000_000_000
"""How long an idle connection stays in use. Firewalls drop idle connections without a sign, some after minutes. A
question over such a connection waits for its whole time-out."""

_OUR_FAULT: Final = frozenset({"settings", "login"})
_LOST: Final = frozenset({"lost"})


class RemoteAuthenticator(ABC, Generic[C, A]):
    """An ``auth.ports.Authenticator`` that asks a server over connections ``C`` and gets answers ``A``.

    A subclass opens a connection, asks over it, closes it at once, and describes the errors of its library.
    """

    def __init__(
        self,
        name: str,
        server: str,
        *,
        pool_size: int,
        timeout: timedelta,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``server`` begins sentences: "The PostgreSQL server db.example.org:5432". ``clock`` gives monotonic
        nanoseconds."""
        self.name = name
        self.server: Final = server
        self.breaker: Final = Breaker()
        self.failures: Final[Counter[DownCause]] = Counter()  # questions and probes without an answer, by cause
        self._pool_size: Final = pool_size
        self._timeout_s: Final = timeout.total_seconds()
        self._clock: Final = clock
        self._slots: Final = asyncio.Semaphore(pool_size)
        self._idle: Final[deque[tuple[C, int]]] = deque()  # with the time of its return; the latest is used first
        self._busy: Final[set[C]] = set()
        self._problem: BackendDownError | None = None
        self._is_suspect = False  # one answer was an unknown error: a probe decides
        self._probing: asyncio.Task[None] | None = None
        self._closed = False

    # What a subclass defines.

    def _check(self) -> None:
        """Raise ConfigError for settings that cannot work with any server (a missing CA file)."""

    @abstractmethod
    async def _open(self) -> C:
        """A new connection, logged in. A cancelled call leaves no connection open."""

    @abstractmethod
    async def _ask(self, connection: C, request: LoginRequest) -> A:
        """The server's answer about this login."""

    @abstractmethod
    async def _probe(self, connection: C) -> None:
        """Ask the probe's question, in the same way as those of devices. Raises as ``_ask`` does."""

    @abstractmethod
    async def _judge(self, request: LoginRequest, answer: A) -> Verdict:
        """The verdict on the answer, after the connection is free and the time-out has ended."""

    @abstractmethod
    def _usable(self, connection: C) -> bool:
        """Whether an idle connection still looks open, without asking."""

    @abstractmethod
    def _abort(self, connection: C) -> None:
        """Close the connection without waiting. Never raises."""

    @abstractmethod
    def _explained(self, error: BaseException) -> BackendDownError | None:
        """The meaning of an error of the library. None for an error of the network."""

    def _otherwise(self, error: Exception) -> BackendDownError | None:  # noqa: ARG002 - a subclass looks at it
        """The meaning of an error that neither ``_explained`` nor ``network_cause`` knows."""
        return None

    def _concerns(self, request: LoginRequest) -> bool:  # noqa: ARG002 - a subclass looks at it
        """Whether this login has a name by which users are looked up."""
        return True

    def _explain(self, error: Exception) -> BackendDownError:
        """The error as a sentence, with its cause."""
        if isinstance(error, BackendDownError):
            return error
        for one in causes(error):
            if (found := self._explained(one)) is not None:
                return found
        if (known := network_cause(error, f"auth.{self.name}")) is not None:
            return self._down(known[1], known[0])
        return self._otherwise(error) or self._down(f"could not be asked ({words(error)})", "other")

    def _down(self, rest: str, cause: DownCause) -> BackendDownError:
        """An error whose sentence begins with the server and ends with ``rest``."""
        return BackendDownError(self.name, f"{self.server} {rest}{'' if rest.endswith('?') else '.'}", cause)

    # What the chain asks.

    @property
    def up(self) -> bool:
        """Whether the last question was answered (or none was asked yet)."""
        return self._problem is None

    @property
    def problem(self) -> str:
        """Why it is not up, as a sentence; empty while it is."""
        return "" if self._problem is None else str(self._problem)

    async def start(self) -> None:
        """Connect and ask once. A server that is down is asked later. Settings that it refuses raise ConfigError."""
        self._check()
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                connection = await self._new()
                await self._use(connection, self._probe)
        except Exception as error:
            problem = self._problem_of(error, expired=limit.expired())
            if problem.cause in _OUR_FAULT:
                raise ConfigError(str(problem)) from error
            self.failures[problem.cause] += 1
            self._note(problem)
            self.breaker.trip(self._clock())
            self._probe_later()

    async def authenticate(self, request: LoginRequest) -> Verdict:
        """The verdict from the server's data. Raises BackendDownError."""
        if not self._concerns(request):
            return Ignore(self.name, "no_identity")
        return await self._judge(request, await self._question(request))

    async def close(self) -> None:
        """Close all connections; questions under way fail, those that still connect at its end. Never raises. The
        service ends its logins first, so none is under way then."""
        self._closed = True
        await end_tasks(self._probing)
        self._drop_idle()
        for connection in list(self._busy):
            self._abort(connection)

    # Questions.

    async def _question(self, request: LoginRequest) -> A:
        """The server's answer. Raises BackendDownError, at once while the breaker is open."""
        ticket = self.breaker.admit()
        if ticket is None:
            raise self._refusal()
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        await self._take_slot()
        try:
            return await self._answer_of(request, ticket, deadline_s)
        finally:
            self._slots.release()

    async def _take_slot(self) -> None:
        """Wait for a free connection, half of the time-out at most. A later question would reach its time-out, lose its
        connection, and look like a fault of the server."""
        try:
            async with asyncio.timeout(self._timeout_s / 2):
                await self._slots.acquire()
        except TimeoutError:
            raise self._no_connection() from None

    async def _answer_of(self, request: LoginRequest, ticket: Ticket, deadline_s: float) -> A:
        """The answer until the deadline; tells the breaker how the question ended."""
        if not self.breaker.holds(ticket):  # the breaker opened while this question waited for a connection
            raise self._refusal()
        began_ns = self._clock()
        try:
            async with asyncio.timeout_at(deadline_s) as limit:
                answer = await self._asked(request)
        except asyncio.CancelledError:
            self._cancelled(ticket, began_ns)
            raise
        except Exception as error:
            problem = self._problem_of(error, expired=limit.expired())
            self._failed(problem, ticket)
            raise problem from error
        self._answered(ticket)
        return answer

    async def _asked(self, request: LoginRequest) -> A:
        """The answer, over an idle connection or a new one. A broken idle connection does not count as a failure."""
        connection = self._take_idle()
        if connection is not None:
            try:
                return await self._use(connection, lambda link: self._ask(link, request))
            except Exception as error:
                if self._explain(error).cause not in _LOST:
                    raise
                forget_frames(error)
                self._drop_idle()  # the server closed it, and most likely all others
        return await self._use(await self._new(), lambda link: self._ask(link, request))

    async def _new(self) -> C:
        """A new connection, unless the service stops."""
        connection = await self._open()
        if self._closed:
            self._abort(connection)
            raise BackendDownError(self.name, "The service is stopping.", "lost")
        return connection

    async def _use(self, connection: C, ask: Callable[[C], Awaitable[T]]) -> T:
        """Ask, and keep the connection after success; otherwise close it."""
        self._busy.add(connection)
        try:
            answer = await ask(connection)
        except BaseException:
            self._busy.discard(connection)
            self._abort(connection)
            raise
        self._busy.discard(connection)
        if self._closed or len(self._idle) >= self._pool_size:
            self._abort(connection)
        else:
            self._idle.append((connection, self._clock()))
        return answer

    def _take_idle(self) -> C | None:
        """An idle connection that still looks open, or None; closes the others that it meets."""
        now_ns = self._clock()
        while self._idle:
            connection, since_ns = self._idle.pop()
            if now_ns - since_ns < IDLE_MAX_NS and self._usable(connection):
                return connection
            self._abort(connection)
        return None

    def _drop_idle(self) -> None:
        while self._idle:
            self._abort(self._idle.pop()[0])

    # Outcomes.

    def _problem_of(self, error: Exception, *, expired: bool) -> BackendDownError:
        """The error of a question as a sentence; ``expired``: its time-out ended it."""
        if isinstance(error, BackendDownError):
            return error
        if isinstance(error, ConfigError):  # a file that was there at the start
            return BackendDownError(self.name, str(error), "tls")
        if expired:
            return BackendDownError(
                self.name,
                f"{self.server} did not answer within auth.{self.name}.timeout = {self._timeout_s:g} s: it is "
                "overloaded or frozen, or something on the way swallows packets.",
                "timeout",
            )
        return self._explain(error)

    def _answered(self, ticket: Ticket) -> None:
        if self.breaker.holds(ticket):  # otherwise the server went down or came back meanwhile
            self._problem = None
            self._is_suspect = False
        self.breaker.succeeded(ticket, self._clock())

    def _failed(self, problem: BackendDownError, ticket: Ticket, *, probe: bool = False) -> None:
        """Count a question or ``probe`` without an answer, tell the breaker, and have the server probed."""
        self.failures[problem.cause] += 1
        if not self.breaker.holds(ticket):
            return  # the server went down or came back meanwhile
        if problem.cause == "other" and not probe:
            # The server answered with an unknown error. One user's name or entry may cause it, and must not affect
            # other users or /readyz. So a probe decides.
            self.breaker.dropped(ticket, self._clock())
            self._is_suspect = True
        else:
            self._note(problem)
            if self.breaker.failed(ticket, self._clock()):
                self._drop_idle()
        self._probe_later()

    def _note(self, problem: BackendDownError) -> None:
        before, self._problem = self._problem, problem
        if before is not None and before.cause != problem.cause:  # the caller reports the first failure
            log.warning("auth_backend_still_down", backend=self.name, problem=str(problem), cause=problem.cause)

    def _cancelled(self, ticket: Ticket, began_ns: int) -> None:
        """Count a question that its caller cancelled. It is a failure of the server if half of the time-out has passed.
        Otherwise a silent server would stay up for callers with a short deadline."""
        waited_s = (self._clock() - began_ns) / 1e9
        if waited_s >= self._timeout_s / 2:
            self._failed(
                BackendDownError(
                    self.name,
                    f"{self.server} had not answered after {waited_s:.2f} s, when the login's own time ended.",
                    "timeout",
                ),
                ticket,
            )
        else:
            self.breaker.dropped(ticket, self._clock())

    def _refusal(self) -> BackendDownError:
        """The error while the breaker is open; counts it."""
        self.failures["open"] += 1
        return BackendDownError(
            self.name,
            f"{self.server} is not asked until a probe succeeds. {self.problem}".rstrip(),
            "open",
        )

    def _no_connection(self) -> OverloadedError:
        """The error when all connections were in use; counts it."""
        self.failures["overload"] += 1
        return OverloadedError(
            self.name,
            f"All {self._pool_size} connections to the server (auth.{self.name}.pool_size) were in use for "
            f"{self._timeout_s / 2:g} s: more logins come in than it answers.",
        )

    # Probes.

    def _probe_later(self) -> None:
        if not self._closed and (self._probing is None or self._probing.done()):
            self._probing = asyncio.create_task(self._probe_until_up(), name=f"probes of {self.name}")

    async def _probe_until_up(self) -> None:
        """Probe until the backend answers, also after a single failure with a closed breaker: the next login may come
        late, and ``/readyz`` is red until then."""
        while self._is_suspect or not self.up or self.breaker.state is not BreakerState.CLOSED:
            if self.breaker.state is BreakerState.CLOSED:
                await asyncio.sleep(RETRY_INITIAL_NS / 1e9)
                if self.up and not self._is_suspect:
                    return  # a login has closed the breaker first
                ticket = self.breaker.admit()
            else:
                await asyncio.sleep(max(0, self.breaker.retry_at_ns - self._clock()) / 1e9)
                ticket = self.breaker.admit_probe(self._clock())
            if ticket is None:  # the breaker has opened meanwhile, or the timer was early by a rounding
                continue
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    await self._use(await self._new(), self._probe)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next probe is due later
                self._failed(self._problem_of(error, expired=limit.expired()), ticket, probe=True)
                forget_frames(error)
            except asyncio.CancelledError:
                self.breaker.dropped(ticket, self._clock())
                raise
            else:
                self._answered(ticket)
