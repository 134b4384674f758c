"""The first workers, forked from a process with loaded code.

Loading a worker takes 0.6 s of CPU, which the supervisor and each worker would otherwise all spend. The fork comes
before there is an event loop, a thread, a lock or a port, which a fork must not inherit. Later workers are programs of
their own (``gateway.supervisor.process``): by then the supervisor has all of these, and a replacement must run the
presently installed package.
"""

import os
import socket
import sys
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prepared:
    """A worker process that waits for its settings, and the supervisor's end of its channel."""

    pid: int
    channel: socket.socket


def fork_workers(count: int) -> tuple[dict[int, Prepared], socket.socket | None]:
    """In the supervisor: the workers by slot, and None. In each worker: an empty dict, and its end of the channel.

    There are none where a fork is unsafe (no Linux, a thread), and fewer if the system refuses more: the supervisor
    then starts programs. A worker ends by itself if the supervisor ends before sending anything.
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
