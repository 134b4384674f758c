"""One Spark for all tests of a process: with Delta, small, quick to compile. tests.order keeps its files together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {
    # No test runs long enough for the thorough compiler to pay. The room for code is the one that both compilers
    # together have: the quick one alone gets 48 MB, which a Spark fills in a minute; then nothing is compiled any more.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    # For each expression of each plan Spark makes, compiles and loads a Java class, and tables here have a handful of
    # rows: silver's tests took 283 CPU seconds with that and 235 without.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from config.settings import Settings
    from gateway.local.runtime.jars import resolve
    from streaming.runtime.session import start_spark

    started = start_spark(Settings(), resolve("spark"), QUICK)
    with pytest.MonkeyPatch.context() as patch:  # a job gives Kafka ten seconds, and the end of its group five
        patch.setattr("streaming.kafka.admin._TIMEOUT_MS", 60_000)
        patch.setattr("streaming.kafka.group._CLOSE_TIMEOUT_S", 60.0)
        yield started.session
    started.end()
