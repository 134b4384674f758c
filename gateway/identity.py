"""Who a worker is: the owner of a slot in a data directory, which nobody else may use meanwhile.

Two processes with the same client ids end each other's sessions for ever (MQTT: session taken over), and two with the
same spool deliver it twice. So a second process, a copied directory, another instance's directory and another Kafka
cluster than before are refused at the start, with a sentence that says which of these it is.

    meta.properties          whose the directory is (``gateway.meta_properties``)
    meta.lock                held while meta.properties is changed; the witness that tells a copy
    worker-N.lock            held by the process that runs slot N, whose process id is inside
    worker-N.clean           slot N ended in good order; there only while it does not run
    worker-N.sessions.json   the MQTT sessions that wait for slot N (``gateway.session_registry``)
"""

from __future__ import annotations

__all__ = ["Ending", "Identity", "IdentityError", "adopt", "describe", "forget_slot", "holder", "require_idle", "slots"]

import contextlib
import fcntl
import os
import time
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final

import structlog

from gateway import durable
from gateway.meta_properties import (
    FORMAT_VERSION,
    META_FILE,
    WITNESS_FILE,
    IdentityError,
    Meta,
    NewerFormatError,
    Witness,
    read_meta,
)
from gateway.session_registry import SessionRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gateway.session_registry import SessionRecord

log = structlog.get_logger("identity")

_ADOPT: Final = "`gateway identity adopt`"


class Ending(Enum):
    """How a worker's life ends, which the next one is told."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    RETIRED = "retired"  # in good order, and for good: the slot is given up once nothing waits for it at a broker


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


def slots(directory: Path) -> set[int]:
    """The worker slots that ever ran in the directory and were not given up since. Changes nothing, does not wait.

    Raises IdentityError for a directory of a newer format, or one that cannot be understood or read.
    """
    with _explained(directory):
        meta = read_meta(directory)
    return set() if meta is None else set(meta.workers)


def forget_slot(directory: Path, slot: int) -> None:
    """Give a slot up: nothing may be left that would need it. An unknown one is fine. Blocks for a few fsyncs.

    Raises IdentityError while a process runs it, while MQTT sessions wait for it, and as :func:`slots` does.
    """
    with _explained(directory):
        meta = read_meta(directory)
        if meta is None or slot not in meta.workers:
            return
        with _slot_locked(directory, slot):
            registry = SessionRegistry(_sessions_path(directory, slot))
            registry.load()
            if registry.records:
                names = ", ".join(record.client_id for record in registry.records)
                raise IdentityError(
                    f"Worker slot {slot} of data_dir {directory.absolute()} cannot be given up: MQTT sessions wait for "
                    f"it at the broker ({names}). `gateway retire` drains and ends them."
                )
            _give_up(directory, slot)


def describe(directory: Path, instance: str) -> list[str]:
    """What the directory says of itself, in lines for people; ``instance`` is the one that asks. Changes nothing.

    Raises as :func:`slots` does.
    """
    with _explained(directory):
        meta = read_meta(directory)
        if meta is None:
            return [f"{directory.absolute()} is nobody's yet: the next start makes it instance {instance!r}'s."]
        lines = [
            f"data_dir     {directory.absolute()}",
            f"format       {meta.version}",
            f"instance     {meta.instance}" + ("" if meta.instance == instance else f" (the settings say {instance})"),
            f"instance id  {meta.instance_id if meta.version > 1 else 'made at the next start'}",
            f"cluster id   {meta.cluster_id or 'not connected yet'}",
        ]
        witness = directory / WITNESS_FILE
        if meta.witness is not None and not (witness.exists() and meta.witness.is_same(Witness.of(witness))):
            lines.append("place        not where it was made: a copy, moved from another disk, or from a backup")
        for slot in sorted(meta.workers):
            registry = SessionRegistry(_sessions_path(directory, slot))
            registry.load(put_aside=False)
            process = holder(directory, slot)
            if process is not None:
                state = f"runs as process {process}"
            elif _clean_path(directory, slot).exists():
                state = "stopped in good order"
            elif meta.version < FORMAT_VERSION:
                state = "not running"
            else:
                state = "not running; its last life ended without an orderly stop"
            names = ", ".join(record.client_id for record in registry.records) or "none"
            lines.append(f"worker {slot}     {state}; MQTT sessions at the broker: {names}")
    return lines


def require_idle(directory: Path) -> None:
    """Raises IdentityError while a process runs one of the directory's workers. It may start one right after."""
    with _explained(directory):
        for slot in sorted(_slots_with_files(directory)):
            if holder(directory, slot) is not None:
                with _slot_locked(directory, slot):
                    pass


