"""Reloads of a worker without a supervisor (``workers = 0``): SIGHUP starts the same plan and the same steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from bridge.waiting import Asked, end_tasks
from config.error_words import words
from config.errors import ExitStatus, GatewayError
from gateway.base.reload_plan import Wish
from gateway.base.reload_state import ConfigState
from gateway.base.reports import Reports, take_request
from gateway.worker.reload import Reloader

if TYPE_CHECKING:
    from config.loading.load import Loaded
    from config.settings import Settings
    from gateway.worker.worker import Worker

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("reload")


class AloneReload:
    """The reloads of one run. Make it inside the event loop.

    ``load`` reads the settings again; it blocks, and raises ConfigError.
    """

    def __init__(self, loaded: Loaded, load: Callable[[], Loaded]) -> None:
        settings = loaded.settings
        self._load = load  # reads the settings again; blocks
        self._who = f"worker-{settings.worker}.reload"
        self._directory = settings.data_dir
        self._reports = Reports(settings.data_dir, self._who)
        self.state = ConfigState(loaded.file)
        self._asked: Asked[Wish] = Asked()
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Request a reload, by the request of the signal. Repeated signals without one count once."""
        wish = take_request(self._directory, self._who)
        _log.info("operation_asked", operation="reload", dry_run=wish.dry_run)
        self._asked.put(wish)

    def attach(self, worker: Worker) -> None:
        worker.show_config(self.state)
        self._task = asyncio.create_task(self._run(worker, Reloader(worker)), name="reload")

    async def close(self) -> None:
        """Accept no further requests."""
        await end_tasks(self._task)

    async def _run(self, worker: Worker, reloader: Reloader) -> None:
        """Do each reload that is asked for and report it, until cancelled."""
        while True:
            wish = await self._asked.get()
            self._reports.begin("reload", wish.number)
            try:
                problem, done, details = await self._reload(worker, reloader, wish)
            except Exception as error:  # noqa: BLE001 - a defect of ours: the caller gets it, and the worker goes on
                _log.exception("reload_step_failed")
                problem = f"The reload failed by a defect ({words(error)}): see its traceback in the log."
                done, details = "", {"status": int(ExitStatus.FAILED)}
            self.state.ended(wish, problem)
            self._reports.finish("reload", problem, done, **details)
            if problem is None:
                _log.info("reload_done", what=done)
            else:
                _log.error("reload_failed", error=problem)

    async def _reload(self, worker: Worker, reloader: Reloader, wish: Wish) -> tuple[str | None, str, dict[str, Any]]:
        """Returns the problem or None, what was done, and the report's details."""
        if wish.rolling:
            return "Without a supervisor (workers = 0) there is nobody to replace this worker.", "", {}

        async def use(settings: Settings) -> tuple[str | None, list[str]]:
            remarks: list[str] = []
            try:
                remarks += await reloader.prepare(settings, dry_run=wish.dry_run)
                if wish.dry_run:
                    reloader.discard()
                else:
                    await _commit(reloader, remarks)
            except GatewayError as error:
                return str(error), remarks
            return None, remarks

        return await self.state.reload(wish, self._load, worker.settings, 1, use)


async def _commit(reloader: Reloader, remarks: list[str]) -> None:
    """Use the prepared settings, or roll back and raise. Adds to ``remarks``."""
    try:
        remarks += await reloader.commit()
    except Exception:  # a defect of ours too: half of the settings is worse than the old ones
        await reloader.roll_back()
        raise
    remarks += await reloader.finish()
