"""Upkeep of Delta tables: small files put together, files that nobody needs any more removed. Jobs may write at the
same time."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import date, timedelta
from itertools import accumulate
from operator import itemgetter
from typing import Final, NamedTuple

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import DateType, TimestampType

from streaming import jvm
from streaming.lake.lake import DEFAULT_RETENTION, RETENTION, DeltaTable, retention_property, retried

_KEPT: Final = 32  # characters of a text that Delta keeps of a file's first and last value


class Day(NamedTuple):
    """The files of one day of a table; ``day`` None where the table is in no days. ``small``: those much smaller than
    a file should be, and not alone in their partition. ``unsorted``: much of the day is in files that are
    :func:`loose`."""

    day: date | None
    files: int
    small: int
    size: int
    unsorted: bool


class FileRange(NamedTuple):
    size: int
    first: str  # value of a column
    last: str


def loose(files: Sequence[FileRange]) -> int:
    """Bytes of the files whose values reach into files of more than a quarter of all bytes. A few late rows in a file
    of their own are loose, and make none of the others so; nor do values that are equal as far as Delta keeps them."""
    total, found = sum(it.size for it in files), 0
    ends = sorted((it.last[:_KEPT], it.size) for it in files)
    begins = sorted((it.first[:_KEPT], it.size) for it in files)
    until, since = (list(accumulate((size for _, size in it), initial=0)) for it in (ends, begins))
    for it in files:
        before = until[bisect_right(ends, it.first[:_KEPT], key=itemgetter(0))]
        after = total - since[bisect_left(begins, it.last[:_KEPT], key=itemgetter(0))]
        if 4 * (total - before - after - it.size) > total:
            found += it.size
    return found


class DeltaUpkeep:
    """One table. Blocks; what Spark raises comes through, conflicts after they were retried."""

    def __init__(self, spark: SparkSession, table: DeltaTable) -> None:
        self._spark, self._table = spark, table

    def _detail(self) -> Row:
        (detail,) = self._spark.sql(f"DESCRIBE DETAIL {self._table.sql_name}").collect()
        return detail

    @property
    def day_column(self) -> str | None:
        """The date that the table is partitioned by; None if there is none."""
        schema, columns = self._table.read().schema, self._detail()["partitionColumns"]
        return next((it for it in columns if isinstance(schema[it].dataType, DateType)), None)

    @property
    def age_column(self) -> str:
        """The column that tells how old a row is: the date that the table is partitioned by, else its first moment."""
        moments = (it.name for it in self._table.read().schema if isinstance(it.dataType, TimestampType))
        return self.day_column or next(moments)

    def days(self, file_size: int, sort_by: str | None = None) -> list[Day]:
        """Its days, the oldest first. A file of three quarters of the size is as good as one of the whole. Whether a
        day is ``unsorted`` by a column of text is asked of days larger than two files; a file without that column's
        range has all values."""
        by_day = self.day_column
        named = F.lit(None) if by_day is None else F.col("partitionValues")[by_day]
        of = jvm.delta_files(self._spark, self._table.url).select(
            F.when(named.isNotNull(), F.least(named.cast("date"), F.lit(date.max))),  # Python has none behind it
            F.to_json("partitionValues"),
            "size",
            *(F.get_json_object("stats", f"$.{end}Values.{sort_by}") for end in ("min", "max")),
        )
        partitions: dict[tuple[date | None, str], list[FileRange]] = {}
        for day, partition, size, first, last in of.collect():
            partitions.setdefault((day, partition), []).append(FileRange(size, first or "", last or "\U0010ffff"))
        found: dict[date | None, Day] = {}
        for (day, _), files in partitions.items():
            size, small = sum(it.size for it in files), sum(4 * it.size < 3 * file_size for it in files)
            unsorted = sort_by is not None and size > 2 * file_size and 10 * loose(files) > size
            known = found.get(day, Day(day, 0, 0, 0, unsorted=False))
            count, small = known.files + len(files), known.small + (small if small > 1 else 0)
            found[day] = Day(day, count, small, known.size + size, known.unsorted or unsorted)
        return sorted(found.values(), key=lambda it: it.day or date.min)

    def _sql(self, statement: str) -> list[Row]:
        return retried(lambda: self._spark.sql(statement).collect())

    def optimize(self, day: date | None, file_size: int, sort_by: str | None = None) -> tuple[int, int]:
        """Puts the small files of a day together, or sorts all of its files by a column, so that each has a stretch of
        its values; returns how many were replaced, and by how many. Streams that read the table see no new rows by it
        (its commit has ``dataChange`` false)."""
        order = "" if sort_by is None else f" ZORDER BY (`{sort_by}`)"
        column = self.day_column
        where = "" if day is None or column is None else f" WHERE `{column}` = DATE'{day.isoformat()}'"
        for name in ("minFileSize", "maxFileSize"):
            self._spark.conf.set(f"spark.databricks.delta.optimize.{name}", str(file_size))
        (row,) = self._sql(f"OPTIMIZE {self._table.sql_name}{where}{order}")
        return int(row["metrics"]["numFilesRemoved"]), int(row["metrics"]["numFilesAdded"])

    def purge(self) -> None:
        """Writes the files anew in which rows are only marked as deleted, so that VACUUM can remove them."""
        files = jvm.delta_files(self._spark, self._table.url)
        if not files.where("deletionVector is not null").isEmpty():
            self._sql(f"REORG TABLE {self._table.sql_name} APPLY (PURGE)")

    def vacuum(self, keep: timedelta) -> int:
        """Removes files that no version of the last ``keep`` needs; returns how many. Concurrent readers and writers
        lose files if ``keep`` is shorter than their queries and transactions."""
        default, wanted = (retention_property(it) for it in (DEFAULT_RETENTION, keep))
        # VACUUM goes by the table's property alone. Changed only where it differs: to a job that commits just then, it
        # is a change of the table itself.
        if keep and self._detail()["properties"].get(RETENTION, default) != wanted:
            self._sql(f"ALTER TABLE {self._table.sql_name} SET TBLPROPERTIES ('{RETENTION}' = '{wanted}')")
        self._spark.sql(f"VACUUM {self._table.sql_name}{'' if keep else ' RETAIN 0 HOURS'}").collect()
        ended = self._spark.sql(f"DESCRIBE HISTORY {self._table.sql_name} LIMIT 20").where("operation = 'VACUUM END'")
        newest = ended.orderBy(F.desc("version")).first()
        return 0 if newest is None else int(newest["operationMetrics"].get("numDeletedFiles", 0))
