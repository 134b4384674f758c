"""A group of MQTT sessions with windows, memory and acknowledgements of its own, and the data path behind them down to
the partitions, which all groups of a worker share.

What one group has to wait for, no other does: an alarm route in a group of its own is neither read late because
telemetry has filled the memory, nor acknowledged late because one of telemetry's partitions stands still."""

from __future__ import annotations

__all__ = ["SessionGroup", "Shared"]

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bridge.produce.accumulator import Accumulator
from bridge.produce.dead_letter import DeadLetters
from bridge.produce.dispatch import Dispatcher
from gateway.base.group_plan import client_id
from gateway.mqtt.flow import SHORTEST_PACE_NS, Flow
from gateway.mqtt.orphans import OrphanSession
from gateway.mqtt.properties import parse_properties
from gateway.mqtt.session import DataPath, Session, SessionPlan

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Sequence
    from datetime import timedelta

    from bridge.dead_letters.route_stops import RouteStops
    from bridge.interceptors import Chains
    from bridge.ledger import Ledger
    from bridge.ports import BatchBuilder
    from bridge.produce.batch import Span
    from bridge.produce.parking import TopicLocator
    from bridge.produce.sender import Sender
    from bridge.routing.filters import Subscription
    from bridge.routing.router import Router
    from bridge.wire import DeadLetterReason
    from gateway.base.group_plan import GroupPlan
    from gateway.base.lifecycle import StopVerb
    from gateway.base.metrics import Metrics
    from gateway.data_dir.lost_sessions import LostSessions
    from gateway.data_dir.session_registry import SessionRecord, SessionRegistry
    from gateway.mqtt.login import Login
    from gateway.mqtt.retry import Siblings


@dataclass(frozen=True, slots=True)
class Shared:
    """What all groups of a worker share."""

    router: Router
    sender: Sender
    ledger: Ledger
    metrics: Metrics
    topics: TopicLocator
    verb: Callable[[], StopVerb]
    failed: Callable[[BaseException], None]
    registry: SessionRegistry
    lost: LostSessions
    login: Login
    siblings: Siblings
    filtered: Callable[[str, str], None]
    chains: Chains
    dead_letter_made: Callable[[str, DeadLetterReason, BaseException, str | None], None]


class SessionGroup:
    """Make it inside the running event loop, whose thread owns it. ``sessions`` are components of the service."""

    def __init__(self, plan: GroupPlan, shared: Shared, number: int = 0) -> None:
        settings = plan.settings
        self.number = number  # its place in ``gateway.base.group_plan.group_plans``
        self.plan = plan
        self._shared = shared
        self.accumulator = Accumulator(self._create_batch, self._complete, shared.sender.partitions)
        self.dead_letters = DeadLetters(
            self.accumulator,
            settings.dead_letter.topic,
            instance=settings.instance,
            partition_count=shared.topics.partition_count,
            max_record_bytes=settings.kafka.max_record_bytes,
            routes=settings.routes,
            made=shared.dead_letter_made,
        )
        self.flow = Flow(
            self.accumulator,
            shared.sender,
            shared.ledger,
            linger_ns=_ns(settings.flow.linger_max),
            pacing_ns=max(_ns(settings.flow.read_pacing_max), SHORTEST_PACE_NS),
            memory_bytes=settings.flow.memory_bytes,
        )
        self.dispatcher = Dispatcher(
            shared.router,
            self.accumulator,
            shared.topics,
            self.dead_letters,
            group=None if plan.every_route else plan.name,
            parse_properties=parse_properties,
            filtered=shared.filtered,
            max_record_bytes=settings.kafka.max_record_bytes,
            cache_entries=settings.flow.route_cache_entries,
            property_entries=settings.flow.property_cache_entries,
            pump=shared.sender.pump,
            failed=shared.failed,
            chains=shared.chains,
        )
        self._path = DataPath(
            self.flow,
            self.accumulator,
            self.dispatcher,
            self.dead_letters,
            shared.ledger,
            shared.metrics,
            shared.login,
            shared.registry,
            shared.siblings,
            shared.lost,
        )
        self.sessions = tuple(self._make_session(number) for number in range(settings.mqtt.sessions))

    def adopt(self, plan: GroupPlan, shared: Shared) -> None:
        """Go on with other settings from the next message on; the sessions stay, and what they are subscribed to."""
        settings = plan.settings
        self.plan = plan
        self._shared = shared
        self.dead_letters.adopt(settings.dead_letter.topic, settings.routes)
        self.flow.adopt(
            linger_ns=_ns(settings.flow.linger_max),
            pacing_ns=max(_ns(settings.flow.read_pacing_max), SHORTEST_PACE_NS),
            memory_bytes=settings.flow.memory_bytes,
        )
        self.dispatcher.adopt(
            shared.router,
            shared.chains,
            cache_entries=settings.flow.route_cache_entries,
            property_entries=settings.flow.property_cache_entries,
        )
        for session in self.sessions:
            session.adopt(settings)

    def subscriptions(self, present: Sequence[Collection[str]] = ()) -> tuple[tuple[Subscription, ...], ...]:
        """What each of its sessions is to be subscribed to, by number. ``present`` are the filters that each has: as
        far as that can be, a topic stays with the session that brings it."""
        mqtt = self.plan.settings.mqtt
        return self._shared.router.subscriptions(
            mqtt.distribution, mqtt.sessions, share_group=mqtt.share_group, group=self.plan.name, present=present
        )

    def make_orphan(self, record: SessionRecord, turns: asyncio.Semaphore, ended: Callable[[], None]) -> OrphanSession:
        """A session of earlier settings that is emptied through this group's data path, and ended."""
        shared = self._shared
        return OrphanSession(
            record, self.plan.settings, self._path, shared.verb, shared.failed, turns=turns, ended=ended
        )

    def _make_session(self, number: int) -> Session:
        settings, mqtt, group = self.plan.settings, self.plan.settings.mqtt, self.plan.name
        subscriptions = self.subscriptions()[number]
        name = self.plan.session_name(number)
        # The will is one session's alone: a second would declare the instance dead when only a connection is.
        announces = mqtt.status.enabled and settings.worker == 0 and number == 0 and not group
        topic = mqtt.status.topic.replace("${instance}", settings.instance) if announces else None
        plan = SessionPlan(
            name, client_id(settings, settings.worker, name), subscriptions, topic, settings.worker + number
        )
        return Session(plan, settings, self._path, self._shared.verb, self._shared.failed)

    def _create_batch(self, compressed: bool) -> BatchBuilder:
        return self._shared.sender.create_batch(compressed)

    def _complete(self, span: Span) -> None:
        self.flow.completed(span)

    def hold_to(self, stops: RouteStops) -> None:
        """Put the routes whose messages come this way under the ceiling on dead letters."""
        for route in self._shared.router.routes:
            if route.group == self.plan.name or self.plan.every_route:
                stops.watch(route.name, self.dispatcher, partial(self._taken, route.name))

    def _taken(self, route: str) -> int:
        return sum(slot.taken for slot in self.accumulator.slots if slot.route == route)

    async def drained(self) -> None:
        """Wait until everything that was read is durable, QoS 0 too."""
        await self.flow.drained()

    async def close(self) -> None:
        """End timers and tasks; what waits stays unacknowledged."""
        self.flow.close()
        await self.dispatcher.close()


def _ns(length: timedelta) -> int:
    return round(length.total_seconds() * 1e9)
