"""Upkeep of Delta tables: small files put together, old rows deleted, files that nobody needs any more removed.

Jobs may write at the same time. Delta lets the first of two win whose changes touch; the other is done again here.
"""

from __future__ import annotations

__all__ = ["DeltaUpkeep", "is_conflict", "retried"]

import random
import time
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import DateType, TimestampType

from streaming.lake import DEFAULT_RETENTION, RETENTION, retention_property

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from streaming.lake import DeltaTable

T = TypeVar("T")
_PLACES: Final = "places_to_delete"
_ATTEMPTS: Final = 6
_FIRST_WAIT_S: Final = 0.5
_CONFLICTS: Final = ("DELTA_CONCURRENT_", "ConcurrentAppend", "ConcurrentDelete", "ConcurrentTransaction",
                     "ConcurrentWrite", "MetadataChangedException", "DELTA_METADATA_CHANGED")  # fmt: skip


def is_conflict(error: BaseException) -> bool:
    """Whether Delta refused a commit only because another one came first."""
    return any(name in str(error) for name in _CONFLICTS)


def retried(action: Callable[[], T], attempts: int = _ATTEMPTS) -> T:
    """What ``action`` returns, done again while others' commits come first. Blocks, between attempts up to 16 s; raises
    what the last attempt does, and at once what is no conflict."""
    for attempt in range(1, attempts + 1):
        try:
            return action()
        except Exception as error:
            if attempt == attempts or not is_conflict(error):
                raise
        time.sleep(_FIRST_WAIT_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
    raise AssertionError("attempts is at least 1")


class Day(NamedTuple):
    """The files of one day of a table; ``day`` None where the table is in no days."""

    day: date | None
    files: int
    small: int
    size: int


class DeltaUpkeep:
    """One table. Blocks; what Spark raises comes through, conflicts after they were retried."""

    def __init__(self, spark: SparkSession, table: DeltaTable) -> None:
        self._spark, self._table = spark, table

    @property
    def day_column(self) -> str | None:
        """The date that the table is partitioned by; None if there is none."""
        detail = self._spark.sql(f"DESCRIBE DETAIL {self._table.sql_name}").first()
        kinds = {field.name: field.dataType for field in self._table.read().schema}
        columns = [] if detail is None else detail["partitionColumns"]
        return next((name for name in columns if isinstance(kinds[name], DateType)), None)

    def time_columns(self) -> list[str]:
        """Its columns that are moments, in order."""
        return [field.name for field in self._table.read().schema if isinstance(field.dataType, TimestampType)]

    def _files(self) -> DataFrame:
        """One row per file of the newest version: ``path``, ``size``, ``partitionValues``, ``deletionVector``, …"""
        jvm: Any = self._spark._jvm  # noqa: SLF001 (no public way to a table's files)
        session: Any = self._spark._jsparkSession  # noqa: SLF001
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, self._table.url)
        none = jvm.scala.Option.empty()
        return DataFrame(log.update(False, none, none).allFiles().toDF(), self._spark)

    def days(self, small_size: int) -> list[Day]:
        """Its days, the oldest first, each with its files and how many of them are smaller than ``small_size`` and not
        alone in their partition."""
        column = self.day_column
        files = self._files().withColumn(
            "day", F.lit(None).cast("date") if column is None else F.col("partitionValues")[column].cast("date")
        )
        by_partition = files.groupBy("day", F.to_json("partitionValues").alias("partition")).agg(
            F.count(F.lit(1)).alias("files"),
            F.sum((F.col("size") < small_size).cast("long")).alias("small"),
            F.sum("size").alias("size"),
        )
        several = F.when(F.col("small") > 1, F.col("small")).otherwise(0)
        rows = by_partition.groupBy("day").agg(
            F.sum("files").alias("files"), F.sum(several).alias("small"), F.sum("size").alias("size")
        )
        return [Day(*row) for row in sorted(rows.collect(), key=lambda row: row["day"] or date.min)]

    def optimize(self, day: date | None, file_size: int) -> tuple[int, int]:
        """Puts the small files of a day together; returns how many were replaced, and by how many. Streams that read
        the table see no new rows by it (its commit has ``dataChange`` false)."""
        column = self.day_column
        where = "" if day is None or column is None else f" WHERE `{column}` = DATE'{day.isoformat()}'"
        for name in ("minFileSize", "maxFileSize"):
            self._spark.conf.set(f"spark.databricks.delta.optimize.{name}", str(file_size))
        row = retried(lambda: self._spark.sql(f"OPTIMIZE {self._table.sql_name}{where}").first())
        assert row is not None, "OPTIMIZE answers with one row"
        return int(row["metrics"]["numFilesRemoved"]), int(row["metrics"]["numFilesAdded"])

    def _older(self, day: date, column: str) -> str:
        kind = "TIMESTAMP" if column in self.time_columns() else "DATE"
        return f"`{column}` < {kind}'{day.isoformat()}'"

    def count_before(self, day: date, column: str) -> int:
        """How many rows are older than a day."""
        return self._table.read().where(self._older(day, column)).count()

    def delete_before(self, day: date, column: str) -> int:
        """Deletes what is older than a day; returns how many rows that were."""
        return self.delete(self._older(day, column))

    def delete(self, condition: str) -> int:
        """Deletes the rows for which an SQL condition is true; returns how many those were."""
        statement = f"DELETE FROM {self._table.sql_name} WHERE {condition}"  # noqa: S608 (the caller quotes)
        row = retried(lambda: self._spark.sql(statement).first())
        return 0 if row is None else max(0, int(row["num_affected_rows"]))

    def delete_at(self, places: DataFrame, columns: Mapping[str, str]) -> int:
        """Deletes the rows that are found in ``places``; returns how many those were.

        ``columns``: a column of the table and what ``places`` calls it.
        """
        places.createOrReplaceTempView(_PLACES)
        same = " AND ".join(f"t.`{ours}` = p.`{theirs}`" for ours, theirs in columns.items())
        statement = f"MERGE INTO {self._table.sql_name} t USING {_PLACES} p ON {same} WHEN MATCHED THEN DELETE"
        row = retried(lambda: self._spark.sql(statement).first())
        return 0 if row is None else max(0, int(row["num_deleted_rows"]))

    def purge(self) -> None:
        """Writes the files anew in which rows are only marked as deleted, so that VACUUM can remove them."""
        if not self._files().where("deletionVector is not null").isEmpty():
            retried(lambda: self._spark.sql(f"REORG TABLE {self._table.sql_name} APPLY (PURGE)").first())

    def vacuum(self, keep: timedelta) -> int:
        """Removes files that no version of the last ``keep`` needs; returns how many. Concurrent readers and writers
        lose files if ``keep`` is shorter than their queries and transactions."""
        if keep:
            self._keep_files_for(keep)
        conf = {
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",  # our own setting has bounds of its own
            "spark.databricks.delta.vacuum.logging.enabled": "true",
            # Spark's own number makes ten thousand tasks to list a table of ten files.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(
                4 * self._spark.sparkContext.defaultParallelism
            ),
        }
        for name, value in conf.items():
            self._spark.conf.set(name, value)
        before = self._last_version()
        self._spark.sql(f"VACUUM {self._table.sql_name}{'' if keep else ' RETAIN 0 HOURS'}").collect()
        ended = (
            self._history()
            .where((F.col("operation") == "VACUUM END") & (F.col("version") > before))
            .orderBy("version")
            .first()
        )
        return 0 if ended is None else int(ended["operationMetrics"].get("numDeletedFiles", 0))

    def _history(self) -> DataFrame:
        return self._spark.sql(f"DESCRIBE HISTORY {self._table.sql_name} LIMIT 20")

    def _last_version(self) -> int:
        row = self._history().agg(F.max("version")).first()
        return -1 if row is None else int(row[0])

    def _keep_files_for(self, keep: timedelta) -> None:
        """VACUUM goes by the table's property alone. Changed only where it differs: to a job that commits just then, it
        is a change of the table itself."""
        detail = self._spark.sql(f"DESCRIBE DETAIL {self._table.sql_name}").first()
        wanted = retention_property(keep)
        known = {} if detail is None else detail["properties"]
        if known.get(RETENTION, retention_property(DEFAULT_RETENTION)) != wanted:
            statement = f"ALTER TABLE {self._table.sql_name} SET TBLPROPERTIES ('{RETENTION}' = '{wanted}')"
            retried(lambda: self._spark.sql(statement).collect())
