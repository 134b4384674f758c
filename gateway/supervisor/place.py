"""The supervisor's place in the data directory: a lock that says which process it is, and reports of what it did."""

from __future__ import annotations

__all__ = ["NAME", "Place", "PlaceError", "find_supervisor"]

import os
from typing import TYPE_CHECKING, Final, Self

from bridge import process_lock
from config.errors import ConfigError
from gateway.base.reports import Reports
from gateway.data_dir.directory import explained

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "supervisor"  # in the data directory
_LOCK: Final = "supervisor.lock"


class PlaceError(ConfigError):
    """The data directory has a supervisor already."""


def find_supervisor(directory: Path) -> int | None:
    """The process that supervises the workers of this data directory; None if none does. Takes nothing."""
    found = process_lock.holder(directory / _LOCK)
    return int(found) if found.isdigit() else None


class Place:
    """The lock, held while the ``with`` block runs, and the reports, which stay behind for whoever asks later."""

    def __init__(self, directory: Path, instance: str) -> None:
        self._directory = directory
        self._instance = instance
        self._lock: int | None = None
        self.reports = Reports(directory, NAME)

    def __enter__(self) -> Self:
        """Raises PlaceError, IdentityError."""
        where = self._directory.absolute()
        try:
            with explained(self._directory):
                self._directory.mkdir(parents=True, exist_ok=True)
                self._lock = process_lock.take(self._directory / _LOCK)
        except process_lock.HeldError as held:
            raise PlaceError(
                f"data_dir {where} is in use: process {held.process} supervises the workers of an instance there. Stop "
                f"it, or give {self._instance!r} another instance and another data_dir. To change the number of "
                "workers: set workers and send it SIGHUP."
            ) from None
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # the lock goes with it; the file stays, for removing it would race with the next
            self._lock = None
