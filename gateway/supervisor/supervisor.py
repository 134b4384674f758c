"""The process above the workers: it starts them, does what signals ask, and ends when they have ended.

    SIGTERM, SIGINT    stop, keeping the MQTT sessions; a second one stops at once
    SIGUSR1            stop for good: every worker unsubscribes, drains and ends its sessions
    SIGUSR2            replace the workers one after the other
    SIGHUP             read the settings again and replace the workers with such as have them

It carries no message, so whatever a worker does, this process goes on; and if it is killed the workers notice and stop
in good order, so that the next supervisor finds their slots free.
"""

from __future__ import annotations

__all__ = ["Supervisor", "supervise"]

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING, Final, Literal, Self

import structlog

from config.errors import ConfigError, ExitStatus
from gateway import logs, memory
from gateway.http import HttpServer
from gateway.lifecycle import StopRequest
from gateway.signals import StopSignals
from gateway.supervisor.answers import FleetAnswers
from gateway.supervisor.cpu import worker_count
from gateway.supervisor.fleet import Fleet
from gateway.supervisor.metrics import SupervisorMetrics
from gateway.supervisor.place import Place
from gateway.supervisor.process import Reaper, Spawner

if TYPE_CHECKING:
    from collections.abc import Callable

    from config.load import Loaded
    from config.settings import Settings
    from gateway.supervisor.fleet import Stopped

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("supervisor")

Operation = Literal["restart", "reload"]
_OPERATIONS: Final[dict[signal.Signals, Operation]] = {signal.SIGUSR2: "restart", signal.SIGHUP: "reload"}


class _Logs:
    """How this process logs, which a reload may change."""

    def __init__(self) -> None:
        self._undo: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._undo is not None:
            self._undo()

    def configure(self, settings: Settings) -> None:
        """The supervisor's lines carry ``worker = "supervisor"``, where a worker's have its number."""
        if self._undo is not None:
            self._undo()
        self._undo = logs.configure(settings.log, context={"instance": settings.instance, "worker": "supervisor"})


