"""A group of MQTT sessions with its own windows, memory and acknowledgements, on the partitions that all groups share.

Groups do not wait for each other. An alarm route in a group of its own is read while telemetry fills its memory, and
acknowledged while one of telemetry's partitions stands still.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from bridge.dead_letters.route_stops import RouteStops
from bridge.interceptors import Chains
from bridge.ledger import Ledger
from bridge.produce.batch import Span
from bridge.produce.dead_letter import DeadLetterPlan
from bridge.produce.dispatch import DispatchLimits
from bridge.produce.pipeline import Pipeline
from bridge.routing.filters import Subscription
from bridge.routing.router import Router
from config.values.grammar import nanoseconds
from gateway.base.group_plan import GroupPlan, client_id
from gateway.base.lifecycle import StopVerb
from gateway.base.metrics import Metrics
from gateway.data_dir.lost_sessions import LostSessions
from gateway.data_dir.session_registry import SessionRecord, SessionRegistry
from gateway.mqtt.flow import SHORTEST_PACE_NS, Flow
from gateway.mqtt.login import Login
from gateway.mqtt.orphans import OrphanSession
from gateway.mqtt.retry import Siblings
from gateway.mqtt.session import DataPath, Session, SessionPlan


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that all groups of a worker share."""

    router: Router
    pipeline: Pipeline
    ledger: Ledger
    metrics: Metrics
    verb: Callable[[], StopVerb]
    failed: Callable[[BaseException], None]
    registry: SessionRegistry
    lost: LostSessions
    login: Login
    siblings: Siblings
    chains: Chains


class SessionGroup:
    """Make it inside the running event loop, whose thread owns it. ``sessions`` are components of the service."""

    def __init__(self, plan: GroupPlan, shared: Shared, number: int = 0) -> None:
        settings = plan.settings
        self.number = number  # its place in ``gateway.base.group_plan.group_plans``
        self.plan = plan
        self._shared = shared
        path = shared.pipeline.group(
            settings,
            shared.router,
            self._complete,
            group=None if plan.every_route else plan.name,
            chains=shared.chains,
        )
        self.accumulator, self.dead_letters, self.dispatcher = path.accumulator, path.dead_letters, path.dispatcher
        self.flow = Flow(
            self.accumulator,
            shared.pipeline.sender,
            shared.ledger,
            linger_ns=nanoseconds(settings.flow.linger_max),
            pacing_ns=max(nanoseconds(settings.flow.read_pacing_max), SHORTEST_PACE_NS),
            memory_bytes=settings.flow.memory_bytes,
        )
        self._path = DataPath(
            self.flow,
            self.accumulator,
            self.dispatcher,
            self.dead_letters,
            shared.metrics,
            shared.login,
            shared.registry,
            shared.siblings,
            shared.lost,
        )
        self.sessions = tuple(self._make_session(number) for number in range(settings.mqtt.sessions))

    def adopt(self, plan: GroupPlan, shared: Shared) -> None:
        """Use other settings from the next message on. The sessions and their subscriptions stay."""
        settings = plan.settings
        self.plan = plan
        self._shared = shared
        self.dead_letters.adopt(DeadLetterPlan.from_settings(settings))
        self.flow.adopt(
            linger_ns=nanoseconds(settings.flow.linger_max),
            pacing_ns=max(nanoseconds(settings.flow.read_pacing_max), SHORTEST_PACE_NS),
            memory_bytes=settings.flow.memory_bytes,
        )
        self.dispatcher.adopt(shared.router, shared.chains, DispatchLimits.from_settings(settings))
        for session in self.sessions:
            session.adopt(settings)

    def subscriptions(self, present: Sequence[Collection[str]] = ()) -> tuple[tuple[Subscription, ...], ...]:
        """The wanted subscriptions of each session, by number.

        ``present`` are the filters of each session: as far as possible, a topic stays with its session.
        """
        mqtt = self.plan.settings.mqtt
        return self._shared.router.subscriptions(
            mqtt.distribution, mqtt.sessions, share_group=mqtt.share_group, group=self.plan.name, present=present
        )

    def make_orphan(self, record: SessionRecord, turns: asyncio.Semaphore, ended: Callable[[], None]) -> OrphanSession:
        """A session of earlier settings, drained through this group's data path and ended. See OrphanSession."""
        shared = self._shared
        return OrphanSession(
            record, self.plan.settings, self._path, shared.verb, shared.failed, turns=turns, ended=ended
        )

    def _make_session(self, number: int) -> Session:
        """The session of this number; worker 0's first one announces the instance."""
        settings, mqtt, group = self.plan.settings, self.plan.settings.mqtt, self.plan.name
        subscriptions = self.subscriptions()[number]
        name = self.plan.session_name(number)
        # One session alone has the will: a second one would declare the instance dead with a single connection.
        announces = mqtt.status.enabled and settings.worker == 0 and number == 0 and not group
        topic = mqtt.status.topic.replace("${instance}", settings.instance) if announces else None
        plan = SessionPlan(
            name, client_id(settings, settings.worker, name), subscriptions, topic, settings.worker + number
        )
        return Session(plan, settings, self._path, self._shared.verb, self._shared.failed)

    def _complete(self, span: Span) -> None:
        self.flow.completed(span)

    def hold_to(self, stops: RouteStops) -> None:
        """Put this group's routes under the ceiling on dead letters."""
        for route in self._shared.router.routes:
            if route.group == self.plan.name or self.plan.every_route:
                stops.watch(route.name, self.dispatcher, partial(self._taken, route.name))

    def _taken(self, route: str) -> int:
        return sum(slot.taken for slot in self.accumulator.slots if slot.route == route)

    async def close(self) -> None:
        """End timers and tasks; waiting messages stay unacknowledged."""
        self.flow.close()
        await self.dispatcher.close()
