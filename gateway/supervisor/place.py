"""The supervisor's place in the data directory: a lock that says which process it is, and a report of what it did."""

from __future__ import annotations

__all__ = ["Outcome", "Place", "PlaceError", "find_supervisor", "read_outcome"]

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from bridge import process_lock
from config.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_LOCK: Final = "supervisor.lock"
_REPORT: Final = "supervisor.json"

Operation = Literal["restart", "reload", "stop"]


class PlaceError(ConfigError):
    """The data directory has a supervisor already, or cannot be used."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last of one kind of operation: the ``count``-th of this supervisor; ``ok`` is None while it runs."""

    count: int = 0
    ok: bool | None = None
    sentence: str = ""


def find_supervisor(directory: Path) -> int | None:
    """The process that supervises the workers of this data directory; None if none does. Takes nothing."""
    found = process_lock.holder(directory / _LOCK)
    return int(found) if found.isdigit() else None


def read_outcome(directory: Path, pid: int, operation: Operation) -> Outcome:
    """What supervisor ``pid`` last reported of an operation; a count of 0 when it has not done it."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        report = json.loads((directory / _REPORT).read_text())
        if report["pid"] == pid:
            return Outcome(**report["operations"][operation])
    return Outcome()


class Place:
    """The lock, held while the ``with`` block runs, and the report, which stays behind for whoever asks later."""

    def __init__(self, directory: Path, instance: str) -> None:
        self._directory = directory
        self._instance = instance
        self._lock: int | None = None
        self._outcomes: dict[Operation, Outcome] = {}

    def __enter__(self) -> Self:
        """Raises PlaceError."""
        where = self._directory.absolute()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = process_lock.take(self._directory / _LOCK)
        except OSError as error:
            raise PlaceError(
                f"data_dir {where} cannot be used ({error.strerror}). "
                "It must be a folder this user may write; in a container, a mounted volume."
            ) from error
        except process_lock.HeldError as held:
            raise PlaceError(
                f"data_dir {where} is in use: process {held.process} supervises the workers of an instance there. Stop "
                f"it, or give {self._instance!r} another data_dir. To change the number of workers: set workers and "
                "send it SIGHUP."
            ) from None
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # the lock goes with it; the file stays, for removing it would race with the next
            self._lock = None

    def begin(self, operation: Operation) -> None:
        """An operation has begun."""
        self._write(operation, Outcome(self._outcomes.get(operation, Outcome()).count + 1))

    def finish(self, operation: Operation, problem: str | None, done: str) -> None:
        """It has ended: with a problem, or as ``done`` says."""
        count = self._outcomes.get(operation, Outcome()).count
        self._write(operation, Outcome(count, problem is None, problem or done))

    def _write(self, operation: Operation, outcome: Outcome) -> None:
        self._outcomes[operation] = outcome
        report = {"pid": os.getpid(), "operations": {name: asdict(one) for name, one in self._outcomes.items()}}
        draft = self._directory / f"{_REPORT}.new"
        with contextlib.suppress(OSError):  # a full disk must not stop workers from being replaced
            draft.write_text(json.dumps(report) + "\n")
            draft.replace(self._directory / _REPORT)
