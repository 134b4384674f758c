"""The supervisor's view of one worker process: its start, messages, signals and end."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, Literal, Self

import structlog

from config.loading.transfer import to_json
from config.settings import Settings
from gateway.base.process.held_signals import held_back
from gateway.http.answers import Answer
from gateway.supervisor.channel import Channel, Message, open_channel
from gateway.supervisor.cpu import cpu_ticks
from gateway.supervisor.prefork import Prepared

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A worker's answer to a step of a reload: the reason of a failure, or None; and remarks for the operator."""

    sentence: str | None = None
    remarks: tuple[str, ...] = ()


Mark = Literal["up", "warm", "ready", "released"]
_PACKAGES: Final = Path(__file__).parents[2]
# Even with progress: the wait delays other operations, and during a reload no dead worker is restarted. A reload could
# not end the load that keeps this worker busy.
MOST_S: Final = 600.0
_LOOKS: Final = 6  # checks for progress within the time of silence that ends the wait


class Reaper:
    """Collects ended child processes, also those inherited as PID 1 of a container.

    While its ``with`` block runs, no other code may wait for children. Needs the main thread and a running loop.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[int], None]] = {}

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        return self

    def __exit__(self, *_error: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def watch(self, pid: int, ended: Callable[[int], None]) -> None:
        """Calls ``ended`` with the exit status (negative: the signal) when that child ends or has ended."""
        self._waiting[pid] = ended
        asyncio.get_running_loop().call_soon(self._reap)  # before the signal had a handler, perhaps

    def _reap(self) -> None:
        """At SIGCHLD: collects all children that have ended, and tells who watches them."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                ended = self._waiting.pop(pid, None)
                if ended is not None:
                    ended(os.waitstatus_to_exitcode(status))


