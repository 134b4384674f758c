"""The parent's side of the trial's gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.errors import ExitStatus, GatewayError
from config.loading.transfer import to_json
from config.settings import Settings

_START_S = 60.0
_LINE_BYTES = 1 << 20


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
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
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
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gateway.tools.trial.subject",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_LINE_BYTES,
                start_new_session=True,  # so that a terminal's Ctrl-C reaches only the parent
            )
        self._reading = asyncio.create_task(self._read())
        self._write(to_json(self._settings))
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
        self._write("cpu")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                self.cpu_s = await self._cpu - self._cpu_at_start_s

    async def stop(self) -> bool:
        """Retire it, and wait for its end. Returns whether no session is left."""
        if self._process is None:
            return True
        self._stopping = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = await self._process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            raise
        if self._reading is not None:
            await self._reading
        return status == 0 and self._clean

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line.encode() + b"\n")

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self._take(json.loads(line))
        if not self._stopping and self.error is None:
            self.error = SubjectError(f"The gateway's process ended.{self.last_log()}")
        if not self._stopping:
            self.failed.set()

    def _take(self, said: dict[str, Any]) -> None:
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
        """Its last logged error, as the end of a sentence; empty without one."""
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        for line in reversed(lines):
            with contextlib.suppress(ValueError, AttributeError):
                said = json.loads(line)
                return f" Its log says last: {said.get('error') or said.get('message') or said.get('event')}"
        return f" Its last words: {lines[-1][:300]}" if lines else ""
