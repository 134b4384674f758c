"""Facts about this machine: disk, descriptors, memory. Leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.spool.spool import spool_path
from gateway.base.process.machine_facts import control_groups, cpu_pressure

if TYPE_CHECKING:
    from config.settings import Settings

_ROOT: Final = Path("/")
_SYNCS: Final = 5
_SYNC_S: Final = 1.0  # no further write after this time


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The disk of ``data_dir``, which need not exist. ``spooled``: bytes of its spools."""

    directory: str
    looked_at: str
    writable: bool
    read_only: bool
    kind: str
    free: int
    total: int
    free_inodes: int | None
    spooled: int
    fsync_s: float | None = None  # time of a small write


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A running process of the gateway, as far as the system shows it."""

    pid: int
    descriptors: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class HostFacts:
    disk: DiskFacts | None
    disk_error: str
    descriptor_limit: int
    memory_limit: int | None  # of the control group; None without one
    memory_available: int | None  # of the machine
    processes: tuple[ProcessFacts, ...] = ()
    cpu_pressure: float | None = None  # of the last minute, 1 for all of it


def gather(settings: Settings, workers: int, pids: Iterable[int], root: Path = _ROOT) -> HostFacts:
    """The facts; unknown ones are None. Blocks for some small files. Never raises OSError. ``root`` is for tests."""
    disk, disk_error = None, ""
    try:
        disk = _disk(settings.data_dir, workers, root)
    except OSError as error:
        disk_error = str(error.strerror)
    return HostFacts(
        disk,
        disk_error,
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        _memory_limit(root),
        _available_memory(root),
        tuple(_process(pid, root) for pid in pids),
        cpu_pressure(root),
    )


def _disk(directory: Path, workers: int, root: Path) -> DiskFacts:
    directory = directory.absolute()
    at = directory  # or the nearest folder above it that exists
    while not at.exists() and at != at.parent:
        at = at.parent
    found = os.statvfs(at)
    spooled = 0
    for worker in range(workers):
        with contextlib.suppress(OSError):
            spooled += sum(
                one.stat().st_blocks * 512 for one in spool_path(directory, worker).rglob("*") if one.is_file()
            )
    return DiskFacts(
        str(directory),
        str(at),
        os.access(at, os.W_OK | os.X_OK),
        bool(found.f_flag & os.ST_RDONLY),
        _file_system(at.resolve(), root),
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        found.f_favail if found.f_files else None,
        spooled,
        _fsync_s(directory) if at == directory else None,
    )


def _fsync_s(directory: Path) -> float | None:
    """The median time of a small durable write; None if it cannot be tried.

    Uses a file without a name, which disappears with this process."""
    times: list[float] = []
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        while len(times) < _SYNCS and sum(times) < _SYNC_S:
            os.pwrite(fd, b"\0" * 4096, 4096 * len(times))
            began_s = time.monotonic()
            os.fsync(fd)
            times.append(time.monotonic() - began_s)
    except OSError:
        return None
    finally:
        os.close(fd)
    return sorted(times)[len(times) // 2]


def _file_system(at: Path, root: Path) -> str:
    """The type of the mounted file system; empty if unknown."""
    best, kind = "", ""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            mounted = before.split()[4].replace("\\040", " ")
            inside = mounted == "/" or at == Path(mounted) or Path(mounted) in at.parents
            if inside and len(mounted) >= len(best):
                best, kind = mounted, after.split()[0]
    return kind


def _memory_limit(root: Path) -> int | None:
    """The lowest limit of this process's control group and those above it, which the kernel keeps to."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [_number(folder / name) for folder in control_groups(root, "memory") for name in names]
    # Version 1 has a very large number for "none".
    return min((limit for limit in limits if limit is not None and limit < 1 << 60), default=None)


def _number(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def _available_memory(root: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024  # from KiB
    return None


def _process(pid: int, root: Path) -> ProcessFacts:
    descriptors = limit = None  # unknown
    with contextlib.suppress(OSError):
        descriptors = sum(1 for _ in (root / f"proc/{pid}/fd").iterdir())
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / f"proc/{pid}/limits").read_text().splitlines():
            if line.startswith("Max open files"):
                limit = int(line.split()[3])
    return ProcessFacts(pid, descriptors, limit)
