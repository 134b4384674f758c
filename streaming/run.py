"""A job's process: ``python -m streaming.run NAME``, which ``gateway stream NAME`` becomes.

    spark-submit --master … --packages … streaming/run.py silver --config gateway.toml
    gateway stream all                                 all of the lake's jobs
    gateway stream all --jobs bronze,silver,gold

The job ``all`` runs several jobs in one process, a query and a checkpoint each. A Spark takes a gigabyte before it has
read anything: six of them do not fit on a laptop, one does. The queries share its cores by turns (Spark's fair
scheduler, a pool each), so that a long batch of one does not hold up the others. When one fails, all end, and the error
names it: a table that silently stands still while others go on is worse.

With ``--available-now`` the jobs that read silver begin when silver has read everything, and so see all of it. With
``--report FILE`` the page of the tool ``report`` is written at the end, by the Spark that is there already.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from config.errors import ExitStatus
from config.settings import Settings
from streaming.job import Job, JobContext
from streaming.kafka.admin import ensure_topic
from streaming.options import JOBS
from streaming.runtime import driver

_READ_SILVER: Final = frozenset({"gold", "devices", "anomalies"})


def stages(arguments: argparse.Namespace, settings: Settings) -> list[list[Job]]:
    """The chosen jobs: those of a list run together, a list after the other. Imports their modules."""
    names: Sequence[str] = arguments.jobs
    if not settings.stream.available_now:
        return [[_in_its_pool(name) for name in names]]
    parts = [[one for one in names if one not in _READ_SILVER], [one for one in names if one in _READ_SILVER]]
    return [[_in_its_pool(name) for name in part] for part in parts if part]


def _in_its_pool(name: str) -> Job:
    start: Job = importlib.import_module(f"streaming.{name}.job").start

    def start_in_pool(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
        # The query's thread takes it over from the one that starts it.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        return start(spark, settings, context)

    return start_in_pool


def _prepare(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> None:
    """What a job of a later stage lacks is told before the first stage, which may take hours."""
    if "anomalies" in arguments.jobs:
        ensure_topic(spark, settings, settings.stream.anomalies.topic, "stream.anomalies.topic")


def _report(spark: SparkSession, settings: Settings, arguments: argparse.Namespace) -> None:
    if arguments.report is not None:
        from streaming.report.lake import read_lake  # late: few jobs draw plots
        from streaming.report.page import write_page

        write_page(read_lake(spark, settings.stream), arguments.report)


def main(argv: list[str] | None = None) -> int:
    name, *words = (sys.argv[1:] if argv is None else argv) or [""]
    if name not in JOBS:
        print(f"error: {name!r} is no job; jobs are {', '.join(JOBS)}.", file=sys.stderr)  # noqa: T201 (the user's)
        return ExitStatus.USAGE
    return driver.main(name, stages, words, _prepare, _report)


if __name__ == "__main__":
    sys.exit(main())
