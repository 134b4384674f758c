"""One process for each checkpoint: a lock beside it, held for as long as the process lives.

Two processes of one job would write the same batches twice, and Spark notices only when both try to commit one. The
lock is the operating system's (flock), so none outlives its process. Where the checkpoint is not on a disk of this
machine (``s3a://``) there is none; there Spark ends the second process at its first batch.
"""

import os
import socket
from pathlib import Path
from typing import Final

from config import process_lock
from config.error_words import words
from config.errors import ConfigError
from streaming.lake.storage import LocalFolder, is_local

_held: Final[dict[Path, int]] = {}
"""Path of the lock -> its descriptor, of this process. A query may be started again in it."""


def hold(checkpoint_url: str, query: str, *, shared: bool = False) -> None:
    """Takes the lock of a query's checkpoint for this process; ``shared``: beside others that share it. Raises
    ConfigError if another process has it."""
    if not is_local(checkpoint_url):
        return  # no file that could be locked
    path = _path(checkpoint_url, query)
    if path in _held:
        return
    me = f"process {os.getpid()} on {socket.gethostname()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _held[path] = process_lock.take(path, name=me, shared=shared)
    except process_lock.HeldError as held:
        raise ConfigError(
            f"{checkpoint_url}/{query} is in use by {held.process}: both would write the same batches, or one what the"
            " other deletes. Stop that one first, or give this one a stream.checkpoint and tables of its own."
        ) from held
    except OSError as error:
        raise ConfigError(
            f"The checkpoint {checkpoint_url}/{query} cannot be written ({words(error)}): is stream.checkpoint a folder"
            " that this user may write to?"
        ) from error


def let_go(checkpoint_url: str, query: str) -> None:
    """Gives the lock back before the process ends, if it is this process's."""
    if (lock := _held.pop(_path(checkpoint_url, query), None)) is not None:
        os.close(lock)


def holder(checkpoint_url: str, query: str) -> str | None:
    """The process that has the lock, as in "process 17 on edge-3"; None if none has it, or it cannot be told."""
    return (process_lock.holder(_path(checkpoint_url, query)) or None) if is_local(checkpoint_url) else None


def _path(checkpoint_url: str, query: str) -> Path:
    return LocalFolder(checkpoint_url).path(f"{query}.lock")
