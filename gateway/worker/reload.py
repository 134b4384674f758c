"""Changed settings in a running worker. Its supervisor takes all workers through the same steps:

    prepare     make everything that may fail, change nothing: routes, templates, interceptors, topics, a new login
    commit      exchange it in one step of the event loop, then SUBSCRIBE to what is new
    finish      UNSUBSCRIBE the filters that no route names; after this there is no way back
    roll back   instead of ``finish``: the former settings again

No message is lost. The new routes exist before the first message of a new filter arrives. The former routes stand
behind them, for messages that the broker queued under former filters (`Router.before`). A session drops no message that
another group may not have received (`gateway.components.copies`).

No order is lost. Some routes may move a topic to another partition (`bridge.routing.change`). They hold their messages
until every message received before is durable.

No session is disconnected. The hot path does not know of reloads: its tables are emptied and fill up again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import RetriableError
from bridge.intercept.loading import load_chains, warm_up
from bridge.interceptors import Chains
from bridge.routing.change import moved
from bridge.routing.router import Router
from config.errors import GatewayError
from config.loading.live import same
from gateway.base.group_plan import group_plans
from gateway.base.lifecycle import State

if TYPE_CHECKING:
    from pydantic import SecretStr

    from config.settings import Settings
    from gateway.worker.worker import Worker

log = structlog.get_logger("reload")

PATIENCE_S: Final = 10.0  # for messages received before; a slower Kafka or disk has its own problems
FORMER_S: Final = 3600.0  # how long removed routes still take messages that the broker queued for them


class ReloadError(GatewayError):
    """A worker cannot take the settings."""


@dataclass(slots=True)
class _Generation:
    """One set of settings, and the objects made of it.

    ``older`` are routers whose messages may still arrive, the latest first, each with the time it was replaced.
    ``altered`` are routes whose interceptors differ from those of the generation before.
    """

    settings: Settings
    router: Router
    chains: Chains
    older: tuple[tuple[float, Router], ...] = ()
    altered: frozenset[str] = frozenset()


class Reloader:
    """The reloads of one worker, in its event loop. The caller takes the steps one after another."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._now = _Generation(worker.settings, worker.mqtt.router, worker.mqtt.chains)
        self._next: _Generation | None = None  # prepared, until ``commit``
        self._before: _Generation | None = None  # the former one, until ``finish`` or ``roll_back``
        self._closing: Chains | None = None  # of the former generation
        self._stepping = asyncio.Lock()

    async def prepare(self, settings: Settings, *, dry_run: bool = False) -> list[str]:
        """Make everything that may fail; change nothing. Returns remarks for the operator.

        ``dry_run`` creates no topics either. Raises GatewayError with the reason why the settings cannot be used.
        """
        self.discard()
        now, worker = self._now, self._worker
        if worker.state is not State.RUNNING:
            raise ReloadError(f"It is in state {worker.state.name}; only one that runs can take them.")
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
        """Check that Kafka has the topics and accepts the login. Returns remarks; raises GatewayError."""
        kafka, before = self._worker.kafka, self._now.settings
        remarks = []
        if not same(before.kafka.sasl, settings.kafka.sasl):
            try:
                await kafka.try_login(settings)
            except RetriableError as error:
                remarks.append(f"Kafka could not be asked whether it takes the new login: {error}")
        if (before.mqtt.username, _text(before.mqtt.password)) != (
            settings.mqtt.username,
            _text(settings.mqtt.password),
        ):
            remarks.append(
                "The new MQTT login is shown at each session's next connection; those that stand stay as they are."
            )
        wanted = {*router.kafka_topics, *settings.dead_letter_topics} - set(kafka.routed_topics())
        if wanted:
            remarks += await self._look_for(sorted(wanted), settings, dry_run=dry_run)
        return remarks

    async def _look_for(self, topics: list[str], settings: Settings, *, dry_run: bool) -> list[str]:
        """Create the topics that Kafka lacks; with ``dry_run`` only look. Returns remarks; raises GatewayError."""
        kafka, names = self._worker.kafka, ", ".join(topics)
        unanswered = [f"Kafka has not answered yet, so whether it has {names} is seen when it does."]
        try:
            if not dry_run:
                return [] if await kafka.ensure(topics, settings) else unanswered
            missing = await kafka.missing(topics)
        except RetriableError as error:
            return [f"Whether Kafka has {names} could not be seen now: {error}"]
        if missing is None:
            return unanswered
        if missing and not settings.kafka.topics.create:
            raise ReloadError(
                f"Kafka has no topic {', '.join(missing)}, and kafka.topics.create is off. Create it first."
            )
        return [f"Topic {', '.join(missing)} would be made."] if missing else []

    async def step(self, step: str, settings: Settings | None) -> list[str]:
        """Take one step by its name, as a supervisor asks for it. Returns remarks; raises GatewayError.

        A supervisor without an answer asks for ``roll back`` while a step still runs: the running step ends first.
        """
        async with self._stepping:
            return await self._take_step(step, settings)

    async def _take_step(self, step: str, settings: Settings | None) -> list[str]:
        """Do what ``step`` names; the caller holds the lock. Only "prepare" and "try" have settings."""
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
        """Use the prepared settings. Returns remarks. Raises GatewayError when the broker refuses a filter: then call
        ``roll_back``."""
        assert self._next is not None
        before, after = self._now, self._next
        self._before, self._now, self._next = before, after, None
        return await self._exchange(before, after)

    async def finish(self) -> list[str]:
        """Unsubscribe the filters that no route names. Returns remarks; raises nothing because of the settings."""
        assert self._before is not None
        before, self._before = self._before, None
        await self._leave_former_filters()
        await self._worker.finish_reload(before.settings)
        self._worker.kafka.settle()
        return []

    async def roll_back(self) -> None:
        """Return to the settings before ``commit``, whether that succeeded or not. Raises GatewayError."""
        assert self._before is not None
        failed, before = self._now, self._before
        self._now, self._before = before, None
        before.altered = frozenset(chain.route for chain in (*failed.chains, *before.chains))
        await self._exchange(failed, before)
        await self._leave_former_filters()
        self._worker.kafka.settle()

    async def _leave_former_filters(self) -> None:
        """Unsubscribe filters that no route names, and close the former generation's interceptors."""
        for name, error in (await self._worker.mqtt.unsubscribe_stale()).items():
            log.warning("filters_not_left", session=name, error=str(error), retried="at its next connect")
        if self._closing is not None:
            self._closing.close()
            self._closing = None

    # --- the exchange ------------------------------------------------------------------------------

    async def _exchange(self, before: _Generation, after: _Generation) -> list[str]:
        """Exchange one generation for another. No message comes before the first ``await``. Returns remarks."""
        worker, mqtt = self._worker, self._worker.mqtt
        holds = mqtt.holding()
        intercepted = frozenset(chain.route for chain in (*before.chains, *after.chains))
        earlier = [route for _, router in before.older for route in router.routes]
        move = moved(
            before.router.routes,
            after.router.routes,
            earlier,
            altered=after.altered,
            intercepted=intercepted,
            stopped=holds,
        )
        mqtt.hold(move)
        worker.kafka.seal()
        after.older = _older(before, after.router)
        after.router.before([router for _, router in after.older])
        former = frozenset(name for _, router in after.older for name in _names(router)) - _names(after.router)
        self._closing = after.chains.succeed(before.chains, former)
        worker.adopt(after.settings, after.router, after.chains)
        mqtt.sort_held()
        mqtt.release(holds - move)
        log.info("settings_exchanged", held_routes=sorted(move), former_routes=sorted(former))
        subscribing = asyncio.ensure_future(self._subscribe())
        try:
            remarks = await self._release_when_durable(move)
        finally:
            await asyncio.wait([subscribing])
        return [*remarks, *subscribing.result()]

    async def _release_when_durable(self, names: frozenset[str]) -> list[str]:
        """Release the held routes, once every message received before is durable. Returns remarks."""
        if not names:
            return []
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._worker.mqtt.wait_until_durable()
        except TimeoutError:
            late = (
                f"What was taken before was not all written after {PATIENCE_S:g} s, so the routes "
                f"{', '.join(sorted(names))} go on beside it: where their messages go to another partition than "
                "before, they may come to stand before older ones."
            )
            return [late]
        finally:
            self._worker.mqtt.release(names)
        return []

    async def _subscribe(self) -> list[str]:
        """Subscribe every session to what its routes ask for now. Returns remarks; raises GatewayError."""
        answers = await self._worker.mqtt.subscribe()
        errors = [answer for answer in answers.values() if isinstance(answer, BaseException)]
        for error in errors:
            if not isinstance(error, GatewayError | OSError):
                raise error
        if errors:
            raise ReloadError(str(errors[0]))
        away = [name for name, connected in answers.items() if not connected]
        return [f"Session {', '.join(away)} is not connected; it subscribes when it is."] if away else []


def _names(router: Router) -> frozenset[str]:
    return frozenset(route.name for route in router.routes)


def _older(before: _Generation, router: Router) -> tuple[tuple[float, Router], ...]:
    """The routers behind a new one: young enough, with filters that no later one has; each with its time of leaving.

    Their number is bounded by the different filters within ``FORMER_S``, however often settings are read.
    """
    now_s = time.monotonic()
    later = [router]
    kept: list[tuple[float, Router]] = []
    for left_s, older in ((now_s, before.router), *before.older):
        wanted = [text for route in older.routes for text in route.filters]
        for one in later:
            wanted = one.uncovered(wanted)
        if wanted and now_s - left_s <= FORMER_S:
            later.append(older)
            kept.append((left_s, older))
    return tuple(kept)


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
    """Close the chains that the living generation does not use."""
    kept = set(map(id, living))
    Chains({chain.route: chain for chain in chains if id(chain) not in kept}).close()


def _text(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
