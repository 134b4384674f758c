"""The lake's tables: ``NAME(spark, stream)`` is a DataFrame of all rows written so far.

    lake_tables.silver(spark, stream).where("event_date = current_date()")

A table that no job has written yet raises ConfigError, which says which job does.
"""

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError
from config.numbers import many
from config.settings import StreamSettings
from streaming.bronze.job import GAPS
from streaming.lake.lake import DeltaTable
from streaming.lake.storage import Folder, location
from streaming.runtime.checkpoint_log import read_progress

_ADDED = ("numOutputRows", "numTargetRowsInserted", "numTargetRowsUpdated")


def existing(spark: SparkSession, stream: StreamSettings, name: str, *, job: str) -> DeltaTable:
    """A table that ``job`` writes. Raises ConfigError if it is not there yet."""
    table = DeltaTable(spark, stream, name)
    if not table.exists():
        raise ConfigError(
            f"There is no table {name} at {table.url} yet: the job that writes it has not run (gateway stream {job}),"
            " or stream.lake.path names another folder."
        )
    return table


def _written_by(job: str, name: str) -> Callable[[SparkSession, StreamSettings], DataFrame]:
    return lambda spark, stream: existing(spark, stream, name, job=job).read()


audit = _written_by("audit", "audit")  # columns: streaming.audit.transforms.AUDIT
bronze = _written_by("bronze", "bronze")  # columns: streaming.bronze.job.BRONZE
silver = _written_by("silver", "silver")  # columns: streaming.silver.schema.silver_schema
silver_quarantine = _written_by("silver", "silver_quarantine")  # columns: streaming.silver.schema.QUARANTINE
anomalies = _written_by("anomalies", "anomalies")  # columns: streaming.anomalies.processor.ANOMALIES
gold = _written_by("gold", "gold")  # columns: streaming.gold.transforms.GOLD
devices = _written_by("devices", "devices")  # columns: streaming.devices.packing.DEVICES
device_events = _written_by("devices", "device_events")  # columns: streaming.devices.job.DEVICE_EVENTS


def bronze_gaps(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """Offsets that Kafka lost before they were read, with the columns ``streaming.bronze.job.GAPS``. Empty if none."""
    table = DeltaTable(spark, stream, "bronze_gaps")
    return table.read() if table.exists() else spark.createDataFrame([], GAPS)


def unread_silver(spark: SparkSession, stream: StreamSettings, job: str) -> str | None:
    """What of silver a job that reads it has not read, as a sentence; None if it has read all, or there is no silver.
    Blocks for the tables' logs."""
    silver = DeltaTable(spark, stream, "silver")
    if not silver.exists():
        return None
    progress = read_progress(Folder(spark, location(stream.checkpoint)), job)
    if progress.batch is None:
        return f"the job {job} has not finished its first batch."
    ((table_id,),) = spark.sql(f"DESCRIBE DETAIL {silver.sql_name}").select("id").collect()
    if (read_to := progress.tables_read.get(table_id)) is None:
        return f"the job {job} has not read yet what this table silver had when it began."
    added = F.greatest(*(F.coalesce(F.col(f"operationMetrics.{it}").cast("long"), F.lit(0)) for it in _ADDED))
    newest = silver.version()
    # All of the history is a file for each commit of a month.
    history = spark.sql(f"DESCRIBE HISTORY {silver.sql_name} LIMIT {max(1, newest - read_to)}")
    unread = F.col("version").between(read_to + 1, newest)
    ((without,),) = history.agg(F.count_if(unread & ((F.col("operation") == "OPTIMIZE") | (added == 0)))).collect()
    left = newest - read_to - without  # what the history has no more counts, too
    if not left:
        return None
    return f"{many(left, 'commit')} of silver. The job {job} has read up to version {read_to}."
