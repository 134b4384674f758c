"""Devices that were forgotten, and when. Other jobs' states, in their checkpoints, outlive them: what those still say
of such a device must not bring it back into a table.

Kept as empty files ``<stream.lake.path>/forgotten/<SHA-256 of the name>-<milliseconds since 1970>``: the name itself is
what was to be forgotten.
"""

import hashlib
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.settings import StreamSettings
from streaming.lake.lake import tables_folder
from streaming.lake.ranges import millis
from streaming.lake.storage import Folder


class Forgotten:
    """All of a lake's. Calls block for the file system."""

    def __init__(self, spark: SparkSession, stream: StreamSettings) -> None:
        self._spark, self._folder = spark, Folder(spark, tables_folder(stream, "forgotten"))

    def add(self, device: str, at: datetime | None = None) -> None:
        """Notes that a device is forgotten, now unless ``at`` says when."""
        self._folder.write_text(f"{hashlib.sha256(device.encode()).hexdigest()}-{millis(at or datetime.now(UTC))}", "")

    def moments(self) -> dict[str, int]:
        """When each was forgotten last, in milliseconds since 1970, by the SHA-256 of its name."""
        notes = (name.partition("-") for name in self._folder.names())
        return {digest: ms for ms, digest in sorted((int(ms), digest) for digest, _, ms in notes if ms.isdigit())}

    def let_go(self, before: datetime) -> None:
        """Removes the notes of devices that were forgotten before a moment."""
        for name in self._folder.names():
            ms = name.partition("-")[2]
            if ms.isdigit() and int(ms) < millis(before):
                self._folder.delete(name)

    def marked(self, rows: DataFrame) -> DataFrame | None:
        """The rows of a table with a column ``device``, and when their devices were forgotten: ``forgotten_ms``, null
        for those that never were. None if there is no such device at all, which costs a look into a folder."""
        if not (moments := self.moments()):
            return None
        known = self._spark.createDataFrame(list(moments.items()), "forgotten_hash string, forgotten_ms bigint")
        hashed = F.sha2(F.col("device").cast("binary"), 256)
        return rows.join(F.broadcast(known), hashed == F.col("forgotten_hash"), "left").drop("forgotten_hash")

    def without(self, rows: DataFrame) -> DataFrame:
        """The rows, with ``device`` and ``received_at``, without those received before their device was forgotten."""
        if (marked := self.marked(rows)) is None:
            return rows
        forgotten = F.timestamp_millis("forgotten_ms")
        return marked.where(forgotten.isNull() | (F.col("received_at") > forgotten)).drop("forgotten_ms")
