"""One slot: a number in client ids and files, and the worker processes that hold it one after another.

At most one process has the slot; during a replacement a second is already warm. All of it belongs to the supervisor's
loop. The lock ``changing`` is held while the slot's process is chosen:

    keep     watches the present process and starts another after its end
    replace  warms another beside it, stops the present one, and gives the slot to the other

If a process dies while it is being replaced, ``replace`` handles it, and ``keep`` finds its successor.
"""

import asyncio
import contextlib
import json
import signal
import time
from enum import Enum
from typing import Final

import structlog

from bridge.backoff import Backoff
from bridge.waiting import until_set
from config.errors import ExitStatus, GatewayError
from config.settings import Settings
from gateway.supervisor.process import Spawner, WorkerProcess, patience

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("supervisor")

# Without progress (gateway.supervisor.process): messages that move, or a recovery that goes on, may take much longer.
WARM_S: Final = 60.0  # a successor that has not reached Kafka is stopped; the present worker stays
READY_S: Final = 30.0  # a successor with the slot but without subscriptions ends the rolling
_GRACE_S: Final = 2.0  # beyond its own deadline, before it is killed
_VAIN: Final = frozenset({ExitStatus.CONFIG, ExitStatus.REFUSED, ExitStatus.UNAVAILABLE})


