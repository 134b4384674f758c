"""Who a worker is: the owner of a slot in a data directory, which nobody else may use meanwhile.

Two processes with the same client ids end each other's sessions for ever (MQTT: session taken over), and two with the
same spool deliver it twice. So a second process, a copied directory, another instance's directory and another Kafka
cluster than before are refused at the start, with a sentence that says which of these it is.

    meta.properties          whose the directory is (``gateway.data_dir.meta_properties``)
    meta.lock                held while meta.properties is changed; the witness that tells a copy
    worker-N.lock            held by the process that runs slot N, whose process id is inside
    worker-N.clean           slot N ended in good order; there only while it does not run
    worker-N.sessions.json   the MQTT sessions that wait for slot N (``gateway.data_dir.session_registry``)
"""

from __future__ import annotations

__all__ = ["Ending", "Identity", "IdentityError", "forget_slot", "holder", "slots"]

import os
import time
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final

import structlog

from gateway.data_dir import durable
from gateway.data_dir.directory import (
    clean_path,
    explained,
    give_up,
    holder,
    meta_locked,
    sessions_path,
    slot_locked,
    slots,
    take_slot,
)
from gateway.data_dir.meta_properties import FORMAT_VERSION, WITNESS_FILE, IdentityError, Meta, Witness, read_meta
from gateway.data_dir.session_registry import SessionRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gateway.data_dir.session_registry import SessionRecord

log = structlog.get_logger("identity")

_ADOPT: Final = "`gateway identity adopt`"


class Ending(Enum):
    """How a worker's life ends, which the next one is told."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    RETIRED = "retired"  # in good order, and for good: the slot is given up once nothing waits for it at a broker


def forget_slot(directory: Path, slot: int) -> None:
    """Give a slot up: nothing may be left that would need it. An unknown one is fine. Blocks for a few fsyncs.

    Raises IdentityError while a process runs it, while MQTT sessions wait for it, and as :func:`slots` does.
    """
    with explained(directory):
        meta = read_meta(directory)
        if meta is None or slot not in meta.workers:
            return
        with slot_locked(directory, slot):
            registry = SessionRegistry(sessions_path(directory, slot))
            registry.load()
            if registry.records:
                names = ", ".join(record.client_id for record in registry.records)
                raise IdentityError(
                    f"Worker slot {slot} of data_dir {directory.absolute()} cannot be given up: MQTT sessions wait for "
                    f"it at the broker ({names}). `gateway retire` drains and ends them."
                )
            give_up(directory, slot)


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
        self.registry = SessionRegistry(sessions_path(directory, worker))

    async def start(self) -> None:
        """Raises IdentityError. Blocks for a few small file operations."""
        with explained(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            # Looked at before anything is written: a directory that is not ours stays as it is.
            meta = read_meta(self._directory)
            witness_path = self._directory / WITNESS_FILE
            if meta is not None:
                self._check(meta, Witness.of(witness_path) if witness_path.exists() else None)
            self._lock = take_slot(self._directory, self._worker, self._instance)
            known = self._claim()
            self.registry.load()
            # Taken away before anything happens, for from now on an end without a word is a crash.
            clean = durable.remove(clean_path(self._directory, self._worker))
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
                give_up(self._directory, self._worker)
                log.info("slot_given_up")
            elif ending is not Ending.UNCLEAN:
                text = f"stopped={time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n"
                durable.write(clean_path(self._directory, self._worker), text)
        finally:
            os.close(lock)  # the lock goes with it; the file stays, for removing it would race with the next owner

    def recall(self, records: Iterable[SessionRecord], forget: Iterable[str]) -> None:
        """Write down the sessions there are going to be; strike out those of no use. Raises IdentityError."""
        with explained(self._directory):
            for client_id in forget:
                self.registry.forget(client_id)
            self.registry.record(records)

    def recorded_elsewhere(self) -> frozenset[str]:
        """The client ids of the sessions of all other slots: whoever has one now, it is not ours to end."""
        client_ids: set[str] = set()
        for slot in slots(self._directory) - {self._worker}:
            other = SessionRegistry(sessions_path(self._directory, slot))
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
                f"kafka.bootstrap_servers lead to cluster {found}. Set kafka.bootstrap_servers right; if the "
                f"cluster was replaced on purpose, {_ADOPT} takes the directory over to the new one."
            )

    def _claim(self) -> bool:
        """Enter the slot into meta.properties; whether it was there before, and its end would have been noted."""
        with meta_locked(self._directory):
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
