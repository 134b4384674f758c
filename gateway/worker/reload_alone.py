"""Reloads of a worker that has no supervisor (``workers = 0``): SIGHUP, the same plan, the same steps, one worker."""

from __future__ import annotations

__all__ = ["AloneReload"]

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import structlog

from config.error_words import words
from config.errors import ConfigError, ExitStatus, GatewayError
from gateway.base.reload_plan import plan_reload
from gateway.base.reload_state import ConfigState, details_of, say, status_of
from gateway.base.reports import Reports, take_request
from gateway.worker.reload import Reloader

if TYPE_CHECKING:
    from collections.abc import Callable

    from config.loading.load import Loaded
    from gateway.base.reload_plan import Wish
    from gateway.worker.worker import Worker

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("reload")


class AloneReload:
    """One run's. ``load`` reads the settings again, blocking, and raises ConfigError. Make it inside the loop."""

    def __init__(self, loaded: Loaded, load: Callable[[], Loaded]) -> None:
        settings = loaded.settings
        self._load = load
        self._who = f"worker-{settings.worker}"
        self._directory = settings.data_dir
        self._reports = Reports(settings.data_dir, f"{self._who}.reload")
        self.state = ConfigState(loaded.file)
        self._asked: asyncio.Queue[Wish] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """SIGHUP has come."""
        wish = take_request(self._directory, f"{self._who}.reload")
        _log.info("operation_asked", operation="reload", dry_run=wish.dry_run)
        self._asked.put_nowait(wish)

    def attach(self, worker: Worker) -> None:
        """Serve this worker from now on."""
        worker.show_config(self.state)
        self._task = asyncio.create_task(self._run(worker, Reloader(worker)), name="reload")

    async def close(self) -> None:
        """Take no more wishes."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, worker: Worker, reloader: Reloader) -> None:
        while True:
            wish = await self._asked.get()
            self._reports.begin("reload", wish.number)
            try:
                problem, done, details = await self._reload(worker, reloader, wish)
            except Exception as error:  # noqa: BLE001 - a defect of ours: who waits is told, and the worker goes on
                _log.exception("reload_step_failed")
                problem = f"The reload failed by a defect ({words(error)}): see its traceback in the log."
                done, details = "", {"status": int(ExitStatus.FAILED)}
            if not wish.dry_run:
                self.state.reloaded(problem)
                worker.metrics.reloaded(problem)
            self._reports.finish("reload", problem, done, **details)
            if problem is None:
                _log.info("reload_done", what=done)
            else:
                _log.error("reload_failed", error=problem)

    async def _reload(self, worker: Worker, reloader: Reloader, wish: Wish) -> tuple[str | None, str, dict[str, Any]]:
        if wish.rolling:
            return "Without a supervisor (workers = 0) there is nobody to replace this worker.", "", {}
        try:
            loaded = await asyncio.to_thread(self._load)
        except ConfigError as error:
            return str(error), "", {"status": int(ExitStatus.CONFIG)}
        details = details_of(worker.settings, loaded, wish)
        try:
            plan = plan_reload(worker.settings, loaded, wish)
        except ConfigError as error:
            return str(error), "", details | {"status": int(ExitStatus.CONFIG)}
        remarks = list(loaded.warnings)
        details["remarks"] = remarks
        try:
            remarks += await reloader.prepare(plan.settings, dry_run=wish.dry_run)
            if wish.dry_run:
                reloader.discard()
            else:
                await _commit(reloader, remarks)
                self.state.took(loaded.file)
        except GatewayError as error:
            return f"The settings stay as they were: {error}", "", details | {"status": int(ExitStatus.FAILED)}
        return None, say(plan, wish, 1), details | {"status": status_of(plan, wish)}


async def _commit(reloader: Reloader, remarks: list[str]) -> None:
    try:
        remarks += await reloader.commit()
    except Exception:  # a defect of ours too: half of the settings is worse than none
        await reloader.roll_back()
        raise
    remarks += await reloader.finish()
