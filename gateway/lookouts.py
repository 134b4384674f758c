"""What a worker looks at from outside, where settings ask for it: EMQX's account of its sessions, and the canary.

Nothing of either is loaded where no setting asks for it.
"""

from __future__ import annotations

__all__ = ["Lookouts"]

import asyncio
from typing import TYPE_CHECKING

from gateway.data_directory import emqx_path
from gateway.lifecycle import State

if TYPE_CHECKING:
    from gateway.canary.canary import Canary
    from gateway.emqx.watch import EmqxWatch
    from gateway.lifecycle import Component, Lifecycle
    from gateway.worker import Worker


class Lookouts:
    """Of one worker, none where it retires. What they find is among the problems of the worker's health."""

    def __init__(self, worker: Worker, lifecycle: Lifecycle) -> None:
        self.emqx = None if not worker.sessions else _emqx(worker)
        self.canary = None if not worker.sessions else _canary(worker, lifecycle)
        for one in (self.emqx, self.canary):
            if one is not None:
                worker.observation.sources.append(one.problems)

    @property
    def core(self) -> tuple[Component, ...]:
        """What is started before the sessions and stopped after them."""
        return () if self.emqx is None else (self.emqx,)

    @property
    def intake(self) -> tuple[Component, ...]:
        """What is started and stopped with the sessions."""
        return () if self.canary is None else (self.canary,)

    def facts(self) -> dict[str, object]:
        """For /status; null where there is none. Does not block."""
        return {
            "emqx": None if self.emqx is None else self.emqx.facts(),
            "canary": None if self.canary is None else self.canary.facts(),
        }


def _emqx(worker: Worker) -> EmqxWatch | None:
    settings = worker.settings
    if settings.emqx.url is None:
        return None
    from gateway.emqx.watch import EmqxWatch

    return EmqxWatch(
        settings.emqx,
        [(session.plan.name, session.plan.client_id) for session in worker.sessions],
        worker.metrics,
        emqx_path(settings.data_dir, settings.worker),
        whole_cluster=settings.worker == 0,
    )


def _canary(worker: Worker, lifecycle: Lifecycle) -> Canary | None:
    settings = worker.settings
    if not settings.canary.enabled or settings.worker != 0:
        return None
    from bridge.kafka_login import KafkaLogin
    from gateway.canary.canary import Canary

    go = asyncio.Event()

    def on_state(_old: State, new: State) -> None:
        if new is State.RUNNING:
            go.set()

    lifecycle.listen(on_state)
    return Canary(
        settings,
        router=worker.router,
        metrics=worker.metrics,
        mqtt_login=worker.mqtt_login,
        kafka_login=KafkaLogin(settings.kafka, worker.outward.kafka),
        go=go,
    )
