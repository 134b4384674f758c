"""A file that one process at a time holds, and that says which: what keeps two gateways off one folder."""

from __future__ import annotations

__all__ = ["HeldError", "holder", "take"]

import fcntl
import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_TRIES: Final = 5
_BETWEEN_TRIES_S: Final = 0.01
_UNKNOWN: Final = "unknown"


class HeldError(Exception):
    """Another process has the lock; ``process`` is its number, or "unknown"."""

    def __init__(self, process: str) -> None:
        super().__init__(process)
        self.process = process


def take(path: Path, mode: int = 0o644) -> int:
    """The descriptor whose closing gives the lock back; the end of the process closes it in any case. The file stays:
    removing it would race with the next owner.

    Raises HeldError, OSError. Blocks for a moment when the lock is held: :func:`holder` takes it to look.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not left:
                process = _read(lock)
                os.close(lock)
                raise HeldError(process) from None
            time.sleep(_BETWEEN_TRIES_S)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def holder(path: Path) -> str:
    """The process that has the lock, "unknown" if it does not say, "" if none has it. Takes nothing."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(lock)
    else:
        return ""
    finally:
        os.close(lock)


def _read(lock: int) -> str:
    return os.pread(lock, 32, 0).decode(errors="replace").strip() or _UNKNOWN
