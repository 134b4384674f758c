"""The tables ``silver`` and ``silver_quarantine``: made, widened when the device schemas grew, and written.

Silver is written by a MERGE that only inserts, so the same rows again change nothing, whoever brings them and whenever:
a batch that is repeated after a crash, a checkpoint that begins anew, a ``replay``.
"""

from __future__ import annotations

__all__ = ["Arrivals", "SilverTables", "arrivals", "prepare_tables"]

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import DoubleType, LongType

from config.errors import ConfigError
from streaming.delta_upkeep import retried
from streaming.lake import DeltaTable
from streaming.silver_match import Span, match_condition, spans
from streaming.silver_rows import firsts, readings, repeated_ids, slices
from streaming.silver_schema import PARTITIONS, QUARANTINE, QUARANTINE_PARTITIONS, silver_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from config.settings import StreamSettings

_PROPERTIES: Final = {
    "delta_enableTypeWidening": "true",
    # A small file per task and batch: put together on the way (session.py says when), so that readers and the log stay
    # quick.
    "delta_autoOptimize_autoCompact": "true",
    # Ranges of values are kept per file for times, by which the MERGE and other jobs pass files over. Not for texts:
    # of device, type and site every file has nearly all. By ingested_at a first start of the job anomalies takes the
    # files in their order.
    "delta_dataSkippingStatsColumns": "device_time,event_time,received_at,ingested_at",
    "delta_checkpointInterval": "50",
}
_QUARANTINE_PROPERTIES: Final = {
    "delta_autoOptimize_autoCompact": "true",
    "delta_dataSkippingStatsColumns": "reason,kafka_topic,kafka_partition,kafka_offset,kafka_time",
    "delta_checkpointInterval": "50",
}
_MOST_SLICES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What a batch brings, counted before it is written.

    ``readings`` and ``bad`` add up to its records; ``ids``: readings with a device's message id; ``strangers``: those
    of devices without a site. ``times``: where their originals can be, or None if those are all over the table.
    """

    readings: int
    bad: int
    ids: int
    strangers: int
    times: list[Span] | None


def arrivals(rows: DataFrame, *, clockless_within: timedelta) -> Arrivals:
    """Counts the rows of a batch, as ``silver_rows.judged`` made them. Runs a Spark job.

    Readings without a time of their own have that of their receipt, which a copy does not share: originals of those are
    looked for this far around.
    """
    found = slices(rows).limit(_MOST_SLICES + 1).collect()
    if len(found) > _MOST_SLICES:  # a fleet of clocks that each show another month
        return _count(rows)
    good = [it for it in found if not it.bad]
    around = clockless_within // timedelta(microseconds=1)
    times = spans(
        Span(it.first_us, it.last_us) if it.clocked else Span(it.first_us - around, it.last_us + around) for it in good
    )
    return Arrivals(
        sum(it.rows for it in good),
        sum(it.rows for it in found if it.bad),
        sum(it.ids for it in good),
        sum(it.strangers for it in good),
        times,
    )


def _count(rows: DataFrame) -> Arrivals:
    bad = F.col("_reject").isNotNull()
    (it,) = rows.agg(
        F.count_if(~bad).alias("readings"),
        F.count_if(bad).alias("bad"),
        F.count_if(~bad & F.col("message_id").isNotNull()).alias("ids"),
        F.count_if(~bad & F.col("site").isNull()).alias("strangers"),
    ).collect()
    return Arrivals(it.readings, it.bad, it.ids, it.strangers, None)


class SilverTables:
    """Both tables, ready to be written. Calls block; what Spark raises comes through."""

    def __init__(self, silver: DeltaTable, quarantine: DeltaTable) -> None:
        self.silver, self.quarantine = silver, quarantine

    def insert(self, rows: DataFrame, brought: Arrivals) -> int:
        """Adds the readings that silver does not have yet, each once, and returns how many those were.

        ``rows`` as ``silver_rows.judged`` made them, which are read twice or three times: hold them.
        """
        session = rows.sparkSession
        new = readings(rows)
        if brought.ids and (repeated := repeated_ids(new)).limit(1).count():
            new = firsts(new, repeated)
        new = new.withColumn("ingested_at", F.current_timestamp())
        columns = ", ".join(f"`{name}`" for name in new.columns)
        values = ", ".join(f"s.`{name}`" for name in new.columns)
        new.createOrReplaceTempView("_silver_new")
        condition = match_condition(brought.times or [])
        # Delta would sort the rows into one task per day first, to have fewer files: there is one day, and one task.
        session.conf.set("spark.databricks.delta.merge.repartitionBeforeWrite.enabled", "false")
        merge = (
            f"MERGE INTO {self.silver.sql_name} t USING _silver_new s ON {condition}"  # noqa: S608 (names are ours)
            f" WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
        )
        try:
            (done,) = retried(lambda: session.sql(merge).collect())
        finally:
            session.catalog.dropTempView("_silver_new")
        return int(done.num_inserted_rows)

    def reject(self, bad: DataFrame, *, query: str, batch: int) -> None:
        """Adds a query's batch of rejects, unless the table has that batch already. ``query``: unique to the
        checkpoint, whose batches are numbered."""
        rows = bad.withColumn("ingested_at", F.current_timestamp())
        retried(lambda: self.quarantine.append(rows, query=query, batch=batch))


def prepare_tables(spark: SparkSession, stream: StreamSettings, signals: StructType) -> SilverTables:
    """Makes the tables if they are not there, and gives silver the columns that the device schemas have more or wider.

    Raises ConfigError, with the way out, if a signal's type has become another one.
    """
    silver, quarantine = DeltaTable(spark, stream, "silver"), DeltaTable(spark, stream, "silver_quarantine")
    wanted = silver_schema(signals)
    if silver.exists():
        _evolve(spark, silver, wanted)
    else:
        silver.create(wanted, PARTITIONS, **_PROPERTIES)
    quarantine.create(QUARANTINE, QUARANTINE_PARTITIONS, **_QUARANTINE_PROPERTIES)
    return SilverTables(silver, quarantine)


def _evolve(spark: SparkSession, silver: DeltaTable, wanted: StructType) -> None:
    rows = silver.read()
    known = {field.name.lower(): field for field in rows.schema}
    added: list[StructField] = []
    widened: list[str] = []
    problems: list[str] = []
    for field in wanted:
        have = known.get(field.name.lower())
        if have is None:
            added.append(field)
        elif have.dataType == LongType() and field.dataType == DoubleType():
            widened.append(have.name)
        elif have.dataType != field.dataType and not (
            have.dataType == DoubleType() and field.dataType == LongType()  # whole numbers fit a column of numbers
        ):
            problems.append(
                f"The signal {field.name} is {field.dataType.simpleString()} in the device schemas, but the column of"
                f" that name in {silver.url} is {have.dataType.simpleString()}, and values of one are none of the"
                f" other. Give the signal another name in the schema folder ([types.TYPE.signals.NEW_NAME] field ="
                f' "{field.name}"), which becomes a column of its own; or begin a new table: another'
                " stream.lake.path and stream.checkpoint."
            )
    if problems:
        raise ConfigError(*problems)
    if widened:
        _rewrite_as_doubles(rows, silver, widened)
    if added:
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in added)
        spark.sql(f"ALTER TABLE {silver.sql_name} ADD COLUMNS ({columns})")


def _rewrite_as_doubles(rows: DataFrame, silver: DeltaTable, names: list[str]) -> None:
    """Gives columns of whole numbers fractions, in one commit. Delta's type widening goes from int to long and from
    int to double; it refuses long to double, which beyond 2^53 is not exact, so the files are written again."""
    wide = rows.withColumns({name: F.col(name).cast("double") for name in names})
    writer = wide.write.format("delta").mode("overwrite").option("overwriteSchema", "true").partitionBy(*PARTITIONS)
    retried(lambda: silver.save(writer))
