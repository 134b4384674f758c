"""The life of a service: its state, the order in which its parts start, and the stop that loses nothing.

    NOT_RUNNING → STARTING → RECOVERY → RUNNING → PENDING_CONTROLLED_SHUTDOWN → SHUTTING_DOWN → NOT_RUNNING

The :class:`Service` owns the state; everybody else reads it. The states and their numbers are those of Kafka's
``BrokerState``.
"""

from __future__ import annotations

__all__ = [
    "TRANSITIONS",
    "Component",
    "Lifecycle",
    "LifecycleError",
    "Service",
    "State",
    "StopReport",
    "StopRequest",
    "StopVerb",
]

import asyncio
import time
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from config.error_words import words
from config.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class State(IntEnum):
    """Where a service is. The number is what ``gateway_lifecycle_state`` shows: Kafka's own, so there is no 4 or 5."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.NOT_RUNNING: frozenset({State.STARTING}),
        # A start that fails or is interrupted has taken in nothing it must drain: it goes straight to the closing of
        # its parts.
        State.STARTING: frozenset({State.RECOVERY, State.SHUTTING_DOWN}),
        State.RECOVERY: frozenset({State.RUNNING, State.SHUTTING_DOWN}),
        State.RUNNING: frozenset({State.PENDING_CONTROLLED_SHUTDOWN}),
        State.PENDING_CONTROLLED_SHUTDOWN: frozenset({State.SHUTTING_DOWN}),
        State.SHUTTING_DOWN: frozenset({State.NOT_RUNNING}),
    }
)


class LifecycleError(GatewayError):
    """A change of state that the table does not have: a mistake in our own code."""

    def __init__(self, current: State, wanted: State) -> None:
        allowed = " or ".join(sorted(state.name for state in TRANSITIONS[current]))
        super().__init__(f"A service in state {current.name} cannot become {wanted.name}, only {allowed}.")
        self.current = current
        self.wanted = wanted


class Lifecycle:
    """The state of one service, changed by its owner alone.

    Args:
        now_ns: the monotonic clock, in nanoseconds.
    """

    def __init__(self, *, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._state = State.NOT_RUNNING
        self._since_ns = now_ns()
        self._listeners: list[Callable[[State, State], None]] = []
        self._waiters: list[tuple[frozenset[State], asyncio.Future[State]]] = []

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    @property
    def in_state_ns(self) -> int:
        """How long the present state has lasted, in nanoseconds."""
        return self._now_ns() - self._since_ns

    def listen(self, listener: Callable[[State, State], None]) -> None:
        """Calls ``listener(old, new)`` after each change, in the owner's loop; one that raises is logged."""
        self._listeners.append(listener)

    def advance(self, to: State) -> None:
        """Changes the state; for the owner only.

        Raises:
            LifecycleError: the table has no such change; the state stays.
        """
        old = self._state
        if to not in TRANSITIONS[old]:
            raise LifecycleError(old, to)
        self._state = to
        lasted_ns, self._since_ns = self._now_ns() - self._since_ns, self._now_ns()
        _log.info("lifecycle_changed", old=old.name, new=to.name, lasted_ms=lasted_ns // 1_000_000)
        waiting, self._waiters = self._waiters, []
        for states, future in waiting:
            if to not in states:
                self._waiters.append((states, future))
            elif not future.done():
                future.set_result(to)
        for listener in self._listeners:
            try:
                listener(old, to)
            except Exception:  # noqa: BLE001 - whoever listens must not be able to stop the service from stopping
                _log.exception("lifecycle_listener_failed", old=old.name, new=to.name)

    async def wait_for(self, *states: State) -> State:
        """The first of ``states`` to be reached, or the present one; none is missed, however short it lasts."""
        if self._state in states:
            return self._state
        reached: asyncio.Future[State] = asyncio.get_running_loop().create_future()
        entry = (frozenset(states), reached)
        self._waiters.append(entry)
        try:
            return await reached
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)


class Component(Protocol):
    """A part of a service that is started and stopped: an MQTT session, the producer, the HTTP port."""

    @property
    def name(self) -> str:
        """What logs call it."""

    async def start(self) -> None:
        """Returns when others may build on this part. May be cancelled when a stop is asked for meanwhile."""

    async def stop(self, deadline_ns: int) -> None:
        """Lets go of everything, in good order until ``deadline_ns`` (monotonic clock), at once after it.

        Called also after a ``start`` that failed or was cancelled half-way. Called a second time, with a deadline in
        the past, when the first call was cancelled because its time was up or a second signal came: then only what is
        still held is dropped.
        """


class StopVerb(Enum):
    """Why a service stops, which decides what its MQTT sessions leave behind."""

    RESTART = "restart"  # keep the session: no UNSUBSCRIBE, the broker queues until we are back
    RETIRE = "retire"  # leave for good: UNSUBSCRIBE first, then end the session


