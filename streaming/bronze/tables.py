"""The tables ``bronze`` and ``bronze_gaps``: columns, and whether the rows are those of a checkpoint."""

from typing import Final

from pyspark.sql import SparkSession

from config.errors import ConfigError
from streaming.lake.columns import HEADERS, columns
from streaming.lake.lake import DeltaTable
from streaming.lake.storage import Folder

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


def require_matching(spark: SparkSession, bronze: DeltaTable, checkpoint: Folder) -> None:
    """Raises ConfigError if rows and checkpoint do not belong together: rows without the checkpoint that numbers them
    would be written a second time, and a checkpoint without its rows would go on in the middle."""
    url, exists = bronze.url, bronze.exists()
    if not exists and any("=" in name for name in Folder(spark, url).names()):
        raise ConfigError(
            f"{url} holds Parquet files, as earlier versions wrote them; bronze is a Delta table now. Turn them"
            ' into one, or move the folder away and begin anew: docs/upgrade.md, "Spark\'s tables", has the steps.'
        )
    begun = checkpoint.exists("metadata")
    if exists and not begun and not bronze.read().isEmpty():
        raise ConfigError(
            f"{url} holds data, but the checkpoint {checkpoint.url} that says how far it goes is not there, so"
            " everything still in Kafka would be written a second time. Was the checkpoint deleted, or"
            " stream.checkpoint changed? Bring it back, or give stream.lake.path and stream.checkpoint new folders."
        )
    if not exists and checkpoint.names("commits"):
        raise ConfigError(
            f"The checkpoint {checkpoint.url} is in the middle of Kafka's topics, but there is no table at {url}:"
            " what lies before would be missing from it. Was the table moved, or stream.lake.path changed? Bring it"
            " back, or begin anew: gateway stream reset bronze."
        )
