"""The parent's side of the trial's gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.errors import ExitStatus, GatewayError
from config.loading.transfer import to_json
from config.settings import Settings
from gateway.base.process.child import Child

_START_S = 60.0


class SubjectError(GatewayError):
    """The trial's gateway failed. Sentence, exit status and reason (of ConnectError) are those of the gateway."""

    def __init__(self, sentence: str, status: int = ExitStatus.FAILED, reason: str = "") -> None:
        super().__init__(sentence)
        self.reason = reason
        self.exit_status = next(one for one in ExitStatus if one == status)


class Subject:
    """A worker process. ``failed`` is set when it ends or fails without a request."""

    def __init__(self, settings: Settings, log: Path, stored: Callable[[list[list[int]]], None]) -> None:
        """``stored`` receives [partition, first offset, records, monotonic ns] of each batch in Kafka."""
        self._settings = settings
        self._log = log
        self._stored = stored
        self._child = Child("gateway.tools.trial.subject", "The gateway", log)
        self._output: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[float] = loop.create_future()
        self._cpu: asyncio.Future[float] = loop.create_future()
        self.error: SubjectError | None = None
        self.failed = asyncio.Event()
        self._stopping = False
        self._clean = False  # it has reported that everything is drained and ended
        self.batch_bytes = 0
        self.commands: dict[str, tuple[int, str]] = {}  # by entry: partitions that are open, and what keeps others shut
        self._cpu_at_start_s = 0.0
        self.cpu_s: float | None = None

    async def start(self) -> None:
        """Start it, and return when it is subscribed. Raises SubjectError."""
        self._output = await self._child.start({}, self._on_event)
        self._output.add_done_callback(self._ended)
        await self._child.tell(to_json(self._settings))
        failing = asyncio.ensure_future(self.failed.wait())
        waiting: set[asyncio.Future[Any]] = {self._ready, failing}
        try:
            await asyncio.wait(waiting, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            failing.cancel()
        if self.error is not None:
            raise self.error
        if not self._ready.done():
            raise SubjectError(
                f"The gateway was not subscribed within {_START_S:g} s.{self.last_log()}", ExitStatus.UNAVAILABLE
            )
        self._cpu_at_start_s = self._ready.result()

    async def measure(self) -> None:
        """Note its CPU time since it was ready."""
        await self._child.tell("cpu")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                self.cpu_s = await self._cpu - self._cpu_at_start_s

    async def stop(self) -> bool:
        """Have it end its MQTT sessions, and wait for its end. Returns whether none of them is left at the broker."""
        if self._output is None:
            return True
        self._stopping = True
        try:
            await self._child.tell("stop")
            await self._output
            return await self._child.ended() == 0 and self._clean
        except BaseException:
            await self._child.kill()
            raise

    def _ended(self, output: asyncio.Task[None]) -> None:
        """The process has closed its output. Unless it was stopped, the trial has failed."""
        if self._stopping or output.cancelled():
            return
        if self.error is None:
            self.error = SubjectError(f"The gateway's process ended.{self.last_log()}")
        self.failed.set()

    def _on_event(self, said: dict[str, Any]) -> None:
        """Take a line of the process's output."""
        match said["event"]:
            case "ready":
                self._ready.set_result(said["cpu_s"])
            case "stored":
                self._stored(said["batches"])
            case "commands":
                self.commands = {name: (open_, problem) for name, open_, problem in said["entries"]}
            case "cpu":
                if not self._cpu.done():
                    self._cpu.set_result(said["cpu_s"])
            case "stopped":
                self.batch_bytes = said["batch_bytes"]
                self._clean = said["clean"]
            case "failed":
                self.error = SubjectError(said["sentence"], said["status"], said["reason"])
                self.failed.set()

    def last_log(self) -> str:
        """The last error that the process logged, as the end of a sentence; empty without one."""
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        for line in reversed(lines):
            with contextlib.suppress(ValueError, AttributeError):
                said = json.loads(line)
                return f" Its log says last: {said.get('error') or said.get('message') or said.get('event')}"
        return f" Its last words: {lines[-1][:300]}" if lines else ""
