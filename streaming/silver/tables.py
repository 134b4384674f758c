"""The tables ``silver`` and ``silver_quarantine``: made, widened when the device schemas grew, and written.

Both are written by a MERGE that only inserts, so the same rows again change nothing, whoever brings them and whenever.
A reading is known by its ``record_id``, a reject by its place in Kafka and its time. Readings that silver cannot have
yet are appended (``reach``). A record that is read again is known by its place: other schemas may have given it another
``record_id``, or put it into the other table."""

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import DoubleType, LongType, StructType

from config.errors import ConfigError
from config.settings import StreamSettings
from streaming.decoding.decode import GOOD
from streaming.lake.lake import DeltaTable, alone, held, retried
from streaming.lake.ranges import MOST_RANGES, TimeRange, joined
from streaming.silver.match import Places, Slice, divided, match_condition, reject_condition
from streaming.silver.reach import Reach
from streaming.silver.rows import CLOCKED, PLACE, REJECT, firsts, readings, rejects, repeated_ids
from streaming.silver.schema import PARTITIONS, QUARANTINE, QUARANTINE_PARTITIONS, silver_schema

_PROPERTIES: Final = {
    # A small file per task and batch: put together on the way (session.py says when).
    "delta_autoOptimize_autoCompact": "true",
    # Ranges of values are kept per file for times, by which the MERGE and other jobs pass files over, and for the
    # device, by which ``maintain`` sorts a day's files. Not for type and site, of which every file has nearly all.
    "delta_dataSkippingStatsColumns": "device_time,event_time,received_at,device",
    "delta_checkpointInterval": "50",
}
_QUARANTINE_PROPERTIES: Final = _PROPERTIES | {
    "delta_dataSkippingStatsColumns": "reason,kafka_topic,kafka_partition,kafka_offset,kafka_time",
}
_SLICE_US: Final = 600_000_000
_ALL_TIME_US: Final = 4_000_000 * 86_400_000_000  # one slice of this length has all times until the year 9999
_MOST_SLICES: Final = 100_000
_MOST_DEVICES: Final = 1_000


class Arrivals(NamedTuple):
    """What a batch brings, counted before it is written.

    ``readings`` and ``bad`` add up to its records; ``new``: readings that silver cannot have yet; ``plain``: those of
    them that are good at first look; ``ids``: readings with a device's message id. ``found``: where originals of the
    readings that are not new can be. ``rejected``: where the bad ones are in Kafka. ``known``: when those were received
    that the tables may have by their place; None if there are none."""

    readings: int
    bad: int
    new: int
    plain: int
    ids: int
    found: list[Slice]
    rejected: list[Places]
    known: TimeRange | None


def _slices(rows: DataFrame, new: Column, known: Column, length_us: int) -> DataFrame:
    """Counts of the good rows by slices of device time, of the ``new`` ones in one, of the bad by Kafka's partition."""
    at, received = F.unix_micros("device_time"), F.unix_micros("received_at")
    bad = F.col(REJECT).isNotNull()
    return rows.groupBy(
        bad.alias("bad"),
        F.when(~bad, new).alias("new"),
        F.when(~bad & ~new, F.col(CLOCKED)).alias("clocked"),
        F.when(~bad & ~new, at - F.pmod(at, F.lit(length_us))).alias("slice"),
        F.when(bad, F.col("kafka_topic")).alias("topic"),
        F.when(bad, F.col("kafka_partition")).alias("partition"),
    ).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count("message_id").alias("ids"),
        F.count_if(GOOD).alias("plain"),
        F.count_if(known).alias("known"),
        F.min(at).alias("first_us"),
        F.max(at).alias("last_us"),
        F.min(received).alias("first_received_us"),
        F.max(received).alias("last_received_us"),
        F.min("kafka_offset").alias("first_offset"),
        F.max("kafka_offset").alias("last_offset"),
    )


