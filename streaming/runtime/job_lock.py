"""One process for each checkpoint: a lock beside it, held for as long as the process lives.

Two processes of one job would write the same batches twice, and Spark notices only when both try to commit one. The
lock is the operating system's (flock): whatever ends the process gives it back, so a stale one cannot stay. Where the
checkpoint is not on a disk of this machine (``s3a://``) there is none; there Spark's own check ends the second process
at its first batch.
"""

import fcntl
import os
import socket
import threading
import time
from pathlib import Path
from typing import Final

from config.error_words import words
from config.errors import ConfigError
from streaming.lake.files import LocalFolder, is_local

_held: Final[dict[str, int]] = {}
"""Path of the lock -> its descriptor, of this process. A query may be started again in it."""
_guard: Final = threading.Lock()
_LOOK_S: Final = 0.5
"""For longer than it takes :func:`holder` to look."""


def hold(checkpoint_url: str, query: str, *, shared: bool = False) -> None:
    """Takes the lock of a query's checkpoint for this process; ``shared``: beside others that share it. Raises
    ConfigError if another process has it."""
    if not is_local(checkpoint_url):
        return
    path = _path(checkpoint_url, query)
    with _guard:
        if (mine := _held.get(str(path))) is not None:
            if path.exists() and os.fstat(mine).st_ino == path.stat().st_ino:
                return
            os.close(_held.pop(str(path)))  # the folder was removed, and is another one now
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"The checkpoint {checkpoint_url}/{query} cannot be written ({words(error)}): is stream.checkpoint a"
                " folder that this user may write to?"
            ) from error
        if not _take(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            owner = _read(lock)
            os.close(lock)
            raise ConfigError(
                f"{checkpoint_url}/{query} is in use by {owner}: both would write the same batches, or one what the"
                " other deletes. Stop that one first, or give this one a stream.checkpoint and tables of its own."
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        _held[str(path)] = lock


def _take(lock: int, kind: int) -> bool:
    """Whether the lock could be taken. :func:`holder` has it for an instant; that is waited out."""
    deadline_s = time.monotonic() + _LOOK_S
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.02)
        else:
            return True


def let_go(checkpoint_url: str, query: str) -> None:
    """Gives the lock back before the process ends. Nothing happens if it is not this process's."""
    with _guard:
        if (lock := _held.pop(str(_path(checkpoint_url, query)), None)) is not None:
            os.close(lock)


def holder(checkpoint_url: str, query: str) -> str | None:
    """The process that has the lock, as in "process 17 on edge-3"; None if none has it, or it cannot be told. No
    process that starts now is refused for it."""
    if not is_local(checkpoint_url):
        return None
    try:
        lock = os.open(_path(checkpoint_url, query), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(lock)
    else:
        return None
    finally:
        os.close(lock)


def _path(checkpoint_url: str, query: str) -> Path:
    return LocalFolder(checkpoint_url).path(f"{query}.lock")


def _read(lock: int) -> str:
    return os.pread(lock, 200, 0).decode(errors="replace").strip() or "another process"
