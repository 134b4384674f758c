"""Claims a slot of the data directory for one worker process.

Two processes with the same client ids end each other's sessions (MQTT: session taken over), and two with the same spool
deliver it twice. So the start refuses a second process, a copied directory, another instance's directory and another
Kafka cluster than before, each with its own sentence.

    meta.properties          the directory's owner (``gateway.data_dir.meta_properties``)
    meta.lock                held while meta.properties is changed; its inode reveals a copy
    worker-N.lock            held by the process that runs slot N, whose process id is inside
    worker-N.clean           slot N had an orderly end; exists only while it does not run
    worker-N.sessions.json   the MQTT sessions that wait for slot N (``gateway.data_dir.session_registry``)
"""

import errno
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Final

import structlog

from gateway.base.moments import moment
from gateway.data_dir import durable
from gateway.data_dir.directory import (
    clean_path,
    explained,
    give_up,
    meta_locked,
    sessions_path,
    take_slot,
)
from gateway.data_dir.meta_properties import FORMAT_VERSION, WITNESS_FILE, IdentityError, Meta, Witness, read_meta
from gateway.data_dir.session_registry import SessionRecord, SessionRegistry

log = structlog.get_logger("identity")

_ADOPT: Final = "`gateway identity adopt`"


class Ending(Enum):
    """The end of a worker's run, which the next run reads."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    RETIRED = "retired"  # orderly and for good: the slot is given up once no session of it is left at a broker


class Identity:
    """A component: ``start`` claims a slot of the data directory, ``stop`` releases it. It stops last.

    ``ending`` returns at the stop how the run ended. After ``start``: ``instance_id``; the recorded ``cluster_id``;
    ``last_ending`` of this slot, None in its first run or after an older gateway; ``registry``, the sessions that exist
    for the slot.
    """

    name: Final = "identity"

    def __init__(self, directory: Path, instance: str, worker: int, ending: Callable[[], Ending]) -> None:
        self._directory = directory
        self._instance = instance
        self._worker = worker
        self._ending = ending  # how the run ended, asked at the stop
        self._lock: int | None = None
        self._is_known = False  # ``start`` has read what an earlier run left
        self._unconfirmed: str | None = None  # Kafka's cluster id, known before ``start``
        self.instance_id = ""
        self.cluster_id: str | None = None
        self.last_ending: Ending | None = None
        self.registry = SessionRegistry(sessions_path(directory, worker))

    async def start(self) -> None:
        """Lock the worker's slot and enter it in meta.properties; read its sessions and how its last run ended. Raises
        IdentityError. Blocks for a few small file operations."""
        with explained(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            # Checked before the first write, so that another owner's directory stays unchanged.
            _judge_owner(self._directory, self._instance)
            self._lock = take_slot(self._directory, self._worker, self._instance)
            known = self._claim()
            self.registry.load()
            # Removed first: from now on an end without this file is a crash.
            clean = durable.remove(clean_path(self._directory, self._worker))
            self._is_known = True
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
        """Note an orderly end and release the slot; give a retired one up if it has no sessions. After a ``start`` that
        failed the slot stays as it was. Raises IdentityError for a slot that cannot be given up."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            if not self._is_known:
                return
            ending = self._ending()
            if ending is Ending.RETIRED and not self.registry.records:
                with explained(self._directory):
                    give_up(self._directory, self._worker)
                log.info("slot_given_up")
            elif ending is not Ending.UNCLEAN:
                durable.note_end(clean_path(self._directory, self._worker), f"stopped={moment(time.time())}\n")
        finally:
            os.close(lock)  # releases the lock; the file stays, because its removal would race with the next owner

    def record_sessions(self, records: Iterable[SessionRecord], forget: Iterable[str]) -> None:
        """Record sessions before the broker has them, and remove the client ids in ``forget``. Raises IdentityError."""
        with explained(self._directory):
            for client_id in forget:
                self.registry.forget(client_id)
            self.registry.record(records)

    def confirm_cluster(self, cluster_id: str | None) -> None:
        """Record Kafka's cluster id the first time, and compare it later. Raises IdentityError for another cluster.

        None, from a Kafka without an id, changes nothing. Blocks for two fsyncs the first time. Before ``start``, when
        another process may still have the slot, only ``start`` records it.
        """
        if cluster_id is None or cluster_id == self.cluster_id:
            return
        if self._lock is None:
            self._unconfirmed = cluster_id
            with explained(self._directory):
                meta = read_meta(self._directory)
            if meta is not None and meta.cluster_id is not None:
                self._check_cluster(meta.cluster_id, cluster_id)
            return
        with explained(self._directory), meta_locked(self._directory):
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
                f"kafka.bootstrap_servers lead to cluster {found}. Correct kafka.bootstrap_servers; if the cluster "
                f"was replaced on purpose, run {_ADOPT}."
            )

    def _claim(self) -> bool:
        """Add the slot to meta.properties. Returns whether it was there, and in today's format: then the folder
        has what was written at the slot's last end.

        The witness, inode and birth time of a file beside it, tells a copied folder (``meta_properties.py``).
        """
        with meta_locked(self._directory):
            witness = Witness.of(self._directory / WITNESS_FILE)
            found = _judge_owner(self._directory, self._instance)
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


def judge(directory: Path, instance: str) -> Meta | None:
    """Its meta.properties. Raises IdentityError for a directory that a start refuses, as far as files tell without a
    change. Whether a process uses it is not asked."""
    with explained(directory):
        at = directory.absolute()
        while not os.path.lexists(at):  # a start makes it, and the folders above it
            at = at.parent
        if not at.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        locks = [*directory.glob("*.lock")]
        if not os.access(at, os.W_OK | os.X_OK) or not all(os.access(lock, os.R_OK | os.W_OK) for lock in locks):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return _judge_owner(directory, instance)


def _judge_owner(directory: Path, instance: str) -> Meta | None:
    """Its meta.properties. Raises IdentityError for a copied directory (its witness differs or is missing), or another
    instance's, and OSError."""
    meta, path = read_meta(directory), directory / WITNESS_FILE
    if meta is None:
        return None
    witness = Witness.of(path) if path.exists() else None
    where = f"data_dir {directory.absolute()}"
    if meta.witness is not None and (witness is None or not meta.witness.is_same(witness)):
        raise IdentityError(
            f"{where} is a copy of the directory of instance {meta.instance!r}, was moved from another disk, or "
            f"comes from a backup: its {WITNESS_FILE} is not the original file. Two gateways with one identity end "
            "each other's MQTT sessions and deliver the spool twice. Give this gateway another data_dir and "
            f"another instance; if the original will not run again, run {_ADOPT}."
        )
    if meta.instance != instance:
        raise IdentityError(
            f"{where} belongs to instance {meta.instance!r}, not {instance!r}. Correct data_dir or "
            f"instance; if the instance was renamed on purpose, run {_ADOPT}."
        )
    return meta
