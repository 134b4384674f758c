"""What all authenticators that ask another server have in common: connections, time-outs, the breaker, healing.

Invariants, each with a test:

- A question is over within its backend's time-out, whatever the server does: connecting, waiting for a free
  connection and the answer together.
- A connection whose question did not end well (an error, a time-out, a cancelled caller) is closed, so that its late
  answer is nobody else's.
- A connection that broke while it lay idle costs no login: the question, which only reads, is asked once more over a
  new one.
- A backend that is down is asked by probes of its own alone, one at a time; no device's login is the guinea pig.
"""

from __future__ import annotations

__all__ = ["RemoteAuthenticator"]

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog

from auth.backends.breaker import RETRY_INITIAL_NS, Breaker, BreakerState
from auth.errors import BackendDownError, OverloadedError
from auth.model import Ignore
from config.errors import ConfigError, forget_frames

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

    from auth.backends.breaker import Ticket
    from auth.errors import DownCause
    from auth.model import LoginRequest, Verdict

log = structlog.get_logger("auth")

C = TypeVar("C")
A = TypeVar("A")
T = TypeVar("T")

IDLE_MAX_NS: Final = 60_000_000_000
"""How long an idle connection is trusted. Firewalls forget quiet connections without a word, some after minutes; a
question over such a one would wait for its whole time-out."""

_OUR_FAULT: Final = frozenset({"settings", "login"})
_LOST: Final = frozenset({"lost"})


