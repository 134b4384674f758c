"""The lake: one table per layer, by folder or by a catalog's name; how each is written once in effect, and read.

A micro-batch has a number and, once planned in the checkpoint, always the same records. Delta keeps the last number of
each writer in the table itself (``txnAppId``, ``txnVersion``) and ignores a batch it already has; what cannot carry
such a number, a MERGE, is made so that doing it twice changes nothing.

Several may write at the same time. Delta lets the first of two win whose changes touch; the other is done again here.
"""

import fcntl
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from typing import Final, TypeVar

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import StructType

from config.settings import StreamSettings
from streaming import jvm
from streaming.errors import StreamError
from streaming.lake.storage import Folder, LocalFolder, is_local, location

T = TypeVar("T")
LAYERS: Final = ("bronze", "bronze_gaps", "silver", "silver_quarantine", "gold", "devices", "device_events",
                 "anomalies", "audit_seen", "audit_ledger", "audit", "registry")  # fmt: skip
"""The tables that ``maintain`` and ``forget`` go through, from the first to the last, the way the data came."""


def tables_folder(stream: StreamSettings, name: str) -> str:
    """URL of the folder that holds a table's files."""
    return f"{location(stream.lake.path)}/{name}"


_LOG: Final = "_delta_log"
_WHOLE_SINCE: Final = "_whole_since"  # in the table's folder; VACUUM leaves files that begin so
RETENTION: Final = "delta.deletedFileRetentionDuration"
"""The property that says how long VACUUM leaves files that the newest version does not need."""
DEFAULT_RETENTION: Final = timedelta(days=7)  # Delta's own
_FIRST_WAIT_S: Final = 0.5
_CONFLICTS: Final = ("DELTA_CONCURRENT_", "ConcurrentAppend", "ConcurrentDelete", "ConcurrentTransaction",
                     "ConcurrentWrite", "MetadataChangedException", "DELTA_METADATA_CHANGED")  # fmt: skip


def retention_property(kept: timedelta) -> str:  # as Delta's properties have it
    return f"interval {kept // timedelta(seconds=1)} seconds"


def has_commit(folder: Folder) -> bool:
    """Whether a Delta table is in the folder. Its log's folder is made before the first commit, and a killed program
    leaves it without one. Looks at the files, not at what Delta remembers: the table may be another program's."""
    return any(re.fullmatch(r"\d{20}\.json|_last_checkpoint", name) for name in folder.names(_LOG))


def retried(action: Callable[[], T], attempts: int = 6) -> T:
    """What ``action`` returns, done again while others' commits come first. Blocks, up to 16 s in all in pauses; raises
    what the last attempt does, and at once what is no conflict."""
    wait_s = _FIRST_WAIT_S
    while True:
        attempts -= 1
        try:
            return action()
        except Exception as error:
            if not (attempts and any(name in str(error) for name in _CONFLICTS)):
                raise
        time.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
        wait_s *= 2


