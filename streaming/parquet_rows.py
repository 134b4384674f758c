"""Rows taken out of the Parquet tables that jobs write batch by batch.

Each batch is written anew without them, under its own number, so that one that a job repeats still finds its place. On
the local disk the new folder changes places with the old one in one step (``streaming.swap``); elsewhere the old one is
deleted and the new one renamed, and for that moment a reader misses the batch.
"""

from __future__ import annotations

__all__ = ["remove_rows"]

import shutil
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from streaming.storage import Folder
from streaming.swap import can_exchange, exchange, local_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from streaming.layers import ParquetLayer

    Choice = Callable[[DataFrame], DataFrame]

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_DRAFT = ".upkeep-"


def remove_rows(spark: SparkSession, layer: ParquetLayer, matching: Choice, others: Choice) -> int:
    """Takes out what ``matching`` keeps of any rows, and leaves what ``others`` keeps; returns how many those were. A
    day (and topic) at a time; only batches that have such rows are read whole and written."""
    rows = spark.read.schema(layer.schema).parquet(layer.url)
    counted = matching(rows).groupBy(*layer.partitioned_by, "batch").count().collect()
    batches: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in counted:
        batches[tuple(row[name] for name in layer.partitioned_by)].append(row["batch"])
    root = local_path(layer.url)
    in_place = root is not None and can_exchange(root)
    for values, numbers in batches.items():
        inside = rows.where(F.col("batch").isin(numbers))
        for name, value in zip(layer.partitioned_by, values, strict=True):
            inside = inside.where(F.col(name).eqNullSafe(F.lit(value)))
        leaf = "/".join(
            f"{name}={_NO_VALUE if value is None else value}"
            for name, value in zip(layer.partitioned_by, values, strict=True)
        )
        kept = others(inside).repartition("batch")
        if in_place and root is not None:
            _exchange_batches(kept.drop(*layer.partitioned_by), root, leaf, numbers)
        else:
            _overwrite_batches(spark, layer, kept, leaf, numbers)
    return sum(row["count"] for row in counted)


def _exchange_batches(kept: DataFrame, root: Path, leaf: str, numbers: list[int]) -> None:
    draft = root / f"{_DRAFT}{uuid.uuid4().hex}"
    kept.write.partitionBy("batch").parquet(str(draft))
    for number in numbers:
        new, old = draft / f"batch={number}", root / leaf / f"batch={number}"
        if new.exists():
            exchange(new, old)
        else:  # nothing is left of it
            old.rename(new)
    shutil.rmtree(draft)


def _overwrite_batches(
    spark: SparkSession, layer: ParquetLayer, kept: DataFrame, leaf: str, numbers: list[int]
) -> None:
    left = {row["batch"] for row in kept.select("batch").distinct().collect()}
    if left:
        (
            kept.write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy(*layer.partitioned_by, "batch")
            .parquet(layer.url)
        )
    folder = Folder(spark, layer.url)
    for number in set(numbers) - left:
        folder.delete(f"{leaf}/batch={number}")