class RemoteAuthenticator(ABC, Generic[C, A]):
    """An ``auth.ports.Authenticator`` that asks a server over connections ``C`` and gets answers ``A``.

    A subclass says how to open a connection, ask over it, end it at once, and put its library's errors into words.
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
        """``server`` is how sentences begin: "The PostgreSQL server db.example.org:5432". ``clock`` gives monotonic
        nanoseconds."""
        self.name = name
        self.server: Final = server
        self.breaker: Final = Breaker()
        self.failures: Final[Counter[DownCause]] = Counter()  # questions and probes without an answer, by cause
        self._pool_size: Final = pool_size
        self._timeout_s: Final = timeout.total_seconds()
        self._clock: Final = clock
        self._slots: Final = asyncio.Semaphore(pool_size)
        self._idle: Final[deque[tuple[C, int]]] = deque()  # with the time it came back; the latest is used first
        self._busy: Final[set[C]] = set()
        self._problem: BackendDownError | None = None
        self._suspect = False  # it answers, but something was odd: a probe is to tell
        self._mending: asyncio.Task[None] | None = None
        self._closed = False

    # What a subclass says.

    def _check(self) -> None:
        """Raise ConfigError for settings that cannot work, whatever the server says (a missing CA file)."""

    @abstractmethod
    async def _open(self) -> C:
        """A connection that is logged in. Cancelled, it leaves nothing open."""

    @abstractmethod
    async def _ask(self, connection: C, request: LoginRequest) -> A:
        """What the server says of this login."""

    @abstractmethod
    async def _probe(self, connection: C) -> None:
        """Ask what no device asks, by the same way as its questions; raises as ``_ask`` does."""

    @abstractmethod
    async def _judge(self, request: LoginRequest, answer: A) -> Verdict:
        """What follows from the answer. The connection is free again by then, and the time-out over."""

    @abstractmethod
    def _usable(self, connection: C) -> bool:
        """Whether an idle connection still stands, as far as can be seen without asking."""

    @abstractmethod
    def _abort(self, connection: C) -> None:
        """End it now, without waiting for anything. Never raises."""

    @abstractmethod
    def _explain(self, error: Exception) -> BackendDownError:
        """The error in words, with its cause."""

    def _concerns(self, request: LoginRequest) -> bool:  # noqa: ARG002 - a subclass looks at it
        """Whether this login has anything that users are looked up by."""
        return True

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
        """Why it is not up, a sentence; empty while it is."""
        return "" if self._problem is None else str(self._problem)

    async def start(self) -> None:
        """Connect and ask once. A server that is down is left for later; settings that it refuses raise ConfigError."""
        self._check()
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                connection = await self._new()
                await self._use(connection, self._probe)
        except Exception as error:
            problem = self._told(error, expired=limit.expired())
            if problem.cause in _OUR_FAULT:
                raise ConfigError(str(problem)) from error
            self.failures[problem.cause] += 1
            self._note(problem)
            self.breaker.trip(self._clock())
            self._mend_later()

    async def authenticate(self, request: LoginRequest) -> Verdict:
        """What the server's data says of this login. Raises BackendDownError."""
        if not self._concerns(request):
            return Ignore(self.name, "no_identity")
        return await self._judge(request, await self._question(request))

    async def close(self) -> None:
        """Let go of connections; questions under way end with them. Never raises."""
        self._closed = True
        if self._mending is not None:
            self._mending.cancel()
            await asyncio.wait([self._mending])
        self._drop_idle()
        for connection in list(self._busy):
            self._abort(connection)

    # How a question goes.

    async def _question(self, request: LoginRequest) -> A:
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
        """Wait for a free connection, half of the time-out at most: a question that is asked later than that would be
        cut off by the clock and not by the server, which would cost its connection and look like the server's fault."""
        try:
            async with asyncio.timeout(self._timeout_s / 2):
                await self._slots.acquire()
        except TimeoutError:
            raise self._crowded() from None

    async def _answer_of(self, request: LoginRequest, ticket: Ticket, deadline_s: float) -> A:
        if not self.breaker.holds(ticket):  # it opened while this one waited for a connection
            raise self._refusal()
        began_ns = self._clock()
        try:
            async with asyncio.timeout_at(deadline_s) as limit:
                answer = await self._asked(request)
        except asyncio.CancelledError:
            self._cut_off(ticket, began_ns)
            raise
        except Exception as error:
            problem = self._told(error, expired=limit.expired())
            self._failed(problem, ticket)
            raise problem from error
        self._answered(ticket)
        return answer

    async def _asked(self, request: LoginRequest) -> A:
        """The answer, over an idle connection or a new one. One that broke while it lay idle is no failure yet."""
        connection = self._take_idle()
        if connection is not None:
            try:
                return await self._use(connection, lambda link: self._ask(link, request))
            except Exception as error:
                if self._explain(error).cause not in _LOST:
                    raise
                forget_frames(error)
                self._drop_idle()  # the server went away, most likely with all of them
        return await self._use(await self._new(), lambda link: self._ask(link, request))

    async def _new(self) -> C:
        connection = await self._open()
        if self._closed:
            self._abort(connection)
            raise BackendDownError(self.name, "The service is stopping.", "lost")
        return connection

    async def _use(self, connection: C, ask: Callable[[C], Awaitable[T]]) -> T:
        """Ask, and keep the connection if that went well; else it is ended, whoever is to blame."""
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

    # What its outcome means.

    def _told(self, error: Exception, *, expired: bool) -> BackendDownError:
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
        if self.breaker.holds(ticket):  # else it was asked before the server went down, or came back
            self._problem = None
            self._suspect = False
        self.breaker.succeeded(ticket, self._clock())

    def _failed(self, problem: BackendDownError, ticket: Ticket, *, probe: bool = False) -> None:
        self.failures[problem.cause] += 1
        if not self.breaker.holds(ticket):
            return  # as above
        if problem.cause == "other" and not probe:
            # It has answered, if not to our liking. What one user's name or entry brings about must neither shut out
            # the others nor take the service out of /readyz: a probe tells whether it is more than that.
            self.breaker.dropped(ticket, self._clock())
            self._suspect = True
        else:
            self._note(problem)
            if self.breaker.failed(ticket, self._clock()):
                self._drop_idle()
        self._mend_later()

    def _note(self, problem: BackendDownError) -> None:
        before, self._problem = self._problem, problem
        if before is not None and before.cause != problem.cause:  # the first is told by whoever asked
            log.warning("auth_backend_still_down", backend=self.name, problem=str(problem), cause=problem.cause)

    def _cut_off(self, ticket: Ticket, began_ns: int) -> None:
        """The caller's own deadline came first. A server that had used up half of its time is blamed all the same,
        or one that never answers would stay in favour with a caller that is always quicker to give up."""
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
        self.failures["open"] += 1
        return BackendDownError(
            self.name,
            f"{self.server} is not asked before a probe has found it well again. {self.problem}".rstrip(),
            "open",
        )

    def _crowded(self) -> OverloadedError:
        self.failures["overload"] += 1
        return OverloadedError(
            self.name,
            f"All {self._pool_size} connections to the server (auth.{self.name}.pool_size) were in use for "
            f"{self._timeout_s / 2:g} s: more logins come in than it answers.",
        )

    # How it heals.

    def _mend_later(self) -> None:
        if not self._closed and (self._mending is None or self._mending.done()):
            self._mending = asyncio.create_task(self._mend(), name=f"probes of {self.name}")

    async def _mend(self) -> None:
        """Probe until all is well. Also after a single failure, with the breaker still closed: the next login may be
        long in coming, all the longer while /readyz says that nobody should be sent here."""
        while self._suspect or not self.up or self.breaker.state is not BreakerState.CLOSED:
            if self.breaker.state is BreakerState.CLOSED:
                await asyncio.sleep(RETRY_INITIAL_NS / 1e9)
                if self.up and not self._suspect:
                    return  # a login was quicker
                ticket = self.breaker.admit()
            else:
                await asyncio.sleep(max(0, self.breaker.retry_at_ns - self._clock()) / 1e9)
                ticket = self.breaker.admit_probe(self._clock())
            if ticket is None:  # it has opened meanwhile; or a timer came a rounding too early
                continue
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    await self._use(await self._new(), self._probe)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next probe is due later
                self._failed(self._told(error, expired=limit.expired()), ticket, probe=True)
                forget_frames(error)
            except asyncio.CancelledError:
                self.breaker.dropped(ticket, self._clock())
                raise
            else:
                self._answered(ticket)
