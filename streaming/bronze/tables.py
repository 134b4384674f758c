"""The tables ``bronze`` and ``bronze_gaps``: columns, and what earlier versions wrote in their place."""

from typing import Final

from pyspark.sql import SparkSession

from config.errors import ConfigError
from streaming.lake.columns import HEADERS, columns
from streaming.lake.lake import DeltaTable
from streaming.lake.storage import Folder

QUERY: Final = "bronze"

BRONZE: Final = columns(
    "key binary, value binary, partition integer, offset long, timestamp timestamp, timestamp_type integer,"
    " headers headers, ingest_date date, topic string, batch long",
    headers=HEADERS,
)
"""Kafka's columns under Spark's names for them, so that what decodes a record from Kafka decodes one from here."""

BRONZE_PARTITIONS: Final = ("ingest_date", "topic")

GAPS: Final = columns(
    "topic string, partition integer, first_offset long, last_offset long, reason string, seen_at timestamp, batch long"
)


def require_delta(spark: SparkSession, bronze: DeltaTable) -> None:
    """Raises ConfigError where the rows are Parquet files of an earlier version."""
    if not bronze.exists() and any("=" in name for name in Folder(spark, bronze.url).names()):
        raise ConfigError(
            f"{bronze.url} holds Parquet files, as earlier versions wrote them; bronze is a Delta table now. Turn them"
            ' into one, or move the folder away and begin anew: docs/upgrade.md, "Spark\'s tables", has the steps.'
        )
