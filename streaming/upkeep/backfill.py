"""Silver and gold made up for a stretch of time: what was received then is read again from bronze, and from Kafka where
bronze may lack some of it, decoded with today's schemas, and inserted as far as it is missing. A tool.

    gateway stream backfill --from 2026-11-20 --to 2026-11-21

The stretch is one of receive times (Kafka's timestamps), ``from`` ≤ time < ``to``. A day is taken after the other, so a
long one needs no more memory than its busiest day. Idempotent: silver and its quarantine get what they do not have, and
gold's windows are computed again from all of silver. So it may be repeated, cut off, and run while the jobs do.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError, ExitStatus
from config.settings import Settings
from streaming import lake_tables
from streaming.bronze.tables import QUERY as BRONZE
from streaming.decoding.device_schemas import DeviceSchemas, load_device_schemas
from streaming.gold import job as gold
from streaming.kafka.admin import KafkaAdmin
from streaming.kafka.failures import explain
from streaming.kafka.options import source_options, topics
from streaming.lake.held import held
from streaming.lake.lake import DeltaTable
from streaming.lake.storage import Folder, location
from streaming.lake.time_ranges import millis, moment
from streaming.progress import Offsets
from streaming.runtime import job_lock
from streaming.runtime.checkpoint_log import read_progress
from streaming.silver.job import registered_rows
from streaming.silver.tables import SilverTables, arrivals, prepare_tables

_DAY: Final = timedelta(days=1)


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """Fills the stretch ``since_ms`` ≤ time < ``until_ms`` and prints what each day had. Returns OK, or UNJUDGED if
    Kafka was read and may have deleted records of the stretch. Raises ConfigError if it is none, or longer than
    ``max_days``."""
    first, end = (moment(1000 * ms) for ms in (arguments.since_ms, arguments.until_ms))
    if first >= end:
        raise ConfigError(f"--from is {first:%Y-%m-%d %H:%M} UTC and --to is {end:%Y-%m-%d %H:%M}: nothing is between.")
    if end - first > arguments.max_days * _DAY:
        raise ConfigError(
            f"From {first:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC is more than --max-days {arguments.max_days}:"
            " was it meant? Give a larger number, or a shorter stretch."
        )
    job_lock.hold(location(settings.stream.checkpoint), "forget", shared=True)
    schemas = load_device_schemas(settings.stream.silver.schemas)
    tables = prepare_tables(spark, settings.stream, schemas.columns)
    status = ExitStatus.OK
    for since, until in _days(first, end):
        found, cut = records_between(spark, settings, since, until)
        for source, records in found.items():
            told = _fill(records, settings, schemas, tables)
            print(f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} from {source}: {told}", flush=True)  # noqa: T201 (the tool's product)
        if cut:
            status = ExitStatus.UNJUDGED
            gone = f"{', '.join(cut[:5])}{', …' if cut[5:] else ''}. Records of this stretch may have been among them"
            note = f"note: Kafka has deleted {gone}: what was not in bronze could not be filled."
            print(note, file=sys.stderr, flush=True)  # noqa: T201 (what people read)
    if DeltaTable(spark, settings.stream, "gold").exists():
        received = lake_tables.silver(spark, settings.stream).where(_between("received_at", first, end))
        count = gold.recompute(spark, settings, received)
        print(f"gold: the windows of {count} readings are computed again")  # noqa: T201 (the tool's product)
    return status


def records_between(
    spark: SparkSession, settings: Settings, since: datetime, until: datetime
) -> tuple[dict[str, DataFrame], list[str]]:
    """Kafka's records that were received in a stretch, with Kafka's columns, by where they are from: bronze, and Kafka
    for what bronze has not read yet, or for all where bronze has none from before the stretch: it may begin within.
    And what Kafka may have deleted of its own, in words. Raises a StreamError if Kafka does not tell."""
    bronze, found = DeltaTable(spark, settings.stream, BRONZE), {}
    read: Offsets = {}
    if bronze.exists():
        read = read_progress(Folder(spark, location(settings.stream.checkpoint)), BRONZE).offsets  # first: the job runs
        kept, day, at = bronze.read(), F.col("ingest_date"), F.col("timestamp")
        within = kept.where(day.between(since.date(), until.date()) & _between("timestamp", since, until))
        found["bronze"] = within.drop("ingest_date", "batch")
        if kept.where((day <= since.date()) & (at < F.lit(since))).isEmpty():
            read = {}
    starts, cut = _unread(spark, settings, read, since)
    if starts:
        found["Kafka"] = _kafka(spark, settings, starts).where(_between("timestamp", since, until))
    return found, cut


def _unread(
    spark: SparkSession, settings: Settings, read: Offsets, since: datetime
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """The offsets from which on Kafka may have records since a moment that were not ``read``; and in words what it may
    have deleted of them."""
    try:
        with closing(KafkaAdmin(spark, settings.kafka)) as admin:
            places = admin.partitions(topics(settings))
            begins, ends = admin.earliest(places), admin.latest(places)
            firsts = admin.since(places, millis(since))
    except Py4JJavaError as error:
        raise explain("backfill", error, settings) from error
    starts: dict[str, dict[str, int]] = {}
    cut = []
    for (topic, partition), first in firsts.items():
        begin, end = begins[topic, partition], ends[topic, partition]
        known = read.get(topic, {}).get(str(partition), 0)
        if begin > known and begin in (first, end):
            cut.append(f"{topic}/{partition} before offset {begin}")
        start = max(first, known if known <= end else 0)  # beyond the end it is of another topic of that name
        if first >= 0 and start < end:
            starts.setdefault(topic, {})[str(partition)] = start
    return starts, cut


def _kafka(spark: SparkSession, settings: Settings, starts: Offsets) -> DataFrame:
    """To the end: what waited in a gateway's spool is behind what came later, and for how long nobody knows."""
    options = {
        **source_options(settings.kafka),
        "assign": json.dumps({topic: [int(partition) for partition in of] for topic, of in starts.items()}),
        "startingOffsets": json.dumps(starts),
        "includeHeaders": "true",
        "failOnDataLoss": "false",  # what Kafka has deleted since cannot be had from it
    }
    return spark.read.format("kafka").options(**options).load()


def _fill(records: DataFrame, settings: Settings, schemas: DeviceSchemas, tables: SilverTables) -> str:
    """Inserts what is missing. Returns what was read, and what of it was new, in words."""
    with held(registered_rows(records, settings, schemas)) as kept:
        brought = arrivals(kept, clockless_within=settings.stream.silver.clockless_within)
        inserted = tables.insert(kept, brought) if brought.readings else 0
        quarantined = tables.reject(kept, brought) if brought.bad else 0
    return (
        f"{brought.readings} readings, {inserted} of them new in silver;"
        f" {brought.bad} bad, {quarantined} of them new in quarantine"
    )


def _days(first: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    since = first
    while since < end:
        midnight = since.replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
        yield since, min(midnight, end)
        since = midnight


def _between(column: str, since: datetime, until: datetime) -> Column:
    # The column itself is compared: by a function of it no file would be passed over.
    return (F.col(column) >= F.lit(since)) & (F.col(column) < F.lit(until))
