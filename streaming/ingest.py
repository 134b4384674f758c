"""The job ``ingest``: Kafka's records into a Parquet table, what cannot be parsed into quarantine, windowed aggregates.

    python -m streaming.ingest --config gateway.toml --jars …      (what ``gateway stream ingest`` becomes)
    spark-submit --master … --packages … streaming/ingest.py --config gateway.toml

Two queries, each with a checkpoint of its own: ``ingest`` (here) writes every record once, ``windows`` keeps state.
They are apart because a batch of the one can be repeated without the other, and a broken state never holds up the raw
data. Table and quarantine are one query: a record is judged once, and is in exactly one of them.
"""

from __future__ import annotations

__all__ = ["main", "start"]

import sys
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from streaming import driver, transforms, windows
from streaming.checkpoint import prepare_checkpoint
from streaming.kafka import topics
from streaming.source import read_records, trigger
from streaming.storage import location
from streaming.tables import BatchTable, require_matching
from streaming.tally import BatchCounts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from config.settings import Settings
    from streaming.job import JobContext

QUERY = "ingest"


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it. Raises ConfigError if folders or checkpoint do not fit."""
    stream = settings.stream
    table = BatchTable(spark, location(stream.output), "ingest_date")
    quarantine = BatchTable(spark, location(stream.quarantine), "ingest_date")
    checkpoint = prepare_checkpoint(spark, stream, QUERY, topics=topics(settings))
    for written in (table, quarantine):
        require_matching(written, checkpoint)
        written.clean()

    def write(parsed: DataFrame, batch: int) -> None:
        # Counting rides along with the first write. The bad are then read again, which costs nothing as long as there
        # are none; keeping every batch in memory for them would cost always.
        seen = Observation()
        watched = parsed.observe(seen, F.count(F.lit(1)).alias("rows"), F.count("reason").alias("bad"))
        table.write(watched.transform(transforms.telemetry, max_ahead=stream.max_ahead), batch)
        counts = BatchCounts(seen.get["rows"], seen.get["bad"])
        if counts.quarantined:
            quarantine.write(parsed.transform(transforms.quarantined), batch)
        context.tally.put(QUERY, batch, counts)

    return (
        read_records(spark, settings, allow_data_loss=context.allow_data_loss)
        .transform(transforms.parsed_records)
        .writeStream.queryName(QUERY)
        .option("checkpointLocation", checkpoint.url)
        .trigger(**trigger(stream))
        .foreachBatch(write)
        .start()
    )


def main(argv: list[str] | None = None) -> int:
    """Runs both queries until they end or a signal comes. Returns the exit status (``config.errors.ExitStatus``)."""
    return driver.main("ingest", (start, windows.start), argv)


if __name__ == "__main__":
    sys.exit(main())
