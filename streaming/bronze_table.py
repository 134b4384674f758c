"""The tables ``bronze`` and ``bronze_gaps``: columns, and how a batch of them is written once in effect.

Parquet: each batch has folders of its own, and written again it takes their place. Delta: the table's log has the
number of the last batch, and a batch it has is not written again.
"""

from __future__ import annotations

__all__ = ["BRONZE", "GAPS", "BronzeTable", "bronze_table", "gaps_table"]

from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from streaming.lake import DeltaTable, tables_folder
from streaming.tables import BatchTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from config.settings import StreamSettings

BRONZE: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_type", IntegerType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
        StructField("ingest_date", DateType()),
        StructField("topic", StringType()),
        StructField("batch", LongType()),
    ]
)
"""Kafka's columns under Spark's names for them, so that what decodes a record from Kafka decodes one from here."""

GAPS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("first_offset", LongType()),
        StructField("last_offset", LongType()),
        StructField("reason", StringType()),
        StructField("seen_at", TimestampType()),
        StructField("batch", LongType()),
    ]
)

_PARQUET: Final = {
    # Payloads, offsets and times hardly repeat: a dictionary of them is built, found too large and thrown away.
    "parquet.enable.dictionary#value": "false",
    "parquet.enable.dictionary#offset": "false",
    "parquet.enable.dictionary#timestamp": "false",
    # The lowest level: an eighth less CPU per record than the default, and a few bytes more on disk until `maintain`
    # puts a day's files together.
    "parquet.compression.codec.zstd.level": "1",
}


class BronzeTable(Protocol):
    """A table of numbered batches."""

    skips_repeated: bool
    """Whether a batch that is there already is not even computed when it is written again."""

    @property
    def url(self) -> str: ...

    def is_empty(self) -> bool:
        """Whether no batch was ever written."""

    def clean(self) -> None:
        """Removes what attempts that were cut off left aside. Only before the query starts."""

    def write(self, rows: DataFrame, batch: int) -> None:
        """Writes a batch, or what an earlier attempt left out of it. Blocks."""

    def rows_of(self, batch: int) -> DataFrame:
        """What is written of a batch."""


class _Parquet:
    skips_repeated = False

    def __init__(self, table: BatchTable, schema: StructType) -> None:
        self._table, self._schema = table, schema
        self.url = table.url
        self.is_empty, self.clean, self.write = table.is_empty, table.clean, table.write

    def rows_of(self, batch: int) -> DataFrame:
        return self._table.rows_of(batch, self._schema)


class _Delta:
    skips_repeated = True

    def __init__(self, table: DeltaTable, schema: StructType, partitioned_by: Sequence[str]) -> None:
        self._table, self._schema, self._partitioned_by = table, schema, partitioned_by
        self.url = table.url

    def is_empty(self) -> bool:
        return not self._table.exists() or self._table.read().isEmpty()

    def clean(self) -> None:
        """Nothing lies aside: files that no log entry names are ``maintain``'s to remove."""

    def write(self, rows: DataFrame, batch: int) -> None:
        self._table.create(self._schema, self._partitioned_by)
        numbered = rows.withColumn("batch", F.lit(batch).cast("long")).select(*self._schema.names)
        self._table.append(numbered, query="bronze", batch=batch)

    def rows_of(self, batch: int) -> DataFrame:
        self._table.create(self._schema, self._partitioned_by)
        return self._table.read().where(F.col("batch") == batch)


def bronze_table(spark: SparkSession, stream: StreamSettings) -> BronzeTable:
    """Every record as it came, in the format of ``stream.bronze.format``."""
    return _table(spark, stream, "bronze", BRONZE, ("ingest_date", "topic"))


def gaps_table(spark: SparkSession, stream: StreamSettings) -> BronzeTable:
    """Offsets that Kafka lost before they were read."""
    return _table(spark, stream, "bronze_gaps", GAPS, ())


def _table(
    spark: SparkSession, stream: StreamSettings, name: str, schema: StructType, partitioned_by: tuple[str, ...]
) -> BronzeTable:
    if stream.bronze.format == "delta":
        return _Delta(DeltaTable(spark, stream, name), schema, partitioned_by)
    return _Parquet(BatchTable(spark, tables_folder(stream, name), *partitioned_by, options=_PARQUET), schema)
