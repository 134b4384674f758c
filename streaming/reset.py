"""Begin a job anew: its checkpoint put aside, not deleted, and with it the tables that would be doubled otherwise.

After a reset a job reads everything again that its source still has: Kafka from the oldest record, or the table silver
from its first version. There is no other place to begin at: what lies before it would be missing from the tables, while
reading again changes nothing in those that stay. A tool; it needs Spark only for folders that this machine has not.
"""

from __future__ import annotations

__all__ = ["Move", "apply", "plan", "run"]

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from config.errors import ConfigError, ExitStatus
from streaming import job_lock
from streaming.files import LocalFolder
from streaming.storage import location

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from config.settings import Settings, StreamSettings
    from streaming.files import Files


class _Effect(NamedTuple):
    """What a reset means for a query's tables: those that have to go with the checkpoint, and why."""

    tables: tuple[str, ...]
    says: str


_EFFECTS: Final = {
    "ingest": _Effect(("stream.output", "stream.quarantine"),
                      "telemetry and quarantine are numbered by batch and begin anew with the checkpoint"),
    "windows": _Effect(("windows",), "windows are numbered by batch and begin anew with the checkpoint"),
    "bronze": _Effect(("bronze", "bronze_gaps"),
                      "bronze is append-only and begins anew with the checkpoint: what Kafka has deleted since is in"
                      " the folder that is put aside, and nowhere else"),
    "silver": _Effect((), "silver stays: a reading that is there already is not inserted again, and what Kafka has"
                          " deleted since remains"),
    "gold": _Effect((), "gold stays: every window is computed again from silver and takes the place of what is there"),
    "devices": _Effect(("devices", "device_events"), "devices and their events are computed again from all of silver"),
    "anomalies": _Effect((), "the table anomalies stays: an alert that is there is not inserted again; the Kafka topic"
                             " gets all of them a second time, with the alert_id they had"),
    "audit": _Effect(("audit", "audit_seen", "audit_ledger"), "the account is made again of what Kafka still holds"),
}  # fmt: skip
_OWN_FILES: Final = {"bronze": ("bronze", "bronze.json", "bronze_topics.json")}
"""In the folder of checkpoints, where a query has more there than Spark's folder and our note."""
_QUERIES: Final = {"ingest": ("ingest", "windows")}


@dataclass(frozen=True, slots=True)
class Move:
    """A folder or file that gets another name: ``folder/name`` becomes ``folder/to``."""

    folder: str
    name: str
    to: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reset of a job does; ``says`` are sentences about its tables."""

    checkpoint: str
    moves: tuple[Move, ...]
    says: tuple[str, ...]


def plan(stream: StreamSettings, job: str, now_s: float, open_folder: Callable[[str], Files] = LocalFolder) -> Plan:
    """What a reset would do. Changes nothing. Raises ConfigError while the job runs, or if a table cannot be moved."""
    stamp = time.strftime("reset-%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    checkpoint = open_folder(location(stream.checkpoint))
    queries = _QUERIES.get(job, (job,))
    moves, says = [], []
    for query in queries:
        if (process := job_lock.holder(checkpoint.url, query)) is not None:
            raise ConfigError(f"{query} runs: {process} holds its checkpoint. Stop it first.")
        effect = _EFFECTS[query]
        for name in _OWN_FILES.get(query, (query, f"{query}.json")):
            if checkpoint.exists(name):
                stem, dot, kind = name.partition(".")
                moves.append(Move(checkpoint.url, name, f"{stem}.{stamp}{dot}{kind}"))
        for table in effect.tables:
            folder, _, name = _place(stream, table).rpartition("/")
            if open_folder(folder or "/").exists(name):
                _require_movable(stream, table)
                moves.append(Move(folder or "/", name, f"{name}.{stamp}"))
        says.append(effect.says)
    return Plan(checkpoint.url, tuple(moves), tuple(says))


def apply(todo: Plan, open_folder: Callable[[str], Files] = LocalFolder) -> None:
    """Does it: tables first, since a table beside no checkpoint is refused at the start, while a checkpoint without its
    table would go on in the middle. Raises OSError if a file system refuses."""
    for move in sorted(todo.moves, key=lambda one: one.folder == todo.checkpoint):
        open_folder(move.folder).rename(move.name, move.to)


def _place(stream: StreamSettings, table: str) -> str:
    if table.startswith("stream."):
        return location(getattr(stream, table.removeprefix("stream."))).rstrip("/")
    if table == "windows":
        return f"{location(stream.output).rstrip('/').rpartition('/')[0]}/windows"
    return f"{location(stream.lake.path).rstrip('/')}/{table}"


def _require_movable(stream: StreamSettings, table: str) -> None:
    catalog = stream.lake.catalog
    if catalog is not None and not table.startswith("stream.") and table not in {"windows", "bronze"}:
        raise ConfigError(
            f"The table {catalog}.{table} has to begin anew with its checkpoint, and a catalog names it"
            f" (stream.lake.catalog): rename or drop it there first (ALTER TABLE {catalog}.{table} RENAME TO …)."
        )


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """The tool inside Spark, for folders of its file systems; it was agreed to before."""
    from streaming.storage import Folder

    def open_folder(url: str) -> Files:
        return Folder(spark, url)

    todo = plan(settings.stream, arguments.job_name, time.time(), open_folder)
    for line in (*(f"{move.folder}/{move.name} → {move.to}" for move in todo.moves), *todo.says):
        print(line)  # noqa: T201 (the tool's product)
    if not todo.moves:
        return ExitStatus.NOT_FOUND
    apply(todo, open_folder)
    return ExitStatus.OK
