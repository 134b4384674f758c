"""``gateway stream maintain``: small files of past days put together, days beyond their retention deleted, and files
removed that no version of a table needs any more. For a timer, once a day; jobs may run beside it, a second
``maintain`` not.

What it changes is no news to who reads a table as a stream. It prints a line for each thing it did, and ends with
status 5 if a table could not be done; the others are.
"""

from __future__ import annotations

__all__ = ["committed_batch", "run"]

import math
import sys
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from config.errors import ConfigError, ExitStatus
from streaming import job_lock
from streaming.failures import cause
from streaming.forgotten import Forgotten
from streaming.layers import delta_layers, keeps_for, parquet_layers
from streaming.storage import Folder, location

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from config.settings import Settings, StreamSettings
    from streaming.delta_upkeep import DeltaUpkeep
    from streaming.layers import Layer, ParquetLayer
    from streaming.parquet_days import Leaf, ParquetDays


_LEAST_REMEMBERED: Final = timedelta(days=366)
"""How long the hash of a forgotten device's name is kept at the least, so that no state brings its rows back."""


class Done(NamedTuple):
    """One line of the table that is printed."""

    table: str
    action: str
    what: str
    before: int | None = None
    """Files before; None where that is no question."""
    after: int | None = None
    size: int | None = None
    """Bytes of the files before."""


class Plan(NamedTuple):
    """What a run is about."""

    stream: StreamSettings
    now: datetime
    dry_run: bool

    @property
    def today(self) -> date:
        """The UTC day it is."""
        return self.now.date()

    def compactable(self, day: date) -> bool:
        """Whether a day has been over for long enough."""
        over_at = datetime.combine(day + timedelta(days=1), datetime.min.time(), UTC)
        return over_at + self.stream.lake.compact_after <= self.now

    def is_running(self, job: str) -> bool:
        """Whether a process on this machine runs the job."""
        return job_lock.holder(location(self.stream.checkpoint).rstrip("/"), job) is not None

    def keeps_from(self, name: str) -> date | None:
        """The oldest day of a table that stays; None: all stay."""
        kept = keeps_for(self.stream, name)
        return None if kept is None else self.today - kept


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """Does all that is due and prints it. Returns OK, or INCOMPLETE if some table could not be done."""
    plan = Plan(settings.stream, datetime.now(UTC), bool(arguments.dry_run))
    wanted = set(arguments.table or ())
    status = ExitStatus.OK
    found: set[str] = set()
    works: list[tuple[str, Callable[[], Iterator[Done]]]] = [
        *((it.name, partial(_parquet, spark, plan, it)) for it in parquet_layers(spark, plan.stream)),
        *((it.name, partial(_delta, spark, plan, it)) for it in delta_layers(spark, plan.stream)),
    ]
    if works:
        _line("table", "action", "what", "files", "then", "MiB")
    else:
        print(f"There are no tables at {location(plan.stream.lake.path)} yet.", file=sys.stderr)  # noqa: T201
    for name, work in works:
        if wanted and name not in wanted:
            continue
        found.add(name)
        try:
            for done in work():
                _print(done)
        except Exception as error:  # noqa: BLE001 (the other tables are still to be done)
            status = ExitStatus.INCOMPLETE
            _print(Done(name, "FAILED", "see below"))
            print(f"error: {name} could not be kept up: {cause(str(error))}.", file=sys.stderr)  # noqa: T201
    if not plan.dry_run:
        # By then no state has anything left of them to say.
        kept = max(plan.stream.devices.forget_after, _LEAST_REMEMBERED)
        Forgotten(spark, plan.stream).let_go(plan.now - kept)
    if absent := wanted - found:
        raise ConfigError(
            f"There is no table {', '.join(sorted(absent))} at {location(plan.stream.lake.path)}: has the job that"
            f" writes it run? There are: {', '.join(name for name, _ in works) or 'none'}."
        )
    return status


def _parquet(spark: SparkSession, plan: Plan, layer: ParquetLayer) -> Iterator[Done]:
    from streaming.parquet_days import ParquetDays

    try:
        days = ParquetDays(spark, layer.url, layer.schema, layer.order)
    except ValueError:
        yield from _expired_folders(Folder(spark, layer.url), plan, layer)
        yield Done(layer.name, "kept", "not compacted: only a local disk can, or format = delta")
        return
    if not plan.dry_run:
        days.recover()
    keeps_from = plan.keeps_from(layer.name)
    leaves = days.leaves()
    for day in sorted({leaf.day for leaf in leaves if keeps_from and leaf.day < keeps_from}):
        there = [leaf for leaf in leaves if leaf.day == day]
        files, size = sum(leaf.files for leaf in there), sum(leaf.size for leaf in there)
        if not plan.dry_run:
            days.delete_day(day)
        yield Done(layer.name, "deleted", str(day), files, 0, size)
    due = [leaf for leaf in leaves if not (keeps_from and leaf.day < keeps_from) and plan.compactable(leaf.day)]
    yield from _compacted_leaves(days, plan, layer, due, committed_batch(spark, plan.stream, layer.query))


