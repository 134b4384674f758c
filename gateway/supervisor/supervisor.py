"""The process above the workers: it starts them, handles signals, and ends after them.

    SIGTERM, SIGINT    stop, keeping the MQTT sessions; a second one stops at once
    SIGUSR1            retire: every worker unsubscribes, drains and ends its sessions
    SIGUSR2            replace the workers one after the other
    SIGHUP             read the settings again and apply them in the running workers; with a request of
                       ``gateway restart --reload`` replace the workers by new ones with these settings

It carries no message, so a failing worker does not affect it. If it is killed, the workers stop in order, and the next
supervisor finds their slots free.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from bridge.waiting import Asked, end_tasks
from config.errors import ConfigError, ExitStatus
from config.loading.load import Loaded
from config.settings import Settings
from gateway.base import logs
from gateway.base.lifecycle import StopRequest
from gateway.base.process import memory
from gateway.base.process.held_signals import let_in
from gateway.base.reload_plan import Wish
from gateway.base.reload_state import ConfigState
from gateway.base.reports import Operation, Reports, take_request
from gateway.base.signals import StopSignals
from gateway.http.server import HttpServer
from gateway.supervisor.answers import FleetAnswers
from gateway.supervisor.cpu import worker_count
from gateway.supervisor.fleet import Fleet, Stopped
from gateway.supervisor.metrics import SupervisorMetrics
from gateway.supervisor.place import NAME, held_place
from gateway.supervisor.prefork import Prepared
from gateway.supervisor.process import Reaper, Spawner
from gateway.supervisor.reload import FleetReload

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("supervisor")


class Supervisor:
    """One run of it. Make it inside the running loop."""

    def __init__(
        self,
        loaded: Loaded,
        load: Callable[[], Loaded],
        reports: Reports,
        spawner: Spawner,
        own_logs: contextlib.ExitStack,
    ) -> None:
        settings = self._settings = loaded.settings
        self._load = load  # reads the settings again; blocks
        self._logs = own_logs
        _warn(loaded)
        self._reports = reports
        self.fleet = Fleet(spawner, settings)
        self._metrics = SupervisorMetrics()
        self._doing = "running"
        self.config = ConfigState(loaded.file)
        self._metrics.watch_config(self.config)
        self._http = HttpServer(
            settings.http,
            FleetAnswers(self.fleet, self._metrics, lambda: self._doing, self.config),
            page=True,
        )
        self._asked: Asked[Wish | None] = Asked()  # None: a restart

    def ask_restart(self) -> None:
        """Request a replacement of the workers after the present operation; repeated requests count once."""
        self._asked.put(None)
        _log.info("operation_asked", operation="restart")

    def ask_reload(self) -> None:
        """Request a reload, by the request of the signal, after the present operation. Repeated signals without one
        count once: with Kafka away a reload takes half a minute."""
        wish = take_request(self._settings.data_dir, NAME)
        _log.info("operation_asked", operation="roll" if wish.rolling else "reload", dry_run=wish.dry_run)
        self._asked.put(wish)

    async def run(self, stop: StopRequest) -> Stopped:
        """Runs until ``stop`` is requested. Raises the error of a failed first start after everything has stopped."""
        operator: asyncio.Task[None] | None = None
        wanted = asyncio.create_task(stop.wait_requested(), name="stop")
        try:
            await self._http.start()
            count = worker_count(self._settings)
            _log.info("supervisor_started", workers=count)
            self.fleet.start(count)
            operator = asyncio.create_task(self._operate(), name="operator")
            memory.freeze_loaded_objects()
            waiting: set[asyncio.Future[None]] = {wanted, self.fleet.failed, operator}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if operator.done():
                operator.result()  # a defect
        finally:
            wanted.cancel()
            self.fleet.keep_no_longer()
            await end_tasks(operator)
            stopped = await self._stop(stop)
        if self.fleet.failed.done():
            self.fleet.failed.result()
        return stopped

    async def _stop(self, stop: StopRequest) -> Stopped:
        """Stop all workers, and report how that went. A second signal ends them at once."""
        stop.request()
        self._doing = "stopping"
        self._reports.begin("stop")
        _log.info("supervisor_stopping", verb=stop.verb.value)
        stopping = asyncio.create_task(self.fleet.stop(stop.verb), name="stop workers")
        forced = asyncio.create_task(stop.wait_forced(), name="forced")
        await asyncio.wait({stopping, forced}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await self.fleet.hasten()
        stopped = await stopping
        await end_tasks(forced)
        await self._http.stop(time.monotonic_ns())
        self._reports.finish("stop", " ".join(stopped.remarks) or None, "All workers have stopped; nothing remained.")
        _log.info("supervisor_stopped", clean=stopped.clean, remained=stopped.remarks)
        return stopped

    # --- operations requested by signals ---

    async def _operate(self) -> None:
        """Do what is asked, one operation after another, until cancelled."""
        while True:
            wish = await self._asked.get()
            if wish is None:
                await self._restart()
            elif wish.rolling:
                await self._roll(wish)
            else:
                await self._reload(wish)
            self._doing = "running"

    async def _restart(self) -> None:
        """Replace the workers, one after another; the settings stay."""
        self._begin("restart", "restarting")
        began = time.monotonic()
        problem = await self.fleet.roll(self.fleet.settings)
        problem = problem and f"The workers were not all replaced: {problem}"
        self._finish("restart", problem, self._replaced(began))

    async def _roll(self, wish: Wish) -> None:
        """Applies changed settings by replacing the workers."""
        self._begin("roll", "reloading", wish)
        began = time.monotonic()
        problem = await self._roll_settings()
        self.config.ended(wish, problem)
        problem = problem and f"The settings stay as they were: {problem}"
        self._finish("roll", problem, self._replaced(began))

    async def _roll_settings(self) -> str | None:
        """Returns None, or why the settings stay."""
        try:
            loaded = await asyncio.to_thread(self._load)
            settings = loaded.settings
            count = _check_change(self.fleet.settings, settings)
        except ConfigError as error:
            return str(error)
        _warn(loaded)
        problem = await self.fleet.roll(settings, count)
        if problem is None:
            _configure_logs(self._logs, settings)
            self._http.adopt(settings.http)
            self.config.took(loaded.file)
            await self.fleet.scale(count)
        return problem

    async def _reload(self, wish: Wish) -> None:
        """Applies changed settings in the running workers."""
        self._begin("reload", "reloading", wish)

        async def use(settings: Settings) -> tuple[str | None, list[str]]:
            reload = FleetReload(self.fleet, settings)
            problem = await reload.run(dry_run=wish.dry_run)
            if problem is None and not wish.dry_run:
                _configure_logs(self._logs, settings)
                self._http.adopt(settings.http)
            return problem, reload.remarks

        problem, done, details = await self.config.reload(
            wish, self._load, self.fleet.settings, len(self.fleet.slots), use
        )
        self.config.ended(wish, problem)
        self._finish("reload", problem, done, **details)

    def _begin(self, operation: Operation, doing: str, wish: Wish | None = None) -> None:
        self._doing = doing
        self._reports.begin(operation, wish.number if wish is not None else 0)

    def _finish(self, operation: Operation, problem: str | None, done: str, **details: Any) -> None:
        """Report and log an operation's end: ``problem`` is None after success, ``done`` what it did."""
        self._reports.finish(operation, problem, done, **details)
        name = "restart" if operation == "restart" else "reload"
        if problem is None:
            _log.info(f"{name}_done", workers=len(self.fleet.slots), what=done, **_loggable(details))
        else:
            _log.error(f"{name}_failed", error=problem, **_loggable(details))

    def _replaced(self, began: float) -> str:
        return f"All {len(self.fleet.slots)} workers were replaced in {time.monotonic() - began:.1f} s."


