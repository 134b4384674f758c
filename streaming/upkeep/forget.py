"""``gateway stream forget DEVICE``: a device's rows out of every table.

Records are found by what names the device in them: the header ``gateway.device``, the key, the field ``device`` of a
JSON payload, what today's schemas take for their device, and their places as silver has them. Silver is done last, and
a run that was cut off is simply run again. What Kafka still holds is not touched: bronze, made anew, has it again, and
so has the quarantine what is bad.

Prints a line per table, and ends with status 5 if a table still has rows of the device.
"""

import argparse
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from bridge.wire import GATEWAY_DEVICE
from config.errors import ConfigError, ExitStatus
from config.settings import Settings
from streaming import lake_tables
from streaming.decoding.decode import Decoding
from streaming.decoding.device_schemas import load_device_schemas
from streaming.errors import tell
from streaming.gold import job as gold
from streaming.kafka.failures import cause
from streaming.lake.delta_upkeep import DeltaUpkeep
from streaming.lake.forgotten import Forgotten
from streaming.lake.lake import DeltaTable, layers
from streaming.lake.ranges import text
from streaming.lake.storage import Folder, location
from streaming.options import JOBS
from streaming.runtime import job_lock
from streaming.runtime.checkpoint_log import read_progress

_say: Final = partial(print, flush=True)
_LOOK_S: Final = 0.2
_PLACE: Final = ("topic", "partition", "offset", "timestamp")
"""Where a record is in Kafka. A topic that was made anew has its offsets again, at other times."""
_PLACES: Final = {
    "bronze": _PLACE,
    "silver_quarantine": ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_time"),
}
"""The tables of records, and their columns for it."""
_READERS: Final = ("gold", "devices", "anomalies")  # of silver


def of_device(columns: list[str], device: str) -> str:
    """SQL that is true for a row of the device, by the columns a table has; "" if none of them names a device."""
    name = text(device)
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
    return " OR ".join(f"coalesce({test}, false)" for column, test in tests.items() if column in columns)


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """Deletes the rows and prints what went. Returns OK, or INCOMPLETE if something is left. Raises ConfigError while
    a job runs that would bring them back at once."""
    if not layers(spark, settings.stream):
        raise ConfigError(
            f"There are no tables at {location(settings.stream.lake.path)}, so nothing was looked at: no job has run,"
            " or stream.lake.path (--lake) names another folder."
        )
    if arguments.dry_run:
        return _forget(spark, settings, arguments)
    url, now = location(settings.stream.checkpoint).rstrip("/"), bool(arguments.now)
    running = _require_stopped(url, everything=now)
    if now:
        _require_read(spark, settings)
    job_lock.hold(url, "forget")
    job_lock.hold(url, gold.QUERY)
    # Before the rows go: a job that runs beside may write what its state says of the device at any moment.
    Forgotten(spark, settings.stream).add(arguments.device)
    try:
        for job in running:
            _await_batch(Folder(spark, url), job)
        status = _forget(spark, settings, arguments)
    finally:
        job_lock.let_go(url, gold.QUERY)
        job_lock.let_go(url, "forget")
    if not now:
        gone = datetime.now(UTC) + settings.stream.lake.vacuum_after
        _say(
            "Files that had the rows are removed by `gateway stream maintain` from"
            f" {gone:%Y-%m-%d %H:%M} UTC on; until then older versions of the tables can be read."
        )
    registry, path = "", settings.stream.silver.registry
    own = DeltaTable(spark, settings.stream, "registry")
    if path is not None and not (location(path) == own.url and own.exists()):  # which was done, if it is such a table
        registry = f" the registry {location(path)}, which stream.silver.registry names;"
    _say(
        "Not touched: what Kafka holds of the device (topics, dead letters, statuses of commands, the topic of"
        f" anomalies) until its retention;{registry} the state of the jobs devices and anomalies in their checkpoints,"
        " of which they write nothing any more; what `gateway stream reset` put aside; its user and rules (`gateway"
        " auth forget`); copies made elsewhere."
    )
    if status:
        tell("Something is left, see above: run it again once what is named there is corrected.")
    return status


