"""Processes that cannot outlive us, and waiting for what they log."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from gateway.local.runtime.cache import cache_directory
from gateway.local.runtime.errors import StartError

if TYPE_CHECKING:
    import re

_GUARD = Path(__file__).with_name("_guard.py")
_MARK = "GUARD_MARK"
_POLL_SECONDS = 0.03  # start-up is timed in seconds; polling a log this often costs nothing measurable


class GuardedProcess:
    """A child process, in a process group of its own, that is killed when this process ends, whatever ends it.

    Between the two stands a small guard process (see ``_guard.py``). Standard output and error are appended to ``log``.
    ``remove`` names directories the guard deletes if we die without calling :meth:`kill` or :meth:`terminate`. With
    ``sweep`` it also kills what the process leaves running, in whatever session: all that have its environment.
    Blocks until the process is started (some 30 ms); raises StartError when its executable cannot be run.
    Any thread may call the methods.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        remove: Sequence[Path] = (),  # folders to delete if we die
        sweep: bool = False,  # kills what the process leaves running
    ) -> None:
        mark = uuid.uuid4().hex if sweep else ""
        self.log = log
        self.log_offset = log.stat().st_size if log.exists() else 0  # where this process's own output begins
        self._returncode: int | None = None
        self._lock = threading.Lock()  # over the conversation with the guard
        guard_environment = {name: value for name, value in os.environ.items() if name.startswith(("LANG", "LC_"))}
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=guard_environment,
            start_new_session=True,  # a terminal's Ctrl-C is ours to handle
            bufsize=0,
        )
        description = {
            "argv": [str(part) for part in argv],
            "env": {**(os.environ if env is None else env), **({_MARK: mark} if mark else {})},
            "cwd": str(cwd) if cwd else None,
            "log": str(log),
            "mark": f"{_MARK}={mark}" if mark else "",
            "remove": [str(directory) for directory in remove],
        }
        self._tell(json.dumps(description))
        word, _, rest = self._output.readline().decode().strip().partition(" ")
        if word != "pid":
            self._close()
            raise StartError(f"{argv[0]} cannot be run: {rest or 'its guard process died'}.")
        self.pid = int(rest)

    def __repr__(self) -> str:
        return f"<GuardedProcess pid={self.pid} returncode={self._returncode}>"

    @property
    def _output(self) -> IO[bytes]:
        return cast("IO[bytes]", self._guard.stdout)

    def _tell(self, line: str) -> None:
        rest = memoryview(line.encode() + b"\n")
        with contextlib.suppress(OSError, ValueError):  # gone already: its end is reported elsewhere
            while rest:  # an interrupted write may be a partial one
                rest = rest[cast("IO[bytes]", self._guard.stdin).write(rest) :]

    @property
    def returncode(self) -> int | None:
        """The exit status (negative: the signal that killed it), or None while it runs."""
        if self._returncode is None and self._guard.poll() is not None:
            self._collect()
        return self._returncode

    def wait(self, timeout: float) -> int:
        """Wait up to ``timeout`` seconds for the end; returns the exit status or raises TimeoutError."""
        if self._returncode is None:
            try:
                self._guard.wait(timeout)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"process {self.pid} still runs after {timeout:g} s") from None
            self._collect()
        assert self._returncode is not None
        return self._returncode

    def signal(self, number: int) -> None:
        """Send a signal to the process's group; does nothing when it has ended. SIGSTOP is in effect on return."""
        with self._lock:
            if self._returncode is None:
                self._tell(f"signal {int(number)}")
                self._heed(self._output.readline())
                if self._returncode is not None:  # it had ended: that was the answer
                    self._close()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Safe to call twice, and on a stopped process."""
        if self.returncode is None:
            self.signal(signal.SIGKILL)
            self.wait(10)

    def terminate(self, grace: float) -> None:
        """SIGTERM (a stopped process is continued), wait ``grace`` seconds, then :meth:`kill`."""
        if self.returncode is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
            with contextlib.suppress(TimeoutError):
                self.wait(grace)
            self.kill()

    def _collect(self) -> None:
        """The guard has ended: take its last line. Without one it was killed, and the process with it."""
        with self._lock:
            if self._returncode is None:
                self._heed(self._output.read())
            if self._returncode is None:
                self._returncode = -signal.SIGKILL
            self._close()

    def _heed(self, line: bytes) -> None:
        word, _, rest = line.decode().strip().partition(" ")
        if word == "exit":
            self._returncode = int(rest)

    def _close(self) -> None:
        """Close the pipes to the guard, and wait for its end."""
        for stream in (self._guard.stdin, self._guard.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._guard.wait()


def wait_for_line(process: GuardedProcess, pattern: re.Pattern[bytes], deadline: float, what: str) -> re.Match[bytes]:
    """Block until ``pattern`` matches in what ``process`` has logged since it started.

    ``deadline`` is absolute, on ``time.monotonic()``. Raises StartError, with the log's last lines, when the process
    ends or the deadline passes first.
    """
    while True:
        returncode = process.returncode  # read before the log: a process that logs and ends is not missed
        with process.log.open("rb") as log:
            log.seek(process.log_offset)
            text = log.read()
        if match := pattern.search(text):
            return match
        if returncode is not None:
            raise StartError(f"{what} ended while starting ({_describe(returncode)}).{_findings(process.log, text)}")
        if time.monotonic() >= deadline:
            raise StartError(f"{what} did not come up in time.{_findings(process.log, text)}")
        time.sleep(_POLL_SECONDS)


def _findings(log: Path, text: bytes) -> str:
    """The likely cause, the log's last lines, and a copy of the log that outlives a temporary directory."""
    cause = next((f" {sentence}." for needle, sentence in _CAUSES if needle in text), "")
    kept = log
    with contextlib.suppress(OSError):
        directory = cache_directory() / "logs"
        directory.mkdir(exist_ok=True)
        kept = Path(shutil.copyfile(log, directory / log.name))
    return f"{cause}\n{last_lines(text)}\n(log: {kept})"


def last_lines(text: bytes, count: int = 15) -> str:
    """The last ``count`` lines, indented, for the end of an error message."""
    lines = text.decode(errors="replace").splitlines()[-count:]
    return "\n".join(f"    {line}" for line in lines) or "    (it logged nothing)"


def _describe(returncode: int) -> str:
    if returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    return f"status {returncode}"


_CAUSES = (
    (b"Address already in use", "A port it needs is taken by another program"),
    (b"Failed to bind", "A port it needs is taken by another program"),
    (b"UnsupportedClassVersionError", "This Java is too old: 17 or newer is needed"),
    (b"OutOfMemoryError", "It ran out of memory: raise its heap"),
    (b"Could not reserve enough space", "The machine has too little free memory for its heap"),
    (b"No space left on device", "The disk is full"),
    (b"InconsistentClusterId", "The data directory belongs to another cluster"),
    (b"Stored node id", "The data directory belongs to another node"),
    (b"ConfigException", "A setting given to it is wrong; the log names it"),
    (b"NoClassDefFoundError", "Jars are missing: delete the cache directory's 'jars' and start again"),
    (b"Permission denied", "It may not read or write one of its files"),
)