class VainError(GatewayError):
    """A worker ended at the first start, and another start would end the same way; with its exit status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.exit_status = next(known for known in ExitStatus if known == status)


class Verdict(Enum):
    """What the end of a worker means."""

    EXPECTED = "expected"  # it was told to
    RETRY = "retry"  # start another after a pause
    VAIN = "vain"  # another start would end the same way


def judge(status: int, *, told: bool, ever_ready: bool) -> Verdict:
    """What to do about a worker that ended with ``status``; ``told``: to stop.

    Bad settings, a refusal and a missing topic end a gateway that has never been ready, as without a supervisor. Later
    they may be temporary (a password change), and other workers run.
    """
    if told:
        return Verdict.EXPECTED
    if status in _VAIN and not ever_ready:
        return Verdict.VAIN
    return Verdict.RETRY


class Slot:
    """A slot and its worker. ``settings`` are those of its worker and of the next one.

    ``restarts`` counts workers that ended by themselves, ``ended_ns`` is the time of the last such end. ``changing`` is
    locked while its worker is being replaced or reloaded.
    """

    def __init__(self, number: int, settings: Settings, spawner: Spawner, *, first_start: bool) -> None:
        self.number = number
        self.settings = settings
        self.current: WorkerProcess | None = None
        self.restarts = 0  # after ends by themselves
        self.ended_ns = 0  # when a worker last ended by itself (monotonic)
        self.problem: str | None = None  # why no worker is ready
        self._spawner = spawner
        self._ever_ready = not first_start
        self._backoff = Backoff(500_000_000, 30_000_000_000)
        self.changing = asyncio.Lock()  # held while the worker is chosen
        self._changed = asyncio.Event()  # ``replace`` has ended

    async def keep(self) -> None:
        """Keeps a worker in the slot until cancelled. Raises VainError at the first start."""
        while True:
            worker = await self._present()
            if worker is None:
                await self._wait()
                continue
            await self._admit(worker)
            status = await worker.ended()
            assert status is not None
            async with self.changing:
                if self.current is worker:
                    self.current = None
                    self._judge_end(worker, status)
            if self.current is None:
                await self._wait()

    async def _present(self) -> WorkerProcess | None:
        """The slot's worker, started if there is none; None if the system refuses a process."""
        async with self.changing:
            if self.current is None:
                try:
                    self.current = await self._spawner.spawn(self.number, self.settings)
                except OSError as error:
                    self.problem = f"The system starts no process: {error.strerror}."
                    _log.error("worker_not_started", slot=self.number, error=self.problem)
            return self.current

    async def _admit(self, worker: WorkerProcess) -> None:
        """Let the worker have the slot, and note that it is ready. Returns also when it ends before."""
        if await worker.reached("warm"):
            worker.go()  # a successor gets it twice, which is harmless
        if await worker.reached("ready"):
            self._ever_ready = True
            self.problem = None
            self._backoff.started(time.monotonic_ns())
            _log.info("worker_ready", slot=self.number, pid=worker.pid)

    def _judge_end(self, worker: WorkerProcess, status: int) -> None:
        """What follows from a worker's end. Raises VainError if another start would end the same way."""
        self.problem = worker.sentence or f"Its process ended {describe(status)}."
        # With other settings the next start may end otherwise.
        match judge(status, told=worker.left, ever_ready=self._ever_ready or self._has_others(worker)):
            case Verdict.EXPECTED:
                pass
            case Verdict.VAIN:
                raise VainError(
                    status, worker.sentence or f"Worker {self.number} ended {describe(status)}; see its log."
                )
            case Verdict.RETRY:
                self._count(worker, status)

    def _has_others(self, worker: WorkerProcess) -> bool:
        """Whether it had other settings than the next worker gets, after a failed roll or a reload meanwhile."""
        mine, its = (one.model_copy(update={"worker": self.number}) for one in (self.settings, worker.settings))
        return mine != its

    def _count(self, worker: WorkerProcess, status: int) -> None:
        """Note that it ended by itself."""
        self.restarts += 1
        self.ended_ns = time.monotonic_ns()
        _log.error("worker_ended", slot=self.number, pid=worker.pid, how=describe(status), error=worker.sentence)

    async def _wait(self) -> None:
        """The backoff between two starts; ends early if the slot gets a worker."""
        delay_s = self._backoff.next_ns(time.monotonic_ns()) / 1e9
        _log.info("worker_restarts", slot=self.number, in_s=round(delay_s, 1), attempt=self._backoff.attempts)
        self._changed.clear()
        await until_set(self._changed, delay_s)

    async def replace(self, settings: Settings) -> str | None:
        """Gives the slot to a new worker with these settings; returns when it is ready and the old one has ended.

        Returns None, or a sentence with the reason of a failure. If the new worker does not get warm, the old one is
        unaffected. If it fails after it got the slot, the next worker starts with the former settings.
        """
        async with self.changing:
            problem = await self._replace(settings)
        self._changed.set()
        return problem

    async def _replace(self, settings: Settings) -> str | None:
        """What ``replace`` does and returns; the caller holds ``changing``."""
        old, before = self.current, self.settings
        try:
            new = await self._spawner.spawn(self.number, settings, "successor")
        except OSError as error:
            return f"worker {self.number}: the system starts no process: {error.strerror}."
        if not await new.reached("warm", WARM_S):
            return await self._give_up(new, "warm", WARM_S)
        if old is not None:
            if old.status is not None and not old.left:
                self._count(old, old.status)  # ``keep`` finds the new one
            await self._let_go(old, before)
        self.current, self.settings = new, settings
        new.go()
        if not await new.reached("ready", READY_S):
            if not new.alive:
                self.settings = before
                self._backoff.reset()
            problem = await self._explain(new, "ready", READY_S)
            if old is not None:
                await end(old, before)  # ``keep`` looks after the new one then
            return problem
        self._ever_ready = True
        self.problem = None
        _log.info("worker_replaced", slot=self.number, pid=new.pid, old=old.pid if old is not None else None)
        if old is not None:
            await end(old, before)
        return None

    async def _let_go(self, old: WorkerProcess, settings: Settings) -> None:
        """Returns when the slot is free."""
        old.stop(signal.SIGTERM)
        if not await old.reached("released", _patience_s(settings)) and old.alive:
            await end(old, settings)

    async def _give_up(self, new: WorkerProcess, what: str, silence_s: float) -> str:
        sentence = await self._explain(new, what, silence_s)
        new.stop(signal.SIGTERM)
        await end(new, new.settings)
        return sentence

    async def _explain(self, new: WorkerProcess, what: str, silence_s: float) -> str:
        """Why a new worker did not get warm or ready."""
        if not new.alive:
            assert new.status is not None
            return (
                f"worker {self.number}: {new.sentence or f'the new process ended {describe(new.status)}; see the log.'}"
            )
        answer = await new.ask("/readyz")
        reasons = " ".join(json.loads(answer.body).get("reasons", ())) if answer is not None else ""
        return f"worker {self.number}: the new process is not {what} {patience(silence_s)}. {reasons}".rstrip()


async def end(worker: WorkerProcess, settings: Settings) -> None:
    """Waits for a stopping worker; kills it after its deadline by these settings."""
    if await worker.ended(_patience_s(settings)) is None:
        _log.error("worker_killed", slot=worker.slot, pid=worker.pid, why="it did not stop within shutdown_timeout")
        worker.stop(signal.SIGKILL)
        await worker.ended()


def describe(status: int) -> str:
    """How a process ended: ``with status 1``, ``by SIGKILL``."""
    if status >= 0:
        return f"with status {status}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-status).name}"
    return f"by signal {-status}"


def _patience_s(settings: Settings) -> float:
    return settings.shutdown_timeout.total_seconds() + _GRACE_S
