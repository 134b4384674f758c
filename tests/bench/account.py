"""What a process and its children have used: CPU from their clocks, memory from /proc. Linux only, no permission
needed beyond same user.

/proc/<pid>/stat counts in ticks of 10 ms and splits user from system; the process's CPU clock counts in nanoseconds
and includes its ended threads. The total is the clock's, the split /proc's. Children that have ended are in their
parent's `cutime` and `cstime`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU used up to a moment. ``total_ns`` is exact; ``user_ns`` and ``system_ns`` are in steps of a clock tick."""

    total_ns: int
    user_ns: int
    system_ns: int

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(
            self.total_ns - earlier.total_ns, self.user_ns - earlier.user_ns, self.system_ns - earlier.system_ns
        )


def tree(pid: int) -> list[int]:
    """The process and its living descendants, parents first."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _cpu_clock(pid: int) -> int:
    # clock_getcpuclockid(3): Linux encodes a process's scheduler clock as the inverted pid with 2 in the low bits.
    return (~pid << 3) | 2


def _stat_ticks(pid: int) -> tuple[int, int, int, int]:
    # The command name may hold spaces and brackets: fields are counted after the last closing one. utime is field 14.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]), int(fields[12]), int(fields[13]), int(fields[14])


def cpu_of_each(pid: int) -> dict[int, int]:
    """CPU in nanoseconds of each living process of the tree. Raises ProcessLookupError when one ends meanwhile."""
    try:
        return {member: time.clock_gettime_ns(_cpu_clock(member)) for member in tree(pid)}
    except OSError as error:
        raise ProcessLookupError(f"a process of {pid} has ended; its CPU time cannot be read") from error


def cpu_of(pid: int) -> CpuTime:
    """CPU that the process tree has used so far. Raises ProcessLookupError when the process is gone."""
    total = user = system = 0
    for member in tree(pid):
        try:
            clock = time.clock_gettime_ns(_cpu_clock(member))
            utime, stime, cutime, cstime = _stat_ticks(member)
        except OSError as error:
            if member == pid:
                raise ProcessLookupError(f"process {pid} has ended; its CPU time cannot be read") from error
            continue  # ended between the listing and the reading: its parent's account has it
        total += clock + (cutime + cstime) * _TICK_NS
        user += (utime + cutime) * _TICK_NS
        system += (stime + cstime) * _TICK_NS
    return CpuTime(total, user, system)


@dataclass(frozen=True, slots=True)
class Span:
    """A measured stretch: its length and the CPU used in it."""

    ns: int
    cpu: CpuTime


class SpanClock:
    """Reads clock and CPU of a process tree at its making and at ``stop``."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu = cpu_of(pid)
        self._started_ns = time.monotonic_ns()

    def stop(self) -> Span:
        """The stretch since the making. Raises ProcessLookupError when the process is gone."""
        return Span(time.monotonic_ns() - self._started_ns, cpu_of(self._pid) - self._cpu)


def _status_mib(members: list[int], field: str) -> float:
    total_kib = 0
    for member in members:
        try:
            lines = Path(f"/proc/{member}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total_kib += sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
    return total_kib / 1024


def rss_mib(pid: int) -> float:
    """Resident memory of the tree now, in MiB (pages shared between its processes count in each)."""
    return _status_mib(tree(pid), "VmRSS")


def pss_mib(pid: int) -> float:
    """Resident memory of one process now, each shared page divided by the number of its users, in MiB. Raises
    ProcessLookupError when the process is gone.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def own_peak_rss_mib(pid: int) -> float:
    """The highest resident memory of the process alone, in MiB."""
    return _status_mib([pid], "VmHWM")


def peak_rss_mib(pid: int) -> float:
    """The highest resident memory each process of the tree has had, summed, in MiB."""
    return _status_mib(tree(pid), "VmHWM")
