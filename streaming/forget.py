"""``gateway stream forget DEVICE``: a device's rows out of every table.

Records are found by what names the device in them: the header ``gateway.device``, the key, the field ``device`` of a
JSON payload, and, for payloads that only a schema can read, their places as silver has them. Silver is done last, and
a run that was cut off is simply run again. What Kafka still holds is not touched: a job that reads it anew writes it
anew.

Prints a line per table, and ends with status 5 if a table still has rows of the device.
"""

from __future__ import annotations

__all__ = ["of_device", "run"]

import sys
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from bridge.wire import GATEWAY_DEVICE
from config.errors import ConfigError, ExitStatus
from streaming import gold, job_lock
from streaming.delta_upkeep import DeltaUpkeep
from streaming.failures import cause
from streaming.forgotten import Forgotten
from streaming.layers import delta_layers, parquet_layers
from streaming.options import JOBS
from streaming.parquet_rows import remove_rows
from streaming.storage import location

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from config.settings import Settings
    from streaming.layers import Layer, ParquetLayer

_PLACE: Final = ("kafka_topic", "kafka_partition", "kafka_offset")
_OF_BRONZE: Final = {"topic": "kafka_topic", "partition": "kafka_partition", "offset": "kafka_offset"}


def of_device(columns: list[str], device: str) -> str | None:
    """SQL that is true for a row of the device, by the columns a table has; None if none of them names a device."""
    name = "'" + device.replace("\\", "\\\\").replace("'", "\\'") + "'"
    raw = f"encode({name}, 'UTF-8')"
    tests = {
        "device": f"device = {name}",
        "headers": f"exists(headers, h -> h.key = '{GATEWAY_DEVICE}' AND h.value = {raw})",
        "value": f"get_json_object(CAST(value AS STRING), '$.device') = {name}",
    }
    if "value" in columns:  # of a record; the key of another table is no device's
        tests["key"] = f"key = {raw}"
    if {"level", "key"} <= set(columns):
        tests["level"] = f"level = 'device' AND key = {name}"
    found = [f"coalesce({test}, false)" for column, test in tests.items() if column in columns]
    return " OR ".join(found) or None


class _Forgetting:
    """One device, and what is known of where its records are."""

    def __init__(self, spark: SparkSession, settings: Settings, device: str) -> None:
        self._spark, self._settings, self._device = spark, settings, device
        self._places = self._known_places()

    def _known_places(self) -> DataFrame | None:
        """Where silver and the job ``ingest`` have seen its records; None if nowhere."""
        stream = self._settings.stream
        tables = [it.table.read() for it in delta_layers(self._spark, stream) if it.name == "silver"]
        tables += [
            self._spark.read.schema(it.schema).parquet(it.url)
            for it in parquet_layers(self._spark, stream)
            if it.name == "telemetry"
        ]
        if not tables:
            return None
        its = [rows.where(F.col("device") == self._device).select(*_PLACE) for rows in tables]
        return reduce(DataFrame.unionByName, its).distinct().persist()

    def end(self) -> None:
        """Lets go of what was kept in memory."""
        if self._places is not None:
            self._places.unpersist()

    def matching(self, rows: DataFrame) -> DataFrame:
        """The rows of the device."""
        condition = of_device(rows.columns, self._device) or "false"
        named = rows.where(condition)
        if self._places is None or "offset" not in rows.columns:
            return named
        return named.unionByName(rows.where(f"NOT ({condition})").join(self._renamed(), list(_OF_BRONZE), "left_semi"))

    def others(self, rows: DataFrame) -> DataFrame:
        """The rows that are not the device's."""
        kept = rows.where(f"NOT ({of_device(rows.columns, self._device) or 'false'})")
        if self._places is None or "offset" not in rows.columns:
            return kept
        return kept.join(self._renamed(), list(_OF_BRONZE), "left_anti")

    def _renamed(self) -> DataFrame:
        assert self._places is not None
        return self._places.select(*(F.col(theirs).alias(ours) for ours, theirs in _OF_BRONZE.items()))

    def from_parquet(self, layer: ParquetLayer) -> tuple[int, int]:
        """Removes the rows; returns how many went and how many are there still."""
        removed = remove_rows(self._spark, layer, self.matching, self.others)
        return removed, self._left_in_parquet(layer)

    def in_parquet(self, layer: ParquetLayer) -> tuple[int, int]:
        """How many rows a table has of the device, which would go; none would be left."""
        return self._left_in_parquet(layer), 0

    def in_delta(self, layer: Layer) -> tuple[int, int]:
        """The same of a Delta table."""
        return self._left_in_delta(layer), 0

    def _left_in_parquet(self, layer: ParquetLayer) -> int:
        return self.matching(self._spark.read.schema(layer.schema).parquet(layer.url)).count()

    def _left_in_delta(self, layer: Layer) -> int:
        return self.matching(layer.table.read()).count()

    def from_delta(self, layer: Layer, *, now: bool) -> tuple[int, int]:
        """Removes the rows; ``now``: and the files that had them."""
        upkeep = DeltaUpkeep(self._spark, layer.table)
        before = self._left_in_delta(layer)
        if layer.name == "gold":
            gold.forget_device(self._spark, self._settings, self._device)
        elif before:
            columns = layer.table.read().columns
            if condition := of_device(columns, self._device):
                upkeep.delete(condition)
            if self._places is not None and "offset" in columns:
                upkeep.delete_at(self._places, _OF_BRONZE)
        if before or now:
            upkeep.purge()
        if now:
            upkeep.vacuum(timedelta(0))
        left = self._left_in_delta(layer)
        return before - left, left


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """Deletes the rows and prints what went. Returns OK, or INCOMPLETE if something is left. Raises ConfigError while
    a job runs that would bring them back at once."""
    if arguments.dry_run:
        return _forget(spark, settings, arguments)
    url = location(settings.stream.checkpoint).rstrip("/")
    _require_stopped(url, everything=bool(arguments.now))
    job_lock.hold(url, gold.QUERY)
    # Before the rows go: a job that runs beside may write what its state says of the device at any moment.
    Forgotten(spark, settings.stream).add(arguments.device)
    try:
        status = _forget(spark, settings, arguments)
    finally:
        job_lock.let_go(url, gold.QUERY)
    _tell_rest(settings, status, now=bool(arguments.now))
    return status


