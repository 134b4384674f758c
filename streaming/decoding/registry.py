"""The device registry: which type each device is of, and where it stands. Somebody else's table, read as it changes."""

from pathlib import Path
from typing import Any

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError
from streaming.lake.lake import has_commit
from streaming.lake.storage import Folder, location


class Registry:
    """A table of devices: a Delta table's folder, or a folder or file of Parquet or CSV (with a header line). ``type``
    and ``site`` may be absent. Used by one query's thread. Between changes the table stays in memory."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self._url = location(path)
        self._folder = Folder(spark, self._url)
        self._state: Any = None
        self._devices: DataFrame | None = None

    def devices(self) -> DataFrame:
        """Each device once: ``device``, ``type``, ``site``. Read again when the table has changed. Blocks. Raises
        ConfigError if the table is not there or has no column ``device``. Of a device in two rows the one counts that
        comes first in the order of site and type."""
        state = self._changed_at()
        if self._devices is None or state != self._state:
            read = self._read().persist(StorageLevel.MEMORY_AND_DISK)
            read.count()
            if self._devices is not None:
                self._devices.unpersist()
            self._devices, self._state = read, state
        return self._devices

    def _changed_at(self) -> Any:
        """A value to compare: it is another one whenever the table has changed."""
        if not self._folder.exists():
            told = f"There is no device registry at {self._url}, which stream.silver.registry names."
            raise ConfigError(f"{told} Is the path right, and may this user read it?")
        if has_commit(self._folder):
            return max(name for name in self._folder.names("_delta_log") if name.endswith(".json"))
        return self._folder.versions()

    def _read(self) -> DataFrame:  # what devices() says, without its cache
        reader, names = self._spark.read, [self._url, *self._folder.names()]
        try:
            if has_commit(self._folder):
                table = reader.format("delta").load(self._url)
            elif any(name.lower().endswith(".csv") for name in names):
                table = reader.options(
                    header="true", ignoreLeadingWhiteSpace="true", ignoreTrailingWhiteSpace="true"
                ).csv(self._url)
            else:
                table = reader.parquet(self._url)
        except AnalysisException as error:
            raise ConfigError(
                f"The device registry at {self._url} (stream.silver.registry) cannot be read: it has to be a Delta"
                f" table, Parquet, or CSV with a header line. Spark says: {str(error).splitlines()[0]}"
            ) from error
        known = {name.lower() for name in table.columns}  # as Spark compares names
        if "device" not in known:
            raise ConfigError(
                f"The device registry at {self._url} (stream.silver.registry) has no column device, but"
                f" {', '.join(table.columns)}. Name the column of the devices' names device."
            )
        given = [
            (F.col(name) if name in known else F.lit(None)).cast("string").alias(name)
            for name in ("device", "type", "site")
        ]
        devices = table.select(*given).where(F.col("device").isNotNull())
        one = F.min(F.struct(F.col("site").isNull().alias("placeless"), "site", "type")).alias("one")
        return devices.groupBy("device").agg(one).select("device", "one.type", "one.site")
