"""All slots of a supervisor: opens them, rolls them one by one, retires them, and stops them under one deadline."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from bridge.backoff import Backoff
from bridge.waiting import end_tasks, report_failure
from config.errors import ExitStatus
from config.settings import Settings
from gateway.base.lifecycle import StopVerb
from gateway.data_dir.directory import slots
from gateway.data_dir.meta_properties import IdentityError
from gateway.supervisor.process import Spawner, WorkerProcess
from gateway.supervisor.slot import Slot, describe, end

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("supervisor")

# Unanswered pings in a row, each a whole _PING_S of this loop's own time: a sleeping machine pauses this process too
# and accuses no worker. A loading worker has no event loop yet, and its interceptors may wait for something.
_PING_S: Final = 10.0
_PINGS: Final = 3
_PINGS_LOADING: Final = 6


@dataclass(frozen=True, slots=True)
class Stopped:
    """How the workers ended: exit statuses with their slots, and a sentence for each unclean end."""

    statuses: tuple[tuple[int, int], ...]
    remarks: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether all of them stopped in order."""
        return not self.remarks


class Fleet:
    """The workers of one instance. Belongs to the supervisor's loop; its operations are called one after another.

    ``failed`` gets the exception that ends the gateway: a VainError, or a defect.
    """

    def __init__(self, spawner: Spawner, settings: Settings) -> None:
        self.settings = settings
        self.slots: dict[int, Slot] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._spawner = spawner
        self._keepers: dict[int, asyncio.Task[None]] = {}  # by slot, what keeps a worker in it
        self._retirements: dict[int, asyncio.Task[None]] = {}  # by slot, what drains and ends it
        self._ends: set[asyncio.Task[None]] = set()  # of workers of closing slots that were told to stop
        self._watch: asyncio.Task[None] | None = None
        self._told = asyncio.Event()  # all workers were told to stop

    @property
    def retiring(self) -> tuple[int, ...]:
        return tuple(sorted(self._retirements))

    @property
    def retirees(self) -> list[WorkerProcess]:
        """The workers of slots that are being retired."""
        return [worker for worker in self._spawner if worker.slot in self._retirements]

    def start(self, count: int) -> None:
        """Opens slots 0 to ``count`` - 1 and retires further ones of an earlier run. Raises IdentityError."""
        orphans = [number for number in sorted(slots(self.settings.data_dir)) if number >= count]
        for number in range(count):
            self._open(number, first_start=True)
        for number in orphans:
            _log.info("slot_orphaned", slot=number, why="an earlier run had more workers")
            self._retire(number, None)
        self._watch = asyncio.create_task(self._ping(), name="watch")
        self._watch.add_done_callback(report_failure(self._note_failure))

    def _open(self, number: int, *, first_start: bool) -> None:
        slot = self.slots[number] = Slot(number, self.settings, self._spawner, first_start=first_start)
        keeper = self._keepers[number] = asyncio.create_task(slot.keep(), name=f"slot {number}")
        keeper.add_done_callback(report_failure(self._note_failure))

    def _note_failure(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    # --- rolling ---

    async def roll(self, settings: Settings, count: int | None = None) -> str | None:
        """Gives every slot a new worker, one after the other. Returns None, or why it stopped early.

        Of changed settings ``count`` is the number of workers. Slots beyond it keep the former ones, for ``scale``: the
        changed ones may give them the client ids of other slots.

        If changed settings fail, the slots that already have them get the former ones back: the workers of one instance
        must not differ.
        """
        for slot in list(self.slots.values())[:count]:
            problem = await slot.replace(settings)
            if problem is None:
                continue
            if settings is not self.settings:
                await self._roll_back(settings)
            return problem
        self.adopt(settings)
        return None

    def adopt(self, settings: Settings) -> None:
        """Use these settings from now on. Workers of closing slots that have others end; successors with the new
        ones (a password, say) continue."""
        if settings is not self.settings:
            self.settings = settings
            for worker in self.retirees:
                if not worker.left:
                    worker.stop()
                    task = asyncio.create_task(end(worker, worker.settings), name=f"end {worker.pid}")
                    self._ends.add(task)
                    task.add_done_callback(self._ends.discard)

    async def _roll_back(self, settings: Settings) -> None:
        """Give the former settings back to the slots that have ``settings`` already."""
        for slot in list(self.slots.values()):
            if slot.settings is settings:
                problem = await slot.replace(self.settings)
                if problem is not None:
                    _log.error("worker_not_rolled_back", slot=slot.number, error=problem)
                if slot.settings is settings:  # of the worker that stayed, or of one after the failed one
                    slot.settings = self.settings
                    if slot.current is not None:
                        slot.current.kill()

    async def scale(self, count: int) -> None:
        """Opens or closes slots so that there are ``count``. Those that close are drained in the background."""
        for number in range(count):
            if number not in self.slots:
                await self._stop_retirement(number)
                _log.info("slot_opened", slot=number)
                self._open(number, first_start=False)
        for number in [number for number in self.slots if number >= count]:
            _log.info("slot_closing", slot=number)
            slot = self.slots.pop(number)
            await end_tasks(self._keepers.pop(number))
            self._retire(number, slot.current)

    # --- retiring slots ---

    def _retire(self, number: int, worker: WorkerProcess | None) -> None:
        task = self._retirements[number] = asyncio.create_task(self._end_slot(number, worker), name=f"retire {number}")
        task.add_done_callback(report_failure(self._note_failure))

    async def _end_slot(self, number: int, worker: WorkerProcess | None) -> None:
        """Drains the slot's leftover sessions and spool, then ends it. Its ``worker``, if any, begins."""
        if worker is not None and worker.alive:
            worker.stop(signal.SIGUSR1)
            await end(worker, worker.settings)
        backoff = Backoff(1_000_000_000, 300_000_000_000)
        while number in _known(self.settings):
            with contextlib.suppress(OSError):  # the system refuses a process; tried again later
                worker = await self._spawner.spawn(number, self.settings, "retiring")
                if await worker.reached("warm"):
                    worker.go()
                status = await worker.ended()
                if status == ExitStatus.OK and number not in _known(self.settings):
                    break
                assert status is not None
                if not worker.left:
                    _log.warning("slot_not_retired", slot=number, how=describe(status), error=worker.sentence)
            await asyncio.sleep(backoff.next_ns(time.monotonic_ns()) / 1e9)
        _log.info("slot_retired", slot=number)
        del self._retirements[number]

    async def _stop_retirement(self, number: int) -> None:
        task = self._retirements.pop(number, None)
        if task is not None:
            await end_tasks(task)
            await self._stop_all([worker for worker in self._spawner if worker.slot == number], StopVerb.RESTART)

    # --- watching ---

    async def _ping(self) -> None:
        """Kills a worker that does not respond for long, from the start of its process on: nothing else would end it,
        and its messages wait. ``keep`` or ``replace`` of its slot then starts another."""
        missed: dict[int, int] = {}
        while True:
            await asyncio.sleep(_PING_S)
            workers = [worker for worker in self._spawner if not worker.left]  # ``left``: it was told to stop
            answers = await asyncio.gather(*(worker.responds(_PING_S) for worker in workers))
            missed = {
                worker.pid: missed.get(worker.pid, 0) + 1
                for worker, answered in zip(workers, answers, strict=True)
                if not answered and worker.alive and not worker.left
            }
            for worker in workers:
                loads = "up" not in worker.marks
                if missed.get(worker.pid, 0) >= (_PINGS_LOADING if loads else _PINGS):
                    at = "loading" if loads else "running" if "ready" in worker.marks else "starting"
                    _log.error("worker_unresponsive", slot=worker.slot, pid=worker.pid, phase=at, consequence="killed")
                    worker.kill()

    # --- the end ---

    def keep_no_longer(self) -> None:
        """Starts no other workers in the slots; ``stop`` follows. Call it before the operation under way is cancelled:
        the slot that it gives back would get a worker."""
        for keeper in self._keepers.values():
            keeper.cancel()

    async def stop(self, verb: StopVerb) -> Stopped:
        """Ends every worker under the one deadline of the settings. All are told at once, and each keeps the deadline
        itself.

        Workers that are being replaced or retired are only stopped: the next start continues with them.
        """
        await end_tasks(*self._keepers.values(), *self._retirements.values(), *self._ends, self._watch)
        self._told.set()  # whoever waits for it runs after the signals, before the next await
        return await self._stop_all(list(self._spawner), verb)

    async def hasten(self) -> None:
        """Ends them at once, without draining; for a stop in progress."""
        await self._told.wait()
        for worker in self._spawner:
            worker.hasten()

    async def _stop_all(self, workers: Iterable[WorkerProcess], verb: StopVerb) -> Stopped:
        """Tells workers to stop, if that is not done yet, and waits. Only holders of a slot are told to retire."""
        told = list(workers)
        holders = {id(slot.current) for slot in self.slots.values()}
        for worker in told:
            if not worker.left:  # a second signal would force a stopping worker to end at once
                retire = verb is StopVerb.RETIRE and id(worker) in holders
                worker.stop(signal.SIGUSR1 if retire else signal.SIGTERM)
        await asyncio.gather(*(end(worker, worker.settings) for worker in told))
        statuses = tuple(sorted((worker.slot, worker.status) for worker in told if worker.status is not None))
        return Stopped(statuses, tuple(remark for worker in told if (remark := _remark(worker))))


def _remark(worker: WorkerProcess) -> str:
    """A sentence on a worker's unclean end; empty after a clean one."""
    if worker.status in (ExitStatus.OK, -signal.SIGTERM) or worker.status is None:
        return ""
    waiting = f" with {worker.unacked} messages unacknowledged" if worker.unacked else ""
    return f"Worker {worker.slot} ended {describe(worker.status)}{waiting}."


def _known(settings: Settings) -> set[int]:
    """The slots in the data directory; none if it is unreadable, which the workers report themselves."""
    try:
        return slots(settings.data_dir)
    except IdentityError:
        return set()
