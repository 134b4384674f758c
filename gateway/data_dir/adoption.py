"""``gateway identity show`` and ``adopt``: describes a data directory, and makes it another instance's."""

import contextlib
from dataclasses import replace
from pathlib import Path

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


def describe(directory: Path, instance: str) -> list[str]:
    """The directory in lines for people; ``instance`` is that of the settings. Changes nothing.

    Raises IdentityError for a newer format, or a directory that cannot be understood or read.
    """
    with explained(directory):
        meta = read_meta(directory)
        if meta is None:
            return [f"{directory.absolute()} belongs to no instance yet: the next start makes it that of {instance!r}."]
        lines = [
            f"data_dir     {directory.absolute()}",
            f"format       {meta.version}",
            f"instance     {meta.instance}" + ("" if meta.instance == instance else f" (the settings say {instance})"),
            f"instance id  {meta.instance_id if meta.version > 1 else 'made at the next start'}",
            f"cluster id   {meta.cluster_id or 'not connected yet'}",
        ]
        witness = directory / WITNESS_FILE
        if meta.witness is not None and not (witness.exists() and meta.witness.is_same(Witness.of(witness))):
            lines.append("place        not the original one: a copy, moved from another disk, or from a backup")
        for slot in sorted(meta.workers):
            registry = SessionRegistry(sessions_path(directory, slot))
            readable = registry.load(put_aside=False)
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
            names = names if readable else "unknown, as their file is damaged"
            lines.append(f"worker {slot}     {state}; MQTT sessions at the broker: {names}")
    return lines


def require_idle(directory: Path) -> None:
    """Raise IdentityError if a process runs one of the directory's workers. One may start right after the check."""
    with explained(directory):
        for slot in sorted(slots_with_files(directory)):
            if holder(directory, slot) is not None:
                with slot_locked(directory, slot):  # raises, unless the process has ended since
                    pass


def adopt(directory: Path, instance: str, cluster_id: str | None) -> list[str]:
    """Make the directory this instance's and Kafka cluster's; returns a sentence for each change.

    With ``cluster_id`` None the recorded one stays. Raises IdentityError if a process runs one of its workers, for a
    newer format, or if there is nothing to adopt.
    """
    with explained(directory), contextlib.ExitStack() as locks:
        if not (directory / META_FILE).exists():
            raise IdentityError(
                f"data_dir {directory.absolute()} belongs to no instance: there is no {META_FILE} to adopt. Is it "
                "the right folder? If so, the next start makes it this instance's."
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
        changes = [
            f"{META_FILE} was damaged and is replaced: instance {instance!r}, id {meta.instance_id}.",
            *_adopt_spools(directory, instance),
        ]
        meta.write(directory)
        return changes
    meta = replace(old, version=FORMAT_VERSION, witness=witness)
    copied = old.witness is not None and not old.witness.is_same(witness)
    if copied:
        meta = replace(meta, instance_id=Meta.new(instance, witness).instance_id)
        changes.append(
            f"The directory is a copy, or was moved: it gets another id, {meta.instance_id}, instead of "
            f"{old.instance_id}. The original must not run again as instance {instance!r}."
        )
    if old.instance != instance:
        meta = replace(meta, instance=instance)
        changes.append(f"The instance is now {instance!r}, formerly {old.instance!r}.")
        if copied:
            # The original directory has them too. Draining them here would take its messages.
            left = [slot for slot in sorted(old.workers) if durable.remove(sessions_path(directory, slot))]
            changes += (
                f"The MQTT sessions of {old.instance!r} in slot {slot} stay with the original." for slot in left
            )
    if cluster_id is not None and cluster_id != old.cluster_id:
        meta = replace(meta, cluster_id=cluster_id)
        changes.append(
            f"The Kafka cluster is now {cluster_id}, formerly {old.cluster_id or 'none'}. "
            "Messages in the spool will be delivered there."
        )
    # Before the owner is written, so that an interrupted adoption can be repeated.
    also = " The original delivers it too if it runs again." if copied else ""
    changes += (text + also for text in _adopt_spools(directory, instance))
    if meta != old:
        meta.write(directory)
    return changes


def _adopt_spools(directory: Path, instance: str) -> list[str]:
    """Give the spools to ``instance``; a sentence for each one that had another."""
    folders = {slot: spool_path(directory, slot) for slot in sorted(slots_with_files(directory))}
    return [
        f"The spool of worker {slot} now belongs to {instance!r}."
        for slot, folder in folders.items()
        if folder.exists() and adopt_spool(folder, instance)
    ]
