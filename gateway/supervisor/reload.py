"""Changed settings for all running workers, or for none: a commit in two phases over their channels.

    prepare    if one worker cannot, the reload ends and nothing has changed
    commit     all at once, because the members of a new shared subscription should appear together
    roll back  all workers, if one could not commit
    finish     unsubscribe and close what the changed settings no longer need

A slot without a running worker gets the changed settings with its next one.
"""

import asyncio
import contextlib
from typing import Final

import structlog

from config.settings import Settings
from gateway.supervisor.fleet import Fleet
from gateway.supervisor.process import WorkerProcess, patience
from gateway.supervisor.slot import READY_S, Slot

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("supervisor")

# A worker without progress for that long hangs in its step: broker and Kafka have shorter time-outs.
_STEP_S: Final = 60.0


class FleetReload:
    """One reload. ``remarks`` collects the workers' remarks."""

    def __init__(self, fleet: Fleet, settings: Settings) -> None:
        self._fleet = fleet
        self._settings = settings
        self.remarks: list[str] = []

    async def run(self, *, dry_run: bool = False) -> str | None:
        """Returns None, or why nothing has changed. ``dry_run``: only try."""
        async with contextlib.AsyncExitStack() as stack:
            slots = list(self._fleet.slots.values())
            for slot in slots:
                await stack.enter_async_context(slot.changing)  # no other process gets the slot meanwhile
            problem = await self._run(slots, dry_run=dry_run)
        return problem  # noqa: RET504 - for mypy the stack might swallow an exception, and then there is nothing

    async def _run(self, slots: list[Slot], *, dry_run: bool) -> str | None:
        """Take all workers through the steps. Returns the first problem, or None."""
        running = await asyncio.gather(*(_running(slot) for slot in slots))
        workers = [worker for worker in running if isinstance(worker, WorkerProcess)]
        problems = [problem for problem in running if isinstance(problem, str)]
        problems = problems or await self._take_step(workers, "try" if dry_run else "prepare", self._settings)
        if problems or dry_run:
            await self._take_step(workers, "discard")
        elif problems := await self._take_step(workers, "commit"):
            await asyncio.gather(*map(_roll_back, workers))
        else:
            for worker in workers:
                worker.settings = self._settings.model_copy(update={"worker": worker.slot})
            self._fleet.adopt(self._settings)
            for slot in slots:
                slot.settings = self._settings
            # The settings are in use; a failure to finish is no reason to roll back.
            self.remarks += await self._take_step(workers, "finish")
        return next(iter(problems), None)

    async def _take_step(self, workers: list[WorkerProcess], step: str, settings: Settings | None = None) -> list[str]:
        """Has all workers take one step of the reload. Returns the sentences of those that failed."""
        answers = await asyncio.gather(*(worker.reload(step, settings, _STEP_S) for worker in workers))
        self.remarks += (remark for answer in answers for remark in answer.remarks if remark not in self.remarks)
        return [answer.sentence for answer in answers if answer.sentence is not None]


async def _roll_back(worker: WorkerProcess) -> None:
    """Give a worker its former settings back after a failed commit; kill it if that fails."""
    answer = await worker.reload("roll back", None, _STEP_S)
    if answer.sentence is not None and worker.alive:
        # Its next process has the former settings.
        _log.error("worker_not_rolled_back", slot=worker.slot, error=answer.sentence, consequence="killed")
        worker.kill()


async def _running(slot: Slot) -> WorkerProcess | str | None:
    """The slot's worker once it is ready; None if there is none; a sentence if it does not get ready."""
    process = slot.current
    if process is None or not process.alive:
        return None
    if await process.reached("ready", READY_S):
        return process
    if not process.alive:
        return None
    return (
        f"Worker {slot.number} is not ready {patience(READY_S)}, so it cannot be told; /readyz says what it waits for."
    )
