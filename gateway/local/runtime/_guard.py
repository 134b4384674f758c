"""A process between us and a broker, which ends the broker when we are gone. Run as a script; imports nothing of ours.

Why not PR_SET_PDEATHSIG on the broker itself: that signal comes when the *thread* that forked ends, and brokers are
started from worker threads too; a function between fork and exec is unsafe with threads; macOS has no such call. This
process has one thread and holds the read end of a pipe whose only writer is our process: end of file means we are
gone, however we went.

Spark's Java is a grandchild in a session of its own. It ends when its standard input does, but not while it starts:
there a failure leaves its server threads running for ever. So a mark in the environment tells what belongs to a
process, and what is left of it is swept up.

Standard input: one line of JSON (see :func:`main`), then lines ``signal N``. Standard output: ``pid N`` or ``error
text``, then ``sent`` for each signal, at the end ``exit N`` (negative: killed by that signal). Signals go through here
because only the parent of a process can be sure that a process id still means that process.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import TypedDict

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ORPHAN_CHECK_SECONDS = 1.0  # end of file arrives at once; this catches a copy of the pipe leaked into a forked child
_PAUSE_SECONDS = 0.1
_EMPTY_LOOKS = 3  # a process that was just forked may be seen in the next look only
_SWEEP_SECONDS = 8.0  # the parent waits ten


class _Description(TypedDict):
    argv: list[str]
    env: dict[str, str]
    cwd: str | None
    log: str
    mark: str
    remove: list[str]


def main() -> int:
    """Start the process described on standard input and stay until it ends, or until our own parent does.

    The description: ``argv``, ``env`` (whole environment), ``cwd`` or null, ``log`` (appended to), ``mark``
    (``NAME=value`` in the environment of what is swept up after the process; "" for nothing) and ``remove``,
    directories to delete when the parent died without cleaning up.
    """
    parent = os.getppid()
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # our parent decides; its end is what ends us
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    pending = b""
    while b"\n" not in pending:
        received = os.read(0, 65536)
        if not received:
            return 0
        pending += received
    line, _, pending = pending.partition(b"\n")
    description: _Description = json.loads(line)
    try:
        child = _start(description)
    except OSError as error:
        _say(f"error {error.strerror}: {error.filename}")
        return 1
    _say(f"pid {child.pid}")
    while child.poll() is None:
        readable, _, _ = select.select([0, wake_read], [], [], _ORPHAN_CHECK_SECONDS)
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
        chunk = os.read(0, 65536) if 0 in readable else None
        if chunk == b"" or os.getppid() != parent:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # works on a stopped process too
            child.wait()
            _sweep(description["mark"])
            for directory in description["remove"]:
                shutil.rmtree(directory, ignore_errors=True)
            return 0
        pending += chunk or b""
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            _send_signal(child.pid, int(line.split()[1]))
            _say("sent")
    _sweep(description["mark"])
    _say(f"exit {child.returncode}")
    return 0


def _start(description: _Description) -> subprocess.Popen[bytes]:
    library = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    guard = os.getpid()

    def die_with_the_guard() -> None:
        for restored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(restored, signal.SIG_DFL)  # ignored signals are inherited through exec
        if library is not None:
            library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:  # it died between fork and prctl
                os._exit(1)

    with open(description["log"], "ab") as log:  # noqa: PTH123 - pathlib is a slow import for a process this small
        return subprocess.Popen(
            description["argv"],
            env=description["env"],
            cwd=description["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_the_guard,  # noqa: PLW1509 - this process has one thread
        )


def _send_signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
    if number == signal.SIGSTOP and hasattr(os, "waitid"):
        # The signal may still be pending when kill returns. The caller of a freeze relies on a frozen broker.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, group, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def _sweep(mark: str) -> None:
    """Kill all processes with this entry in their environment, until none is found. Where there is no /proc none is."""
    deadline = time.monotonic() + _SWEEP_SECONDS
    empty = 0
    while mark and empty < _EMPTY_LOOKS and time.monotonic() < deadline:
        empty = 0 if _kill_marked(mark.encode()) else empty + 1
        time.sleep(_PAUSE_SECONDS)


def _kill_marked(mark: bytes) -> int:
    """How many living processes had the mark; each was sent SIGKILL."""
    found = 0
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is a slow import for a process this small
            with contextlib.suppress(OSError, ValueError):  # no process, gone meanwhile, or another user's
                with open(f"/proc/{int(name)}/environ", "rb") as file:  # noqa: PTH123
                    marked = mark in file.read().split(b"\0")
                if marked:
                    found += 1
                    os.kill(int(name), signal.SIGKILL)
    return found


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more: the next read of the pipe tells
        os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
