"""Looking at a data directory from outside, and taking one over: ``gateway identity show`` and ``adopt``."""

from __future__ import annotations

__all__ = ["adopt", "describe", "require_idle"]

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from bridge.spool.adoption import adopt_spool
from bridge.spool.spool import spool_path
from gateway.data_dir import durable
from gateway.data_dir.directory import (
    clean_path,
    explained,
    holder,
    meta_locked,
    sessions_path,
    slot_locked,
    slots_with_files,
)
from gateway.data_dir.meta_properties import (
    FORMAT_VERSION,
    META_FILE,
    WITNESS_FILE,
    IdentityError,
    Meta,
    NewerFormatError,
    Witness,
    read_meta,
)
from gateway.data_dir.session_registry import SessionRegistry

if TYPE_CHECKING:
    from pathlib import Path


def describe(directory: Path, instance: str) -> list[str]:
    """What the directory says of itself, in lines for people; ``instance`` is the one that asks. Changes nothing.

    Raises IdentityError for a newer format, or a directory that cannot be understood or read.
    """
    with explained(directory):
        meta = read_meta(directory)
        if meta is None:
            return [f"{directory.absolute()} is nobody's yet: the next start takes it for instance {instance!r}."]
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
            registry = SessionRegistry(sessions_path(directory, slot))
            registry.load(put_aside=False)
            process = holder(directory, slot)
            if process is not None:
                state = f"runs as process {process}"
            elif clean_path(directory, slot).exists():
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
    with explained(directory):
        for slot in sorted(slots_with_files(directory)):
            if holder(directory, slot) is not None:
                with slot_locked(directory, slot):
                    pass


def adopt(directory: Path, instance: str, cluster_id: str | None) -> list[str]:
    """Take the directory over for this instance and Kafka cluster; what was changed, a sentence each.

    ``cluster_id`` None: the recorded one stays. Raises IdentityError while a process runs one of its workers, for a
    newer format, or when there is nothing to adopt.
    """
    with explained(directory), contextlib.ExitStack() as locks:
        if not (directory / META_FILE).exists():
            raise IdentityError(
                f"data_dir {directory.absolute()} is nobody's: there is no {META_FILE} to adopt. Is it the right "
                "folder? If so, the next start makes it this instance's."
            )
        for slot in sorted(slots_with_files(directory)):
            locks.enter_context(slot_locked(directory, slot))
        locks.enter_context(meta_locked(directory))
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
        meta = replace(meta, workers=frozenset(slots_with_files(directory)), cluster_id=cluster_id)
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
            left = [slot for slot in sorted(old.workers) if durable.remove(sessions_path(directory, slot))]
            changes += (
                f"The MQTT sessions of {old.instance!r} in slot {slot} are left to the original." for slot in left
            )
    if cluster_id is not None and cluster_id != old.cluster_id:
        meta = replace(meta, cluster_id=cluster_id)
        changes.append(
            f"The Kafka cluster is {cluster_id} now, before {old.cluster_id or 'none was recorded'}. "
            "What waits here for Kafka is going to be delivered there."
        )
    # Before the directory says whose it is: interrupted here, it is adopted again.
    for slot in sorted(slots_with_files(directory)):
        folder = spool_path(directory, slot)
        if folder.exists() and adopt_spool(folder, instance):
            also = " The original delivers it as well, if it runs again." if copied else ""
            changes.append(f"What waits in the spool of worker {slot} is {instance!r}'s now.{also}")
    if meta != old:
        meta.write(directory)
    return changes