class Supervisor:
    """One run of it. Make it inside the running loop."""

    def __init__(
        self, loaded: Loaded, load: Callable[[], Loaded], place: Place, spawner: Spawner, own_logs: _Logs
    ) -> None:
        settings = self._settings = loaded.settings
        self._load = load
        self._logs = own_logs
        _warn(loaded)
        self._place = place
        self.fleet = Fleet(spawner, settings)
        self._metrics = SupervisorMetrics()
        self._metrics.last_reload.child().value = time.time()
        self._doing = "running"
        self._http = HttpServer(settings.http, FleetAnswers(self.fleet, self._metrics, lambda: self._doing), page=True)
        self._asked: asyncio.Queue[Operation] = asyncio.Queue()

    def ask(self, operation: Operation) -> None:
        """Has it done after what is being done now; several wishes for the same are one."""
        waiting = operation in self._asked._queue  # type: ignore[attr-defined]  # noqa: SLF001
        _log.info("operation_asked", operation=operation, waiting=waiting)
        if not waiting:
            self._asked.put_nowait(operation)

    async def run(self, stop: StopRequest) -> Stopped:
        """Until ``stop`` is requested. Raises what ends a gateway at its first start, after everything has stopped."""
        operator: asyncio.Task[None] | None = None
        wanted = asyncio.create_task(stop.wait_requested(), name="stop")
        try:
            await self._http.start()
            count = worker_count(self._settings)
            _log.info("supervisor_started", workers=count)
            self.fleet.start(count)
            operator = asyncio.create_task(self._operate(), name="operator")
            await self._http.answering()
            memory.settle()
            waiting: set[asyncio.Future[None]] = {wanted, self.fleet.failed, operator}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if operator.done():
                operator.result()  # a defect of ours
        finally:
            wanted.cancel()
            if operator is not None:
                await _end(operator)
            stopped = await self._stop(stop)
        if self.fleet.failed.done():
            self.fleet.failed.result()
        return stopped

    async def _stop(self, stop: StopRequest) -> Stopped:
        stop.request()
        self._doing = "stopping"
        self._place.begin("stop")
        _log.info("supervisor_stopping", verb=stop.verb.value)
        stopping = asyncio.create_task(self.fleet.stop(stop.verb), name="stop workers")
        forced = asyncio.create_task(stop.wait_forced(), name="forced")
        await asyncio.wait({stopping, forced}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            self.fleet.hasten()
        stopped = await stopping
        await _end(forced)
        await self._http.stop(time.monotonic_ns())
        self._place.finish("stop", " ".join(stopped.remarks) or None, "All workers have stopped; nothing remained.")
        _log.info("supervisor_stopped", clean=stopped.clean, remained=stopped.remarks)
        return stopped

    # --- what signals ask for ---

    async def _operate(self) -> None:
        while True:
            operation = await self._asked.get()
            self._doing = "restarting" if operation == "restart" else "reloading"
            self._place.begin(operation)
            began = time.monotonic()
            problem = await (self._restart() if operation == "restart" else self._reload())
            done = f"All {len(self.fleet.slots)} workers were replaced in {time.monotonic() - began:.1f} s."
            self._place.finish(operation, problem, done)
            self._doing = "running"
            if problem is None:
                _log.info("restart_done" if operation == "restart" else "reload_done", workers=len(self.fleet.slots))
            else:
                _log.error("restart_failed" if operation == "restart" else "reload_failed", error=problem)

    async def _restart(self) -> str | None:
        problem = await self.fleet.roll(self.fleet.settings)
        return problem and f"The workers were not all replaced: {problem}"

    async def _reload(self) -> str | None:
        problem = await self._reload_settings()
        self._metrics.reload_success.child().value = int(problem is None)
        if problem is None:
            self._metrics.last_reload.child().value = time.time()
            return None
        return f"The settings stay as they were: {problem}"

    async def _reload_settings(self) -> str | None:
        try:
            loaded = await asyncio.to_thread(self._load)
            settings = loaded.settings
            count = _check_change(self.fleet.settings, settings)
        except ConfigError as error:
            return str(error)
        _warn(loaded)
        problem = await self.fleet.roll(settings)
        if problem is None:
            self._logs.configure(settings)
            await self.fleet.scale(count)
        return problem


def _warn(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        _log.warning("settings.doubtful", warning=warning)


def _check_change(before: Settings, after: Settings) -> int:
    """The new number of workers. Raises ConfigError for what a running supervisor cannot change."""
    fixed: list[tuple[str, object, object]] = [
        ("instance", before.instance, after.instance),
        ("data_dir", before.data_dir, after.data_dir),
        ("http.host", before.http.host, after.http.host),
        ("http.port", before.http.port, after.http.port),
    ]
    problems = [
        f"{name} was {old} and is {new} now, which takes effect at a start only: stop the gateway and start it again."
        for name, old, new in fixed
        if old != new
    ]
    count = worker_count(after)
    if count == 0:
        problems.append("workers is 0 now, which means no supervisor: stop the gateway and start it again.")
    if problems:
        raise ConfigError(*problems)
    return count


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


async def supervise(loaded: Loaded, load: Callable[[], Loaded]) -> tuple[ExitStatus, StopSignals]:
    """Run workers until a signal ends them; ``load`` reads the settings again, blocking, and raises ConfigError.

    Raises PlaceError, HttpPortError, and VainError at the first start.
    """
    settings = loaded.settings
    stop = StopRequest()
    loop = asyncio.get_running_loop()
    with (
        _Logs() as own_logs,
        StopSignals(stop) as signals,
        Place(settings.data_dir, settings.instance) as place,
        Reaper() as reaper,
    ):
        own_logs.configure(settings)
        supervisor = Supervisor(loaded, load, place, Spawner(reaper), own_logs)
        for number, operation in _OPERATIONS.items():
            loop.add_signal_handler(number, supervisor.ask, operation)
        try:
            stopped = await supervisor.run(stop)
        finally:
            for number in _OPERATIONS:
                loop.remove_signal_handler(number)
    return (ExitStatus.OK if stopped.clean else ExitStatus.UNDRAINED), signals
