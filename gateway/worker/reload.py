"""Changed settings in a running worker, in steps that its supervisor keeps in line with those of the other workers:

    prepare     make everything that may fail, change nothing: routes, templates, interceptors, topics, a new login
    commit      exchange it in one step of the event loop, then SUBSCRIBE to what is new
    finish      UNSUBSCRIBE what nobody wants any more; from here on there is no way back
    roll back   instead of ``finish``: the former settings again

Nothing is lost on the way: the new routes stand before the first message of a new filter can come, and behind them the
former ones, for what the broker has queued under filters that are about to go (`Router.before`). No order is lost
either: routes that may take a topic to another partition than it had (`bridge.routing.change`) hold their messages
until all that was taken before is durable. Nobody is disconnected. The hot path does not know of any of this: its
tables are emptied and fill up again.
"""

from __future__ import annotations

__all__ = ["Reloader"]

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import RetriableError
from bridge.intercept.loading import load_chains, warm_up
from bridge.interceptors import Chains
from bridge.kafka.connection import cluster_id
from bridge.routing.change import moved
from bridge.routing.router import Router
from config.errors import GatewayError
from config.loading.live import same
from gateway.base.group_plan import group_plans
from gateway.base.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import SecretStr

    from bridge.routing.filters import Subscription
    from config.settings import Settings
    from gateway.mqtt.session import Session
    from gateway.worker.worker import Worker

log = structlog.get_logger("reload")

PATIENCE_S: Final = 10.0  # for what was taken before; a Kafka or a disk that takes longer has other troubles
FORMER_S: Final = 3600.0  # how long routes that are gone still take what the broker had queued for them


class ReloadError(GatewayError):
    """A worker cannot take the settings."""


@dataclass(slots=True)
class _Generation:
    """One set of settings and what was made of it. ``older``: routers whose messages may still come, the latest first,
    each with the time it was left at. ``altered``: routes whose interceptors are not those of the generation before."""

    settings: Settings
    router: Router
    chains: Chains
    older: tuple[tuple[float, Router], ...] = ()
    altered: frozenset[str] = frozenset()


