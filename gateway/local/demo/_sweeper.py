"""Ends what Spark leaves running when it or the demo is killed. Run as a script; imports nothing of ours.

Spark's Java is a grandchild in a session of its own, so no guard and no process group reaches it. It ends by itself
when its standard input does, but not while it starts: there a failure leaves its server threads running for ever. What
all of Spark's processes share is their environment. So this process waits for the end of its standard input, which is
our word or our death, and then kills every process whose environment has the mark, until none is left.

Arguments: the mark (``NAME=value``), then directories to delete at the end. Where there is no /proc it only deletes.
"""

import contextlib
import os
import shutil
import signal
import sys
import time

_PAUSE_S = 0.1
_EMPTY_LOOKS = 3  # a process that was just forked may be seen in the next look only
_GIVE_UP_S = 20.0


def main(mark: bytes, directories: list[str]) -> int:
    """Waits for the end of standard input, sweeps, deletes; returns 1 if something could not be ended, else 0."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # our parent decides; its end is what starts us
    while os.read(0, 4096):
        pass
    deadline = time.monotonic() + _GIVE_UP_S
    empty = 0
    while empty < _EMPTY_LOOKS and time.monotonic() < deadline:
        empty = 0 if _kill_marked(mark) else empty + 1
        time.sleep(_PAUSE_S)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if empty else 1


def _kill_marked(mark: bytes) -> int:
    """How many living processes had the mark; each was sent SIGKILL."""
    found = 0
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is a slow import for a process this small
            if not name.isdigit() or int(name) == os.getpid():
                continue
            with contextlib.suppress(OSError):  # gone meanwhile, or another user's
                with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                    marked = mark in file.read().split(b"\0")
                if marked:
                    found += 1
                    os.kill(int(name), signal.SIGKILL)
    return found


if __name__ == "__main__":
    sys.exit(main(os.fsencode(sys.argv[1]), sys.argv[2:]))
