"""The demo's own Python processes (fleet, witness, plain bridge), spoken to in JSON lines; its tasks and threads."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from config.errors import GatewayError
from gateway.base.daemon_thread import begun

_T = TypeVar("_T")
_LINE_LIMIT = 64 * 1024 * 1024  # the fleet's ledger is one line: 30 bytes a device and 8 per unacknowledged message


class ChildError(GatewayError):
    """One of the demo's own processes ended when it should not have."""


class Child:
    """A Python module of ours as a process: JSON lines come out of it, words go in.

    Our end closes its standard input, which ends it. So it never outlives us.
    """

    def __init__(self, module: str, label: str, log: Path) -> None:
        self._module = module
        self._label = label
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, arguments: Mapping[str, Any], on_line: Callable[[dict[str, Any]], None]) -> None:
        """Starts it; ``on_line`` gets each line it prints, on our loop."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                json.dumps(arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_LINE_LIMIT,
                start_new_session=True,  # a terminal's Ctrl-C is ours to handle
            )
        self._reading = asyncio.create_task(self._read(on_line))

    async def _read(self, on_line: Callable[[dict[str, Any]], None]) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            on_line(json.loads(line))

    def check(self) -> None:
        """Raises ChildError if it has ended, or what it said could not be read."""
        if self._reading is not None and self._reading.done():
            cause = None if self._reading.cancelled() else self._reading.exception()
            raise ChildError(f"{self._label} ended before it was told to.{self._last_words()}") from cause

    async def tell(self, words: str) -> None:
        """Sends one line."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # its end is seen by who reads it
            self._process.stdin.write(words.encode() + b"\n")
            await self._process.stdin.drain()

    async def finished(self, timeout_s: float) -> None:
        """Waits for its orderly end and everything it said. Raises ChildError if it fails or is not done in time."""
        assert self._process is not None
        assert self._reading is not None
        try:
            async with asyncio.timeout(timeout_s):
                await self._reading
                status = await self._process.wait()
        except TimeoutError:
            raise ChildError(f"{self._label} did not end within {timeout_s:g} s.{self._last_words()}") from None
        if status != 0:
            raise ChildError(f"{self._label} failed with status {status}.{self._last_words()}")

    async def ended(self) -> int:
        """Waits for its end, however that comes; returns the exit status (negative: the signal that killed it)."""
        assert self._process is not None
        return await self._process.wait()

    async def kill(self) -> None:
        """Ends it, whatever it does. Safe to call at any time, and twice."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-10:] if self._log.exists() else []
        return "".join(f"\n    {line}" for line in lines)


class Background:
    """A task beside the others, from :meth:`begin` to :meth:`end`."""

    _task: asyncio.Task[None] | None = None

    async def _run(self) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        self._task = asyncio.create_task(self._run())

    def check(self) -> None:
        """Raises what made it fail."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def end(self) -> None:
        """Safe to call at any time, and twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def in_thread(work: Callable[[], _T]) -> _T:
    """Runs blocking work in a thread that cannot hold up the end of the process.

    ``asyncio.to_thread`` would: its threads are joined at exit, and a download or a broker's start may last a minute.
    When the caller is cancelled the work goes on until the process ends; what it started is ended by its own guard.
    """
    return await asyncio.wrap_future(begun(work, "demo"))
