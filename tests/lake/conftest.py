"""One Spark for all tests of the lake: with Delta, small and quick to compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from config.settings import Settings
from gateway.embedded.jars import resolve
from streaming.session import start_spark
from tests.brokers.fixtures import *  # noqa: F403 (brokers for those that want one)
from tests.chaos.fixtures import *  # noqa: F403 (gateways)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # The quick compiler alone: no test runs long enough for the thorough one to pay.
    options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    running = start_spark(Settings(), resolve("spark"), options)
    yield running.session
    running.end()