def _loggable(details: dict[str, Any]) -> dict[str, Any]:
    """The fields of a log line, from the details of a report."""
    fields: dict[str, Any] = {}
    if changed := details.get("changes"):
        fields["changed"] = [change["path"] for change in changed]
    if remarks := details.get("remarks"):
        fields["remarks"] = remarks
    return fields


def _configure_logs(own: contextlib.ExitStack, settings: Settings) -> None:
    """The supervisor's lines have ``worker = "supervisor"``; a worker's have its number. ``own`` undoes it."""
    own.close()
    own.callback(logs.configure(settings.log, context={"instance": settings.instance, "worker": "supervisor"}))


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
    if before.http.tls != after.http.tls:
        problems.append("http.tls has changed, which takes effect at a start only: stop the gateway, then start it.")
    count = worker_count(after)
    if count == 0:
        problems.append("workers is 0 now, which means no supervisor: stop the gateway and start it again.")
    if problems:
        raise ConfigError(*problems)
    return count


async def supervise(
    loaded: Loaded, load: Callable[[], Loaded], prepared: Mapping[int, Prepared]
) -> tuple[ExitStatus, StopSignals]:
    """Run workers until a signal ends them; ``load`` reads the settings again, blocking, and raises ConfigError.
    ``prepared`` are the first workers. Also returns the signal handlers, by which the caller ends as the signal would.

    Raises PlaceError, HttpPortError, and VainError at the first start.
    """
    settings = loaded.settings
    stop = StopRequest()
    loop = asyncio.get_running_loop()
    with (
        contextlib.ExitStack() as own_logs,
        StopSignals(stop) as signals,
        held_place(settings.data_dir, settings.instance) as reports,
        Reaper() as reaper,
    ):
        _configure_logs(own_logs, settings)
        supervisor = Supervisor(loaded, load, reports, Spawner(reaper, prepared), own_logs)
        loop.add_signal_handler(signal.SIGUSR2, supervisor.ask_restart)
        loop.add_signal_handler(signal.SIGHUP, supervisor.ask_reload)
        try:
            with let_in():
                stopped = await supervisor.run(stop)
        finally:
            for number in (signal.SIGUSR2, signal.SIGHUP):
                loop.remove_signal_handler(number)
    return (ExitStatus.OK if stopped.clean else ExitStatus.UNDRAINED), signals
