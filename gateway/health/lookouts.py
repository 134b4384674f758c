"""The watches of a worker: EMQX's counts of its sessions, the canary, and the consumers of its topics.

Only configured watches are loaded. A reload replaces the watches whose settings changed; their connections carry no
messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from config.loading.live import same
from gateway.base.lifecycle import Component, Lifecycle, State
from gateway.data_dir.directory import emqx_path

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.admin.watch import GroupWatch
    from gateway.base.problem import Problem
    from gateway.components.worker_view import WorkerView
    from gateway.health.canary.canary import Canary
    from gateway.health.emqx.watch import EmqxWatch

_PATIENCE_NS: Final = 2_000_000_000  # to stop a replaced watch


class _Lookout(Protocol):
    async def start(self) -> None: ...

    async def stop(self, deadline_ns: int) -> None: ...

    def facts(self) -> dict[str, object]: ...

    def problems(self) -> Iterable[Problem]: ...


L = TypeVar("L", bound=_Lookout)


class _Seat(Generic[L]):
    """A component of the service with the present watch, or none."""

    def __init__(self, name: str, make: Callable[[], L | None]) -> None:
        self.name = name
        self._make = make
        self.holder = make()
        self._started = False

    async def start(self) -> None:
        self._started = True
        if self.holder is not None:
            await self.holder.start()

    async def stop(self, deadline_ns: int) -> None:
        self._started = False
        if self.holder is not None:
            await self.holder.stop(deadline_ns)

    async def renew(self) -> None:
        """Replace the watch by one with the present settings. Does nothing before the start."""
        if not self._started:
            return
        if self.holder is not None:
            await self.holder.stop(time.monotonic_ns() + _PATIENCE_NS)
            if not self._started:
                return  # the worker has stopped the watch meanwhile
        self.holder = self._make()
        if self.holder is not None:
            await self.holder.start()

    def facts(self) -> dict[str, object] | None:
        return None if self.holder is None else self.holder.facts()

    def problems(self) -> Iterable[Problem]:
        return () if self.holder is None else self.holder.problems()


class Lookouts:
    """The watches of one worker; a retiring worker has none. Their problems are problems of the worker."""

    def __init__(self, worker: WorkerView, lifecycle: Lifecycle) -> None:
        self._worker = worker
        self._emqx: _Seat[EmqxWatch] = _Seat("emqx watch", lambda: _make_emqx_watch(worker))
        self._canary: _Seat[Canary] = _Seat("canary", lambda: _make_canary(worker, lifecycle))
        self._consumers: _Seat[GroupWatch] = _Seat("consumer watch", lambda: _make_group_watch(worker))

    @property
    def core(self) -> tuple[Component, ...]:
        """Components that start before the sessions and stop after them."""
        return (self._emqx, self._consumers)

    @property
    def intake(self) -> tuple[Component, ...]:
        """Components that start and stop with the sessions."""
        return (self._canary,)

    def problems(self) -> Iterable[Problem]:
        yield from self._emqx.problems()
        yield from self._canary.problems()
        yield from self._consumers.problems()

    async def adopt(self, before: Settings) -> None:
        """Replace the watches whose settings differ from ``before``."""
        after = self._worker.settings
        if not same(before.emqx, after.emqx):
            self._worker.metrics.emqx_watched.child().value = 0
            await self._emqx.renew()
        # The canary's messages take a route.
        if not (same(before.canary, after.canary) and same(before.routes, after.routes)):
            self._worker.metrics.canary_enabled.child().value = 0
            await self._canary.renew()
        # The consumers' login is that of [kafka], unless [admin] has one of its own.
        if not (same(before.admin, after.admin) and same(before.kafka.sasl, after.kafka.sasl)):
            await self._consumers.renew()

    def facts(self) -> dict[str, object]:
        """For /status; null for a missing watch. Does not block."""
        return {"emqx": self._emqx.facts(), "canary": self._canary.facts(), "consumers": self._consumers.facts()}


def _make_emqx_watch(worker: WorkerView) -> EmqxWatch | None:
    """A new watch; None without ``emqx.url`` or MQTT sessions."""
    settings = worker.settings
    if settings.emqx.url is None or not worker.mqtt.sessions:
        return None
    from gateway.health.emqx.watch import EmqxWatch

    return EmqxWatch(
        settings.emqx,
        [(session.plan.name, session.plan.client_id) for session in worker.mqtt.sessions],
        worker.metrics,
        emqx_path(settings.data_dir, settings.worker),
        worker=settings.worker,
        lost=worker.lost_sessions,
        own_unheard=lambda: sum(session.unheard for session in worker.mqtt.sessions),
    )


def _make_canary(worker: WorkerView, lifecycle: Lifecycle) -> Canary | None:
    """A new canary; None unless this is worker 0, with MQTT sessions, and it is enabled."""
    settings = worker.settings
    if not settings.canary.enabled or settings.worker != 0 or not worker.mqtt.sessions:
        return None
    from gateway.health.canary.canary import Canary

    go = asyncio.Event()
    if lifecycle.state is State.RUNNING:
        go.set()

    def on_state(_old: State, new: State) -> None:
        if new is State.RUNNING:
            go.set()

    if not go.is_set():
        lifecycle.listen(on_state)
    return Canary(
        settings,
        router=lambda: worker.mqtt.router,
        metrics=worker.metrics,
        mqtt_login=worker.mqtt.login,
        kafka_login=worker.kafka.login,
        go=go,
    )


def _make_group_watch(worker: WorkerView) -> GroupWatch | None:
    """A new watch of consumer groups; None unless this is worker 0, and it is enabled."""
    settings = worker.settings
    if not settings.admin.watch_groups or settings.worker != 0:
        return None
    from gateway.admin.watch import GroupWatch

    return GroupWatch(settings, worker.metrics)
