"""The operating system's facts on this process: sockets by state, descriptors, memory limit, waits for a CPU.

Read from ``/proc`` and ``/sys`` on each call. On systems other than Linux the functions return zeros or None.
"""

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

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
_UNLIMITED: Final = 1 << 60  # version 1 of cgroups has a larger number for "none"


def sockets() -> dict[str, int]:
    """This process's TCP sockets by state; every state is there. Costs a system call for each open descriptor, some
    microseconds. The tables in /proc/net would list the sockets of all processes."""
    found = dict.fromkeys(SOCKET_STATES, 0)
    try:
        numbers = os.listdir(_DESCRIPTORS)  # noqa: PTH208 - called at each scrape, and a Path for each number is waste
    except OSError:
        return found
    for number in numbers:
        # Nothing is opened or closed: detach() before the object could close a descriptor that is not its own.
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
    """Open file descriptors and their limit; 0, 0 if unknown."""
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
    """Seconds since an unknown moment; only differences have a meaning.

    ``waited``: this process's first thread was ready to run and no CPU ran it; None if the kernel does not count
    it. ``throttled``: the container was stopped because its CPU quota was used up. ``pressure``: some process of this
    control group was ready and had no CPU ("some" of PSI); of the machine, if the group is not counted.
    """

    waited: float | None
    throttled: float
    pressure: float


def cpu_waits(root: Path = _ROOT) -> CpuWaits:
    """From ``/proc/self/schedstat``, ``cpu.stat`` and ``cpu.pressure`` of the control group and its parents, or
    ``/proc/pressure/cpu``. Reads about five small files."""
    throttled = 0.0
    for folder in control_groups(root, "cpu"):
        stat = _fields(folder / "cpu.stat")
        # Microseconds in version 2 of control groups, nanoseconds in version 1. A parent's quota stops it too.
        throttled = max(throttled, stat.get("throttled_usec", 0) / 1e6, stat.get("throttled_time", 0) / 1e9)
    return CpuWaits(_waited(root), throttled, _pressure(root).get("total", 0) / 1e6)


def cpu_pressure(root: Path = _ROOT) -> float | None:
    """The share of the last minute in which some process was ready and had no CPU, in this control group or, if that is
    not counted, on the machine; None if the kernel does not count it."""
    percent = _pressure(root).get("avg60")
    return None if percent is None else percent / 100


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group, then of its parents, which limit it too.

    A group that is invisible inside a container is searched at the top, where the container's own is mounted. Blocks
    for one small file.
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
    """The second number: nanoseconds in the run queue. A kernel that does not count them reports a process that never
    ran."""
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
