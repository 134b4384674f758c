"""One slot: a number that client ids and files are made of, and the worker processes that hold it one after another.

At most one process has the slot; while it is handed over a second is already warm. All of it belongs to the
supervisor's loop. ``changing`` is held by whoever decides which process is the slot's:

    keep     watches the present one and starts another when it has ended
    replace  warms another beside it, lets the present one go, and gives the slot to the other

A process that dies while it is being replaced is so left to ``replace``, and ``keep`` finds its successor.
"""

from __future__ import annotations

__all__ = ["READY_S", "WARM_S", "Slot", "VainError", "Verdict", "describe", "end", "judge"]

import asyncio
import contextlib
import json
import signal
import time
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, Protocol

import structlog

from bridge.backoff import Backoff
from config.errors import ExitStatus, GatewayError
from gateway.supervisor.process import patience

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.supervisor.process import WorkerProcess

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("supervisor")

# Without progress (gateway.supervisor.process): messages that move, or a recovery that goes on, may take much longer.
WARM_S: Final = 60.0  # a successor that has not reached Kafka is given up; the present worker stays
READY_S: Final = 30.0  # and one that has the slot, but no subscriptions, ends the rolling
_GRACE_S: Final = 2.0  # beyond its own deadline, before it is killed
_VAIN: Final = frozenset({ExitStatus.CONFIG, ExitStatus.REFUSED, ExitStatus.UNAVAILABLE})


class VainError(GatewayError):
    """A worker ended at the first start for a reason that another start would not change; with its exit status."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.exit_status = next(known for known in ExitStatus if known == status)


class Verdict(Enum):
    """What the end of a worker means."""

    EXPECTED = "expected"  # it was told to
    RETRY = "retry"  # start another, after a while
    VAIN = "vain"  # nothing would be different another time


def judge(status: int, *, told: bool, ever_ready: bool) -> Verdict:
    """What to do about a worker that ended with ``status``.

    Bad settings, a refusal and a missing topic end the gateway while it has never run, as they do without a supervisor;
    whoever started it is then told. Later they may pass (a password is being changed), and other workers run.
    """
    if told:
        return Verdict.EXPECTED
    if status in _VAIN and not ever_ready:
        return Verdict.VAIN
    return Verdict.RETRY


class Spawns(Protocol):
    """What starts processes."""

    async def spawn(
        self, slot: int, settings: Settings, role: Literal["worker", "successor"] = "worker"
    ) -> WorkerProcess:
        """A new process; raises OSError when the system gives none."""


class Slot:
    """A slot and its worker. ``settings`` are those its worker has, and the next one gets.

    ``restarts`` counts workers that were started because one had ended by itself, ``ended_ns`` is when the last did.
    ``changing`` is locked while its worker is being exchanged, or told of other settings.
    """

    def __init__(self, number: int, settings: Settings, spawns: Spawns, *, first_start: bool) -> None:
        self.number = number
        self.settings = settings
        self.current: WorkerProcess | None = None
        self.successor: WorkerProcess | None = None
        self.restarts = 0
        self.ended_ns = 0  # when a worker ended by itself, the last one
        self.problem: str | None = None
        self._spawns = spawns
        self._ever_ready = not first_start
        self._backoff = Backoff(500_000_000, 30_000_000_000)
        self.changing = asyncio.Lock()
        self._changed = asyncio.Event()

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
                    self._judge(worker, status)
            if self.current is None:
                await self._wait()

    async def _present(self) -> WorkerProcess | None:
        """The slot's worker, started if there is none."""
        async with self.changing:
            if self.current is None:
                try:
                    self.current = await self._spawns.spawn(self.number, self.settings)
                except OSError as error:
                    self.problem = f"The system starts no process: {error.strerror}."
                    _log.error("worker_not_started", slot=self.number, error=self.problem)
            return self.current

    async def _admit(self, worker: WorkerProcess) -> None:
        if await worker.reached("warm"):
            worker.go()  # again, if it was a successor: said twice is understood once
        if await worker.reached("ready"):
            self._ever_ready = True
            self.problem = None
            self._backoff.started(time.monotonic_ns())
            _log.info("worker_ready", slot=self.number, pid=worker.pid)

    def _judge(self, worker: WorkerProcess, status: int) -> None:
        self.problem = worker.sentence or f"Its process ended {describe(status)}."
        match judge(status, told=worker.left, ever_ready=self._ever_ready):
            case Verdict.EXPECTED:
                pass
            case Verdict.VAIN:
                raise VainError(
                    status, worker.sentence or f"Worker {self.number} ended {describe(status)}; see its log."
                )
            case Verdict.RETRY:
                self.restarts += 1
                self.ended_ns = time.monotonic_ns()
                _log.error(
                    "worker_ended", slot=self.number, pid=worker.pid, how=describe(status), error=worker.sentence
                )

    async def _wait(self) -> None:
        """The backoff between two starts; cut short when the slot gets a worker meanwhile."""
        delay_s = self._backoff.next_ns(time.monotonic_ns()) / 1e9
        _log.info("worker_restarts", slot=self.number, in_s=round(delay_s, 1), attempt=self._backoff.attempts)
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._changed.wait()

    async def replace(self, settings: Settings) -> str | None:
        """Gives the slot to a new worker with these settings; returns when it is ready and the old one has ended.

        None, or the sentence that says why it was not done. If the new one does not get warm the old one has not been
        touched. If it fails when it has the slot already, the next is started with the settings of before.
        """
        async with self.changing:
            problem = await self._replace(settings)
        self._changed.set()
        return problem

    async def _replace(self, settings: Settings) -> str | None:
        old, before = self.current, self.settings
        try:
            new = self.successor = await self._spawns.spawn(self.number, settings, "successor")
        except OSError as error:
            return f"worker {self.number}: the system starts no process: {error.strerror}."
        try:
            if not await new.reached("warm", WARM_S):
                return await self._give_up(new, "warm", WARM_S)
            if old is not None:
                await self._let_go(old, before)
            self.current, self.settings = new, settings
        finally:
            self.successor = None
        new.go()
        if not await new.reached("ready", READY_S):
            if not new.alive:
                self.settings = before
                self._backoff.reset()
            return await self._explain(new, "ready", READY_S)
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
        """Why a new worker did not come so far."""
        if not new.alive:
            assert new.status is not None
            return (
                f"worker {self.number}: {new.sentence or f'the new process ended {describe(new.status)}; see the log.'}"
            )
        answer = await new.ask("/readyz")
        reasons = " ".join(json.loads(answer.body).get("reasons", ())) if answer is not None else ""
        return f"worker {self.number}: the new process is not {what} {patience(silence_s)}. {reasons}".rstrip()


async def end(worker: WorkerProcess, settings: Settings) -> None:
    """Waits for a worker that was told to stop, until its deadline has passed; then it is killed."""
    if await worker.ended(_patience_s(settings)) is None:
        _log.error("worker_killed", slot=worker.slot, pid=worker.pid, why="it did not stop within shutdown_timeout")
        worker.stop(signal.SIGKILL)
        await worker.ended()


def describe(status: int) -> str:
    """``with status 1``, ``by SIGKILL``."""
    if status >= 0:
        return f"with status {status}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-status).name}"
    return f"by signal {-status}"


def _patience_s(settings: Settings) -> float:
    return settings.shutdown_timeout.total_seconds() + _GRACE_S
