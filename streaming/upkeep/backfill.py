"""Silver and gold made up for a stretch of time: what was received then is read again from bronze, and from Kafka where
bronze may lack some of it, decoded with today's schemas, and inserted as far as it is missing. A tool.

    gateway stream backfill --from 2026-11-20 --to 2026-11-21

The stretch is one of receive times (Kafka's timestamps), ``from`` ≤ time < ``to``. A day is taken after the other, so a
long one needs no more memory than its busiest day. Kafka is read to its end with the last day: what waited in a
gateway's spool is behind what came later, and for how long nobody knows. Idempotent: silver gets the records that it
does not have, its quarantine those that neither has, and gold's windows are computed again from all of silver. So it
may be repeated, cut off, and run while the jobs do.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from math import inf
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError, ExitStatus
from config.numbers import some
from config.settings import Settings
from streaming import lake_tables
from streaming.bronze.job import QUERY as BRONZE
from streaming.decoding.device_schemas import DeviceSchemas, load_device_schemas
from streaming.errors import tell
from streaming.gold import job as gold
from streaming.kafka.admin import Place, asked
from streaming.kafka.options import source_options, topics
from streaming.kafka.topic_ids import TopicIds, present_ids
from streaming.lake.lake import DeltaTable, held
from streaming.lake.ranges import millis, moment
from streaming.lake.storage import Folder, location
from streaming.progress import Offsets
from streaming.runtime import job_lock
from streaming.runtime.checkpoint_log import read_progress
from streaming.silver.job import registered_rows
from streaming.silver.tables import SilverTables

_DAY: Final = timedelta(days=1)
_PLACE: Final = ("topic", "partition", "offset", "timestamp")


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """Fills the stretch ``since_ms`` ≤ time < ``until_ms`` and prints what each day had. Returns OK, or UNJUDGED if
    Kafka may have deleted records of the stretch that nobody had read. Raises ConfigError if it is none, or longer than
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
    tables = SilverTables(spark, settings.stream, schemas.columns)
    days = _days(first, end)
    found, cut = records_between(spark, settings, days)
    for (since, until), sources in zip(days, found, strict=True):
        for source, records in sources.items():
            told = _fill(records, settings, schemas, tables)
            print(f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} from {source}: {told}", flush=True)
    if cut:
        tell(
            f"note: Kafka has deleted {some(cut)}. Records of this stretch may have been among them: what was not in"
            " bronze could not be filled."
        )
    if DeltaTable(spark, settings.stream, "gold").exists():
        received = lake_tables.silver(spark, settings.stream).where(_between("received_at", first, end))
        count = gold.recompute(spark, settings, received)
        print(f"gold: the windows of {count} readings are computed again")
    return ExitStatus.UNJUDGED if cut else ExitStatus.OK


def records_between(
    spark: SparkSession, settings: Settings, days: Sequence[tuple[datetime, datetime]]
) -> tuple[list[dict[str, DataFrame]], list[str]]:
    """Kafka's records that were received in a stretch, with Kafka's columns, for each of its days by where they are
    from: bronze, and Kafka for what bronze has not read yet. From Kafka comes all that bronze has not if it has none
    from before the stretch, for it may begin within, if retention took days of it, or if the topic was made anew. And
    what Kafka may have deleted of its own, in words. Raises a StreamError if Kafka does not tell."""
    first, end = days[0][0], days[-1][1]
    bronze, kept = DeltaTable(spark, settings.stream, BRONZE), None
    day, at = F.col("ingest_date"), F.col("timestamp")
    read: Offsets = {}
    if bronze.exists():
        read, anew = _places_of(spark, settings, first)  # first: the job runs
        kept = bronze.read()
        since = bronze.whole_since()
        if since > first.date() or kept.where((day <= first.date()) & (at < F.lit(first))).isEmpty():
            read = {}
    bounds, cut = _unread(spark, settings, read, [since for since, _ in days])
    if kept is not None:
        cut += _lost(spark, settings, kept, first, end)
        cut += [f"an earlier topic {topic}" for topic, batch in anew.items() if _may_lack(kept, topic, batch, end)]
    found = []
    for (since, until), (starts, ends) in zip(days, pairwise(bounds), strict=True):
        sources = {}
        if kept is not None:
            within = kept.where(day.between(since.date(), until.date()) & _between("timestamp", since, until))
            sources["bronze"] = within.drop("ingest_date", "batch")
        if unread := {place: (start, ends[place]) for place, start in starts.items() if start < ends[place]}:
            records = _kafka(spark, settings, unread).where(_between("timestamp", first, end))
            if kept is not None and read.keys() < {*topics(settings)}:  # it may have most of them
                there = kept.where(day.between(first.date(), end.date()) & _between("timestamp", first, end))
                records = records.join(there.select(*_PLACE), [*_PLACE], "left_anti")
            sources["Kafka"] = records
        found.append(sources)
    return found, cut


