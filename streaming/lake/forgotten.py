"""Devices that were forgotten, and when. Other jobs' states, in their checkpoints, outlive them: what those still say
of such a device must not bring it back into a table.

Kept as empty files ``<stream.lake.path>/forgotten/<SHA-256 of the name>-<milliseconds since 1970>``: the name itself is
what was to be forgotten.
"""

import hashlib
from collections.abc import Iterator
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
        self._spark = spark
        self._folder = Folder(spark, tables_folder(stream, "forgotten"))

    def add(self, device: str, at: datetime | None = None) -> None:
        """Notes that a device is forgotten, now unless ``at`` says when."""
        moment = datetime.now(UTC) if at is None else at
        self._folder.make()
        self._folder.write_text(f"{hashlib.sha256(device.encode()).hexdigest()}-{millis(moment)}", "")

    def moments(self) -> dict[str, int]:
        """When each was forgotten last, in milliseconds since 1970, by the SHA-256 of its name."""
        return {digest: ms for ms, digest, _ in sorted(self._notes())}

    def _notes(self) -> Iterator[tuple[int, str, str]]:
        """Moment, hash and file of each note."""
        for name in self._folder.names():
            digest, _, ms = name.partition("-")
            if ms.isdigit():
                yield int(ms), digest, name

    def let_go(self, before: datetime) -> None:
        """Removes the notes of devices that were forgotten before a moment."""
        for ms, _, name in [*self._notes()]:
            if ms < millis(before):
                self._folder.delete(name)

    def marked(self, rows: DataFrame) -> DataFrame | None:
        """The rows of a table with a column ``device``, and when their devices were forgotten: ``forgotten_ms``, null
        for those that never were. None if there is no such device at all, which is the usual case and costs a look
        into a folder."""
        moments = self.moments()
        if not moments:
            return None
        known = self._spark.createDataFrame(list(moments.items()), "forgotten_hash string, forgotten_ms bigint")
        hashed = F.sha2(F.col("device").cast("binary"), 256)
        return rows.join(F.broadcast(known), hashed == F.col("forgotten_hash"), "left").drop("forgotten_hash")

    def without(self, rows: DataFrame) -> DataFrame:
        """The rows, which have ``device`` and ``received_at``, without those received before their device was
        forgotten."""
        if (marked := self.marked(rows)) is None:
            return rows
        forgotten = F.timestamp_millis("forgotten_ms")
        return marked.where(forgotten.isNull() | (F.col("received_at") > forgotten)).drop("forgotten_ms")
