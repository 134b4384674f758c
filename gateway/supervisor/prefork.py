"""The first workers, forked from a process with loaded code.

Loading a worker takes 0.6 s of CPU, which each worker would otherwise spend. The supervisor needs none of that code: a
process between the two loads it, forks the workers and ends. They become the supervisor's children then, because it is
a subreaper meanwhile (prctl(2)). The fork comes before there is an event loop, a thread, a lock or a port, which a fork
must not inherit. Later workers are programs of their own (``gateway.supervisor.process``): by then the supervisor has
all of these, and a replacement must run the presently installed package.
"""

import ctypes
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Prepared:
    """A worker process that waits for its settings, and the supervisor's end of its channel."""

    pid: int
    channel: socket.socket


def fork_workers(
    count: int, load: Callable[[], None], meanwhile: Callable[[], None]
) -> tuple[dict[int, Prepared], socket.socket | None]:
    """In the supervisor: the workers by slot, and None. In each worker: an empty dict, and its end of the channel.

    ``load`` loads the code of a worker; the supervisor runs ``meanwhile``. There are none where a fork is unsafe (no
    Linux, a thread), and fewer if the system refuses more: the supervisor then starts programs. A worker ends by itself
    if the supervisor ends before sending anything.
    """
    if sys.platform != "linux" or threading.active_count() > 1 or not _adopt_orphans(True):
        return {}, None
    pairs = [socket.socketpair() for _ in range(count)]
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    loader = os.fork()
    if loader == 0:
        os.close(reading)
        for ours, _ in pairs:
            ours.close()
        return {}, _load_and_fork([theirs for _, theirs in pairs], load, writing)
    os.close(writing)
    for _, theirs in pairs:
        theirs.close()
    meanwhile()
    with os.fdopen(reading, "rb") as pipe:
        pids = pipe.read().split()
    os.waitpid(loader, 0)  # its children are ours from here on
    _adopt_orphans(False)
    for ours, _ in pairs[len(pids) :]:
        ours.close()
    return {slot: Prepared(int(pid), pairs[slot][0]) for slot, pid in enumerate(pids)}, None


def _load_and_fork(channels: list[socket.socket], load: Callable[[], None], writing: int) -> socket.socket:
    """In the process between: writes the workers' process ids into ``writing`` and ends. In a worker: its channel."""
    os.setsid()  # a terminal's Ctrl-C reaches the supervisor alone
    load()
    try:
        for channel in channels:
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                return _become_worker(channel, channels)
            os.write(writing, b"%d\n" % pid)
    except OSError:  # the system refuses one more, or the supervisor has ended
        os._exit(1)
    os._exit(0)


def _become_worker(channel: socket.socket, channels: list[socket.socket]) -> socket.socket:
    """In the new process: closes what is not its own. Returns ``channel``."""
    for other in channels:
        if other is not channel:
            other.close()
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _adopt_orphans(wanted: bool) -> bool:
    """Whether the children of children that end become this process's from now on, or no longer: as ``wanted``."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0)
