"""The life of a service: its state, the order in which its parts start, and the stop that loses nothing.

    NOT_RUNNING → STARTING → RECOVERY → RUNNING → PENDING_CONTROLLED_SHUTDOWN → SHUTTING_DOWN → NOT_RUNNING

The :class:`Service` owns the state; everybody else reads it. The states and their numbers are those of Kafka's
``BrokerState``.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import structlog

from bridge.waiting import end_tasks
from config.error_words import words
from config.errors import GatewayError

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
        # A failed or interrupted start has received nothing to drain, so its parts are closed at once.
        State.STARTING: frozenset({State.RECOVERY, State.SHUTTING_DOWN}),
        State.RECOVERY: frozenset({State.RUNNING, State.SHUTTING_DOWN}),
        State.RUNNING: frozenset({State.PENDING_CONTROLLED_SHUTDOWN}),
        State.PENDING_CONTROLLED_SHUTDOWN: frozenset({State.SHUTTING_DOWN}),
        State.SHUTTING_DOWN: frozenset({State.NOT_RUNNING}),
    }
)


class LifecycleError(GatewayError):
    """A change of state that the table does not have: a defect."""

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

    @property
    def state(self) -> State:
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
        for listener in self._listeners:
            try:
                listener(old, to)
            except Exception:  # noqa: BLE001 - a listener must not keep the service from stopping
                _log.exception("lifecycle_listener_failed", old=old.name, new=to.name)


class Component(Protocol):
    """A part of a service that is started and stopped: an MQTT session, the producer, the HTTP port."""

    @property
    def name(self) -> str:
        """What logs call it."""

    async def start(self) -> None:
        """Returns when other parts may use this one. May be cancelled by a stop."""

    async def stop(self, deadline_ns: int) -> None:
        """Releases everything: in order until ``deadline_ns`` (monotonic clock), at once after it.

        Called also after a ``start`` that failed or was cancelled half-way. Called a second time, with a deadline in
        the past, when the first call was cancelled because its time was up or a second signal came: then it only
        releases the rest.
        """


class Step(NamedTuple):
    """A component that only does something at a start or at a stop, between those before it and those after it."""

    name: str
    at_start: Callable[[], Awaitable[None]] | None = None
    at_stop: Callable[[int], Awaitable[None]] | None = None

    async def start(self) -> None:
        if self.at_start is not None:
            await self.at_start()

    async def stop(self, deadline_ns: int) -> None:
        if self.at_stop is not None:
            await self.at_stop(deadline_ns)


class StopVerb(Enum):
    """Why a service stops, which decides what its MQTT sessions leave behind."""

    RESTART = "restart"  # keep the session: no UNSUBSCRIBE, the broker queues until the next start
    RETIRE = "retire"  # UNSUBSCRIBE first, then end the session


class StopRequest:
    """A request to stop the service: set by a signal, a command, or a part that cannot continue.

    Belongs to one event loop; set it from another thread with ``call_soon_threadsafe``.
    """

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._forced = asyncio.Event()
        self.verb = StopVerb.RESTART  # how to stop; the first request decides
        self.error: Exception | None = None  # why a part could not continue; None for a requested stop

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    @property
    def forced(self) -> bool:
        """Whether the stop is to happen at once, without draining."""
        return self._forced.is_set()

    def request(self, verb: StopVerb = StopVerb.RESTART) -> None:
        """Asks for an orderly stop. Asking again changes nothing."""
        if not self.requested:
            self.verb = verb
            self._requested.set()

    def fail(self, error: Exception) -> None:
        """Asks for an orderly stop because of ``error``: :meth:`Service.run` raises it at the end. The first stays."""
        if self.error is None:
            self.error = error
        self.request()

    def force(self) -> None:
        """Requests an immediate stop: drains end."""
        self.request()
        self._forced.set()

    async def wait_requested(self) -> None:
        await self._requested.wait()

    async def wait_forced(self) -> None:
        await self._forced.wait()


# Part of the shutdown time-out is not for draining: after an endless drain there must be time to close the core.
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

    The order of a start: ``core`` first (the HTTP port, the producer), because messages need it. Then ``recover``:
    messages of an earlier run go before newer ones. Then ``intake`` (the MQTT sessions), because a message may arrive
    as soon as one is subscribed. A stop is the reverse: the intake stops receiving and drains while the core still
    delivers, then the core closes.

    Args:
        core: started one after the other, stopped in reverse, after the intake.
        intake: started together after the core, stopped together before it; their ``stop`` drains. They do not depend
            on one another.
        shutdown_timeout_ns: the time a whole stop may take.
        recover: runs in state RECOVERY; None if there is nothing to recover.
        lifecycle: made here unless given.
        grace_ns: extra time for a late component to close its sockets.
    """

    def __init__(
        self,
        core: Sequence[Component],
        intake: Sequence[Component],
        *,
        shutdown_timeout_ns: int,
        recover: Callable[[], Awaitable[None]] | None = None,  # awaited between core and intake
        lifecycle: Lifecycle | None = None,  # None: a new one
        grace_ns: int = 500_000_000,  # a stop may take so much longer than its deadline
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
        """Set the time of a stop that has not begun."""
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

        A stop during the start interrupts it. Cancelling this call also stops the service in order.

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
                await end_tasks(start, patience_s=self._grace_ns / 1e9)
                if start.done() and not start.cancelled():
                    start.exception()  # already logged; read here because after a stop nothing else does
                await self._stop(stop)
        if stop.error is not None:
            raise stop.error
        return StopReport(stop.verb, stop.forced, tuple(self._failed), tuple(self._overran))

    async def _start(self) -> None:
        """Start the core in order, recover, then start the intake together. Raises the first failure."""
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
        # Before its start, not after: a failed start may hold resources too.
        started.append(component)
        try:
            await component.start()
        except Exception as error:
            _log.error("component_start_failed", component=component.name, error=words(error))
            raise
        _log.debug("component_started", component=component.name)

    async def _stop(self, stop: StopRequest) -> None:
        """Stop the intake together, then the core in reverse order, within the shutdown timeout."""
        stop.request()  # visible to components also after a cancellation or a failed start
        if self.lifecycle.state is State.NOT_RUNNING:  # cancelled before the start had its first step
            return
        deadline_ns = time.monotonic_ns() + self._shutdown_timeout_ns
        reserve_ns = min(self._shutdown_timeout_ns // _CLOSE_RESERVE_SHARE, _CLOSE_RESERVE_MAX_NS)
        if self.lifecycle.state is State.RUNNING:
            self.lifecycle.advance(State.PENDING_CONTROLLED_SHUTDOWN)
        else:
            self.lifecycle.advance(State.SHUTTING_DOWN)
        # Together, not one after the other: all sessions stop reading at once and drain into the same producer. A
        # session that still reads would delay the drain of the others and use up its own time.
        await asyncio.gather(*(self._stop_one(part, deadline_ns - reserve_ns, stop) for part in self._started_intake))
        if self.lifecycle.state is State.PENDING_CONTROLLED_SHUTDOWN:
            self.lifecycle.advance(State.SHUTTING_DOWN)
        for component in reversed(self._started_core):
            await self._stop_one(component, deadline_ns, stop)
        self.lifecycle.advance(State.NOT_RUNNING)

    async def _stop_one(self, component: Component, deadline_ns: int, stop: StopRequest) -> None:
        """Stop it before the deadline; after it, or when forced, tell it to close at once, and note it as overrun."""
        now_ns = time.monotonic_ns()
        in_time = not stop.forced and now_ns < deadline_ns
        if in_time:
            # The grace is for a drain that is unfinished at its deadline and then disconnects properly.
            if await self._attempt(component, deadline_ns, deadline_ns - now_ns + self._grace_ns, stop):
                return
            _log.warning("component_stop_cut_short", component=component.name, forced=stop.forced)
        # Its time is over: a call with a past deadline, so that it closes its sockets.
        ended = await self._attempt(component, time.monotonic_ns(), self._grace_ns, None)
        if not ended:
            _log.error("component_stop_abandoned", component=component.name)
        if in_time or not ended:
            self._overran.append(component.name)

    async def _attempt(self, component: Component, deadline_ns: int, wait_ns: int, stop: StopRequest | None) -> bool:
        """Whether one call of ``component.stop`` ended in time, with or without an error."""
        task = asyncio.create_task(component.stop(deadline_ns), name=f"stop {component.name}")
        try:
            await _first_of(task, stop.wait_forced() if stop is not None else None, timeout_ns=wait_ns)
        finally:
            await end_tasks(task, patience_s=self._grace_ns / 1e9)  # later it is abandoned
        if not task.done() or task.cancelled():
            return False
        if error := task.exception():
            self._failed.append(component.name)
            if isinstance(error, GatewayError):  # a sentence for people, and no defect of ours
                _log.error("component_stop_failed", component=component.name, error=str(error))
            else:
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