class SilverTables:
    """Both tables, ready to be written. Calls block; what Spark raises comes through."""

    def __init__(self, spark: SparkSession, stream: StreamSettings, signals: StructType) -> None:
        """Makes the tables if they are not there, and gives silver the columns that the device schemas have more or
        wider. Raises ConfigError, with the way out, if a signal's type has become another one."""
        self.silver, self.quarantine = (DeltaTable(spark, stream, name) for name in ("silver", "silver_quarantine"))
        if self.silver.exists():
            with alone(self.silver.url):
                _evolve(spark, self.silver, signals)
        else:
            self.silver.create(silver_schema(signals), PARTITIONS, **_PROPERTIES)
        self.quarantine.create(QUARANTINE, QUARANTINE_PARTITIONS, **_QUARANTINE_PROPERTIES)
        self.reach = Reach(self.silver, self.quarantine)
        self._around_us = stream.silver.clockless_within // timedelta(microseconds=1)

    def arrivals(self, rows: DataFrame, new: Column | None = None, known: Column | None = None) -> Arrivals:
        """Counts the rows of a batch, as ``rows.judged`` made them. Runs a Spark job. ``new``: which readings silver
        cannot have yet; none, if it is not said. ``known``: which records the tables may have; all, if not."""
        new, known = F.lit(False) if new is None else new, F.lit(True) if known is None else known
        found = _slices(rows, new, known, _SLICE_US).limit(_MOST_SLICES + 1).collect()
        if len(found) > _MOST_SLICES:  # a fleet of clocks that each show another month
            found = _slices(rows, new, known, _ALL_TIME_US).collect()
        good, bad = [it for it in found if not it.bad], [it for it in found if it.bad]
        again = [(it.first_received_us, it.last_received_us) for it in found if it.known]
        return Arrivals(
            sum(it.rows for it in good),
            sum(it.rows for it in bad),
            sum(it.rows for it in good if it.new),
            sum(it.plain for it in good if it.new),
            sum(it.ids for it in good),
            [
                Slice(it.rows, it.clocked, TimeRange(it.first_us - wide_us, it.last_us + 1 + wide_us))
                for it in good
                if not it.new
                for wide_us in [0 if it.clocked else self._around_us]
            ],
            [
                Places(
                    it.topic, it.partition, it.first_offset, it.last_offset, it.first_received_us, it.last_received_us
                )
                for it in bad
            ],
            TimeRange(min(first for first, _ in again), max(last for _, last in again) + 1) if again else None,
        )

    def append(self, new: DataFrame, writer: str, batch: int) -> None:
        """Adds readings that silver cannot have yet, all at once, with the transaction mark of a writer's batch. Other
        columns than silver's are left out."""
        known = {name.lower() for name in [*new.columns, "ingested_at"]}  # whose case a MERGE does not look at either
        columns = [F.col(f"`{it.name}`").cast(it.dataType).alias(it.name) for it in self.silver.read().schema
                   if it.name.lower() in known]  # fmt: skip
        rows = new.withColumn("ingested_at", _now()).select(*columns)
        retried(lambda: self.silver.append(rows, query=writer, batch=batch))

    def insert(self, rows: DataFrame, brought: Arrivals) -> int:
        """Adds the readings that silver does not have yet, each once, and returns how many those were. ``rows`` as
        ``rows.judged`` made them, which are read several times: hold them. The note of ``reach`` has them first."""
        self.reach.raise_note(readings(rows))
        return self.merge(rows, brought)

    def merge(self, rows: DataFrame, brought: Arrivals) -> int:
        """As :meth:`insert`, for rows that the note of ``reach`` has already."""
        good = rows.where(F.col(REJECT).isNull())
        with nullcontext(good) if brought.known is None else held(self._unknown(good, brought.known)) as new:
            inserted = self._merge(new, brought)
        if brought.known is not None:
            self._release(good, brought.known)
        return inserted

    def _merge(self, new: DataFrame, brought: Arrivals) -> int:
        main, strays = divided(brought.found)
        times, others = (joined((it.times for it in of), MOST_RANGES) for of in (main, strays))
        apart_us = None if all(it.is_clocked for it in brought.found) else self._around_us
        same = match_condition(times, others, _devices(new, strays) if strays else [], apart_us)
        if not brought.ids:
            return _insert(self.silver, readings(new), same)
        with held(repeated_ids(new)) as repeated:
            found = firsts(new, repeated, self._around_us) if repeated.limit(1).count() else new
            return _insert(self.silver, readings(found), same)

    def reject(self, rows: DataFrame, brought: Arrivals) -> int:
        """Adds the rejects that neither table has yet, and returns how many those were."""
        bad = rows.where(F.col(REJECT).isNotNull())
        if brought.known is not None:
            bad = bad.join(self._places(brought.known), list(PLACE), "left_anti")
        return _insert(self.quarantine, rejects(bad), reject_condition(brought.rejected))

    def _places(self, received: TimeRange) -> DataFrame:
        first, last = (F.timestamp_micros(F.lit(us)) for us in (received.first, received.end - 1))
        return self.silver.read().where(F.col("received_at").between(first, last)).select(*PLACE)

    def _unknown(self, good: DataFrame, received: TimeRange) -> DataFrame:
        """The readings without those of records that silver has, and without copies of these. By other schemas they may
        have had another time or device, and so another record id."""
        known = good.join(self._places(received), list(PLACE), "left_semi")
        known = known.select(F.col("record_id").alias("_id"), F.unix_micros("device_time").alias("_at"))
        apart = F.abs(F.unix_micros("device_time") - F.col("_at"))  # none, where record ids have the time
        return good.join(known, (F.col("record_id") == F.col("_id")) & (apart <= self._around_us), "left_anti")

    def _release(self, good: DataFrame, received: TimeRange) -> None:
        """Deletes from the quarantine what is good by now, and in silver."""
        first, last = (f"timestamp_micros({us})" for us in (received.first, received.end - 1))
        within = f"t.ingest_date BETWEEN date({first}) AND date({last}) AND t.kafka_time BETWEEN {first} AND {last}"
        places = good.select(*PLACE).withColumnRenamed("received_at", "kafka_time")
        self.quarantine.delete_at(places, within)


