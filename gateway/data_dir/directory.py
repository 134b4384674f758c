"""The files of a data directory and their locks, for identity and adoption."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from config import process_lock
from config.error_words import NO_ROOM
from gateway.data_dir import durable
from gateway.data_dir.meta_properties import FORMAT_VERSION, WITNESS_FILE, DiskFullError, IdentityError, read_meta


def holder(directory: Path, worker: int) -> int | None:
    """The process that runs this worker, or None. Takes no lock. Raises IdentityError for an unreadable directory."""
    with explained(directory):
        found = process_lock.holder(_lock_path(directory, worker))
    return int(found) if found.isdigit() else None


def slots(directory: Path) -> set[int]:
    """The slots that were used in the directory and not given up since. Changes nothing, does not wait.

    Raises IdentityError for a newer format, or an unreadable directory.
    """
    with explained(directory):
        meta = read_meta(directory)
    return set() if meta is None else set(meta.workers)


def take_slot(directory: Path, worker: int, instance: str | None = None) -> int:
    """Lock a slot. Closing the returned descriptor releases it. Raises IdentityError if another process has it."""
    try:
        return process_lock.take(_lock_path(directory, worker))
    except process_lock.HeldError as held:
        whose = f" of instance {instance!r}" if instance is not None else ""
        raise IdentityError(
            f"data_dir {directory.absolute()} is in use: process {held.process} runs worker {worker}{whose} there. "
            "Stop it first. A second gateway needs another instance and another data_dir: two of one instance have the "
            "same MQTT client ids, and each would end the other's sessions."
        ) from None


@contextlib.contextmanager
def slot_locked(directory: Path, slot: int) -> Iterator[None]:
    """Hold a slot's lock. Raises IdentityError if another process has it."""
    lock = take_slot(directory, slot)
    try:
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def meta_locked(directory: Path) -> Iterator[None]:
    """Hold the lock of meta.properties, for which starting workers compete. Waits; it is only held briefly."""
    lock = os.open(directory / WITNESS_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Turn OSError into an IdentityError that says what a data directory needs; DiskFullError for a full or
    failing disk."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFullError(
                f"data_dir {directory.absolute()} cannot be written ({error.strerror}). Make room on its disk, or "
                "repair it; delete no spool: what it holds was acknowledged and exists nowhere else."
            ) from error
        raise IdentityError(
            f"data_dir {directory.absolute()} cannot be used ({error.strerror}). "
            "It must be a folder this user may write; in a container, a mounted volume."
        ) from error


def give_up(directory: Path, slot: int) -> None:
    """Remove the slot, whose lock is held. meta.properties is changed last, so that a crash before it is repaired."""
    durable.remove(sessions_path(directory, slot))
    durable.remove(clean_path(directory, slot))
    durable.remove(emqx_path(directory, slot))
    durable.remove(lost_sessions_path(directory, slot))
    with meta_locked(directory):
        meta = read_meta(directory)
        if meta is not None and slot in meta.workers:
            replace(meta, workers=meta.workers - {slot}, version=FORMAT_VERSION).write(directory)


def slots_with_files(directory: Path) -> set[int]:
    """Every slot with a file, also if meta.properties lacks it."""
    names = (path.name.removeprefix("worker-").partition(".")[0] for path in directory.glob("worker-*.*"))
    return {int(name) for name in names if name.isdigit()}


def _lock_path(directory: Path, worker: int) -> Path:
    return directory / f"worker-{worker}.lock"


def clean_path(directory: Path, worker: int) -> Path:
    """Exists while the slot does not run, after an orderly end."""
    return directory / f"worker-{worker}.clean"


def sessions_path(directory: Path, worker: int) -> Path:
    """The registry of the slot's MQTT sessions."""
    return directory / f"worker-{worker}.sessions.json"


def lost_sessions_path(directory: Path, worker: int) -> Path:
    """The file of the slot's sessions at the broker, and of those that the broker lost."""
    return directory / f"worker-{worker}.lost-sessions.json"


def emqx_path(directory: Path, worker: int) -> Path:
    """EMQX's counts of the slot's sessions at the last look."""
    return directory / f"worker-{worker}.emqx.json"