def _forget(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> ExitStatus:
    dry_run = bool(arguments.dry_run)
    work = _Forgetting(spark, settings, arguments.device)
    status = ExitStatus.OK
    _line("table", "rows" if dry_run else "rows removed", "" if dry_run else "left")
    for name, action in _actions(spark, settings, work, dry_run=dry_run, now=bool(arguments.now)):
        try:
            removed, left = action()
        except Exception as error:  # noqa: BLE001 (the other tables are still to be done)
            status = ExitStatus.INCOMPLETE
            _line(name, "FAILED", "?")
            _say(f"error: {name} may still have rows of {arguments.device}: {cause(str(error))}.", to_stderr=True)
            continue
        _line(name, str(removed), "" if dry_run else str(left))
        if left:
            status = ExitStatus.INCOMPLETE
    work.end()
    return status


def _actions(
    spark: SparkSession, settings: Settings, work: _Forgetting, *, dry_run: bool, now: bool
) -> list[tuple[str, Callable[[], tuple[int, int]]]]:
    """What is done to each table, in order: silver last, for the others are found by it."""
    found: list[tuple[str, Callable[[], tuple[int, int]]]] = [
        (it.name, partial(work.in_parquet if dry_run else work.from_parquet, it))
        for it in parquet_layers(spark, settings.stream)
    ]
    found += [
        (it.name, partial(work.in_delta, it) if dry_run else partial(work.from_delta, it, now=now))
        for it in delta_layers(spark, settings.stream)
        if of_device(it.table.read().columns, "") is not None  # what names no device is counts of gateways
    ]
    return sorted(found, key=lambda it: it[0] in {"silver", "telemetry"})


def _require_stopped(url: str, *, everything: bool) -> None:
    running = {job: owner for job in JOBS if (owner := job_lock.holder(url, job))}
    if everything and running:
        raise ConfigError(
            f"--now removes files that a running job may be reading or writing: stop {_names(running)} first, or leave"
            " --now out: the files then go when `gateway stream maintain` runs after stream.lake.vacuum_after."
        )
    if gold.QUERY in running:
        raise ConfigError(
            f"The job gold runs ({running[gold.QUERY]}): it would compute windows with the readings that are being"
            " deleted. Stop it, forget, and start it again; the other jobs may go on."
        )
    if running:
        _say(f"note: {_names(running)} run on, and write what the device sends from now on.")


def _names(running: dict[str, str]) -> str:
    return ", ".join(f"{job} ({owner})" for job, owner in running.items())


def _tell_rest(settings: Settings, status: ExitStatus, *, now: bool) -> None:
    if not now:
        gone = datetime.now(UTC) + settings.stream.lake.vacuum_after
        _say(
            "Files of Delta tables that had the rows are removed by `gateway stream maintain` from"
            f" {gone:%Y-%m-%d %H:%M} UTC on; until then older versions of the tables can be read. Parquet tables have"
            " no older versions."
        )
    _say(
        "Not touched: what Kafka holds of the device (topics, dead letters, the topic of anomalies) until its"
        " retention; the state of the jobs devices and anomalies in their checkpoints, of which they write nothing any"
        " more; copies made elsewhere."
    )
    if status:
        _say("Something is left, see above: run it again once what is named there is corrected.", to_stderr=True)


def _line(*cells: str) -> None:
    table, removed, left = cells
    _say(f"{table:<20}{removed:>14}{left:>8}".rstrip())


def _say(text: str, *, to_stderr: bool = False) -> None:
    print(text, file=sys.stderr if to_stderr else sys.stdout, flush=True)
