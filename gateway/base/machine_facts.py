"""What the operating system says of this process: its sockets by state, its descriptors, its memory's limit, its
waits for a CPU.

Read from ``/proc`` and ``/sys`` when somebody asks; on other systems than Linux there is nothing to read, and nothing
is said.
"""

from __future__ import annotations

__all__ = [
    "SOCKET_STATES",
    "CpuWaits",
    "control_groups",
    "cpu_pressure",
    "cpu_waits",
    "descriptors",
    "memory",
    "sockets",
]

import contextlib
import os
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_ROOT: Final = Path("/")
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


class CpuWaits(NamedTuple):
    """Seconds since whenever; only their growth says something.

    ``waited``: this process's first thread was ready to run and no CPU ran it; None where the kernel does not count
    that. ``throttled``: the container was stopped, its quota of CPU time being used up. ``pressure``: somebody in this
    control group was ready and had no CPU ("some" of PSI); somebody on the machine, where the group is not counted.
    """

    waited: float | None
    throttled: float
    pressure: float


def cpu_waits(root: Path = _ROOT) -> CpuWaits:
    """From ``/proc/self/schedstat``, ``cpu.stat`` and ``cpu.pressure`` of the control group and those around it, or
    ``/proc/pressure/cpu``. Costs some five small files of the kernel's."""
    throttled = 0.0
    for folder in control_groups(root, "cpu"):
        stat = _fields(folder / "cpu.stat")
        # Microseconds in version 2 of control groups, nanoseconds in version 1. A quota of a group around stops it too.
        throttled = max(throttled, stat.get("throttled_usec", 0) / 1e6, stat.get("throttled_time", 0) / 1e9)
    return CpuWaits(_waited(root), throttled, _pressure(root).get("total", 0) / 1e6)


def cpu_pressure(root: Path = _ROOT) -> float | None:
    """The share of the last minute in which somebody was ready and had no CPU, in this control group or, where that is
    not counted, on the machine; None where the kernel does not tell."""
    percent = _pressure(root).get("avg60")
    return None if percent is None else percent / 100


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of those around it, which limit it too: own first.

    A group that cannot be seen from inside a container is looked for at the top, where the container has its own
    mounted. Blocks for one small file.
    """
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in [*lines, "0::/", f"0:{controller}:/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 has no controllers in the line; its tree is the mount itself, or "unified" beside version 1's.
        tops = [groups, groups / "unified"] if not controllers else [groups / controllers, groups / controller]
        inside = Path(path.lstrip("/"))
        for top in tops:
            for at in (inside, *inside.parents):
                if ".." not in at.parts:
                    yield top / at


def _waited(root: Path) -> float | None:
    """The second number: nanoseconds in the run queue. A kernel that keeps no such account says that it never ran."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ran, waited, *_ = (root / "proc/self/schedstat").read_text().split()
        return int(waited) / 1e9 if int(ran) else None
    return None


def _pressure(root: Path) -> dict[str, float]:
    """``some avg10=0.00 avg60=0.00 avg300=0.00 total=12345``: per cent, and microseconds in all. Empty without PSI."""
    for file in (*(folder / "cpu.pressure" for folder in control_groups(root, "cpu")), root / "proc/pressure/cpu"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            pairs = (word.split("=") for word in file.read_text().splitlines()[0].split()[1:])
            return {name: float(number) for name, number in pairs}
    return {}


def _fields(file: Path) -> dict[str, int]:
    """``name number`` in each line; empty where there is no such file."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            found[name] = int(number)
    return found
