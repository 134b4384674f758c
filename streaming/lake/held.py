"""A batch that is read several times and computed once."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from streaming import jvm


@contextmanager
def held(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, kept from their first use to the end of the block: in memory, and on disk what does not fit.

    Spark's cache of tables sorts rows into compressed columns, which took longer than to decode them. Where the driver
    is the only process, a local checkpoint keeps the rows as they are: they are lost with the driver, and the batch
    with them. On a cluster an executor can die alone, so there it is the cache: what was in that executor is read and
    decoded again, from the same offsets.
    """
    is_local = str(rows.sparkSession.sparkContext.master).startswith("local")
    kept = rows.localCheckpoint(eager=False) if is_local else rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        if is_local:
            jvm.release(kept)
        else:
            kept.unpersist()