class StopRequest:
    """The wish that a service stops: set by a signal, a command, or a part that cannot go on.

    Belongs to one event loop; set it from another thread with ``call_soon_threadsafe``.
    """

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._forced = asyncio.Event()
        self._verb = StopVerb.RESTART
        self._error: Exception | None = None

    @property
    def requested(self) -> bool:
        """Whether a stop was asked for."""
        return self._requested.is_set()

    @property
    def forced(self) -> bool:
        """Whether the stop is to happen at once, without draining."""
        return self._forced.is_set()

    @property
    def verb(self) -> StopVerb:
        """How to stop; the first request decides."""
        return self._verb

    @property
    def error(self) -> Exception | None:
        """Why a part of the service could not go on; None for a stop that was asked for."""
        return self._error

    def request(self, verb: StopVerb = StopVerb.RESTART) -> None:
        """Asks for an orderly stop. Asking again changes nothing."""
        if not self.requested:
            self._verb = verb
            self._requested.set()

    def fail(self, error: Exception) -> None:
        """Asks for an orderly stop because of ``error``: :meth:`Service.run` raises it at the end. The first stays."""
        if self._error is None:
            self._error = error
        self.request()

    def force(self) -> None:
        """Asks for a stop at once: whatever still drains is cut short."""
        self.request()
        self._forced.set()

    async def wait_requested(self) -> None:
        """Returns when a stop is asked for."""
        await self._requested.wait()

    async def wait_forced(self) -> None:
        """Returns when the stop is forced."""
        await self._forced.wait()


# Part of the shutdown time-out is kept from draining: a drain that does not end must leave time to close what is below.
_CLOSE_RESERVE_SHARE: Final = 5  # a fifth,
_CLOSE_RESERVE_MAX_NS: Final = 2_000_000_000  # but no more than two seconds: closing is quick


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a stop went. ``failed`` and ``overran`` name the components whose stop raised, or was cut short."""

    verb: StopVerb
    forced: bool
    failed: tuple[str, ...]
    overran: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether every component stopped by itself and in time."""
        return not (self.forced or self.failed or self.overran)


