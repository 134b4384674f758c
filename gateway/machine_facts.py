"""What the operating system says of this process: its sockets by state, its descriptors, its memory's limit.

Read from ``/proc`` and ``/sys`` when somebody asks; on other systems than Linux there is nothing to read, and nothing
is said.
"""

from __future__ import annotations

__all__ = ["SOCKET_STATES", "descriptors", "memory", "sockets"]

import os
import resource
import socket
from pathlib import Path
from typing import Final

# /usr/include/netinet/tcp.h; the first byte of TCP_INFO.
SOCKET_STATES: Final = (
    "established",
    "syn_sent",
    "syn_recv",
    "fin_wait1",
    "fin_wait2",
    "time_wait",
    "close",
    "close_wait",
    "last_ack",
    "listen",
    "closing",
)
_DESCRIPTORS: Final = "/proc/self/fd"
_CGROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60  # what the first version of cgroups says for "none" is above


def sockets() -> dict[str, int]:
    """This process's TCP sockets by state; every state is there. Costs a system call for each open descriptor, some
    microseconds, however many sockets the machine has: the tables in /proc/net list those of everybody."""
    found = dict.fromkeys(SOCKET_STATES, 0)
    try:
        numbers = os.listdir(_DESCRIPTORS)  # noqa: PTH208 - called at each scrape, and a Path for each number is waste
    except OSError:
        return found
    for number in numbers:
        # Nothing is opened or closed: the object is let go of before it could close what is not its own.
        try:
            one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, int(number))
        except OSError:  # no socket, or closed by now
            continue
        try:
            state = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        except OSError:  # none of TCP
            continue
        finally:
            one.detach()
        if 1 <= state <= len(SOCKET_STATES):
            found[SOCKET_STATES[state - 1]] += 1
    return found


def descriptors() -> tuple[int, int]:
    """Open file descriptors, and how many there may be; 0, 0 where nobody can tell."""
    try:
        opened = len(os.listdir(_DESCRIPTORS))  # noqa: PTH208 - as above
        return opened, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except OSError:
        return 0, 0


def memory() -> tuple[int, int]:
    """Bytes of memory that the container uses, without what the kernel would drop first, and its limit (0: none).

    The limit is the container's, all workers together, which is what the kernel kills at."""
    for usage, limit, statistics, droppable in (
        ("memory.current", "memory.max", "memory.stat", "inactive_file "),
        ("memory/memory.usage_in_bytes", "memory/memory.limit_in_bytes", "memory/memory.stat", "total_inactive_file "),
    ):
        try:
            allowed = (_CGROUPS / limit).read_text().strip()
            used = int((_CGROUPS / usage).read_text())
            lines = (_CGROUPS / statistics).read_text().splitlines()
        except (OSError, ValueError):
            continue
        if allowed == "max" or int(allowed) >= _UNLIMITED:
            return used, 0
        dropped = next((int(line.removeprefix(droppable)) for line in lines if line.startswith(droppable)), 0)
        return max(0, used - dropped), int(allowed)
    return 0, 0
