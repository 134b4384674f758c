"""The files of a data directory and the locks on them: what identity and adoption build on."""

from __future__ import annotations

__all__ = [
    "clean_path",
    "emqx_path",
    "explained",
    "give_up",
    "holder",
    "lost_sessions_path",
    "meta_locked",
    "sessions_path",
    "slot_locked",
    "slots",
    "slots_with_files",
    "take_slot",
]

import contextlib
import errno
import fcntl
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from bridge import process_lock
from gateway.data_dir import durable
from gateway.data_dir.meta_properties import FORMAT_VERSION, WITNESS_FILE, DiskFullError, IdentityError, read_meta

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def holder(directory: Path, worker: int) -> int | None:
    """The process that runs this worker of the data directory's instance, None if none does. Takes nothing."""
    found = process_lock.holder(_lock_path(directory, worker))
    return int(found) if found.isdigit() else None


def slots(directory: Path) -> set[int]:
    """The worker slots that ever ran in the directory and were not given up since. Changes nothing, does not wait.

    Raises IdentityError for a directory of a newer format, or one that cannot be understood or read.
    """
    with explained(directory):
        meta = read_meta(directory)
    return set() if meta is None else set(meta.workers)


def take_slot(directory: Path, worker: int, instance: str | None = None) -> int:
    """The descriptor whose closing gives the slot back. Raises IdentityError when another process has it."""
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
    """Alone with a slot. Raises IdentityError when another process has it."""
    lock = take_slot(directory, slot)
    try:
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def meta_locked(directory: Path) -> Iterator[None]:
    """Alone with meta.properties: workers of an instance start at the same time. Waits; nobody holds it for long."""
    lock = os.open(directory / WITNESS_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def explained(directory: Path) -> Iterator[None]:
    """OSError becomes an IdentityError that says what a data directory has to be; DiskFullError where it is full."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFullError(
                f"data_dir {directory.absolute()} cannot be written ({error.strerror}). Make room on its disk; delete "
                "no spool: what it holds was acknowledged and exists nowhere else."
            ) from error
        raise IdentityError(
            f"data_dir {directory.absolute()} cannot be used ({error.strerror}). "
            "It must be a folder this user may write; in a container, a mounted volume."
        ) from error


def give_up(directory: Path, slot: int) -> None:
    """Strike the slot out; its lock is held. meta.properties last, so that a crash before it leaves it to be done."""
    durable.remove(sessions_path(directory, slot))
    durable.remove(clean_path(directory, slot))
    durable.remove(emqx_path(directory, slot))
    durable.remove(lost_sessions_path(directory, slot))
    with meta_locked(directory):
        meta = read_meta(directory)
        if meta is not None and slot in meta.workers:
            replace(meta, workers=meta.workers - {slot}, version=FORMAT_VERSION).write(directory)


def slots_with_files(directory: Path) -> set[int]:
    """Every slot that has left a file, whatever meta.properties says."""
    names = (path.name.removeprefix("worker-").partition(".")[0] for path in directory.glob("worker-*.*"))
    return {int(name) for name in names if name.isdigit()}


def _lock_path(directory: Path, worker: int) -> Path:
    return directory / f"worker-{worker}.lock"


def clean_path(directory: Path, worker: int) -> Path:
    """There while the slot does not run and ended in good order."""
    return directory / f"worker-{worker}.clean"


def sessions_path(directory: Path, worker: int) -> Path:
    """The registry of the slot's MQTT sessions."""
    return directory / f"worker-{worker}.sessions.json"


def lost_sessions_path(directory: Path, worker: int) -> Path:
    """The slot's sessions that stand at the broker, and those that it had lost."""
    return directory / f"worker-{worker}.lost-sessions.json"


def emqx_path(directory: Path, worker: int) -> Path:
    """What EMQX had counted of the slot's sessions at the last look."""
    return directory / f"worker-{worker}.emqx.json"
