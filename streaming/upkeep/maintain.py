"""``gateway stream maintain``: small files of past days put together, days beyond their retention deleted, and files
removed that no version of a table needs any more. For a timer, once a day; jobs may run beside it, a second
``maintain`` not.

What it changes is no news to who reads a table as a stream. It prints a line for each thing it did, and ends with
status 5 if a table could not be done; the others are.
"""

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import SparkSession

from config.errors import ConfigError, ExitStatus
from config.settings import Settings, StreamSettings
from streaming.errors import tell
from streaming.kafka.failures import cause
from streaming.lake.delta_upkeep import DeltaUpkeep
from streaming.lake.forgotten import Forgotten
from streaming.lake.lake import DeltaTable, layers
from streaming.lake.storage import location
from streaming.runtime import job_lock

_SORTED: Final = {"silver": "device", "gold": "key", "devices": "device"}
"""What a table's days are sorted by, where they have several files."""
_LEAST_REMEMBERED: Final = timedelta(days=366)
"""How long the hash of a forgotten device's name is kept at the least, so that no state brings its rows back."""


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """Does all that is due and prints it. Returns OK, INCOMPLETE if some table could not be done, or NOT_FOUND if
    there is none."""
    stream, now, dry_run = settings.stream, datetime.now(UTC), bool(arguments.dry_run)
    lake, status = location(stream.lake.path), ExitStatus.OK
    tables = layers(spark, stream)
    if tables:
        _line("table", "action", "what", "files", "then", "MiB")
    else:
        tell(f"There are no tables at {lake} yet.")
        status = ExitStatus.NOT_FOUND
    idle = []
    for name in (it for it in tables if it in (arguments.table or tables)):
        done = None
        try:
            for done in due(spark, stream, tables[name], now, dry_run=dry_run):
                _line(name, *done)
            if done is None:
                idle.append(name)
        except Exception as error:  # noqa: BLE001 (the other tables are still to be done)
            status = ExitStatus.INCOMPLETE
            _line(name, "FAILED", "see below")
            tell(f"error: {name} could not be kept up: {cause(str(error))}.")
    if idle:
        print(f"Nothing is due in {', '.join(idle)}.")
    if not dry_run:
        # By then no state has anything left of them to say.
        kept = max(stream.devices.forget_after, _LEAST_REMEMBERED)
        Forgotten(spark, stream).let_go(now - kept)
    if absent := {*(arguments.table or ())}.difference(tables):
        raise ConfigError(
            f"There is no table {', '.join(sorted(absent))} at {lake}: has the job that writes it run?"
            f" There are: {', '.join(tables) or 'none'}."
        )
    return status


def due(
    spark: SparkSession, stream: StreamSettings, table: DeltaTable, now: datetime, *, dry_run: bool
) -> Iterator[tuple[str, ...]]:
    """Does what is due in a table. Yields what was done and with what; for files, how many there were, how many there
    are then, and their MiB before."""
    settings, upkeep = stream.lake, DeltaUpkeep(spark, table)
    kept: timedelta | None = getattr(settings.retention, table.name, None)
    if kept is not None:
        oldest = (now - kept).date()
        expired = f"`{upkeep.age_column}` < DATE'{oldest}'"
        if table.name in ("bronze", "silver") and not dry_run:
            table.note_whole_since(oldest)
        if rows := table.read().where(expired).count() if dry_run else table.delete(expired):
            yield "deleted", f"{rows} rows before {oldest}"
    size, column = settings.target_file_size, _SORTED.get(table.name)
    over = (now - settings.compact_after).date()  # days before it
    days = [it for it in upkeep.days(size, column) if (it.small or it.unsorted) and (it.day is None or it.day < over)]
    if any(it.day is None for it in days) and job_lock.holder(location(stream.checkpoint), table.name) is not None:
        # In no days, so each of its batches touches what would be put together, and one of the two would be in vain.
        yield "kept", f"not compacted while the job {table.name} runs"
        days = []
    for it in days[: settings.maintain_days]:
        sort_by = column if it.unsorted else None
        planned = it.files if sort_by else it.small, 1
        removed, added = planned if dry_run else upkeep.optimize(it.day, size, sort_by)
        if removed:
            what = f"{it.day or 'all'}{f', sorted by {sort_by}' if sort_by else ''}"
            yield "compacted", what, str(it.files), str(it.files - removed + added), f"{it.size / (1 << 20):.1f}"
    if left := len(days[settings.maintain_days :]):
        yield "kept", f"{left} days are left for the next run"
    if not dry_run and (files := upkeep.vacuum(settings.vacuum_after)):
        yield "vacuumed", f"unused for {settings.vacuum_after}", str(files), "0"


def _line(table: str, action: str, what: str, *numbers: str) -> None:
    line = f"{table:<18}{action:<11}{what:<44}" + "".join(f"{number:>9}" for number in numbers)
    print(line.rstrip(), flush=True)
