"""The lake's tables, one function each: ``NAME(spark, stream)`` is a DataFrame of all rows written so far.

    from streaming import lake_tables
    lake_tables.silver(spark, stream).where("event_date = current_date()")

``stream`` is a ``config.settings.StreamSettings``. A table that no job has written yet raises ConfigError, which says
which job does.
"""

from __future__ import annotations

__all__ = [
    "anomalies",
    "audit",
    "bronze",
    "bronze_gaps",
    "device_events",
    "devices",
    "gold",
    "silver",
    "silver_quarantine",
]

from typing import TYPE_CHECKING

from config.errors import ConfigError
from streaming.bronze_table import BRONZE, GAPS
from streaming.lake import DeltaTable, tables_folder
from streaming.storage import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from config.settings import StreamSettings


def audit(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """What is in Kafka against the gateways' ledger. Columns: ``streaming.audit_transforms.AUDIT``."""
    return _written(spark, stream, "audit", job="audit")


def bronze(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """Every record of Kafka as it came. Columns: ``streaming.bronze_table.BRONZE``, which are Kafka's for Spark."""
    return _of_batches(spark, stream, "bronze", BRONZE)


def bronze_gaps(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """Offsets that Kafka lost before they were read. Empty while there are none; columns:
    ``streaming.bronze_table.GAPS``."""
    try:
        return _of_batches(spark, stream, "bronze_gaps", GAPS)
    except ConfigError:
        return spark.createDataFrame([], GAPS)


def silver(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """Every reading once, typed. Columns: ``streaming.silver_schema.silver_schema``."""
    return _written(spark, stream, "silver", job="silver")


def silver_quarantine(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """Records that could not be decoded, with reason and bytes. Columns: ``streaming.silver_schema.QUARANTINE``."""
    return _written(spark, stream, "silver_quarantine", job="silver")


def anomalies(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """One row per alert: readings that do not fit, and silences. Columns: ``streaming.anomalies.ANOMALIES``."""
    return _written(spark, stream, "anomalies", job="anomalies")


def gold(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """Aggregates over windows of event time. Columns: ``streaming.gold_transforms.GOLD``."""
    return _written(spark, stream, "gold", job="gold")


def _of_batches(spark: SparkSession, stream: StreamSettings, name: str, schema: StructType) -> DataFrame:
    """A table of numbered batches, in the format of ``stream.bronze.format``."""
    if stream.bronze.format == "delta":
        return _written(spark, stream, name, job="bronze")
    url = tables_folder(stream, name)
    if not Folder(spark, url).exists():
        raise ConfigError(_absent(name, url, "bronze"))
    return spark.read.schema(schema).parquet(url)


def devices(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """One row per device: what is known of it now. Columns: ``streaming.devices.DEVICES``."""
    return _written(spark, stream, "devices", job="devices")


def device_events(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """What happened to devices and gateways. Columns: ``streaming.devices.DEVICE_EVENTS``."""
    return _written(spark, stream, "device_events", job="devices")


def _written(spark: SparkSession, stream: StreamSettings, name: str, *, job: str) -> DataFrame:
    table = DeltaTable(spark, stream, name)
    if not table.exists():
        raise ConfigError(_absent(name, table.url, job))
    return table.read()


def _absent(name: str, url: str, job: str) -> str:
    return (
        f"There is no table {name} at {url} yet: the job that writes it has not run (gateway stream {job}),"
        " or stream.lake.path names another folder."
    )
