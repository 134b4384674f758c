"""``gateway stream replay``: what lies in silver's quarantine is decoded again, and what is good by now goes to silver.

For after the schema folder was mended: a type that was missing, a range too narrow. Whatever ends it, and whenever,
running it again does the rest: readings are inserted as by the job, which leaves out those that silver has, and only
then deleted from quarantine. It may run beside the job.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ExitStatus
from config.settings import Settings
from streaming import lake_tables
from streaming.decoding.device_schemas import load_device_schemas
from streaming.lake.lake import held
from streaming.lake.storage import location
from streaming.runtime import job_lock
from streaming.silver.job import registered_rows
from streaming.silver.rows import REJECT, WAS
from streaming.silver.tables import SilverTables


def run(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> int:
    """Replays, and prints how many records of each reason are good now. Blocks. Returns OK, or NOT_FOUND if quarantine
    has nothing of what was asked for. Raises ConfigError if there is no quarantine."""
    stream = settings.stream
    if not arguments.dry_run:
        job_lock.hold(location(stream.checkpoint), "forget", shared=True)
    records = selected(lake_tables.silver_quarantine(spark, stream), arguments).selectExpr(
        "key", "value", "kafka_topic AS topic", "kafka_partition AS partition", "kafka_offset AS offset",
        "kafka_time AS timestamp", "headers", f"reason AS {WAS}",
    )  # fmt: skip
    schemas = load_device_schemas(stream.silver.schemas)
    with held(registered_rows(records, settings, schemas)) as kept:
        good = F.count_if(F.col(REJECT).isNull())
        found = kept.groupBy(WAS).agg(F.count(F.lit(1)), good).orderBy(WAS).collect()
        if not found:
            print("Quarantine has no such records.")
            return ExitStatus.NOT_FOUND
        total, moved, new = sum(row[1] for row in found), sum(row[2] for row in found), 0
        if moved and not arguments.dry_run:
            tables = SilverTables(spark, stream, schemas.columns)
            new = tables.insert(kept, tables.arrivals(kept))
    lines = [("reason", "records", "good now"), *found, ("all", total, moved)]
    width = max(len(reason) for reason, _, _ in lines)
    for reason, count, better in lines:
        print(f"{reason:<{width}}  {count:>10}  {better:>10}")
    if arguments.dry_run:
        print("Nothing was changed (--dry-run).")
    elif moved:
        known = f", {moved - new} of them were in silver already" if new < moved else ""
        print(f"{moved} moved to silver{known}; {total - moved} stay in quarantine.")
    return ExitStatus.OK


def selected(quarantined: DataFrame, arguments: argparse.Namespace) -> DataFrame:
    """The records that ``--reason``, ``--topic``, ``--from``, ``--to`` and ``--limit`` leave, the oldest first if there
    is a limit."""
    rows, at = quarantined, F.col("kafka_time")
    if arguments.reason:
        rows = rows.where(F.col("reason").isin(*arguments.reason))
    if arguments.kafka_topic:
        rows = rows.where(F.col("kafka_topic").isin(*arguments.kafka_topic))
    if arguments.since_ms is not None:
        rows = rows.where(at >= F.timestamp_millis(F.lit(arguments.since_ms)))
    if arguments.until_ms is not None:
        rows = rows.where(at < F.timestamp_millis(F.lit(arguments.until_ms)))
    if arguments.limit is not None:
        rows = rows.orderBy("kafka_time", "kafka_topic", "kafka_partition", "kafka_offset").limit(arguments.limit)
    return rows