def _compacted_leaves(
    days: ParquetDays, plan: Plan, layer: ParquetLayer, due: list[Leaf], committed: int
) -> Iterator[Done]:
    todo: dict[date, list[tuple[Leaf, int]]] = {}
    for leaf in due:
        files = max(1, math.ceil(leaf.size / plan.stream.lake.target_file_size))
        if leaf.files <= files + 1:
            continue
        if leaf.batches[-1] > committed:
            yield Done(layer.name, "kept", f"{leaf.day}: batch {leaf.batches[-1]} is not committed")
            continue
        todo.setdefault(leaf.day, []).append((leaf, files))
    if todo and not days.can_replace:
        yield Done(layer.name, "kept", "not compacted: no exchange of folders on this file system, or format = delta")
        return
    for number, (day, its) in enumerate(todo.items()):
        if number == plan.stream.lake.maintain_days:
            yield Done(layer.name, "kept", f"{len(todo) - number} days are left for the next run")
            return
        for leaf, files in its:
            after = files if plan.dry_run else days.compact(leaf, files)
            yield Done(layer.name, "compacted", _named(leaf, day), leaf.files, after, leaf.size)


def _named(leaf: Leaf, day: date) -> str:
    """The day, and the topic if the table has a folder for each."""
    name = leaf.path.name
    return str(day) if "_date=" in name else f"{day} {name}"


def _expired_folders(folder: Folder, plan: Plan, layer: ParquetLayer) -> Iterator[Done]:
    """Days beyond their retention, on a file system that is not this machine's."""
    keeps_from = plan.keeps_from(layer.name)
    for name in sorted(folder.names()) if keeps_from else []:
        column, _, day = name.partition("=")
        if column.endswith("_date") and day < str(keeps_from):
            if not plan.dry_run:
                folder.delete(name)
            yield Done(layer.name, "deleted", day)


def committed_batch(spark: SparkSession, stream: StreamSettings, query: str) -> int:
    """The last batch that the query's checkpoint has as written; -1 if there is none, or no checkpoint."""
    commits = Folder(spark, f"{location(stream.checkpoint).rstrip('/')}/{query}/commits")
    return max((int(name) for name in commits.names() if name.isdigit()), default=-1)


def _delta(spark: SparkSession, plan: Plan, layer: Layer) -> Iterator[Done]:
    from streaming.delta_upkeep import DeltaUpkeep

    upkeep = DeltaUpkeep(spark, layer.table)
    yield from _expired_rows(upkeep, plan, layer)
    size = plan.stream.lake.target_file_size
    # A file of three quarters of the size is as good as one of the whole: its day is not written anew for it.
    due = [it for it in upkeep.days(size * 3 // 4) if it.small and (it.day is None or plan.compactable(it.day))]
    if any(it.day is None for it in due) and plan.is_running(layer.name):
        # In no days, so each of its batches touches what would be put together, and one of the two would be in vain.
        yield Done(layer.name, "kept", f"not compacted while the job {layer.name} runs")
        due = []
    for it in due[: plan.stream.lake.maintain_days]:
        removed, added = (it.small, 1) if plan.dry_run else upkeep.optimize(it.day, size)
        if removed:
            what = "all" if it.day is None else str(it.day)
            yield Done(layer.name, "compacted", what, it.files, it.files - removed + added, it.size)
    if left := len(due[plan.stream.lake.maintain_days :]):
        yield Done(layer.name, "kept", f"{left} days are left for the next run")
    if not plan.dry_run and (files := upkeep.vacuum(plan.stream.lake.vacuum_after)):
        yield Done(layer.name, "vacuumed", f"unused for {plan.stream.lake.vacuum_after}", files, 0)


def _expired_rows(upkeep: DeltaUpkeep, plan: Plan, layer: Layer) -> Iterator[Done]:
    keeps_from = plan.keeps_from(layer.name)
    if keeps_from is None:
        return
    column = upkeep.day_column or next(iter(upkeep.time_columns()), None)
    if column is None:
        yield Done(layer.name, "kept", f"retention.{layer.name} has nothing to go by: no day, no time")
        return
    rows = upkeep.count_before(keeps_from, column) if plan.dry_run else upkeep.delete_before(keeps_from, column)
    if rows:
        yield Done(layer.name, "deleted", f"{rows} rows before {keeps_from}")


def _print(done: Done) -> None:
    def number(value: int | None) -> str:
        return "" if value is None else str(value)

    size = "" if done.size is None else f"{done.size / (1 << 20):.1f}"
    _line(done.table, done.action, done.what, number(done.before), number(done.after), size)


def _line(*cells: str) -> None:
    table, action, what, *numbers = cells
    line = f"{table:<18}{action:<11}{what:<44}" + "".join(f"{number:>9}" for number in numbers)
    print(line.rstrip(), flush=True)  # noqa: T201 (the command's product)
