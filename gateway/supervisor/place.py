"""The supervisor's files in the data directory: a lock with its process id, and reports of its operations."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from config import process_lock
from config.errors import ConfigError
from gateway.base.reports import Reports
from gateway.data_dir.directory import explained

NAME: Final = "supervisor"  # in the data directory
_LOCK: Final = "supervisor.lock"


class PlaceError(ConfigError):
    """Another supervisor uses the data directory."""


def find_supervisor(directory: Path) -> int | None:
    """The id of the process that supervises this data directory; None if there is none. Takes no lock. Raises
    IdentityError for an unreadable directory."""
    with explained(directory):
        found = process_lock.holder(directory / _LOCK)
    return int(found) if found.isdigit() else None


@contextlib.contextmanager
def held_place(directory: Path, instance: str) -> Iterator[Reports]:
    """Be the directory's one supervisor while the block runs; the reports stay. Raises PlaceError, IdentityError."""
    try:
        with explained(directory):
            directory.mkdir(parents=True, exist_ok=True)
            lock = process_lock.take(directory / _LOCK)
    except process_lock.HeldError as held:
        raise PlaceError(
            f"data_dir {directory.absolute()} is in use: process {held.process} supervises the workers of an instance "
            f"there. Stop it, or give {instance!r} another instance and another data_dir. To change the number of "
            "workers: set workers and send it SIGHUP."
        ) from None
    try:
        yield Reports(directory, NAME)
    finally:
        os.close(lock)  # releases the lock; the file stays, because its removal would race with the next process
