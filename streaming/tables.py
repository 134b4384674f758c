"""The tables: how a batch is written exactly once in effect, and how each is read as a DataFrame.

A micro-batch has a number and, once planned in the checkpoint, always the same records. So its rows go to a folder of
its own (``…/batch=17``), and writing it again after a crash replaces that folder: no row twice, none lost, for any
reader. Files are written aside and the folder is renamed into place, so no reader meets a half-written file.

Spark's own Parquet sink promises the same only to readers that know its ``_spark_metadata`` log: after a crash others
see the abandoned files too, and while a batch is written, open ones.
"""

from __future__ import annotations

__all__ = ["BatchTable", "quarantine", "require_matching", "telemetry", "windows", "windows_location"]

from typing import TYPE_CHECKING, Protocol

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError
from streaming.schemas import QUARANTINE, TELEMETRY, WINDOWS
from streaming.storage import Folder, location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from config.settings import StreamSettings

_STAGING = ".spark-staging"


class BatchTable:
    """A Parquet folder partitioned by columns such as a date, then by micro-batch; one query's, whose checkpoint
    numbers them. ``options`` are those of Spark's Parquet writer."""

    def __init__(
        self, spark: SparkSession, url: str, *partitioned_by: str, options: Mapping[str, str] | None = None
    ) -> None:
        self._spark = spark
        self._folder = Folder(spark, url)
        self._partitioning = (*partitioned_by, "batch")
        self._options = dict(options or {})

    @property
    def url(self) -> str:
        return self._folder.url

    def is_empty(self) -> bool:
        """Whether no batch was ever written here. What begins with a dot or an underscore is no data."""
        return all(name.startswith((".", "_")) for name in self._folder.names())

    def clean(self) -> None:
        """Removes what batches that were cut off left aside. Only before the query starts."""
        for name in self._folder.names():
            if name.startswith(_STAGING):
                self._folder.delete(name)

    def write(self, rows: DataFrame, batch: int) -> None:
        """Writes all rows of a micro-batch, in the place of what an earlier attempt at the same batch wrote. Blocks."""
        (
            rows.withColumn("batch", F.lit(batch).cast("long"))
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .options(**self._options)
            .partitionBy(*self._partitioning)
            .parquet(self.url)
        )

    def rows_of(self, batch: int, schema: StructType) -> DataFrame:
        """The rows that were written of a micro-batch; none if it was not written. Lists folders, not files."""
        folders = self._folder.matching(
            "/".join([*(f"{name}=*" for name in self._partitioning[:-1]), f"batch={batch}"])
        )
        if not folders:
            # Not createDataFrame, which takes a second to load pandas for no rows.
            return self._spark.range(0).select(*(F.lit(None).cast(it.dataType).alias(it.name) for it in schema))
        return self._spark.read.schema(schema).option("basePath", self.url).parquet(*folders)


def windows_location(stream: StreamSettings) -> str:
    """The windows' folder: ``windows`` beside the telemetry's. Raises ConfigError if that cannot be."""
    output = location(stream.output).rstrip("/")
    beside = output.rpartition("/")[0]
    if beside.endswith("/"):
        raise ConfigError(
            f"stream.output is {output}, which has nothing beside it: name a folder, as in {output}/telemetry."
        )
    url = f"{beside}/windows"
    for name in ("output", "quarantine", "checkpoint"):
        if location(getattr(stream, name)).rstrip("/") == url:
            raise ConfigError(
                f"stream.{name} is {url}, where the windowed aggregates are written: choose another folder."
            )
    return url


class _Numbered(Protocol):
    """A table whose rows came in batches that a checkpoint numbers."""

    @property
    def url(self) -> str: ...

    def is_empty(self) -> bool: ...


def require_matching(
    table: _Numbered, checkpoint: Folder, folders: str = "stream.output, stream.quarantine and stream.checkpoint"
) -> None:
    """Raises ConfigError if the table has rows but the checkpoint that numbers its batches is new. ``folders``: the
    settings to change for a new begin.

    The query would read Kafka from the start and write everything again, partly over the old batches.
    """
    if not checkpoint.exists("metadata") and not table.is_empty():
        raise ConfigError(
            f"{table.url} holds data, but the checkpoint {checkpoint.url} that says how far it goes is not there, so"
            " everything still in Kafka would be written a second time. Was the checkpoint deleted, or"
            f" stream.checkpoint changed? Bring it back, or give {folders} new folders."
        )


def telemetry(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """All telemetry rows written so far; empty if there are none yet. Columns: ``streaming.schemas.TELEMETRY``."""
    return spark.read.schema(TELEMETRY).parquet(_existing(spark, location(stream.output)))


def quarantine(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """All records that could not be used, with reason and original bytes. Columns: ``streaming.schemas.QUARANTINE``."""
    return spark.read.schema(QUARANTINE).parquet(_existing(spark, location(stream.quarantine)))


def windows(spark: SparkSession, stream: StreamSettings) -> DataFrame:
    """The latest aggregates of each window and type. The table itself keeps every state a window went through."""
    states = spark.read.schema(WINDOWS).parquet(_existing(spark, windows_location(stream)))
    newest = Window.partitionBy("window_start", "type").orderBy(F.desc("batch"))
    return states.withColumn("_age", F.row_number().over(newest)).where("_age = 1").drop("_age")


def _existing(spark: SparkSession, url: str) -> str:
    """The folder, made if it is not there: a table without rows is empty, not an error."""
    Folder(spark, url).make()
    return url
