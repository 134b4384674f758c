"""What a worker looks at from outside, where settings ask for it: EMQX's account of its sessions, the canary, and the
consumers of what it delivers.

Nothing of any is loaded where no setting asks for it. When settings change while the worker runs, each is made anew
if it is concerned: their connections are no session that carries messages.
"""

from __future__ import annotations

__all__ = ["Lookouts"]

import asyncio
import time
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from config.loading.live import same
from gateway.base.lifecycle import State
from gateway.data_dir.directory import emqx_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from config.settings import Settings
    from gateway.admin.watch import GroupWatch
    from gateway.base.lifecycle import Component, Lifecycle
    from gateway.base.problem import Problem
    from gateway.components.worker_view import WorkerView
    from gateway.health.canary.canary import Canary
    from gateway.health.emqx.watch import EmqxWatch

_PATIENCE_NS: Final = 2_000_000_000  # for one to end that another takes the place of


class _Lookout(Protocol):
    async def start(self) -> None: ...

    async def stop(self, deadline_ns: int) -> None: ...

    def facts(self) -> dict[str, object]: ...

    def problems(self) -> Iterable[Problem]: ...


L = TypeVar("L", bound=_Lookout)


class _Seat(Generic[L]):
    """A component of the service: whatever looks from here at the moment, or nothing."""

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
        """Let another take over, made from the settings of now. Nothing before the start."""
        if not self._started:
            return
        if self.holder is not None:
            await self.holder.stop(time.monotonic_ns() + _PATIENCE_NS)
            if not self._started:
                return  # the worker stops, and has stopped this one too
        self.holder = self._make()
        if self.holder is not None:
            await self.holder.start()

    def facts(self) -> dict[str, object] | None:
        return None if self.holder is None else self.holder.facts()

    def problems(self) -> Iterable[Problem]:
        return () if self.holder is None else self.holder.problems()


class Lookouts:
    """Of one worker, none where it retires. What they find is among the problems of the worker's health."""

    def __init__(self, worker: WorkerView, lifecycle: Lifecycle) -> None:
        self._worker = worker
        self._emqx: _Seat[EmqxWatch] = _Seat("emqx watch", lambda: _emqx(worker))
        self._canary: _Seat[Canary] = _Seat("canary", lambda: _canary(worker, lifecycle))
        self._consumers: _Seat[GroupWatch] = _Seat("consumer watch", lambda: _consumers(worker))

    @property
    def canary(self) -> Canary | None:
        """The one that goes the whole way just now."""
        return self._canary.holder

    @property
    def emqx(self) -> EmqxWatch | None:
        """The one that looks into EMQX just now."""
        return self._emqx.holder

    @property
    def core(self) -> tuple[Component, ...]:
        """What is started before the sessions and stopped after them."""
        return (self._emqx, self._consumers)

    @property
    def intake(self) -> tuple[Component, ...]:
        """What is started and stopped with the sessions."""
        return (self._canary,)

    def problems(self) -> Iterable[Problem]:
        """What they find just now."""
        yield from self._emqx.problems()
        yield from self._canary.problems()
        yield from self._consumers.problems()

    async def adopt(self, before: Settings) -> None:
        """The worker's settings are others than ``before``: make anew what that concerns."""
        after = self._worker.settings
        if not same(before.emqx, after.emqx):
            self._worker.metrics.emqx_watched.child().value = 0
            await self._emqx.renew()
        # Its messages take the way of everybody's: through a route, to a topic.
        if not (same(before.canary, after.canary) and same(before.routes, after.routes)):
            self._worker.metrics.canary_enabled.child().value = 0
            await self._canary.renew()

        if not same(before.admin, after.admin):
            await self._consumers.renew()

    def facts(self) -> dict[str, object]:
        """For /status; null where there is none. Does not block."""
        return {"emqx": self._emqx.facts(), "canary": self._canary.facts(), "consumers": self._consumers.facts()}


def _emqx(worker: WorkerView) -> EmqxWatch | None:
    settings = worker.settings
    if settings.emqx.url is None or not worker.sessions:
        return None
    from gateway.health.emqx.watch import EmqxWatch

    return EmqxWatch(
        settings.emqx,
        [(session.plan.name, session.plan.client_id) for session in worker.sessions],
        worker.metrics,
        emqx_path(settings.data_dir, settings.worker),
        worker=settings.worker,
        lost=worker.lost_sessions,
        own_unheard=lambda: sum(session.unheard for session in worker.sessions),
    )


def _canary(worker: WorkerView, lifecycle: Lifecycle) -> Canary | None:
    settings = worker.settings
    if not settings.canary.enabled or settings.worker != 0 or not worker.sessions:
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
        router=lambda: worker.router,
        metrics=worker.metrics,
        mqtt_login=worker.mqtt_login,
        kafka_login=worker.kafka_login,
        go=go,
    )


def _consumers(worker: WorkerView) -> GroupWatch | None:
    settings = worker.settings
    if not settings.admin.watch_groups or settings.worker != 0:
        return None
    from gateway.admin.watch import GroupWatch

    return GroupWatch(settings, worker.metrics)
