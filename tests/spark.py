"""One Spark for all tests of a process: with Delta, small, quick to compile. tests.order keeps its files together."""

from __future__ import annotations

import importlib
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {
    # The thorough compiler does not pay: with it four files of the lake took 200 CPU seconds instead of 177. The room
    # for code is the one that both compilers together have: the quick one alone gets 48 MB, which a Spark fills in a
    # minute; then nothing is compiled any more.
    # The young generation and the classes grow to these sizes anyway, with a collection at each step.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
    " -Xmn640m -XX:MetaspaceSize=256m",
    # For each expression of each plan Spark makes, compiles and loads a Java class, and tables here have a handful of
    # rows: silver's tests took 283 CPU seconds with that and 235 without.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # One task reads what a few files or a frame hold, and a table's log: for each more its plan is packed and unpacked.
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.ui.explainMode": "simple",  # each query's plan is written down, for a page that is off
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from config.settings import Settings
    from gateway.local.runtime.jars import resolve
    from streaming.runtime.session import start_spark

    started = start_spark(Settings(), resolve("spark"), QUICK)
    for form in ("short", "long"):  # or Spark walks over the stack for each piece of a plan
        started.session.sparkContext.setLocalProperty(f"callSite.{form}", "a test")
    with pytest.MonkeyPatch.context() as patch:  # a job gives Kafka ten seconds, and the end of its group five
        patch.setattr("streaming.kafka.admin._TIMEOUT_MS", 60_000)
        patch.setattr("streaming.kafka.group._CLOSE_TIMEOUT_S", 60.0)
        yield started.session
    started.end()


def run_to_the_end(spark: SparkSession, config: Path, jobs: str, *, compiled: bool = False) -> None:
    """The jobs read all there is, in this process: what a killed one left needs no JVM of its own. ``compiled``: plans
    are, as in the product."""
    from config.loading.load import load
    from streaming import run
    from streaming.job import JobContext

    settings = load(config, overrides={"stream": {"available_now": True}}).settings
    plans = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"} if compiled else {}
    try:
        for name, value in plans.items():
            spark.conf.set(name, value)
        for stage in run.stages(jobs.split(","), available_now=True):
            starts = [importlib.import_module(f"streaming.{job}.job").start for job in stage]
            run.run_queries(spark, settings, starts, JobContext(lambda _: None), queue.SimpleQueue())
    finally:
        for name in plans:
            spark.conf.set(name, QUICK[name])
