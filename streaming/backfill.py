"""Silver and gold made up for a stretch of time: what was received then is read again from bronze, or from Kafka where
there is no bronze, decoded with today's schemas, and inserted as far as it is missing. A tool.

    gateway stream backfill --from 2026-11-20 --to 2026-11-21

The stretch is one of receive times (Kafka's timestamps), ``from`` ≤ time < ``to``. A day is taken after the other, so a
long one needs no more memory than its busiest day. Idempotent: silver's MERGE inserts what it does not have, a reject
goes to quarantine unless its place in Kafka is there already, and gold's windows are computed again from all of silver.
So it may be repeated, cut off, and run while the jobs do.
"""

from __future__ import annotations

__all__ = ["records_between", "run"]

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError, ExitStatus
from streaming import gold, lake_tables
from streaming.device_schemas import load_device_schemas
from streaming.held import held
from streaming.kafka import source_options, topics
from streaming.lake import DeltaTable
from streaming.registry import Registry
from streaming.silver import silver_rows
from streaming.silver_rows import enriched, rejects
from streaming.silver_table import arrivals, prepare_tables

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame, SparkSession

    from config.settings import Settings
    from streaming.device_schemas import DeviceSchemas
    from streaming.silver_table import SilverTables

_DAY: Final = timedelta(days=1)
_PLACE: Final = ("kafka_topic", "kafka_partition", "kafka_offset")


@dataclass(frozen=True, slots=True)
class _Counts:
    """Of a stretch: what was read, and what of it was new."""

    readings: int
    inserted: int
    bad: int
    quarantined: int


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """Fills the stretch ``first_ms`` ≤ time < ``end_ms`` and prints what each day had. Raises ConfigError if it is
    none, or longer than ``max_days``."""
    first, end = (_moment(ms) for ms in (arguments.first_ms, arguments.end_ms))
    if first >= end:
        raise ConfigError(f"--from is {first:%Y-%m-%d %H:%M} UTC and --to is {end:%Y-%m-%d %H:%M}: nothing is between.")
    if end - first > arguments.max_days * _DAY:
        raise ConfigError(
            f"From {first:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC is more than --max-days {arguments.max_days}:"
            " was it meant? Give a larger number, or a shorter stretch."
        )
    schemas = load_device_schemas(settings.stream.silver.schemas)
    tables = prepare_tables(spark, settings.stream, schemas.columns)
    for since, until in _days(first, end):
        records, source = records_between(spark, settings, since, until)
        told = _fill(records, settings, schemas, tables)
        print(  # noqa: T201 (the tool's product)
            f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} from {source}: {told.readings} readings,"
            f" {told.inserted} of them new in silver; {told.bad} bad, {told.quarantined} of them new in quarantine",
            flush=True,
        )
    if DeltaTable(spark, settings.stream, "gold").exists():
        received = lake_tables.silver(spark, settings.stream).where(_between("received_at", first, end))
        count = gold.recompute(spark, settings, received)
        print(f"gold: the windows of {count} readings are computed again")  # noqa: T201 (the tool's product)
    return ExitStatus.OK


def records_between(spark: SparkSession, settings: Settings, since: datetime, until: datetime) -> tuple[DataFrame, str]:
    """Kafka's records that were received in a stretch, with Kafka's columns, and where they are from."""
    try:
        kept = lake_tables.bronze(spark, settings.stream)
    except ConfigError:
        return _kafka(spark, settings, since, until), "Kafka"
    days = F.col("ingest_date").between(since.date(), until.date())
    return kept.where(days & _between("timestamp", since, until)).drop("ingest_date", "batch"), "bronze"


def _kafka(spark: SparkSession, settings: Settings, since: datetime, until: datetime) -> DataFrame:
    names = topics(settings)
    options = {
        **source_options(settings.kafka),
        "subscribe": ",".join(names),
        "includeHeaders": "true",
        "startingTimestamp": _ms(since),
        "endingTimestamp": _ms(until),
        "startingOffsetsByTimestampStrategy": "latest",  # a partition with nothing after that has nothing to give
        "failOnDataLoss": "false",  # what Kafka has deleted since cannot be had from it
    }
    records = spark.read.format("kafka").options(**options).load()
    return records.where(_between("timestamp", since, until))  # times within a partition need not grow


def _fill(records: DataFrame, settings: Settings, schemas: DeviceSchemas, tables: SilverTables) -> _Counts:
    spark, silver = records.sparkSession, settings.stream.silver
    rows = silver_rows(records, settings, schemas)
    if silver.registry is not None:
        rows = rows.transform(enriched, Registry(spark, silver.registry).devices())
    with held(rows) as kept:
        brought = arrivals(kept, clockless_within=silver.clockless_within)
        inserted = tables.insert(kept, brought) if brought.readings else 0
        quarantined = 0
        if brought.bad:
            known = tables.quarantine.read().select(*_PLACE)
            new = rejects(kept).join(known, list(_PLACE), "left_anti").localCheckpoint()
            if quarantined := new.count():
                tables.reject(new.select(*rejects(kept).columns), query=f"backfill-{uuid.uuid4()}", batch=0)
    return _Counts(brought.readings, inserted, brought.bad, quarantined)


def _days(first: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """The stretch, cut at midnights (UTC)."""
    since = first
    while since < end:
        midnight = since.replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
        yield since, min(midnight, end)
        since = midnight


def _between(column: str, since: datetime, until: datetime) -> Column:
    at = F.unix_millis(column)
    return (at >= F.lit(int(_ms(since)))) & (at < F.lit(int(_ms(until))))


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _ms(moment: datetime) -> str:
    return str(round(moment.timestamp() * 1000))
