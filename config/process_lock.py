"""A lock file with the name of the process that holds it. It keeps two gateways, or two jobs, from using one folder."""

import fcntl
import os
import time
from pathlib import Path
from typing import Final

_TRIES: Final = 25
_LOOK_TRIES: Final = 500  # while others only share it: a look takes microseconds, on a machine that stands still longer
_BETWEEN_TRIES_S: Final = 0.01
_UNKNOWN: Final = "unknown"


class HeldError(Exception):
    """Another process has the lock; ``process`` is its number or name, or "unknown"."""

    def __init__(self, process: str) -> None:
        super().__init__(process)
        self.process = process


def take(path: Path, mode: int = 0o644, *, name: str = "", shared: bool = False) -> int:
    """Take the lock. Closing the returned descriptor, or the end of the process, releases it. The file stays: removing
    it would race with the next owner.

    ``name``: what :func:`holder` tells, instead of the process's number. ``shared``: beside others that share it.

    Raises HeldError, OSError. Blocks for 0.25 s while the lock is held; for 5 s while others share it, because
    :func:`holder` does so briefly.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        _wait(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{name or os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _wait(lock: int, kind: int) -> None:
    """Lock the open file, within the times of :func:`take`. Raises HeldError, OSError."""
    left, looks = _TRIES, _LOOK_TRIES
    while True:
        try:
            return fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if _is_shared(lock):
                looks -= 1
            else:
                left -= 1
            if not left or not looks:
                raise HeldError(_read(lock)) from None
            time.sleep(_BETWEEN_TRIES_S)


def holder(path: Path) -> str:
    """The number or name of the process with the lock, "unknown" without one, "" without a process. Another user, who
    may not write the file, can ask too. Raises OSError if this user may not even read it."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(lock)
    else:
        return ""
    finally:
        os.close(lock)


def _is_shared(lock: int) -> bool:
    """Whether all others that have the lock share it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(lock, fcntl.LOCK_UN)
    return True


def _read(lock: int) -> str:
    return os.pread(lock, 200, 0).decode(errors="replace").strip() or _UNKNOWN