def _forget(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> ExitStatus:
    device, dry_run = arguments.device, bool(arguments.dry_run)
    tables = layers(spark, settings.stream)
    places = _places(settings, device, tables)
    work = _Forgetting(spark, settings, device, places)
    status, found, failed = ExitStatus.OK, 0, False
    _line("table", "rows" if dry_run else "rows removed", "" if dry_run else "left")
    # What names no device is counts of gateways. Silver is the last: the others are found by it.
    naming = [it for it in tables.values() if of_device(it.read().columns, "")]
    for table in sorted(naming, key=lambda it: it.name == "silver"):
        if failed and table.name == "silver":
            _line(table.name, "KEPT", "?")  # or the next run could not find what is left in the others
            break
        try:
            removed, left = (work.count(table), 0) if dry_run else work.remove(table, now=bool(arguments.now))
        except Exception as error:  # noqa: BLE001 (the other tables are still to be done)
            status, failed = ExitStatus.INCOMPLETE, not dry_run
            _line(table.name, "FAILED", "?")
            tell(f"error: {table.name} may still have rows of {device}: {cause(str(error))}.")
            continue
        _line(table.name, str(removed), "" if dry_run else str(left))
        found += removed + left
        if left:
            status = ExitStatus.INCOMPLETE
    for known in places.values():
        known.unpersist()
    if not (found or status):
        tell(f"No table has a row of {device!r}: is that its whole name, as in the column device?")
    return status


def _places(settings: Settings, device: str, tables: Mapping[str, DeltaTable]) -> dict[str, DataFrame]:
    """Where the tables of records have the device's: as silver has it, and what today's schemas say of each record."""
    decoding, found = Decoding(load_device_schemas(settings.stream.silver.schemas)), {}
    for name in _PLACES.keys() & tables:
        rows, own = tables[name].read(), _PLACES[name]
        records = rows.select(
            "key", "value", "headers", *(F.col(it).alias(to) for it, to in zip(own, _PLACE, strict=True))
        )
        its = decoding.decoded(records).where(F.col("device") == device).select(*_PLACE)
        if "silver" in tables:
            at = tables["silver"].read().where(F.col("device") == device)
            its = its.unionByName(
                at.select("kafka_topic", "kafka_partition", "kafka_offset", "received_at").toDF(*_PLACE)
            )
        found[name] = its.distinct().toDF(*own).persist()
    return found


class _Forgetting(NamedTuple):
    """One device, and what is known of where its records are, by table."""

    spark: SparkSession
    settings: Settings
    device: str
    places: dict[str, DataFrame]

    def count(self, table: DeltaTable) -> int:  # rows of the device: those that name it, and those at its places
        rows = table.read()
        condition = of_device(rows.columns, self.device)
        found = rows.where(condition)
        if (places := self.places.get(table.name)) is not None:
            others = rows.where(f"NOT ({condition})")
            found = found.unionByName(others.join(places, places.columns, "left_semi"))
        return found.count()

    def remove(self, table: DeltaTable, *, now: bool) -> tuple[int, int]:
        """Removes the rows, and with ``now`` the files that had them; how many went, and how many are there still."""
        upkeep = DeltaUpkeep(self.spark, table)
        before = self.count(table)
        if table.name == "gold":
            gold.forget_device(self.spark, self.settings, self.device)
        if before:
            table.delete(of_device(table.read().columns, self.device))
            if (places := self.places.get(table.name)) is not None:
                table.delete_at(places)
        upkeep.purge()  # also of rows that a run before, or the table's own job, only marked as deleted
        if now:
            upkeep.vacuum(timedelta(0))
        left = self.count(table)
        return before - left, left


def _require_stopped(url: str, *, everything: bool) -> dict[str, str]:
    """The jobs that run and may go on, with their processes. Raises ConfigError if one has to be stopped."""
    running = {job: owner for job in JOBS if (owner := job_lock.holder(url, job))}
    names = ", ".join(f"{job} ({owner})" for job, owner in running.items())
    if everything and running:
        raise ConfigError(
            f"--now removes files that a running job may be reading or writing: stop {names} first, or leave"
            " --now out: the files then go when `gateway stream maintain` runs after stream.lake.vacuum_after."
        )
    if gold.QUERY in running:
        raise ConfigError(
            f"The job gold runs ({running[gold.QUERY]}): it would compute windows with the readings that are being"
            " deleted. Stop it, forget, and start it again; the other jobs may go on."
        )
    if running:
        _say(f"note: {names} run on, and write what the device sends from now on. The batches they are in are awaited.")
    return running


def _require_read(spark: SparkSession, settings: Settings) -> None:
    """Raises ConfigError if a job would still need files of silver that --now removes."""
    checkpoints = Folder(spark, location(settings.stream.checkpoint))
    for job in (it for it in _READERS if checkpoints.names(f"{it}/offsets")):  # a batch was begun
        if left := lake_tables.unread_silver(spark, settings.stream, job):
            raise ConfigError(
                f"--now removes files of silver that are still to be read: {left} Let it read them (gateway stream"
                f" {job} --available-now), put its checkpoint aside (gateway stream reset {job}), or leave --now out."
            )


def _await_batch(checkpoints: Folder, job: str) -> None:
    """Waits while the job is in a batch that it began before the device was noted: it may still write its rows."""
    batch = read_progress(checkpoints, job).unfinished_batch
    commit = f"{job}/commits/{batch}"
    while batch is not None and not checkpoints.exists(commit) and job_lock.holder(checkpoints.url, job):
        time.sleep(_LOOK_S)


def _line(table: str, removed: str, left: str) -> None:
    _say(f"{table:<20}{removed:>14}{left:>8}".rstrip())