def adopt(directory: Path, instance: str, cluster_id: str | None) -> list[str]:
    """Take the directory over for this instance and Kafka cluster; what was changed, a sentence each.

    ``cluster_id`` None: the recorded one stays. Raises IdentityError while a process runs one of its workers, for a
    newer format, or when there is nothing to adopt.
    """
    with _explained(directory), contextlib.ExitStack() as locks:
        if not (directory / META_FILE).exists():
            raise IdentityError(
                f"data_dir {directory.absolute()} is nobody's: there is no {META_FILE} to adopt. Is it the right "
                "folder? If so, the next start makes it this instance's."
            )
        for slot in sorted(_slots_with_files(directory)):
            locks.enter_context(_slot_locked(directory, slot))
        locks.enter_context(_meta_locked(directory))
        return _adopt_locked(directory, instance, cluster_id)


def _adopt_locked(directory: Path, instance: str, cluster_id: str | None) -> list[str]:
    witness = Witness.of(directory / WITNESS_FILE)
    changes = []
    try:
        old = read_meta(directory)
    except NewerFormatError:
        raise
    except IdentityError:
        old = None
    if old is None:
        meta = Meta.new(instance, witness)
        meta = replace(meta, workers=frozenset(_slots_with_files(directory)), cluster_id=cluster_id)
        changes.append(f"{META_FILE} was damaged and is written anew: instance {instance!r}, id {meta.instance_id}.")
        meta.write(directory)
        return changes
    meta = replace(old, version=FORMAT_VERSION, witness=witness)
    copied = old.witness is not None and not old.witness.is_same(witness)
    if copied:
        meta = replace(meta, instance_id=Meta.new(instance, witness).instance_id)
        changes.append(
            f"The directory is a copy, or was moved: it gets an id of its own, {meta.instance_id}, instead of "
            f"{old.instance_id}. See that the original does not run again under the name {instance!r}."
        )
    if old.instance != instance:
        meta = replace(meta, instance=instance)
        changes.append(f"The instance is {instance!r} now, before {old.instance!r}.")
        if copied:
            # Recorded in the original too, whose business they are: to drain them would take its messages.
            left = [slot for slot in sorted(old.workers) if durable.remove(_sessions_path(directory, slot))]
            changes += (
                f"The MQTT sessions of {old.instance!r} in slot {slot} are left to the original." for slot in left
            )
    if cluster_id is not None and cluster_id != old.cluster_id:
        meta = replace(meta, cluster_id=cluster_id)
        changes.append(
            f"The Kafka cluster is {cluster_id} now, before {old.cluster_id or 'none was recorded'}. "
            "What waits here for Kafka is going to be delivered there."
        )
    if meta != old:
        meta.write(directory)
    return changes