class WorkerProcess:
    """One process of a slot. Made by a Spawner; belongs to the supervisor's loop.

    ``sentence`` is its reported failure, ``unacked`` its reported number of unacknowledged messages. ``left`` becomes
    true when it was told to stop, so that its end is no failure.
    """

    def __init__(self, slot: int, settings: Settings) -> None:
        self.slot = slot
        self.settings = settings
        self.pid = 0
        self.sentence: str | None = None
        self.unacked = 0
        self.left = False  # whether it was told to stop
        self.status: int | None = None  # its exit status; negative: the signal that ended it
        self._channel: Channel | None = None
        self._marks: set[Mark] = set()
        self._changed: list[asyncio.Future[None]] = []
        self._requests: dict[int, asyncio.Future[Message | None]] = {}  # without an answer, by number
        self._numbers = count(1)
        self._moves = 0  # how often it reported progress
        self._ticks: int | None = None  # CPU time at the last check whether it responds

    def __repr__(self) -> str:
        return f"<WorkerProcess slot={self.slot} pid={self.pid} {sorted(self._marks)} status={self.status}>"

    @property
    def marks(self) -> frozenset[Mark]:
        return frozenset(self._marks)

    @property
    def alive(self) -> bool:
        return self.status is None

    @property
    def progress(self) -> object:
        """Changes while it makes progress: by its reports, and before the first one by its CPU time."""
        return self._moves, None if "up" in self._marks else cpu_ticks(self.pid)

    async def reached(self, mark: Mark, silence_s: float | None = None) -> bool:
        """Waits until it has reported ``mark``. False: it ended, or (not if ``silence_s`` is None) made no progress for
        that time, or MOST_S passed."""

        async def there(timeout_s: float | None) -> bool:
            return await self._until(lambda: mark in self._marks, timeout_s)

        if silence_s is None:
            return await there(None)
        return await self._while_it_gets_on(there, silence_s)

    async def responds(self, timeout_s: float) -> bool:
        """Whether its event loop answers in time. Before it has one: whether it has used the CPU since the last call,
        or the system does not report that."""
        if "up" in self._marks:
            return await self.ask("/healthz", timeout_s=timeout_s) is not None
        before, self._ticks = self._ticks, cpu_ticks(self.pid)
        return self._ticks is None or self._ticks != before

    async def _while_it_gets_on(self, come: Callable[[float], Awaitable[bool]], silence_s: float) -> bool:
        """Awaits ``come`` repeatedly, each time for a part of ``silence_s``. False: ``silence_s`` passed without
        progress, or MOST_S in all, or it ended.

        Parts are counted, not clock time: a pause of this process itself then counts as one part at most."""
        seen, quiet = self.progress, 0
        for _ in range(max(_LOOKS, round(MOST_S / silence_s * _LOOKS))):
            if await come(silence_s / _LOOKS):
                return True
            before, seen = seen, self.progress
            quiet = quiet + 1 if seen == before else 0
            if quiet == _LOOKS or not self.alive:
                break
        return False

    async def ended(self, timeout_s: float | None = None) -> int | None:
        """Waits for its end: the exit status, negative for a signal. None: the time ran out."""
        await self._until(lambda: False, timeout_s)
        return self.status

    async def _until(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Waits; whether ``condition`` held before the process ended or the time (None: without limit) was over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.alive and not condition():
                    changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._changed.append(changed)
                    await changed
                return condition()
        return False

    def _wake(self) -> None:
        waiting, self._changed = self._changed, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)

    # --- messages and signals to it ---

    def go(self) -> None:
        """The slot is free: take it."""
        if self._channel is not None:
            self._channel.send(say="go")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Sends it a signal and expects its end. Does nothing after its end."""
        self.left = True
        if self.alive:
            os.kill(self.pid, number)  # it is not reaped yet, so no other process has its id

    def hasten(self) -> None:
        """Ends its stop at once, without draining. The signal is for a process without a channel."""
        if self._channel is not None:
            self._channel.send(say="hasten")
        self.stop()

    def kill(self) -> None:
        """Ends it at once, as a failure."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)

    def _request(self, channel: Channel, **message: object) -> asyncio.Future[Message | None]:
        """Sends a request. Returns its answer to come: None if the process ends first."""
        number = next(self._numbers)
        answer = self._requests[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._requests.pop(number, None))
        channel.send(number=number, **message)
        return answer

    async def ask(self, path: str, accept: str = "", timeout_s: float = 2.0) -> Answer | None:
        """The worker's answer to an HTTP path; None if none comes in time or the worker has ended."""
        if self._channel is None or not self.alive or "up" not in self._marks:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                said = await self._request(self._channel, say="ask", path=path, accept=accept)
        except TimeoutError:
            return None
        return None if said is None else Answer(said["status"], said["type"], said["body"])

    async def reload(self, step: str, settings: Settings | None, silence_s: float) -> Reloaded:
        """The worker's answer to a step of a reload (``gateway.worker.reload``), waited for as in ``reached``. An ended
        worker counts as done: the next one of its slot gets the slot's settings."""
        if self._channel is None or not self.alive:
            return Reloaded()
        text = None if settings is None else to_json(settings.model_copy(update={"worker": self.slot}))
        answer = self._request(self._channel, say="reload", step=step, settings=text)

        async def there(timeout_s: float) -> bool:
            await asyncio.wait({answer}, timeout=timeout_s)
            return answer.done()

        if not await self._while_it_gets_on(there, silence_s) and not answer.done():
            answer.cancel()
            return Reloaded(f"Worker {self.slot} has not answered {patience(silence_s)}.")
        said = answer.result()
        if said is None:
            return Reloaded()
        sentence = said["sentence"]
        return Reloaded(None if sentence is None else f"Worker {self.slot}: {sentence}", tuple(said["remarks"]))

    # --- messages from it ---

    async def attach(self, sock: socket.socket) -> None:
        """Opens the channel and sends the settings."""
        self._channel = await open_channel(sock, self._take_message, self._hung_up)
        self._channel.send_line(to_json(self.settings))

    def _take_message(self, message: Message) -> None:
        """Notes what the worker reports, gives an answer to its request, wakes those that wait."""
        match message:
            case {"say": "up" | "warm" | "ready" | "released" as mark}:
                self._marks.add(mark)
                self._moves += 1
            case {"say": "failed", "sentence": str(sentence)}:
                self.sentence = sentence
            case {"say": "stopped", "unacked": int(unacked)}:
                self.unacked = unacked
            case {"say": "answer", "number": number, "status": int(), "type": str(), "body": str()} | {
                "say": "reloaded",
                "number": number,
                "sentence": str() | None,
                "remarks": list(),
            }:
                self._settle(number, message)
            case _:
                _log.warning("worker_said_nonsense", slot=self.slot, pid=self.pid, keys=sorted(map(str, message)))
        self._wake()

    def _settle(self, number: int, answer: Message | None) -> None:
        request = self._requests.get(number)
        if request is not None and not request.done():
            request.set_result(answer)

    def _hung_up(self) -> None:
        """The worker has closed its end of the channel. It is ending or has ended, and answers nothing more."""
        for number in tuple(self._requests):
            self._settle(number, None)

    def finish(self, status: int) -> None:
        """The process has ended: notes its exit status, wakes those that wait."""
        self.status = status
        self._hung_up()
        if self._channel is not None:
            self._channel.close()
        self._wake()


