"""docs/ledger.md says what is: its table is the schema, its query runs, and finds what has not arrived."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bridge import wire
from bridge.ledger import LedgerSnapshot
from bridge.ledger_topic.intervals import Entry, EntryKey, Interval
from bridge.ledger_topic.records import Author, partition_records, worker_record
from config.errors import ExitStatus
from tests.spark import one_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with one_spark([], {"spark.driver.memory": "512m"}) as session:
        yield session


def test_the_page_prints_the_table_of_fields() -> None:
    assert PAGE.partition("<!-- fields -->\n")[2].partition("<!-- /fields -->")[0] == wire.ledger_table()


def test_the_fields_are_a_schema() -> None:
    names = [field.name for field in wire.LEDGER_FIELDS]
    assert len(set(names)) == len(names)
    assert set(wire.LEDGER_TERMS) <= set(names)
    assert set(wire.LEDGER_TERMS) == set(LedgerSnapshot.__slots__)


def test_the_page_names_the_statuses_of_verify() -> None:
    for status in (ExitStatus.OK, ExitStatus.MISSING_MESSAGES, ExitStatus.UNJUDGED):
        assert f"\n| {int(status)} | " in PAGE


@pytest.mark.slow
def test_the_query_finds_what_has_not_arrived(spark: SparkSession) -> None:
    """Ten acknowledged in one hour, three in the next; one of each has not arrived, and one is in quarantine."""
    author = Author("gw", 0, "life", 0)
    terms = LedgerSnapshot(13, 0, 13, 0, 0, 0, 0, 0, 0)
    rows = []
    for number, (first, count, foreign) in enumerate([(0, 10, 0), (12, 3, 2)]):
        entry = Entry()
        entry.records = entry.messages = count
        entry.jump(first, 1)
        entry.jump(first + 1 + foreign, count - 1)
        key = EntryKey("telemetry", "t", 0, dead_letter=False)
        interval = Interval(number * HOUR_MS, number * HOUR_MS + 60_000, {key: entry}, terms, count)
        records = partition_records(author, number, interval, frozenset())
        rows += [*records, *records, worker_record(author, number, interval, "running", 0)]
    spark.createDataFrame(rows, "key binary, value binary").createOrReplaceTempView("raw")
    place = "kafka_topic string, kafka_partition int, kafka_offset long"
    arrived = [("t", 0, offset) for offset in (0, 1, 2, 3, 4, 5, 6, 8, 8, 12, 13, 15)]
    spark.createDataFrame(arrived, place).createOrReplaceTempView("telemetry")
    spark.createDataFrame([("t", 0, 9)], place).createOrReplaceTempView("quarantine")
    (sql,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    *views, query = [text for text in sql.split(";\n") if text.strip()]
    for view in views:
        spark.sql(view)
    spark.sql("SET TIME ZONE 'UTC'")
    found = [(row.route, row.hour.hour, row.acknowledged, row.not_arrived) for row in spark.sql(query).collect()]
    assert sorted(row[2:] for row in found) == [(3, 1), (10, 1)]
    (balanced,) = re.findall(r"`(SELECT DISTINCT [^`]*)`", PAGE)
    assert spark.sql(balanced).collect() == []
