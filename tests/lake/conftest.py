"""One Spark for all tests of the lake: with Delta, small and quick to compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.local.runtime.jars import resolve
from tests.brokers.fixtures import *  # noqa: F403 (brokers for those that want one)
from tests.chaos.fixtures import *  # noqa: F403 (gateways)
from tests.spark import one_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with one_spark(resolve("spark"), {}) as session:
        yield session
