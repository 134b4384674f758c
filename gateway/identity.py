"""Who this process is: an instance and a worker number, held by a lock in the data directory.

Two processes with the same client ids end each other's sessions for ever (MQTT: session taken over), so a second one is
refused at the start, with a sentence that says which directory and whose it is.
"""

from __future__ import annotations

__all__ = ["Identity", "IdentityError", "holder"]

import fcntl
import os
from typing import TYPE_CHECKING, Final

from config.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

FORMAT_VERSION: Final = 1
_META: Final = "meta.properties"


class IdentityError(ConfigError):
    """The data directory is another's, in use, or cannot be written."""


def holder(directory: Path, worker: int) -> int | None:
    """The process that runs this worker of the data directory's instance, None if none does. Takes nothing."""
    try:
        lock = os.open(_lock_path(directory, worker), os.O_RDWR | os.O_CLOEXEC)
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


def _lock_path(directory: Path, worker: int) -> Path:
    return directory / f"worker-{worker}.lock"


class Identity:
    """A component: ``start`` claims the data directory for an instance and worker, ``stop`` gives it back.

    ``meta.properties`` keeps format version and instance, in Java's properties format as Kafka's own has it.
    """

    name: Final = "identity"

    def __init__(self, directory: Path, instance: str, worker: int) -> None:
        self._directory = directory
        self._instance = instance
        self._worker = worker
        self._lock: int | None = None

    async def start(self) -> None:
        """Raises IdentityError. Blocks for a few small file operations."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self._check_meta()
        except OSError as error:
            raise IdentityError(
                f"data_dir {self._directory.absolute()} cannot be used ({error.strerror}). "
                "It must be a folder this user may write; in a container, a mounted volume."
            ) from error

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - there is nothing to wait for
        if self._lock is not None:
            os.close(
                self._lock
            )  # the lock goes with it; the file stays, for removing it would race with the next owner
            self._lock = None

    def _take_lock(self) -> None:
        self._lock = os.open(_lock_path(self._directory, self._worker), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise IdentityError(
                f"data_dir {self._directory.absolute()} is in use: process {holder} runs worker {self._worker} "
                f"of instance {self._instance!r} there. Stop it, or give this one another instance, worker or data_dir."
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _check_meta(self) -> None:
        path = self._directory / _META
        try:
            text = path.read_text()
        except FileNotFoundError:
            self._write_meta(path)
            return
        meta = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
        version = meta.get("version", "?")
        if version != str(FORMAT_VERSION):
            raise IdentityError(
                f"{path.absolute()} has format version {version}; this gateway knows {FORMAT_VERSION}. "
                "A newer gateway wrote it: run that one, or use another data_dir."
            )
        if meta.get("instance") != self._instance:
            raise IdentityError(
                f"data_dir {self._directory.absolute()} belongs to instance {meta.get('instance')!r}, not "
                f"{self._instance!r}. Set data_dir or instance right; "
                f"if the instance was renamed on purpose, delete {_META} there."
            )

    def _write_meta(self, path: Path) -> None:
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(f"version={FORMAT_VERSION}\ninstance={self._instance}\n")
        draft.replace(path)
