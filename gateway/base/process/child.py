"""Python processes of ours that are spoken to in JSON lines: for the demo's parts, and a trial's gateway.

The parent has a :class:`Child`; the functions below it are for the child."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from bridge.waiting import end_tasks
from config.errors import GatewayError

_LINE_LIMIT = 64 * 1024 * 1024  # the fleet's ledger is one line: 30 bytes a device and 8 per unacknowledged message


class ChildError(GatewayError):
    """A process of ours ended when it should not have."""


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

    async def start(
        self, arguments: Mapping[str, Any], on_line: Callable[[dict[str, Any]], None]
    ) -> asyncio.Task[None]:
        """Starts it; ``on_line`` gets each line it prints, on our loop. Returns the task of its output."""
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
        return self._reading

    async def _read(self, on_line: Callable[[dict[str, Any]], None]) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            on_line(json.loads(line))

    def check(self) -> None:
        """Raises ChildError if the child has ended, or has written a line that is no JSON."""
        if self._reading is not None and self._reading.done():
            cause = None if self._reading.cancelled() else self._reading.exception()
            raise ChildError(f"{self._label} ended before it was told to.{self._last_words()}") from cause

    async def tell(self, words: str) -> None:
        """Write a line to its standard input."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has ended, as ``finished`` reports
            self._process.stdin.write(words.encode() + b"\n")
            await self._process.stdin.drain()

    async def finished(self, timeout_s: float) -> None:
        """Waits until the child has ended and its lines are read. Raises ChildError if it fails or takes too long."""
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
        await end_tasks(self._reading)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-10:] if self._log.exists() else []
        return "".join(f"\n    {line}" for line in lines)


# ── in the child ───────────────────────────────────────────────────────────────────────────────────────────────────


def say(event: str, **fields: Any) -> None:
    """Write a line to the parent."""
    rest = memoryview(json.dumps({"event": event, **fields}, separators=(",", ":")).encode() + b"\n")
    with contextlib.suppress(BrokenPipeError):  # the parent has ended; the end of standard input shows it too
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]


async def words_of_parent() -> asyncio.StreamReader:
    """The parent's lines, on standard input. They end with the parent."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def run(work: Callable[[dict[str, Any]], Coroutine[Any, Any, int]]) -> int:
    """Run ``work`` with the arguments of :meth:`Child.start`; returns its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to interpret
    return asyncio.run(work(json.loads(sys.argv[1])))