def _places_of(spark: SparkSession, settings: Settings, first: datetime) -> tuple[Offsets, dict[str, float]]:
    """How far bronze has read the topics, but for those that were made anew since ``first``: of these it goes on at its
    old place, and steps over records. And bronze's batches from which on they are the new ones."""
    names = topics(settings)
    changed = TopicIds(spark, settings, BRONZE).changed(present_ids(spark, settings, "backfill", names))
    met = (F.col("reason") == "recreated") & (F.col("seen_at") >= F.lit(first))
    gaps = lake_tables.bronze_gaps(spark, settings.stream).where(met)
    anew = dict.fromkeys(changed, inf) | dict(gaps.groupBy("topic").agg(F.min("batch")).collect())
    progress = read_progress(Folder(spark, location(settings.stream.checkpoint)), BRONZE)
    return {topic: of for topic, of in progress.offsets.items() if topic in names and topic not in anew}, anew


def _may_lack(kept: DataFrame, topic: str, batch: float, end: datetime) -> bool:
    """Whether the topic, as it was before a batch of bronze's, may have had records from before ``end`` that bronze did
    not read: it has none from after."""
    its = kept.where((F.col("topic") == topic) & (F.col("batch") < batch)).groupBy("partition")
    ends = [it.last for it in its.agg(F.unix_millis(F.max("timestamp")).alias("last")).collect()]
    return min(ends, default=-1) < millis(end)


def _unread(
    spark: SparkSession, settings: Settings, read: Offsets, moments: Sequence[datetime]
) -> tuple[list[dict[Place, int]], list[str]]:
    """The offsets from which on Kafka may have records since each of these moments that were not ``read``, and its
    ends; and in words what it may have deleted of them."""
    with asked(spark, settings, "backfill") as admin:
        places = admin.partitions(topics(settings))
        begins, ends = admin.earliest(places), admin.latest(places)
        firsts = [admin.since(places, millis(moment)) for moment in moments]
    bounds: list[dict[Place, int]] = [{} for _ in firsts]
    cut = []
    for (topic, partition), end in ends.items():
        place, begin = (topic, partition), begins[topic, partition]
        known = read.get(topic, {}).get(str(partition), 0)
        if begin > known and begin in (firsts[0][place], end):
            cut.append(f"{topic}/{partition} before offset {begin}")
        known = known if known <= end else 0  # beyond the end it is of another topic of that name
        for bound, found in zip(bounds, firsts, strict=True):
            bound[place] = max(found[place], known) if found[place] >= 0 else end
    return [*bounds, ends], cut


def _lost(spark: SparkSession, settings: Settings, kept: DataFrame, first: datetime, end: datetime) -> list[str]:
    """In words, what Kafka had lost before bronze came to read it, and may be of the stretch: no record behind it is
    from before the stretch, and none before it from after."""
    at, offset = F.col("timestamp"), F.col("offset")
    around = kept.groupBy("topic", "partition").agg(
        F.max(F.when(at < F.lit(first), offset)).alias("before"), F.min(F.when(at >= F.lit(end), offset)).alias("after")
    )
    gaps = lake_tables.bronze_gaps(spark, settings.stream).where(
        F.col("topic").isin([*topics(settings)])
        & F.col("reason").isin("deleted", "truncated")
        & (F.col("seen_at") >= F.lit(first))
    )
    within = "coalesce(before < last_offset, true) AND coalesce(after > first_offset, true)"
    rows = gaps.join(around, ["topic", "partition"], "left").where(within).orderBy("topic", "partition", "first_offset")
    return [f"{it.topic}/{it.partition} from offset {it.first_offset} to {it.last_offset}" for it in rows.collect()]


def _kafka(spark: SparkSession, settings: Settings, ranges: Mapping[Place, tuple[int, int]]) -> DataFrame:
    starts, ends = defaultdict[str, dict[str, int]](dict), defaultdict[str, dict[str, int]](dict)
    for (topic, partition), (start, end) in ranges.items():  # from start to before end
        starts[topic][str(partition)], ends[topic][str(partition)] = start, end
    options = {
        **source_options(settings.kafka),
        "assign": json.dumps({topic: [int(partition) for partition in of] for topic, of in starts.items()}),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        "failOnDataLoss": "false",  # what Kafka has deleted since cannot be had from it
    }
    return spark.read.format("kafka").options(**options).load()


def _fill(records: DataFrame, settings: Settings, schemas: DeviceSchemas, tables: SilverTables) -> str:
    """Inserts what is missing. Returns what was read, and what of it was new, in words."""
    with held(registered_rows(records, settings, schemas)) as kept:
        brought = tables.arrivals(kept)
        inserted = tables.insert(kept, brought) if brought.readings else 0
        quarantined = tables.reject(kept, brought) if brought.bad else 0
    return (
        f"{brought.readings} readings, {inserted} of them new in silver;"
        f" {brought.bad} bad, {quarantined} of them new in quarantine"
    )


def _days(first: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    day = first.replace(hour=0, minute=0, second=0, microsecond=0)
    midnights = (day + n * _DAY for n in range(1, (end - first).days + 2))
    return [*pairwise([first, *(it for it in midnights if it < end), end])]


def _between(column: str, since: datetime, until: datetime) -> Column:
    # The column itself is compared: by a function of it no file would be passed over.
    return (F.col(column) >= F.lit(since)) & (F.col(column) < F.lit(until))