def patience(silence_s: float) -> str:
    """The limits of the wait for a worker, as the end of a sentence."""
    return f"(it is waited for while it gets on, {MOST_S:g} s at most; {silence_s:g} s without progress end that)"


class Spawner:
    """Starts worker processes and lists the running ones. ``prepared`` are the first of their slots."""

    def __init__(self, reaper: Reaper, prepared: Mapping[int, Prepared] | None = None) -> None:
        self._reaper = reaper
        self._prepared = dict(prepared or {})
        self._lost: set[int] = set()  # prepared processes that ended before they were used
        for one in self._prepared.values():
            reaper.watch(one.pid, partial(self._lose, one.pid))
        self._running: dict[int, WorkerProcess] = {}

    def _lose(self, pid: int, _status: int) -> None:
        self._lost.add(pid)

    def __iter__(self) -> Iterator[WorkerProcess]:
        """The workers that have not ended."""
        return iter(tuple(self._running.values()))

    async def spawn(
        self, slot: int, settings: Settings, role: Literal["worker", "successor", "retiring"] = "worker"
    ) -> WorkerProcess:
        """A new process for a slot. Raises OSError if the system refuses one.

        A ``successor`` gets warm at a lower CPU priority than running workers. A ``retiring`` one drains the slot's
        leftover sessions and spool, then ends.

        It has a session of its own, so that a terminal's Ctrl-C reaches only the supervisor, which stops the workers. A
        second signal would force an immediate stop.
        """
        worker = WorkerProcess(slot, settings.model_copy(update={"worker": slot}))
        prepared = self._prepared.pop(slot, None)
        if prepared is not None and prepared.pid in self._lost:
            prepared.channel.close()
            prepared = None
        prepared = prepared or _start(slot, role)
        worker.pid = prepared.pid
        self._running[worker.pid] = worker

        def ended(status: int) -> None:
            self._running.pop(worker.pid, None)
            worker.finish(status)

        self._reaper.watch(worker.pid, ended)
        await worker.attach(prepared.channel)
        _log.info("worker_started", slot=slot, pid=worker.pid, role=role)
        return worker


def _start(slot: int, role: str) -> Prepared:
    """A worker as a program of its own. Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            # -P and PYTHONPATH: the package is the one beside us, whatever the working directory has.
            command = [sys.executable, "-P", "-m", "gateway.cli.main", "run"]
            command += ["--slot", str(slot), "--channel", str(theirs.fileno()), "--role", role]
            path = os.pathsep.join([str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
            with held_back():  # from the process's first moment on
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, "PYTHONPATH": path},
                    start_new_session=True,
                )
    except OSError:
        ours.close()
        raise
    child.returncode = 0  # the reaper waits for it; otherwise Popen would warn
    return Prepared(child.pid, ours)
