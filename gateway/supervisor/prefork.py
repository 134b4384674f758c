"""The first workers as forks of a process that has loaded what they need.

Loading a worker takes 0.6 s of CPU. Started as programs of their own the supervisor and each worker would all pay it,
the workers after the supervisor has read the settings. That is before there is an event loop, a thread, a lock or a
port: nothing that a fork must not inherit. Later workers are programs of their own (``gateway.supervisor.process``):
by then the supervisor has all of these, and a replaced worker is to run the package as it is installed now.
"""

from __future__ import annotations

__all__ = ["Prepared", "fork_workers"]

import os
import socket
import sys
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prepared:
    """A worker process that waits for its settings, and our end of its channel."""

    pid: int
    channel: socket.socket


def fork_workers(count: int) -> tuple[dict[int, Prepared], socket.socket | None]:
    """Workers by slot, and None; in each worker nothing, and its end of the channel.

    None are made where a fork is not safe (another system than Linux, a thread), fewer where the system gives no more:
    the supervisor then starts programs. A worker ends by itself when the supervisor does so before it says anything.
    """
    prepared: dict[int, Prepared] = {}
    if sys.platform != "linux" or threading.active_count() > 1:
        return prepared, None
    for slot in range(count):
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            break
        if pid == 0:
            for end in (ours, *(one.channel for one in prepared.values())):
                end.close()
            os.setsid()  # a terminal's Ctrl-C reaches the supervisor alone
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            return {}, theirs
        theirs.close()
        prepared[slot] = Prepared(pid, ours)
    return prepared, None
