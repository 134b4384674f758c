"""How many CPUs this process may use: the machine's, limited by affinity and the container's quota."""

import contextlib
import os
from pathlib import Path
from typing import Final

from config.settings import Settings
from gateway.base.process.machine_facts import control_groups

_ROOT: Final = Path("/")


def worker_count(settings: Settings) -> int:
    """``workers``, else a worker for each CPU; 0 means no supervisor.

    The default is 1 where several workers could not share the work: with equal client ids, or with filters distributed
    over the sessions of one worker.
    """
    if settings.workers is not None:
        return settings.workers
    if settings.mqtt.distribution == "partitioned" or "${worker}" not in settings.mqtt.client_id:
        return 1
    return available_cpus()


def available_cpus() -> int:
    """Whole CPUs that this process may use at a time, at least 1. Reads a few small files of /proc and /sys."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpus()
    # Rounded down, because a worker with half a CPU would delay messages.
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def cgroup_cpus(root: Path = _ROOT) -> float | None:
    """The least quota on the way from this process's control group to the top, in CPUs; None when there is none.

    Version 2 (``cpu.max``) and version 1 (``cpu.cfs_quota_us``, ``cpu.cfs_period_us``).
    """
    quotas: list[float] = []
    for folder in control_groups(root, "cpu"):
        with contextlib.suppress(OSError, ValueError):
            quotas += parse_cpu_max((folder / "cpu.max").read_text())
        with contextlib.suppress(OSError, ValueError):
            quota, period = ((folder / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
            quotas += parse_cpu_max(f"{quota} {period}")
    return min(quotas, default=None)


def cpu_ticks(pid: int) -> int | None:
    """The CPU time of a process in the system's ticks of usually 10 ms; None if unknown."""
    try:
        # The name in parentheses may have spaces and parentheses of its own; utime and stime are fields 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None


def parse_cpu_max(text: str) -> list[float]:
    """The CPUs that ``QUOTA PERIOD`` allows (``200000 100000`` is 2); empty for ``max`` and -1. Raises ValueError for
    other texts."""
    quota, period = text.split()
    if quota == "max" or int(quota) <= 0:
        return []
    if int(period) <= 0:
        raise ValueError(f"a period of {period} µs")
    return [int(quota) / int(period)]
