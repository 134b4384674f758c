"""The tables there are and how each is kept: what ``maintain`` and ``forget`` go through."""

from __future__ import annotations

__all__ = ["DELTA_LAYERS", "Layer", "ParquetLayer", "delta_layers", "keeps_for", "parquet_layers"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streaming.bronze_table import BRONZE
from streaming.lake import DeltaTable, tables_folder
from streaming.schemas import QUARANTINE, TELEMETRY
from streaming.storage import Folder, location

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from config.settings import StreamSettings

DELTA_LAYERS: Final = (
    "bronze",
    "silver",
    "silver_quarantine",
    "gold",
    "devices",
    "device_events",
    "anomalies",
    "audit",
    "registry",
)
"""Upkeep goes from the first to the last, the way the data came."""


@dataclass(frozen=True, slots=True)
class ParquetLayer:
    """A Parquet table of numbered batches."""

    name: str
    url: str
    schema: StructType
    partitioned_by: tuple[str, ...]
    """Its folders' columns, all but ``batch``, which is the last."""
    order: tuple[str, ...]
    query: str
    """The query that numbers its batches, whose checkpoint says which of them are committed."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A Delta table."""

    name: str
    table: DeltaTable


def parquet_layers(spark: SparkSession, stream: StreamSettings) -> Iterator[ParquetLayer]:
    """Those that exist. ``windows`` of the job ``ingest`` is none of them: its rows replace each other by batch."""
    kafka = ("kafka_partition", "kafka_offset")
    known = [
        ParquetLayer("telemetry", location(stream.output), TELEMETRY, ("ingest_date",), kafka, "ingest"),
        ParquetLayer("quarantine", location(stream.quarantine), QUARANTINE, ("ingest_date",), kafka, "ingest"),
    ]
    if stream.bronze.format == "parquet":
        url, folders = tables_folder(stream, "bronze"), ("ingest_date", "topic")
        known.insert(0, ParquetLayer("bronze", url, BRONZE, folders, ("partition", "offset"), "bronze"))
    for layer in known:
        if Folder(spark, layer.url).names():
            yield layer


def delta_layers(spark: SparkSession, stream: StreamSettings) -> Iterator[Layer]:
    """Those that exist."""
    for name in DELTA_LAYERS:
        table = DeltaTable(spark, stream, name)
        if table.exists():
            yield Layer(name, table)


def keeps_for(stream: StreamSettings, name: str) -> timedelta | None:
    """``stream.lake.retention`` of a table; None: for ever, or there is no such setting."""
    kept: timedelta | None = getattr(stream.lake.retention, name, None)
    return kept