def _devices(rows: DataFrame, strays: Sequence[Slice]) -> list[str]:
    """The devices of the slices' rows; none, if they are too many to be listed."""
    at, times = F.unix_micros("device_time"), joined((it.times for it in strays if it.is_clocked), MOST_RANGES)
    is_stray = reduce(or_, ((at >= it.first) & (at < it.end) for it in times), ~F.col(CLOCKED))
    found = rows.where(is_stray).select("device").distinct().limit(_MOST_DEVICES + 1).collect()
    return [it.device for it in found] if len(found) <= _MOST_DEVICES else []


def _now() -> Column:
    """This moment, kept out of the code that Spark makes of a plan: with a plain timestamp in it that code would be
    compiled anew for each batch, and run slowly until the JVM has compiled it too."""
    return F.get(F.array(F.lit(datetime.now(UTC))), F.coalesce(F.col("kafka_partition") * 0, F.lit(0)))


def _insert(table: DeltaTable, rows: DataFrame, same: str) -> int:
    """Adds the rows ``s`` for which the table has no row ``t`` that is the same; returns how many those were."""
    new = rows.withColumn("ingested_at", _now())
    columns = ", ".join(f"`{name}`" for name in new.columns)
    values = ", ".join(f"s.`{name}`" for name in new.columns)
    # Delta would sort the rows into one task per day first, to have fewer files: there is one day, and one task.
    rows.sparkSession.conf.set("spark.databricks.delta.merge.repartitionBeforeWrite.enabled", "false")
    inserting = f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"  # noqa: S608 (names are ours)
    return int(table.merge(new, same, inserting).num_inserted_rows)


def _evolve(spark: SparkSession, silver: DeltaTable, signals: StructType) -> None:  # adds and widens columns
    rows = silver.read()
    known = {field.name.lower(): field for field in rows.schema}
    added, widened, problems = [], {}, []
    for field in silver_schema(signals):
        have, kind = known.get(field.name.lower()), field.dataType
        if have is None:
            added.append(f"`{field.name}` {kind.simpleString()}")
        elif have.dataType == LongType() and kind == DoubleType():
            widened[have.name] = F.col(have.name).cast("double")
        elif (have.dataType, kind) != (DoubleType(), LongType()) and have.dataType != kind:  # longs fit doubles
            problems.append(
                f"The signal {field.name} is {kind.simpleString()} in the device schemas, but the column of that name"
                f" in {silver.url} is {have.dataType.simpleString()}. Give the signal another name in the schema folder"
                f' ([types.TYPE.signals.NEW_NAME] field = "{field.name}"), a column of its own; or begin a'
                " new table: another stream.lake.path and stream.checkpoint."
            )
    if problems:
        raise ConfigError(*problems)
    if widened:  # in one commit; Delta's type widening refuses long to double, which beyond 2^53 is not exact
        retried(lambda: silver.replace(rows.withColumns(widened), PARTITIONS))
    if added:
        spark.sql(f"ALTER TABLE {silver.sql_name} ADD COLUMNS ({', '.join(added)})")
