"""The job ``all``: several jobs in one process, a query and a checkpoint each, on one Spark.

    gateway stream all                                 all of the lake's jobs
    gateway stream all --jobs bronze,silver,gold

A Spark takes a gigabyte before it has read anything: six of them do not fit on a laptop, one does. The queries share
its cores by turns (Spark's fair scheduler, a pool each), so that a long batch of one does not hold up the others. When
one fails, all end, and the error names it: a table that silently stands still while others go on is worse.

With ``--available-now`` the jobs that read silver begin when silver has read everything, and so see all of it.
"""

from __future__ import annotations

__all__ = ["main", "stages"]

import importlib
import sys
from typing import TYPE_CHECKING, Final

from streaming import driver

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from config.settings import Settings
    from streaming.job import Job, JobContext

_READ_SILVER: Final = frozenset({"gold", "devices", "anomalies"})


def stages(arguments: argparse.Namespace, settings: Settings) -> list[list[Job]]:
    """The chosen jobs: those of a list run together, a list after the other. Imports their modules."""
    names: Sequence[str] = arguments.jobs
    if not settings.stream.available_now:
        return [[_job(name) for name in names]]
    parts = [[one for one in names if one not in _READ_SILVER], [one for one in names if one in _READ_SILVER]]
    return [[_job(name) for name in part] for part in parts if part]


def _job(name: str) -> Job:
    start: Job = importlib.import_module(f"streaming.{name}").start

    def in_its_pool(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
        # The query's thread takes it over from the one that starts it.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        return start(spark, settings, context)

    return in_its_pool


def main(argv: list[str] | None = None) -> int:
    """Runs the chosen jobs until they end or a signal comes. Returns the exit status (``config.errors.ExitStatus``)."""
    return driver.main("all", stages, argv)


if __name__ == "__main__":
    sys.exit(main())
