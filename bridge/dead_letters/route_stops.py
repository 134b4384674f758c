"""Stops routes with too many dead letters, and tries them again.

    runs ──ceiling exceeded──▶ rests ──retry_after──▶ on trial ──all good──▶ runs
                                 ▲                       │
                                 └────── a dead letter ──┘

The ceiling also binds records that come back from the spool. A refused record of a stopped route then waits with its
partition.

Later messages of a stopped route, good and bad, are held: no dead letters, no acknowledgements. When memory is full,
reading pauses, and messages wait in the MQTT broker. After a rest a few are tried. If those are good, the route runs
again by itself: an operator need only correct the cause. A reload or a restart tries at once.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Protocol

import structlog

from bridge.dead_letters.limit import DeadLetterLimit, Excess
from bridge.waiting import end_tasks, report_failure, until_beat_s
from bridge.wire import DeadLetterReason
from config.values.grammar import format_duration

log = structlog.get_logger("dead_letter")

TRIAL_MESSAGES = 10  # so a route that stays broken makes so many dead letters in each retry_after, and no more
TICK_S = 0.5


class Gate(Protocol):
    """A dispatcher, as the ceiling sees it."""

    def stop(self, route: str) -> None:
        """Hold every later message."""

    def admit(self, route: str, count: int) -> None:
        """Let ``count`` messages pass."""

    def tried(self, route: str) -> bool:
        """Whether every admitted message is durable or a dead letter."""

    def release(self, route: str) -> None:
        """Hold no more messages."""


class Returns(Protocol):
    """The messages that come back from the spool, as the ceiling sees them."""

    def taken(self, route: str) -> int:
        """Messages of the route that came back so far."""

    def tried(self, route: str) -> bool:
        """Whether no refused record of the route waits."""


class _State(Enum):
    RUNS = 0
    RESTS = 1
    ON_TRIAL = 2


class _Route:
    __slots__ = ("counters", "gates", "meter", "name", "sentence", "since_ns", "state")

    def __init__(self, name: str, gate: Gate, taken: Callable[[], int], limit: DeadLetterLimit, now_ns: int) -> None:
        self.name = name
        self.gates = [gate]  # of each dispatcher
        self.counters = [taken]  # messages of each gate, and from the spool
        self.state = _State.RUNS
        self.since_ns = now_ns  # of the state
        self.meter = limit.meter(now_ns, taken())
        self.sentence = ""  # why it is stopped

    def taken(self) -> int:
        return sum(taken() for taken in self.counters)

    def stop(self) -> None:
        for gate in self.gates:
            gate.stop(self.name)


class RouteStops:
    """The ceiling on dead letters of one worker, a component of its service. Belongs to the event loop's thread.

    ``made`` receives every dead letter, and ``watch`` every route. Dead letters without a route (forbidden MQTT topics)
    stop nothing: only the gateway itself could be stopped. ``failed`` receives defects.
    """

    name = "route stops"

    def __init__(
        self, limit: DeadLetterLimit, clock_ns: Callable[[], int], failed: Callable[[BaseException], None]
    ) -> None:
        self._limit = limit
        self._failed = failed
        self._clock_ns = clock_ns
        self._routes: dict[str, _Route] = {}  # by name
        self._returns: Returns | None = None  # messages that left the spool, if there is one
        self._task: asyncio.Task[None] | None = None

    def watch(self, route: str, gate: Gate, taken: Callable[[], int]) -> None:
        """Put a route under the ceiling. ``taken`` returns its messages through this gate. All gates of a
        route stop and run together."""
        watched = self._routes.get(route)
        if watched is None:
            watched = self._routes[route] = _Route(route, gate, taken, self._limit, self._clock_ns())
            if self._returns is not None:
                watched.counters.append(partial(self._returns.taken, route))
                watched.meter = self._limit.meter(self._clock_ns(), watched.taken())
            return
        watched.gates.append(gate)
        watched.counters.append(taken)
        if watched.state is not _State.RUNS:
            gate.stop(route)

    def watch_returns(self, returns: Returns) -> None:
        """Put messages from the spool under the ceiling too. Call it before the first ``watch``."""
        self._returns = returns

    def rests(self, route: str) -> bool:
        """Whether a route may make no dead letter now. Kafka refuses the waiting record again later."""
        watched = self._routes.get(route)
        return watched is not None and watched.state is _State.RESTS

    def begin_anew(self, limit: DeadLetterLimit) -> None:
        """Forget every route before ``watch`` adds the routes of other settings. The gates of stopped ones still hold
        messages, which the caller releases."""
        self._limit = limit
        self._routes = {}

    @property
    def stopped(self) -> Mapping[str, str]:
        """The stopped routes, each with a sentence about the reason and the next step."""
        return {route.name: route.sentence for route in self._routes.values() if route.state is not _State.RUNS}

    def made(self, route: str, reason: DeadLetterReason, error: BaseException) -> None:
        """Count a dead letter of a route, and stop the route when the ceiling is exceeded."""
        watched = self._routes.get(route)
        if watched is None or watched.state is _State.RESTS:
            return  # what was on its way to Kafka when the route was stopped ends as it does
        now_ns = self._clock_ns()
        if watched.state is _State.ON_TRIAL:
            self._change(watched, _State.RESTS, now_ns)
            watched.stop()
            log.warning("route_trial_failed", route=route, reason=reason.value, error=str(error))
            return
        excess = watched.meter.dead(now_ns, watched.taken)
        if excess is not None:
            self._change(watched, _State.RESTS, now_ns)
            watched.sentence = self._sentence(route, excess, reason, error)
            watched.stop()
            log.error("route_stopped", route=route, reason=reason.value, alarm=watched.sentence)

    def tick(self) -> None:
        """Begin the trial of each stopped route that has rested long enough, and resume those whose trial went well.
        Called twice a second."""
        now_ns = self._clock_ns()
        for route in self._routes.values():
            if route.state is _State.RUNS:
                route.meter.tick(now_ns, route.taken())
            elif route.state is _State.ON_TRIAL:
                if self._tried(route):
                    self._change(route, _State.RUNS, now_ns)
                    route.meter = self._limit.meter(now_ns, route.taken())
                    for gate in route.gates:
                        gate.release(route.name)
                    log.warning("route_resumed", route=route.name, tried=TRIAL_MESSAGES)
            elif now_ns - route.since_ns >= self._limit.retry_after_ns:
                self._change(route, _State.ON_TRIAL, now_ns)
                for gate in route.gates:
                    gate.admit(route.name, TRIAL_MESSAGES)

    def _tried(self, route: _Route) -> bool:
        """Whether a trial has ended well."""
        if self._returns is not None and not self._returns.tried(route.name):
            return False
        return any(gate.tried(route.name) for gate in route.gates)  # nothing may come through the others

    @staticmethod
    def _change(route: _Route, state: _State, now_ns: int) -> None:
        route.state = state
        route.since_ns = now_ns

    def _sentence(self, route: str, excess: Excess, reason: DeadLetterReason, error: BaseException) -> str:
        """The alarm for a stopped route: what it exceeded, its last dead letter, what to do."""
        limit = self._limit
        rest = format_duration(timedelta(microseconds=limit.retry_after_ns // 1000))
        if excess.setting == "max_share":
            allowed = f"dead_letter.max_share allows {limit.max_share:.4g} of them"
        else:
            allowed = f"dead_letter.max_per_second allows {limit.max_per_second:.6g} a second"
        seconds = max(0.1, excess.span_ns / 1e9)
        return (
            f"Route {route!r} is stopped: {excess.dead} of {excess.messages} messages in {seconds:.1f} s had to become "
            f"dead letters, and {allowed}. The last one, {reason.value}: {str(error)[:300].rstrip('.')}. Its messages "
            f"are held and not acknowledged. Look at them with: gateway dlq list --route {route}. Then correct the "
            f"devices or the route, or raise the setting, and run: gateway reload. Without that {TRIAL_MESSAGES} "
            f"messages are tried every {rest} (dead_letter.retry_after), and the route goes "
            "on once they are all good."
        )

    # --- component of the service

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)
        self._task.add_done_callback(report_failure(self._failed))

    async def stop(self, deadline_ns: int) -> None:
        """End the ticks. Stopped routes stay stopped."""
        del deadline_ns
        await end_tasks(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(until_beat_s(TICK_S))
            self.tick()
