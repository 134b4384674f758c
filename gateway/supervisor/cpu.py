"""How many CPUs this process may really use: the machine's, less what an affinity or a container's quota leaves."""

from __future__ import annotations

__all__ = ["available_cpus", "cgroup_cpus", "parse_cpu_max", "worker_count"]

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from config.settings import Settings

_ROOT: Final = Path("/")


def worker_count(settings: Settings) -> int:
    """``workers``, or a worker for each CPU where it is not set; 0 means that there is to be no supervisor.

    Where several workers could not share the work (client ids that are the same in each, filters dealt out to the
    sessions of one) the count that nobody chose is 1.
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
    # Rounded down: a worker with half a CPU to itself is late for every other message.
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def cgroup_cpus(root: Path = _ROOT) -> float | None:
    """The least quota on the way from this process's control group to the top, in CPUs; None when there is none.

    Version 2 (``cpu.max``) and version 1 (``cpu.cfs_quota_us``, ``cpu.cfs_period_us``). A group that cannot be seen
    from inside a container is looked for at the top, where the container has its own mounted.
    """
    quotas: list[float] = []
    for folder in _folders(root):
        with contextlib.suppress(OSError, ValueError):
            quotas += parse_cpu_max((folder / "cpu.max").read_text())
        with contextlib.suppress(OSError, ValueError):
            quota, period = ((folder / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
            quotas += parse_cpu_max(f"{quota} {period}")
    return min(quotas, default=None)


def parse_cpu_max(text: str) -> list[float]:
    """The CPUs that ``QUOTA PERIOD`` allows (``200000 100000`` is 2); nothing for ``max`` and -1. ValueError for what
    is neither."""
    quota, period = text.split()
    if quota == "max" or int(quota) <= 0:
        return []
    if int(period) <= 0:
        raise ValueError(f"a period of {period} µs")
    return [int(quota) / int(period)]


def _folders(root: Path) -> Iterator[Path]:
    """The folders to look in, from this process's group up to the mount's top."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in [*lines, "0::/", "0:cpu:/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has no controllers in the line; its tree is the mount itself, or "unified" beside version 1's.
        tops = [groups, groups / "unified"] if not controllers else [groups / controllers, groups / "cpu"]
        inside = Path(path.lstrip("/"))
        for top in tops:
            for at in (inside, *inside.parents):
                if ".." not in at.parts:
                    yield top / at
