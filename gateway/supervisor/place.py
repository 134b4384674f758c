"""The supervisor's place in the data directory: a lock that says which process it is, and a report of what it did."""

from __future__ import annotations

__all__ = ["Outcome", "Place", "PlaceError", "find_supervisor", "read_outcome"]

import contextlib
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from config.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_LOCK: Final = "supervisor.lock"
_REPORT: Final = "supervisor.json"
_TRIES: Final = 5
_BETWEEN_TRIES_S: Final = 0.02

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
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(lock, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else None
    else:
        return None
    finally:
        os.close(lock)


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
            self._lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise PlaceError(
                f"data_dir {where} cannot be used ({error.strerror}). "
                "It must be a folder this user may write; in a container, a mounted volume."
            ) from error
        if not self._try_lock():
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            self._close()
            raise PlaceError(
                f"data_dir {where} is in use: process {holder} supervises the workers of an instance there. Stop it, "
                f"or give {self._instance!r} another data_dir. To change the number of workers: set workers and send "
                "it SIGHUP."
            )
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def _try_lock(self) -> bool:
        """Whoever looks for a supervisor tries the lock for an instant; that must not make a start fail."""
        assert self._lock is not None
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_BETWEEN_TRIES_S)
            else:
                return True
        return False

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
