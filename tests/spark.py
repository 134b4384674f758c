"""Spark for tests. A process can have one at a time, and which test files share a process is not known beforehand."""

from __future__ import annotations

__all__ = ["QUICK_JVM", "one_spark"]

from contextlib import contextmanager
from typing import TYPE_CHECKING

from config.settings import Settings
from streaming.session import Spark, start_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

# No test runs long enough for the thorough compiler to pay. The room for code is the one that both compilers together
# have: the quick one alone gets 48 MB, which a Spark fills in a minute, and then nothing is compiled any more.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"

_running: list[Spark] = []


@contextmanager
def one_spark(jars: Sequence[Path], options: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session until the end of the block, or until the next one is wanted: the lake's files, which share one for the
    whole run, are through by then."""
    while _running:
        _running.pop().end()
    mine = start_spark(Settings(), jars, {"spark.driver.extraJavaOptions": QUICK_JVM, **options})
    _running.append(mine)
    try:
        yield mine.session
    finally:
        if mine in _running:
            _running.remove(mine)
            mine.end()