class Service:
    """Starts components in order, runs until asked to stop, and stops them in reverse under one deadline.

    The order of a start, and why: ``core`` first (the HTTP port, the producer: what messages need on their way), then
    ``recover`` (what an earlier life left behind goes first, or newer messages would overtake it), then ``intake``
    (the MQTT sessions), because a message may arrive as soon as one of them is subscribed. A stop is the reverse: the
    intake stops taking and drains while the core still delivers for it, then the core closes.

    Args:
        core: started one after the other, stopped in reverse, after the intake.
        intake: started together once the core stands, stopped together before it; their ``stop`` drains. They do not
            depend on one another.
        shutdown_timeout_ns: the time a whole stop may take.
        recover: runs in state RECOVERY; None if there is nothing to recover.
        lifecycle: made here unless given.
        grace_ns: what a component gets beyond its time to drop its sockets; a stop that is late would leave them open.
    """

    def __init__(
        self,
        core: Sequence[Component],
        intake: Sequence[Component],
        *,
        shutdown_timeout_ns: int,
        recover: Callable[[], Awaitable[None]] | None = None,
        lifecycle: Lifecycle | None = None,
        grace_ns: int = 500_000_000,
    ) -> None:
        self.lifecycle = lifecycle or Lifecycle()
        self._core = tuple(core)
        self._intake = tuple(intake)
        self._recover = recover
        self._shutdown_timeout_ns = shutdown_timeout_ns
        self._grace_ns = grace_ns
        self._started_core: list[Component] = []
        self._started_intake: list[Component] = []
        self._failed: list[str] = []
        self._overran: list[str] = []

    def allow(self, shutdown_timeout_ns: int) -> None:
        """Give a stop that has not begun another time."""
        self._shutdown_timeout_ns = shutdown_timeout_ns

    @property
    def begun(self) -> int:
        """Components whose start has begun."""
        return len(self._started_core) + len(self._started_intake)

    @property
    def stops_cleanly(self) -> bool:
        """Whether every component that has stopped so far did so by itself and in time."""
        return not (self._failed or self._overran)

    async def run(self, stop: StopRequest) -> StopReport:
        """The service's whole life, from NOT_RUNNING back to NOT_RUNNING; a service runs once.

        A stop asked for during the start interrupts it. Cancelling this call stops the service in good order, too.

        Raises:
            Exception: after the stop, what a component's ``start`` or ``recover`` raised or ``stop.fail`` was given.
        """
        if not stop.requested:
            start = asyncio.create_task(self._start(), name="service start")
            try:
                await _first_of(start, stop.wait_requested())
                if start.done():
                    await start
                    await stop.wait_requested()
            finally:
                await _cancel(start, self._grace_ns)
                if start.done() and not start.cancelled():
                    start.exception()  # logged where it happened; if the stop came first, nobody asks for it any more
                await self._stop(stop)
        if stop.error is not None:
            raise stop.error
        return StopReport(stop.verb, stop.forced, tuple(self._failed), tuple(self._overran))

    async def _start(self) -> None:
        self.lifecycle.advance(State.STARTING)
        for component in self._core:
            await self._start_one(component, self._started_core)
        self.lifecycle.advance(State.RECOVERY)
        if self._recover is not None:
            await self._recover()
        try:
            async with asyncio.TaskGroup() as group:
                for component in self._intake:
                    group.create_task(self._start_one(component, self._started_intake), name=f"start {component.name}")
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the others are in the log
        self.lifecycle.advance(State.RUNNING)

    async def _start_one(self, component: Component, started: list[Component]) -> None:
        # Before its start, not after: one that fails half-way holds things as well.
        started.append(component)
        try:
            await component.start()
        except Exception as error:
            _log.error("component_start_failed", component=component.name, error=words(error))
            raise
        _log.debug("component_started", component=component.name)

    async def _stop(self, stop: StopRequest) -> None:
        stop.request()  # so that components that ask see it when the service is cancelled or its start has failed
        if self.lifecycle.state is State.NOT_RUNNING:  # cancelled before the start had its first step
            return
        deadline_ns = time.monotonic_ns() + self._shutdown_timeout_ns
        reserve_ns = min(self._shutdown_timeout_ns // _CLOSE_RESERVE_SHARE, _CLOSE_RESERVE_MAX_NS)
        if self.lifecycle.state is State.RUNNING:
            self.lifecycle.advance(State.PENDING_CONTROLLED_SHUTDOWN)
        else:
            self.lifecycle.advance(State.SHUTTING_DOWN)
        # Together, not one after the other: every session stops reading at once, and all drain into the same
        # producer. One that went on reading while its neighbour drains would keep the neighbour's drain busy and use
        # up the time for its own.
        await asyncio.gather(*(self._stop_one(part, deadline_ns - reserve_ns, stop) for part in self._started_intake))
        if self.lifecycle.state is State.PENDING_CONTROLLED_SHUTDOWN:
            self.lifecycle.advance(State.SHUTTING_DOWN)
        for component in reversed(self._started_core):
            await self._stop_one(component, deadline_ns, stop)
        self.lifecycle.advance(State.NOT_RUNNING)

    async def _stop_one(self, component: Component, deadline_ns: int, stop: StopRequest) -> None:
        now_ns = time.monotonic_ns()
        in_time = not stop.forced and now_ns < deadline_ns
        if in_time:
            # The grace is for a drain that ends at its deadline, unfinished, and then disconnects properly.
            if await self._attempt(component, deadline_ns, deadline_ns - now_ns + self._grace_ns, stop):
                return
            _log.warning("component_stop_cut_short", component=component.name, forced=stop.forced)
        # Its time is up: a call with a deadline that has passed, so that it drops its sockets and leaves nothing open.
        ended = await self._attempt(component, time.monotonic_ns(), self._grace_ns, None)
        if not ended:
            _log.error("component_stop_abandoned", component=component.name)
        if in_time or not ended:
            self._overran.append(component.name)

    async def _attempt(self, component: Component, deadline_ns: int, wait_ns: int, stop: StopRequest | None) -> bool:
        """Whether one call of ``component.stop`` came to its end, well or badly, before the time ran out."""
        task = asyncio.create_task(component.stop(deadline_ns), name=f"stop {component.name}")
        try:
            await _first_of(task, stop.wait_forced() if stop is not None else None, timeout_ns=wait_ns)
        finally:
            if not task.done():
                await _cancel(task, self._grace_ns)
        if not task.done() or task.cancelled():
            return False
        if error := task.exception():
            self._failed.append(component.name)
            _log.error("component_stop_failed", component=component.name, exc_info=error)
        return True


async def _first_of(task: asyncio.Task[None], other: Awaitable[None] | None, *, timeout_ns: int | None = None) -> None:
    """Returns when one is done or the time is over; raises the exception of neither and leaves ``task`` running."""
    other_task = asyncio.ensure_future(other) if other is not None else None
    waiting: set[asyncio.Future[None]] = {task} if other_task is None else {task, other_task}
    timeout_s = None if timeout_ns is None else timeout_ns / 1e9
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if other_task is not None:
            other_task.cancel()


async def _cancel(task: asyncio.Task[None], patience_ns: int) -> None:
    """Cancels ``task`` and waits for its end, but not for ever: code that swallows its cancellation is left behind."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=patience_ns / 1e9)
