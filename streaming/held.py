"""A batch that is read several times and computed once."""

from __future__ import annotations

__all__ = ["held"]

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame


@contextmanager
def held(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, kept from their first use to the end of the block: in memory, and on disk what does not fit.

    Spark's cache of tables sorts rows into compressed columns, which took longer than to decode them. Where the driver
    is the only process, a local checkpoint keeps the rows as they are; it cannot be computed again if an executor dies,
    so a cluster gets the cache.
    """
    if not str(rows.sparkSession.sparkContext.master).startswith("local"):
        cached = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield cached
        finally:
            cached.unpersist()
        return
    kept = rows.localCheckpoint(eager=False)
    try:
        yield kept
    finally:
        plan: Any = kept._jdf.queryExecution().analyzed()  # noqa: SLF001 (pyspark has no public way to let go of it)
        plan.rdd().unpersist(False)