class Reloader:
    """One worker's. Belongs to its event loop; the steps are called one after another, by whoever commands it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._now = _Generation(worker.settings, worker.router, worker.chains)
        self._next: _Generation | None = None
        self._before: _Generation | None = None
        self._closing: Chains | None = None  # of the former generation
        self._stepping = asyncio.Lock()
        self._left: set[str] = set()  # Kafka topics that routes named before, and name no more
        worker.observation.vitals.seldom.append(self.let_go)

    async def prepare(self, settings: Settings, *, dry_run: bool = False) -> list[str]:
        """Make ready, change nothing. Returns remarks for the operator. ``dry_run``: make no topics either.

        Raises GatewayError with the sentence that says why the settings cannot be taken."""
        self.discard()
        now, worker = self._now, self._worker
        if worker.service.lifecycle.state is not State.RUNNING:
            raise ReloadError(
                f"It is in state {worker.service.lifecycle.state.name}; only one that runs can take them."
            )
        await asyncio.to_thread(warm_up, settings)
        router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
        for plan in group_plans(settings):
            mqtt = plan.settings.mqtt
            router.subscriptions(mqtt.distribution, mqtt.sessions, share_group=mqtt.share_group, group=plan.name)
        ready = {chain.route: chain for chain in now.chains if _same_chain(now.settings, settings, chain.route)}
        chains = load_chains(settings, ready)
        altered = frozenset(chain.route for chain in (*now.chains, *chains) if chain.route not in ready)
        try:
            remarks = await self._look_outside(settings, router, dry_run=dry_run)
        except BaseException:
            _close(chains, now.chains)
            raise
        self._next = _Generation(settings, router, chains, altered=altered)
        return remarks

    async def _look_outside(self, settings: Settings, router: Router, *, dry_run: bool) -> list[str]:
        """See that Kafka has the topics, and takes the login. Raises GatewayError."""
        worker, before = self._worker, self._now.settings
        remarks = []
        if not same(before.kafka.sasl, settings.kafka.sasl):
            try:
                await cluster_id(settings.kafka, worker.kafka_client_id, worker.kafka_login.trial(settings.kafka))
            except RetriableError as error:
                remarks.append(f"Kafka could not be asked whether it takes the new login: {error}")
        if (before.mqtt.username, _text(before.mqtt.password)) != (
            settings.mqtt.username,
            _text(settings.mqtt.password),
        ):
            remarks.append(
                "The new MQTT login is shown at each session's next connection; those that stand stay as they are."
            )
        wanted = {*router.kafka_topics, *settings.dead_letter_topics} - set(worker.routed_topics())
        if wanted:
            remarks += await self._look_for(sorted(wanted), settings, dry_run=dry_run)
        return remarks

    async def _look_for(self, topics: list[str], settings: Settings, *, dry_run: bool) -> list[str]:
        worker = self._worker
        producer = worker.started_producer()
        if producer is None:
            return [f"Kafka has not answered yet, so whether it has {', '.join(topics)} is seen when it does."]
        try:
            if not dry_run:
                await worker.topics.ensure(producer, topics, settings.kafka)
                return []
            missing = await worker.topics.missing(producer, topics)
            producer.forget_topics(topics)
        except RetriableError as error:
            return [f"Whether Kafka has {', '.join(topics)} could not be seen now: {error}"]
        if missing and not settings.kafka.topics.create:
            raise ReloadError(
                f"Kafka has no topic {', '.join(missing)}, and kafka.topics.create is off. Create it first."
            )
        return [f"Topic {', '.join(missing)} would be made."] if missing else []

    async def step(self, step: str, settings: Settings | None) -> list[str]:
        """One of the steps by its name, as a supervisor asks for it. Returns remarks; raises GatewayError.

        A supervisor that got no answer in time asks for the way back while a step is still under way: that ends
        first."""
        async with self._stepping:
            return await self._step(step, settings)

    async def _step(self, step: str, settings: Settings | None) -> list[str]:
        match step:
            case "prepare" | "try":
                assert settings is not None
                return await self.prepare(settings, dry_run=step == "try")
            case "discard":
                self.discard()
            case "commit":
                return await self.commit()
            case "finish":
                return await self.finish()
            case "roll back":
                await self.roll_back()
            case _:
                raise ReloadError(f"This worker knows no step {step!r}: its supervisor is of another version.")
        return []

    def discard(self) -> None:
        """Forget what was prepared."""
        prepared, self._next = self._next, None
        if prepared is not None:
            _close(prepared.chains, self._now.chains)

    async def commit(self) -> list[str]:
        """Use what was prepared. Returns remarks. Raises GatewayError when the broker refuses a filter: ``roll_back``
        is due then."""
        assert self._next is not None
        before, after = self._now, self._next
        self._before, self._now, self._next = before, after, None
        return await self._exchange(before, after)

    async def finish(self) -> list[str]:
        """Leave what is not wanted any more. Returns remarks; raises nothing that the settings could be blamed for."""
        assert self._before is not None
        before, self._before = self._before, None
        await self._leave()
        await self._worker.lookouts.adopt(before.settings)
        worker = self._worker
        self._left = (self._left | _topics(before)) - _topics(self._now)
        self.let_go()
        worker.topic_watch.pin(topic for topic in _topics(self._now) if worker.sender.started)
        return []

    def let_go(self) -> None:
        """Look after the topics no more that no route names since a reload, once nothing waits for them: an operator
        may delete them then. Called every few seconds, for routes that are gone may get messages still."""
        if not self._left:
            return
        worker = self._worker
        busy = {topic for (topic, _), queue in worker.partitions.queues.items() if queue.waiting or queue.holds}
        unused = sorted(topic for topic in self._left - busy if worker.topic_watch.pinned(topic) is not None)
        if unused:
            worker.topic_watch.release(unused)
            if (producer := worker.started_producer()) is not None:
                producer.forget_topics(unused)

    async def roll_back(self) -> None:
        """Back to the settings before ``commit``, whether or not that came to its end. Raises GatewayError."""
        assert self._before is not None
        failed, before = self._now, self._before
        self._now, self._before = before, None
        before.altered = frozenset(chain.route for chain in (*failed.chains, *before.chains))
        await self._exchange(failed, before)
        await self._leave()

    async def _leave(self) -> None:
        sessions = self._worker.sessions
        results = await asyncio.gather(*(session.leave_stale() for session in sessions), return_exceptions=True)
        for session, result in zip(sessions, results, strict=True):
            if isinstance(result, Exception):
                log.warning(
                    "filters_not_left", session=session.plan.name, error=str(result), retried="at its next connect"
                )
        if self._closing is not None:
            self._closing.close()
            self._closing = None

    # --- the exchange ------------------------------------------------------------------------------

    async def _exchange(self, before: _Generation, after: _Generation) -> list[str]:
        """From one generation to another. Up to the first ``await`` it is one step: no message comes between."""
        worker = self._worker
        holds = frozenset(name for group in worker.groups for name in group.dispatcher.holding)
        move = moved(before.router.routes, after.router.routes, altered=after.altered, stopped=holds)
        for group in worker.groups:
            for name in move:
                group.dispatcher.stop(name)
        for group in worker.groups:
            group.flow.flush()
        worker.partitions.seal_open()
        worker.sender.pump()
        after.older = _older(before, after.router)
        after.router.before([router for _, router in after.older])
        former = frozenset(name for _, router in after.older for name in _names(router)) - _names(after.router)
        self._closing = after.chains.succeed(before.chains, former)
        worker.adopt(after.settings, after.router, after.chains)
        for group in worker.groups:
            group.dispatcher.sort_held()
        self._release(holds - move)
        log.info("settings_exchanged", held_routes=sorted(move), former_routes=sorted(former))
        subscribing = asyncio.ensure_future(self._subscribe())
        try:
            remarks = await self._settle(move)
        finally:
            await asyncio.wait([subscribing])
        return [*remarks, *subscribing.result()]

    async def _settle(self, names: frozenset[str]) -> list[str]:
        """Let the routes go on that are held, once everything is durable that was taken before them."""
        if not names:
            return []
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(
                    *(group.flow.durable(group.dispatcher.holding.kept) for group in self._worker.groups)
                )
        except TimeoutError:
            late = (
                f"What was taken before was not all written after {PATIENCE_S:g} s, so the routes "
                f"{', '.join(sorted(names))} go on beside it: where their messages go to another partition than "
                "before, they may come to stand before older ones."
            )
            return [late]
        finally:
            self._release(names - self._worker.route_stops.stopped.keys())
        return []

    def _release(self, names: Iterable[str]) -> None:
        for group in self._worker.groups:
            for name in names:
                if name in group.dispatcher.holding:
                    group.dispatcher.release(name)

    async def _subscribe(self) -> list[str]:
        """Have every session want what its group's routes ask for now. Raises GatewayError."""
        wanted: dict[Session, tuple[Subscription, ...]] = {}
        for group in self._worker.groups:
            if group.plan.every_route:
                continue
            present = [[one.filter for one in session.plan.subscriptions] for session in group.sessions]
            wanted.update(zip(group.sessions, group.subscriptions(present), strict=True))
        sessions = [session for session in wanted if session in self._worker.sessions]
        asked = await asyncio.gather(
            *(session.subscribe(wanted[session]) for session in sessions), return_exceptions=True
        )
        errors = [answer for answer in asked if isinstance(answer, BaseException)]
        for error in errors:
            if not isinstance(error, GatewayError | OSError):
                raise error
        if errors:
            raise ReloadError(str(errors[0]))
        away = [session.plan.name for session, done in zip(sessions, asked, strict=True) if not done]
        return [f"Session {', '.join(away)} is not connected; it subscribes when it is."] if away else []


