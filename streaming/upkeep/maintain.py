"""``gateway stream maintain``: small files of past days put together, days beyond their retention deleted, and files
removed that no version of a table needs any more. For a timer, once a day; jobs may run beside it, a second
``maintain`` not.

What it changes is no news to who reads a table as a stream. It prints a line for each thing it did, and ends with
status 5 if a table could not be done; the others are.
"""

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from config.errors import ConfigError, ExitStatus
from config.settings import Settings, StreamSettings
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


Done = tuple[str, ...]
"""What was done and with what; for files, how many there were, how many there are then, and their MiB before."""


class Plan(NamedTuple):
    stream: StreamSettings
    now: datetime
    dry_run: bool

    def compactable(self, day: date) -> bool:
        over_at = datetime.combine(day + timedelta(days=1), datetime.min.time(), UTC)
        return over_at + self.stream.lake.compact_after <= self.now


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """Does all that is due and prints it. Returns OK, INCOMPLETE if some table could not be done, or NOT_FOUND if
    there is none."""
    plan = Plan(settings.stream, datetime.now(UTC), bool(arguments.dry_run))
    wanted = set(arguments.table or ())
    status = ExitStatus.OK
    idle = []
    tables = layers(spark, plan.stream)
    if tables:
        _line("table", "action", "what", "files", "then", "MiB")
    else:
        print(f"There are no tables at {location(plan.stream.lake.path)} yet.", file=sys.stderr)  # noqa: T201
        status = ExitStatus.NOT_FOUND
    for table in tables:
        name = table.name
        if wanted and name not in wanted:
            continue
        try:
            done = None
            for done in _due(spark, plan, table):
                _line(name, *done)
            if done is None:
                idle.append(name)
        except Exception as error:  # noqa: BLE001 (the other tables are still to be done)
            status = ExitStatus.INCOMPLETE
            _line(name, "FAILED", "see below")
            print(f"error: {name} could not be kept up: {cause(str(error))}.", file=sys.stderr)  # noqa: T201
    if idle:
        print(f"Nothing is due in {', '.join(idle)}.")  # noqa: T201
    if not plan.dry_run:
        # By then no state has anything left of them to say.
        kept = max(plan.stream.devices.forget_after, _LEAST_REMEMBERED)
        Forgotten(spark, plan.stream).let_go(plan.now - kept)
    if absent := wanted.difference(it.name for it in tables):
        raise ConfigError(
            f"There is no table {', '.join(sorted(absent))} at {location(plan.stream.lake.path)}: has the job that"
            f" writes it run? There are: {', '.join(it.name for it in tables) or 'none'}."
        )
    return status


def _due(spark: SparkSession, plan: Plan, table: DeltaTable) -> Iterator[Done]:  # does it; yields what is printed
    upkeep = DeltaUpkeep(spark, table)
    yield from _expired_rows(upkeep, plan, table)
    size, column = plan.stream.lake.target_file_size, _SORTED.get(table.name)
    days = upkeep.days(size, column)
    due = [it for it in days if (it.small or it.unsorted) and (it.day is None or plan.compactable(it.day))]
    if any(it.day is None for it in due) and job_lock.holder(location(plan.stream.checkpoint), table.name) is not None:
        # In no days, so each of its batches touches what would be put together, and one of the two would be in vain.
        yield "kept", f"not compacted while the job {table.name} runs"
        due = []
    for it in due[: plan.stream.lake.maintain_days]:
        sort_by = column if it.unsorted else None
        planned = it.files if sort_by else it.small, 1
        removed, added = planned if plan.dry_run else upkeep.optimize(it.day, size, sort_by)
        if removed:
            what = "all" if it.day is None else str(it.day)
            how = f"{what}, sorted by {sort_by}" if sort_by else what
            yield "compacted", how, str(it.files), str(it.files - removed + added), f"{it.size / (1 << 20):.1f}"
    if left := len(due[plan.stream.lake.maintain_days :]):
        yield "kept", f"{left} days are left for the next run"
    if not plan.dry_run and (files := upkeep.vacuum(plan.stream.lake.vacuum_after)):
        yield "vacuumed", f"unused for {plan.stream.lake.vacuum_after}", str(files), "0"


def _expired_rows(upkeep: DeltaUpkeep, plan: Plan, table: DeltaTable) -> Iterator[Done]:  # deletes; yields lines
    kept: timedelta | None = getattr(plan.stream.lake.retention, table.name, None)
    if kept is None:
        return
    oldest = (plan.now - kept).date()
    expired = f"`{upkeep.age_column}` < DATE'{oldest}'"
    if rows := table.read().where(expired).count() if plan.dry_run else upkeep.delete(expired):
        yield "deleted", f"{rows} rows before {oldest}"


def _line(*cells: str) -> None:
    table, action, what, *numbers = cells
    line = f"{table:<18}{action:<11}{what:<44}" + "".join(f"{number:>9}" for number in numbers)
    print(line.rstrip(), flush=True)  # noqa: T201 (the command's product)
