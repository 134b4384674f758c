"""The lake's tables, one function each: ``NAME(spark, stream)`` is a DataFrame of all rows written so far.

    from streaming import lake_tables
    lake_tables.silver(spark, stream).where("event_date = current_date()")

``stream`` is a ``config.settings.StreamSettings``. A table that no job has written yet raises ConfigError, which says
which job does.
"""

from __future__ import annotations

__all__ = ["silver", "silver_quarantine"]

from typing import TYPE_CHECKING

from config.errors import ConfigError
from streaming.lake import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from config.settings import StreamSettings


def silver(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """Every reading once, typed. Columns: ``streaming.silver_schema.silver_schema``."""
    return _written(spark, stream, "silver", job="silver")


def silver_quarantine(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """Records that could not be decoded, with reason and bytes. Columns: ``streaming.silver_schema.QUARANTINE``."""
    return _written(spark, stream, "silver_quarantine", job="silver")


def _written(spark: SparkSession, stream: StreamSettings, name: str, *, job: str) -> DataFrame:
    table = DeltaTable(spark, stream, name)
    if not table.exists():
        raise ConfigError(
            f"There is no table {name} at {table.url} yet: the job that writes it has not run (gateway stream {job}),"
            " or stream.lake.path names another folder."
        )
    return table.read()