class DeltaTable:
    """One Delta table of the lake, ``sql_name`` in SQL. Blocks for its files; what Spark raises comes through. A MERGE
    or DELETE is done again after a conflict: compaction, retention or forget may have rewritten what it read."""

    def __init__(self, spark: SparkSession, stream: StreamSettings, name: str) -> None:
        self._spark = spark
        self.name = name
        self.url = tables_folder(stream, name)
        self._catalog_name = None if stream.lake.catalog is None else f"{stream.lake.catalog}.{name}"
        self.sql_name = self._catalog_name or f"delta.`{self.url}`"
        self._vacuum_after = stream.lake.vacuum_after

    def exists(self) -> bool:
        return has_commit(Folder(self._spark, self.url))

    def create(self, schema: StructType, partitioned_by: Sequence[str] = (), **properties: str) -> None:
        """Makes the table, empty, if it is not there. ``properties``: Delta's, with ``_`` for ``.`` in their names."""
        partitioning = f" PARTITIONED BY ({', '.join(partitioned_by)})" if partitioned_by else ""
        named = {name.replace("_", "."): value for name, value in properties.items()}
        if self._vacuum_after != DEFAULT_RETENTION:
            named.setdefault(RETENTION, retention_property(self._vacuum_after))
        settings = ", ".join(f"'{name}' = '{value}'" for name, value in named.items())
        told = f" TBLPROPERTIES ({settings})" if settings else ""
        place = f" LOCATION '{self.url}'" if self._catalog_name else ""
        made = f"CREATE TABLE IF NOT EXISTS {self.sql_name} ({schema.toDDL()})"
        folder = Folder(self._spark, self.url)
        with alone(self.url):
            if folder.exists(_LOG) and not has_commit(folder):  # a killed job's; SQL would take it for a table
                folder.delete(_LOG)
            self._spark.sql(f"{made} USING delta{partitioning}{place}{told}")

    def read(self) -> DataFrame:
        """All rows. Raises AnalysisException if there is no table."""
        return self._spark.read.table(self.sql_name)

    def read_stream(self, **options: str) -> DataFrame:
        """Rows as they are added. Those that a ``forget`` or a retention deletes are no news and do not end it."""
        reader = self._spark.readStream.option("skipChangeCommits", "true").options(**options)
        if self._catalog_name:
            return reader.table(self._catalog_name)
        return reader.format("delta").load(self.url)

    def append(self, rows: DataFrame, *, query: str, batch: int) -> None:
        """Adds the rows of a query's micro-batch, unless the table has that batch already. Raises StreamError if it has
        a later one: the checkpoint is an older copy, and Delta would leave out new rows under numbers it knows."""
        if self._catalog_name is None:
            last = jvm.delta_append(rows, self.url, query, batch)
        elif (last := self.last_batch(query)) < batch:
            writer = rows.write.format("delta").mode("append").option("txnAppId", query).option("txnVersion", batch)
            writer.saveAsTable(self._catalog_name)
        if last > batch:
            job = query.partition("-")[0]
            raise StreamError(
                f"{self.url} has batch {last} of {job}, and the checkpoint is at batch {batch}: is it an older copy?"
                f" Nothing was written. Bring the newer one back, or begin anew: gateway stream reset {job}."
            )

    def version(self) -> int:
        """The newest version. Blocks for the table's log alone."""
        return int(jvm.delta_snapshot(self._spark, self.url).version())

    def changes_since(self, version: int) -> int:
        """How many commits came after a version, without those that only put files together."""
        made = self.version() - version
        if made > 1:
            history = self._spark.sql(f"DESCRIBE HISTORY {self.sql_name} LIMIT {made}")
            made = history.where("operation <> 'OPTIMIZE'").count()
        return made

    def is_empty(self) -> bool:
        """Whether the table is known to have no rows, by the checksum beside its last commit: without a Spark job."""
        checksum = jvm.delta_snapshot(self._spark, self.url).checksumOpt()
        return bool(checksum.isDefined()) and checksum.get().numFiles() == 0

    def last_batch(self, query: str) -> int:
        """The last batch that :meth:`append` wrote for a query; -1 if there is none."""
        return jvm.delta_mark(jvm.delta_snapshot(self._spark, self.url), query)

    def rows_added(self, query: str, batch: int) -> int:
        """How many rows :meth:`append` added with a query's batch, whatever was deleted since; 0 if it is not the last
        one. For a table that one query alone writes, and not for long ago."""
        if self.last_batch(query) != batch:
            return 0
        history = self._spark.sql(f"DESCRIBE HISTORY {self.sql_name} LIMIT 1000").where("operation = 'WRITE'")
        newest = history.orderBy(F.desc("version")).selectExpr("int(operationMetrics.numOutputRows)").first()
        return newest[0] if newest is not None and newest[0] is not None else 0

    def merge(self, rows: DataFrame, same: str, *clauses: str, attempts: int = 6) -> Row:
        """Changes the rows ``t`` of the table by ``rows``, ``s`` in the SQL of ``same`` (whether two belong together)
        and of the clauses (``WHEN …``). Returns Delta's counts of what it did."""
        into, then = (
            text.replace("{", "{{").replace("}", "}}") for text in (self.sql_name, " ".join([same, *clauses]))
        )
        statement = f"MERGE INTO {into} t USING {{rows}} s ON {then}"
        (counts,) = retried(lambda: rows.sparkSession.sql(statement, rows=rows).collect(), attempts)
        return counts

    def delete(self, condition: str) -> int:
        """Deletes the rows for which an SQL condition is true; returns how many those were."""
        statement = f"DELETE FROM {self.sql_name} WHERE {condition}"  # noqa: S608 (the caller quotes)
        (row,) = retried(lambda: self._spark.sql(statement).collect())
        return max(0, int(row["num_affected_rows"]))

    def delete_at(self, places: DataFrame, where: str = "true") -> None:
        """Deletes the rows that have the values of a row of ``places`` in its columns. ``where``: SQL that is true for
        these rows of the table ``t``, by which files are passed over."""
        same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in places.columns)
        self.merge(places, f"{same} AND {where}", "WHEN MATCHED THEN DELETE")

    def note_whole_since(self, day: date) -> None:
        """Notes that rows of earlier days are deleted: before they are. A longer retention later brings none back."""
        if day > self.whole_since():
            Folder(self._spark, self.url).write_text(_WHOLE_SINCE, day.isoformat())

    def whole_since(self) -> date:
        """The first day of which retention has deleted nothing."""
        return date.fromisoformat(Folder(self._spark, self.url).read_text(_WHOLE_SINCE) or date.min.isoformat())

    def replace(self, rows: DataFrame, partitioned_by: Sequence[str] = ()) -> None:
        """Makes these all the rows and columns of the table, in one step; doing it again changes nothing."""
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        if self._catalog_name:
            writer.partitionBy(*partitioned_by).saveAsTable(self._catalog_name)
        else:
            writer.partitionBy(*partitioned_by).save(self.url)


def layers(spark: SparkSession, stream: StreamSettings) -> dict[str, DeltaTable]:
    """Those of :data:`LAYERS` that exist, by name."""
    return {name: table for name in LAYERS if (table := DeltaTable(spark, stream, name)).exists()}


@contextmanager
def alone(table: str) -> Iterator[None]:
    """The block, while no other program makes or widens the table of that URL: Delta lets the second of two fail. By a
    lock on its folder, where there can be one."""
    if not is_local(table):
        yield
        return
    folder = LocalFolder(table).path("")
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not on NFS
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def held(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, kept from their first use to the end of the block: in memory, and on disk what does not fit."""
    # Spark's cache sorts rows into compressed columns, which took longer than to decode them: a local checkpoint keeps
    # them as they are. On a cluster an executor can die alone, and only what the cache had in it is made again.
    is_local = str(rows.sparkSession.sparkContext.master).startswith("local")
    kept = rows.localCheckpoint(eager=False) if is_local else rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        if is_local:
            jvm.release(kept)
        else:
            kept.unpersist()
