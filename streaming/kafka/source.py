"""Kafka's records as a stream."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from config.settings import Settings, StreamSettings
from streaming.kafka.options import source_options, topics

_FETCH_MAX_WAIT_MS = "10"
"""Kafka's default is 500, and Spark pays it for each partition of each batch: its consumer has already asked for the
next records when Spark asks it for the partition's offsets, and the broker answers in order, the fetch at the end of
the log after this wait. A batch never reads past the offsets it was planned with, so there is nothing to wait for."""

_MAX_POLL_RECORDS = "5000"
"""Kafka's default is 500. After each poll Spark asks the broker for the first and the last offset there is."""


def read_records(
    spark: SparkSession,
    settings: Settings,
    names: Sequence[str] = (),
    *,
    allow_data_loss: bool,
    is_bounded: bool = True,
) -> DataFrame:
    """All records of the topics ``names``, else of those to read by the settings, from the oldest that Kafka holds; a
    new checkpoint misses nothing. Not ``is_bounded``: each batch reads to the end of the topics.

    Kafka's partitions are read by as many tasks as there are cores: twelve tasks of a few rows each would cost more in
    starting tasks than in rows, and make twelve small files a batch.
    """
    options: dict[str, Any] = {
        **source_options(settings.kafka),
        "subscribe": ",".join(names or topics(settings)),
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.fetch.max.wait.ms": _FETCH_MAX_WAIT_MS,
        "kafka.max.poll.records": _MAX_POLL_RECORDS,
        "failOnDataLoss": str(not allow_data_loss).lower(),
    }
    if is_bounded:
        # Beside its rows a batch of silver costs some 2.5 CPU seconds (plans, commits, code compiled anew): a row took
        # 17.5 and 18.8 µs of CPU in batches of 400,000, and 13.6 to 14.7 in batches of a million.
        options["maxOffsetsPerTrigger"] = str(settings.stream.max_offsets_per_trigger)
    records = spark.readStream.format("kafka").options(**options).load()
    return records.coalesce(spark.sparkContext.defaultParallelism)


def trigger(stream: StreamSettings) -> dict[str, Any]:
    """When batches begin, as arguments of ``DataStreamWriter.trigger``."""
    if stream.available_now:
        return {"availableNow": True}
    return {"processingTime": f"{stream.trigger // timedelta(milliseconds=1)} milliseconds"}
