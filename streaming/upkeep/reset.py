"""Begin a job anew: its checkpoint put aside, not deleted, and with it the tables that would be doubled otherwise.

After a reset a job reads everything again that its source still has: Kafka from the oldest record, or the table silver
from its first version. There is no other place to begin at: what lies before it would be missing from the tables, while
reading again changes nothing in those that stay. A tool; it needs Spark only for folders that this machine has not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from config.errors import ConfigError, ExitStatus
from streaming.errors import tell
from streaming.lake.storage import Files, Folder, LocalFolder, location
from streaming.runtime import job_lock

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

    from config.settings import Settings, StreamSettings

Opener = Callable[[str], Files]
_say: Final = partial(print, flush=True)
_TABLES: Final = {
    "bronze": ("bronze", "bronze_gaps"),
    "devices": ("devices", "device_events"),
    "audit": ("audit", "audit_seen", "audit_ledger"),
}
"""The tables that have to go with a job's checkpoint."""
_MEANS: Final = {
    "bronze": "bronze is append-only and begins anew with the checkpoint: what Kafka has deleted since is in the folder"
    " that is put aside, and nowhere else",
    "silver": "silver and its quarantine stay: what is there already is not inserted again, and what Kafka has deleted"
    " since remains",
    "gold": "gold stays: every window is computed again from silver and takes the place of what is there;"
    " windows of other lengths than stream.gold.windows now has remain as they are",
    "devices": "devices and their events are computed again from all of silver",
    "anomalies": "the table anomalies stays: an alert that is there is not inserted again; the Kafka topic gets all of"
    " them a second time, with the alert_id they had",
    "audit": "the account is made again of what Kafka still holds",
}
_AGAIN: Final = {"bronze": "bronze", "silver": "the quarantine, if they are bad,"}
"""Where a job that reads Kafka again has what it had of forgotten devices."""


class Move(NamedTuple):
    """A table's folder, or what belongs to a checkpoint, that gets another name in the same folder."""

    folder: Files
    name: str
    to: str


def plan(stream: StreamSettings, job: str, now_s: float, open_folder: Opener = LocalFolder) -> list[Move]:
    """What a reset would do, in order: tables first, for a table beside no checkpoint is refused at the start, while a
    checkpoint without its table would go on in the middle. Changes nothing. Raises ConfigError if a table cannot be
    moved."""
    stamp = time.strftime("reset-%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    checkpoint, lake = open_folder(location(stream.checkpoint)), open_folder(location(stream.lake.path))
    tables = [name for name in _TABLES.get(job, ()) if lake.exists(name)]
    if tables and (catalog := stream.lake.catalog) is not None:
        raise ConfigError(
            f"The table {catalog}.{tables[0]} has to begin anew with its checkpoint, and a catalog names it"
            " (stream.lake.catalog): rename or drop it there first"
            f" (ALTER TABLE {catalog}.{tables[0]} RENAME TO …)."
        )
    moves = [Move(lake, name, f"{name}.{stamp}") for name in tables]
    for name in (job, f"{job}.json", f"{job}_topics.json"):
        if checkpoint.exists(name):
            stem, dot, kind = name.partition(".")
            moves.append(Move(checkpoint, name, f"{stem}.{stamp}{dot}{kind}"))
    return moves


def carry_out(
    stream: StreamSettings, job: str, open_folder: Opener, *, dry_run: bool, agreed: Callable[[], bool]
) -> ExitStatus:
    """Prints what a reset does, and does it if that is ``agreed``, else FAILED. NOT_FOUND if there is no checkpoint.
    Raises OSError if a file system refuses, ConfigError while the job runs."""
    url = location(stream.checkpoint)
    if (process := job_lock.holder(url, job)) is not None:
        raise ConfigError(f"{job} runs: {process} holds its checkpoint. Stop it first.")
    moves = plan(stream, job, time.time(), open_folder)
    if not moves:
        tell(f"gateway: {job} has no checkpoint in {stream.checkpoint}: it begins anew as it is.")
        return ExitStatus.NOT_FOUND
    _say("what is put aside, under a new name in the same folder:")
    for move in moves:
        _say(f"  {move.folder.url.rstrip('/')}/{move.name} → {move.to}")
    _say(f"{_MEANS[job]}.\nthe next start of {job} reads all that its source still has.")
    notes = open_folder(location(stream.lake.path)).names("forgotten")
    # A device forgotten twice has two notes that begin with the hash of its name.
    if job in _AGAIN and (gone := len({name.partition("-")[0] for name in notes if not name.startswith(".")})):
        tell(
            f"gateway: what Kafka still has of forgotten devices ({gone}) will be in {_AGAIN[job]} again. Forget them"
            " again after that start (gateway stream forget DEVICE)."
        )
    if dry_run:
        return ExitStatus.OK
    if not agreed():
        tell("gateway: nothing was changed")
        return ExitStatus.FAILED
    job_lock.hold(url, job)  # or a timer starts the job between two renames
    try:
        for move in plan(stream, job, time.time(), open_folder):  # the job may have run since the look
            move.folder.rename(move.name, move.to)
    finally:
        job_lock.let_go(url, job)
    _say("done; delete what was put aside when the new tables are right.")
    return ExitStatus.OK


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """The tool inside Spark, for folders of its file systems; it was agreed to before."""
    opened, dry_run = partial(Folder, spark), arguments.dry_run
    return carry_out(settings.stream, arguments.job_name, opened, dry_run=dry_run, agreed=lambda: True)
