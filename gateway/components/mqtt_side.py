"""The MQTT side of a worker: its groups of sessions, and the sessions of earlier settings."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from bridge.dead_letters.route_stops import RouteStops
from bridge.interceptors import Chains
from bridge.produce.accumulator import Slot
from bridge.routing.filters import Subscription
from bridge.routing.router import Router
from config.settings import Settings
from gateway.base.group_plan import group_plans, orphan_plan
from gateway.base.lifecycle import Component
from gateway.base.metrics import Metrics
from gateway.components.copies import Copies
from gateway.components.session_group import SessionGroup, Shared
from gateway.data_dir.identity import Identity
from gateway.data_dir.session_registry import SessionRecord
from gateway.mqtt.login import Login
from gateway.mqtt.orphans import Orphans, OrphanSession
from gateway.mqtt.renewal import Renewals
from gateway.mqtt.session import Session


class MqttSide:
    """A component of the service: it starts nothing; its stop ends the groups' timers and tasks.

    ``sessions`` are those of the settings, none in a worker that retires. ``orphans`` are those of earlier settings.
    """

    name: Final = "session groups"

    def __init__(self, settings: Settings, shared: Shared, route_stops: RouteStops, *, retiring: bool) -> None:
        self._settings = settings
        self._shared = shared
        self._route_stops = route_stops
        self._retiring = retiring
        self.groups = [SessionGroup(plan, shared, number) for number, plan in enumerate(group_plans(settings))]
        self._copies = Copies(tuple(self.groups), shared.failed)
        self._orphan_group: SessionGroup | None = None
        self._planned = [session for group in self.groups for session in group.sessions]
        self.sessions = [] if retiring else self._planned  # those that connect
        self.orphans = Orphans()
        for group in self.groups:
            group.hold_to(route_stops)

    @property
    def router(self) -> Router:
        return self._shared.router

    @property
    def chains(self) -> Chains:
        return self._shared.chains

    @property
    def login(self) -> Login:
        return self._shared.login

    @property
    def intake(self) -> tuple[Component, ...]:
        """Components that bring messages."""
        return (*self.sessions, self.orphans, Renewals(self.login, lambda: self.sessions, self._shared.metrics))

    def recover(self, identity: Identity) -> None:
        """Find the sessions of earlier settings. Every session is recorded before the first one connects."""
        records = [session.record for session in self._planned]
        registry, lost = identity.registry, self._shared.lost  # ``lost`` hears which are new, which remain
        lost.begins(record.client_id for record in records if registry.get(record.client_id) is None)
        self.orphans.recall(identity, records, self._settings, self.make_orphan, retiring=self._retiring)
        lost.keeps(record.client_id for record in registry.records)  # the end of others is no loss
        if not self._retiring:
            self._copies.look()
            self._copies.establish()

    def make_orphan(self, record: SessionRecord, turns: asyncio.Semaphore, ended: Callable[[], None]) -> OrphanSession:
        """A session of earlier settings; the arguments are OrphanSession's. All of them share a group of their own."""
        if self._orphan_group is None:
            self._orphan_group = SessionGroup(orphan_plan(self._settings), self._shared)
            self._orphan_group.hold_to(self._route_stops)
            self.groups.append(self._orphan_group)
        return self._orphan_group.make_orphan(record, turns, ended)

    async def start(self) -> None:
        """Does nothing: the sessions are components of their own."""

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - nothing to wait for
        await self._copies.close()
        for group in self.groups:
            await group.close()

    async def drain(self, deadline_ns: int) -> None:
        """Wait until every message read is durable, those of QoS 0 included. The service cuts it short at its
        deadline."""
        if time.monotonic_ns() < deadline_ns:
            for group in self.groups:
                await group.flow.drained()

    # --- facts ---------------------------------------------------------------------------------------

    def all_sessions(self) -> Iterator[Session]:
        """Sessions of the settings, then those of earlier settings."""
        yield from self.sessions
        yield from self.orphans.sessions

    def fetches(self, routes: Collection[str]) -> bool:
        """Whether the sessions that receive the messages of these routes are subscribed."""
        enough = any if self._settings.mqtt.distribution == "shared" else all  # each session has filters of its own
        names = {route.group for route in self.router.routes if route.name in routes}
        groups = (group for group in self.groups if group.plan.name in names and not group.plan.every_route)
        return all(enough(session.subscribed for session in group.sessions) for group in groups)

    def received(self) -> Counter[tuple[str, ...]]:
        """Messages received, by route and QoS."""
        rows = self.chains.filtered_rows()  # messages that a chain dropped entered no slot
        for slot in self.slots():
            rows[slot.route, str(slot.qos)] += slot.taken
        return rows

    def slots(self) -> Iterator[Slot]:
        """Every slot that had a record in this life, of any group."""
        for group in self.groups:
            yield from group.accumulator.slots

    def oldest_age_ns(self) -> int | None:
        """Age of the oldest message that is not durable; None without one."""
        waiting = [oldest_ns for group in self.groups if (oldest_ns := group.accumulator.oldest_ns())]
        return time.monotonic_ns() - min(waiting) if waiting else None

    def settled(self) -> int:
        """Durable messages that wait for older ones to be acknowledged."""
        return sum(group.accumulator.settled() for group in self.groups)

    def buffered_bytes(self) -> int:
        """Memory that messages of all groups take."""
        return sum(group.accumulator.buffered_bytes for group in self.groups)

    def held(self, route: str) -> int:
        """Messages of a stopped route that wait for it."""
        return sum(group.dispatcher.holding.messages(route) for group in self.groups)

    def unacked_by_client(self) -> Mapping[str, int]:
        """Messages that a stopped session has not acknowledged, by client id."""
        return {s.plan.client_id: s.left_unacked for s in self.all_sessions() if s.left_unacked}

    def watch_metrics(self, metrics: Metrics) -> None:
        """Show what the sessions count."""
        metrics.oldest_unacked_age.watch(lambda: (self.oldest_age_ns() or 0) / 1e9)
        metrics.mqtt_messages_received.watch_rows(self.received)
        metrics.mqtt_acks.watch(lambda: sum(session.acknowledged for session in self.all_sessions()))
        metrics.mqtt_received_bytes.watch(lambda: sum(session.received_bytes for session in self.all_sessions()))
        metrics.mqtt_retained.watch(lambda: sum(session.retained for session in self.all_sessions()))
        metrics.mqtt_redelivered.watch(lambda: sum(session.redelivered for session in self.all_sessions()))
        metrics.timestamps_replaced.watch(lambda: sum(group.dispatcher.clamped for group in self.groups), "interceptor")
        metrics.mqtt_orphan_sessions.watch(lambda: self.orphans.left)
        for session in self.sessions:
            metrics.mqtt_connected.watch(partial(_subscribed, session), session.plan.name)
            metrics.mqtt_unacked.watch(partial(_unacked, session), session.plan.name)

    # --- reload --------------------------------------------------------------------------------------

    def holding(self) -> frozenset[str]:
        """Routes whose messages are held."""
        return frozenset(name for group in self.groups for name in group.dispatcher.holding)

    def hold(self, routes: Iterable[str]) -> None:
        """Hold the messages of these routes from now on, and close every batch that is open."""
        for group in self.groups:
            for name in routes:
                group.dispatcher.stop(name)
        for group in self.groups:
            group.flow.flush()

    def sort_held(self) -> None:
        """Give the held messages to the routes of the new settings."""
        for group in self.groups:
            group.dispatcher.sort_held()

    async def wait_until_durable(self) -> None:
        """Wait until every message received before the held ones is durable."""
        await asyncio.gather(*(group.flow.wait_until_durable(group.dispatcher.holding.kept) for group in self.groups))

    def release(self, routes: Iterable[str]) -> None:
        """Hold these routes no longer, except those that the ceiling on dead letters has stopped."""
        for name in set(routes) - self._route_stops.stopped.keys():
            for group in self.groups:
                if name in group.dispatcher.holding:
                    group.dispatcher.release(name)

    async def subscribe(self) -> dict[str, bool | BaseException]:
        """Subscribe every session to what its group's routes ask for now.

        Returns, by session, whether it is connected, or the error that its subscription ended with."""
        wanted: dict[Session, tuple[Subscription, ...]] = {}
        for group in self.groups:
            if group.plan.every_route:
                continue
            present = [[one.filter for one in session.plan.subscriptions] for session in group.sessions]
            wanted.update(zip(group.sessions, group.subscriptions(present), strict=True))
        sessions = [session for session in wanted if session in self.sessions]
        answers = await asyncio.gather(
            *(session.subscribe(wanted[session]) for session in sessions), return_exceptions=True
        )
        if not any(isinstance(answer, BaseException) for answer in answers):
            self._copies.establish()
        return {session.plan.name: answer for session, answer in zip(sessions, answers, strict=True)}

    async def unsubscribe_stale(self) -> dict[str, Exception]:
        """Unsubscribe what no route asks for any more. Returns the failures, by session."""
        sessions = self.sessions
        results = await asyncio.gather(*(session.leave_stale() for session in sessions), return_exceptions=True)
        return {s.plan.name: e for s, e in zip(sessions, results, strict=True) if isinstance(e, Exception)}

    def settle_afresh(self) -> None:
        """Have the next message of each MQTT topic ask for its Kafka topic again."""
        for group in self.groups:
            group.dispatcher.settle_afresh()

    def adopt(self, settings: Settings, router: Router, chains: Chains) -> None:
        """Use other settings from the next message on, in one step of the event loop."""
        self._settings = settings
        self._shared = replace(self._shared, router=router, chains=chains)
        self.login.adopt(settings.mqtt)
        plans = group_plans(settings)
        for group in self.groups:
            group.adopt(orphan_plan(settings) if group is self._orphan_group else plans[group.number], self._shared)
            group.hold_to(self._route_stops)
        self._copies.look()


def _subscribed(session: Session) -> int:
    return int(session.subscribed)


def _unacked(session: Session) -> int:
    return session.unacked
