"""The run of one worker from start to end: signals, reloads, and the last lines of its log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from gateway.base.lifecycle import State, StopReport, StopRequest
from gateway.base.process import memory
from gateway.base.process.held_signals import let_in
from gateway.base.signals import StopSignals
from gateway.worker.facts import say_what_is_left
from gateway.worker.reload import Reloader
from gateway.worker.worker import Worker

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.supervisor.member import Membership
    from gateway.worker.reload_alone import AloneReload

log = structlog.get_logger("worker")


async def run_worker(
    settings: Settings,
    membership: Membership | None = None,
    *,
    retiring: bool = False,
    reload: Callable[[], AloneReload] | None = None,
) -> tuple[StopReport, StopSignals]:
    """Run a worker until a signal, a failure or its supervisor ends it. A ``retiring`` one ends when its slot is empty.

    ``reload`` handles SIGHUP where no supervisor does. Raises the error that the worker failed with.
    """
    stop = StopRequest()
    alone = None if reload is None else reload()
    # systemd signals every process of a service: the supervisor's own signal is then a worker's second.
    signals = StopSignals(
        stop, None if alone is None else alone.ask, forces=lambda: membership is None or membership.is_orphan
    )
    with signals, let_in():
        try:
            worker = Worker(settings, stop, membership, retiring=retiring)
        except Exception as error:
            if membership is not None:
                membership.failed(error)
            raise
        for warning in worker.mqtt.router.warnings:
            log.warning("routes_doubtful", warning=warning)
        worker.service.lifecycle.listen(partial(_on_state, membership))
        if membership is not None:
            await membership.open(stop, worker.answers, Reloader(worker).step, worker.progress)
        if alone is not None:
            alone.attach(worker)
        try:
            report = await worker.service.run(stop)
        except Exception as error:
            if membership is not None:
                membership.failed(error)
            raise
        finally:
            if alone is not None:
                await alone.close()
            say_what_is_left(worker)
            worker.mqtt.chains.close()
    left = worker.ledger.snapshot()
    if membership is not None:
        membership.stopped(left.returned)
    log.info("worker_stopped", ledger=str(left), clean=report.clean)
    return report, signals


def _on_state(membership: Membership | None, _old: State, new: State) -> None:
    """The life cycle's listener: reports the worker ready, to a supervisor if there is one."""
    if new is State.RECOVERY:
        memory.freeze_loaded_objects()  # before a session brings messages, which would wait for it
    elif new is State.RUNNING:
        log.info("worker_ready")
        if membership is not None:
            membership.ready()