class Identity:
    """A component: ``start`` claims a slot of the data directory, ``stop`` gives it back.

    ``ending`` is asked at the stop how the life ended; this component is the last to stop. After ``start``:
    ``instance_id``; ``cluster_id`` as recorded; ``last_ending`` of this slot, None when this is its first life or an
    older gateway's left no word of it; ``registry``, the sessions that exist for the slot.
    """

    name: Final = "identity"

    def __init__(self, directory: Path, instance: str, worker: int, ending: Callable[[], Ending]) -> None:
        self._directory = directory
        self._instance = instance
        self._worker = worker
        self._ending = ending
        self._lock: int | None = None
        self._unconfirmed: str | None = None
        self.instance_id = ""
        self.cluster_id: str | None = None
        self.last_ending: Ending | None = None
        self.registry = SessionRegistry(_sessions_path(directory, worker))

    async def start(self) -> None:
        """Raises IdentityError. Blocks for a few small file operations."""
        with _explained(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            # Looked at before anything is written: a directory that is not ours stays as it is.
            meta = read_meta(self._directory)
            witness_path = self._directory / WITNESS_FILE
            if meta is not None:
                self._check(meta, Witness.of(witness_path) if witness_path.exists() else None)
            self._lock = _take_slot(self._directory, self._worker, self._instance)
            known = self._claim()
            self.registry.load()
            # Taken away before anything happens, for from now on an end without a word is a crash.
            clean = durable.remove(_clean_path(self._directory, self._worker))
        self.confirm_cluster(self._unconfirmed)
        if clean:
            self.last_ending = Ending.CLEAN
        elif known:
            self.last_ending = Ending.UNCLEAN
            log.warning(
                "unclean_shutdown",
                data_dir=str(self._directory.absolute()),
                consequence="what was not acknowledged comes again from the MQTT broker, and may be in Kafka twice",
            )

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - there is nothing to wait for
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            ending = self._ending()
            if ending is Ending.RETIRED and not self.registry.records:
                _give_up(self._directory, self._worker)
                log.info("slot_given_up")
            elif ending is not Ending.UNCLEAN:
                text = f"stopped={time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n"
                durable.write(_clean_path(self._directory, self._worker), text)
        finally:
            os.close(lock)  # the lock goes with it; the file stays, for removing it would race with the next owner

    def recall(self, records: Iterable[SessionRecord], forget: Iterable[str]) -> None:
        """Write down the sessions there are going to be; strike out those of no use. Raises IdentityError."""
        with _explained(self._directory):
            for client_id in forget:
                self.registry.forget(client_id)
            self.registry.record(records)

    def recorded_elsewhere(self) -> frozenset[str]:
        """The client ids of the sessions of all other slots: whoever has one now, it is not ours to end."""
        client_ids: set[str] = set()
        for slot in slots(self._directory) - {self._worker}:
            other = SessionRegistry(_sessions_path(self._directory, slot))
            other.load(put_aside=False)
            client_ids.update(record.client_id for record in other.records)
        return frozenset(client_ids)

    def confirm_cluster(self, cluster_id: str | None) -> None:
        """Kafka says that it is this cluster: record it the first time, and see later that it is the same.

        None, from a Kafka that does not say, changes nothing. Raises IdentityError for another cluster. Blocks for two
        fsyncs the first time. Before ``start`` nothing is recorded, for the slot may be another process's still: that
        is done by ``start`` then.
        """
        if cluster_id is None or cluster_id == self.cluster_id:
            return
        if self._lock is None:
            self._unconfirmed = cluster_id
            with _explained(self._directory):
                meta = read_meta(self._directory)
            if meta is not None and meta.cluster_id is not None:
                self._check_cluster(meta.cluster_id, cluster_id)
            return
        with _explained(self._directory), _meta_locked(self._directory):
            meta = read_meta(self._directory)
            assert meta is not None, "the slot is claimed"
            if meta.cluster_id is None:
                meta = replace(meta, cluster_id=cluster_id)
                meta.write(self._directory)
            self.cluster_id = meta.cluster_id
        assert self.cluster_id is not None
        self._check_cluster(self.cluster_id, cluster_id)

    def _check_cluster(self, recorded: str, found: str) -> None:
        if recorded != found:
            raise IdentityError(
                f"data_dir {self._directory.absolute()} belongs to Kafka cluster {recorded}, but "
                f"kafka.bootstrap_servers lead to cluster {found}. Set kafka.bootstrap_servers right; if the "
                f"cluster was replaced on purpose, {_ADOPT} takes the directory over to the new one."
            )

    def _claim(self) -> bool:
        """Enter the slot into meta.properties; whether it was there before, and its end would have been noted."""
        with _meta_locked(self._directory):
            witness = Witness.of(self._directory / WITNESS_FILE)
            found = read_meta(self._directory)
            if found is not None:
                self._check(found, witness)
            meta = found or Meta.new(self._instance, witness)
            known = self._worker in meta.workers and meta.version == FORMAT_VERSION
            if found is not None and found.version != FORMAT_VERSION:
                log.info("data_directory_upgraded", format=FORMAT_VERSION, before=found.version)
            meta = replace(
                meta,
                witness=meta.witness or witness,
                workers=meta.workers | {self._worker},
                version=FORMAT_VERSION,
            )
            if meta != found:
                meta.write(self._directory)
        self.instance_id, self.cluster_id = meta.instance_id, meta.cluster_id
        return known

    def _check(self, meta: Meta, witness: Witness | None) -> None:
        where = f"data_dir {self._directory.absolute()}"
        if meta.witness is not None and (witness is None or not meta.witness.is_same(witness)):
            raise IdentityError(
                f"{where} is a copy of the one that instance {meta.instance!r} lives in, was moved from another disk, "
                f"or comes from a backup: its {WITNESS_FILE} is not the file it was made with. Two gateways with one "
                "identity end each other's MQTT sessions and deliver what is stored twice. Give this one a data_dir "
                f"and an instance of its own; if the original will not run again, {_ADOPT} takes the copy over."
            )
        if meta.instance != self._instance:
            raise IdentityError(
                f"{where} belongs to instance {meta.instance!r}, not {self._instance!r}. Set data_dir or instance "
                f"right; if the instance was renamed on purpose, {_ADOPT} takes the directory over."
            )


def _take_slot(directory: Path, worker: int, instance: str | None = None) -> int:
    """The descriptor whose closing gives the slot back. Raises IdentityError when another process has it."""
    lock = os.open(_lock_path(directory, worker), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        process = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        whose = f" of instance {instance!r}" if instance is not None else ""
        raise IdentityError(
            f"data_dir {directory.absolute()} is in use: process {process} runs worker {worker}{whose} there. "
            "Stop it, or give this one another instance, worker or data_dir."
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


@contextlib.contextmanager
def _slot_locked(directory: Path, slot: int) -> Iterator[None]:
    lock = _take_slot(directory, slot)
    try:
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _meta_locked(directory: Path) -> Iterator[None]:
    """Alone with meta.properties: workers of an instance start at the same time. Waits; nobody holds it for long."""
    lock = os.open(directory / WITNESS_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """OSError becomes an IdentityError that says what a data directory has to be."""
    try:
        yield
    except OSError as error:
        raise IdentityError(
            f"data_dir {directory.absolute()} cannot be used ({error.strerror}). "
            "It must be a folder this user may write; in a container, a mounted volume."
        ) from error


def _give_up(directory: Path, slot: int) -> None:
    """Strike the slot out; its lock is held. meta.properties last, so that a crash before it leaves it to be done."""
    durable.remove(_sessions_path(directory, slot))
    durable.remove(_clean_path(directory, slot))
    with _meta_locked(directory):
        meta = read_meta(directory)
        if meta is not None and slot in meta.workers:
            replace(meta, workers=meta.workers - {slot}, version=FORMAT_VERSION).write(directory)


def _slots_with_files(directory: Path) -> set[int]:
    names = (path.name.removeprefix("worker-").partition(".")[0] for path in directory.glob("worker-*.*"))
    return {int(name) for name in names if name.isdigit()}


def _lock_path(directory: Path, worker: int) -> Path:
    return directory / f"worker-{worker}.lock"


def _clean_path(directory: Path, worker: int) -> Path:
    return directory / f"worker-{worker}.clean"


def _sessions_path(directory: Path, worker: int) -> Path:
    return directory / f"worker-{worker}.sessions.json"
