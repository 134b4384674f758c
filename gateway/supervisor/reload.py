"""Changed settings for all running workers, or for none: a commit in two phases over their channels.

    prepare    one that cannot ends it, and nothing has changed
    commit     all at once, since the members of a new shared subscription should be there at once
    roll back  all, if one of them could not commit
    finish     what nobody wants any more is left

A slot whose worker does not run at the moment gets the new settings with its next one.
"""

from __future__ import annotations

__all__ = ["FleetReload"]

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import structlog

from gateway.supervisor.process import patience
from gateway.supervisor.slot import READY_S

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.supervisor.fleet import Fleet
    from gateway.supervisor.process import Reloaded, WorkerProcess
    from gateway.supervisor.slot import Slot

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("supervisor")

# A worker that gets on with nothing for so long hangs in its step: its broker and Kafka have shorter time-outs.
_STEP_S: Final = 60.0


class FleetReload:
    """One reload. ``remarks`` collects what workers have to say of it."""

    def __init__(self, fleet: Fleet, settings: Settings) -> None:
        self._fleet = fleet
        self._settings = settings
        self.remarks: list[str] = []

    async def run(self, *, dry_run: bool = False) -> str | None:
        """None, or why nothing has changed."""
        async with contextlib.AsyncExitStack() as stack:
            slots = list(self._fleet.slots.values())
            for slot in slots:
                await stack.enter_async_context(slot.changing)  # no other process gets into it meanwhile
            problem = await self._run(slots, dry_run=dry_run)
        return problem  # noqa: RET504 - for mypy the stack might swallow an exception, and then there is nothing

    async def _run(self, slots: list[Slot], *, dry_run: bool) -> str | None:
        running = await asyncio.gather(*(_running(slot) for slot in slots))
        workers = [worker for worker in running if isinstance(worker, Worker)]
        problem = next((answer for answer in running if isinstance(answer, str)), None)
        if problem is None:
            problem = await self._prepare(workers, dry_run=dry_run)
        if problem is not None or dry_run:
            await asyncio.gather(*(worker.step("discard") for worker in workers))
            return problem
        problem = await self._commit(workers)
        if problem is not None:
            return problem
        self._fleet.settings = self._settings
        for slot in slots:
            slot.settings = self._settings
        answers = await asyncio.gather(*(worker.step("finish") for worker in workers))
        self._note(answers)
        # The settings are in force; what could not be let go of is no reason to go back.
        self.remarks += (answer.sentence for answer in answers if answer.sentence is not None)
        return None

    async def _prepare(self, workers: list[Worker], *, dry_run: bool) -> str | None:
        step = "try" if dry_run else "prepare"
        answers = await asyncio.gather(*(worker.step(step, self._settings) for worker in workers))
        self._note(answers)
        return next((answer.sentence for answer in answers if answer.sentence is not None), None)

    async def _commit(self, workers: list[Worker]) -> str | None:
        answers = await asyncio.gather(*(worker.step("commit") for worker in workers))
        self._note(answers)
        problem = next((answer.sentence for answer in answers if answer.sentence is not None), None)
        if problem is not None:
            await asyncio.gather(*(self._roll_back(worker) for worker in workers))
            return problem
        for worker in workers:
            worker.process.settings = self._settings.model_copy(update={"worker": worker.process.slot})
        return None

    async def _roll_back(self, worker: Worker) -> None:
        answer = await worker.step("roll back")
        if answer.sentence is not None and worker.process.alive:
            # Its next process has the former settings.
            _log.error("worker_not_rolled_back", slot=worker.process.slot, error=answer.sentence, consequence="killed")
            worker.process.kill()

    def _note(self, answers: list[Reloaded]) -> None:
        self.remarks += (remark for answer in answers for remark in answer.remarks if remark not in self.remarks)


class Worker:
    """One that takes part."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process

    async def step(self, step: str, settings: Settings | None = None) -> Reloaded:
        """Its answer; one that has ended meanwhile agrees to everything."""
        return await self.process.reload(step, settings, _STEP_S)


async def _running(slot: Slot) -> Worker | str | None:
    """The slot's worker once it runs; None if there is none, or why that cannot be said."""
    process = slot.current
    if process is None or not process.alive:
        return None
    if await process.reached("ready", READY_S):
        return Worker(process)
    if not process.alive:
        return None
    return (
        f"Worker {slot.number} is not ready {patience(READY_S)}, so it cannot be told; /readyz says what it waits for."
    )