def _names(router: Router) -> frozenset[str]:
    return frozenset(route.name for route in router.routes)


def _older(before: _Generation, router: Router) -> tuple[tuple[float, Router], ...]:
    """The routers that stand behind a new one: those that are not too old, and take what no later one takes. However
    often settings are read again, there are no more of them than there were different filters within ``FORMER_S``."""
    now_s = time.monotonic()
    later = [router]
    kept: list[tuple[float, Router]] = []
    for left_s, older in ((now_s, before.router), *before.older):
        wanted = [text for route in older.routes for text in route.filters]
        for one in later:
            wanted = one.leaves(wanted)
        if wanted and now_s - left_s <= FORMER_S:
            later.append(older)
            kept.append((left_s, older))
    return tuple(kept)


def _topics(generation: _Generation) -> set[str]:
    return {*generation.router.kafka_topics, *generation.settings.dead_letter_topics}


def _same_chain(before: Settings, after: Settings, name: str) -> bool:
    """Whether a route's interceptors are made from the same settings, so that they may stay."""
    old = next((route for route in before.routes if route.name == name), None)
    new = next((route for route in after.routes if route.name == name), None)
    if old is None or new is None or not same(before.interceptors, after.interceptors):
        return False
    if any(option.endswith("_file") for one in (*after.interceptors, *new.interceptors) for option in one.options):
        return False  # what is in the file may have changed
    return same(old.interceptors, new.interceptors) and old.device == new.device


def _close(chains: Chains, living: Chains) -> None:
    """Close the chains that nobody else has."""
    kept = set(map(id, living))
    Chains({chain.route: chain for chain in chains if id(chain) not in kept}).close()


def _text(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
