"""The query ``windows``: aggregates of each device type over windows of event time, printed and kept."""

from __future__ import annotations

__all__ = ["start"]

from math import isfinite
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from streaming import transforms
from streaming.checkpoint import prepare_checkpoint
from streaming.kafka import topics
from streaming.progress import MeasurementSummary, WindowEvent
from streaming.schemas import MEASUREMENTS, column_name
from streaming.source import read_records, trigger
from streaming.tables import BatchTable, require_matching, windows_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from config.settings import Settings
    from streaming.job import JobContext

QUERY = "windows"
_MOST_LINES = 200
"""Of a batch that changes more windows than this, the newest are printed; the table has all."""


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it. Raises ConfigError if folders or checkpoint do not fit.

    Lateness counts from the receive time, whatever single clocks say: Spark's watermark follows the newest event time,
    which may be ``max_ahead`` past the receive time, so it has to trail by ``max_ahead`` more than ``watermark``.
    """
    stream = settings.stream
    table = BatchTable(spark, windows_location(stream), "window_date")
    checkpoint = prepare_checkpoint(
        spark,
        stream,
        QUERY,
        {
            "stream.window": str(stream.window),
            "stream.shuffle_partitions": stream.shuffle_partitions,
        },
        topics=topics(settings),
    )
    require_matching(table, checkpoint)
    table.clean()

    def write(changed: DataFrame, batch: int) -> None:
        kept = changed.persist()  # or the state would be computed once to write it and once to print it
        try:
            table.write(kept, batch)
            rows = _newest(kept).collect()
        finally:
            kept.unpersist()
        for row in reversed(rows):
            context.emit(_event(row, batch))

    return (
        read_records(spark, settings, allow_data_loss=context.allow_data_loss, headers=False)
        .transform(transforms.parsed_records)
        .transform(transforms.readings, max_ahead=stream.max_ahead)
        .transform(transforms.type_windows, window=stream.window, lateness=stream.watermark + stream.max_ahead)
        .writeStream.queryName(QUERY)
        .outputMode("update")
        .option("checkpointLocation", checkpoint.url)
        .trigger(**trigger(stream))
        .foreachBatch(write)
        .start()
    )


def _newest(changed: DataFrame) -> DataFrame:
    """The windows to print, the newest first, times as numbers: pyspark would give datetimes in this machine's zone."""
    return (
        changed.withColumns({"start_ms": F.unix_millis("window_start"), "end_ms": F.unix_millis("window_end")})
        .orderBy("window_start", ascending=False)
        .limit(_MOST_LINES)
    )


def _event(row: Row, batch: int) -> WindowEvent:
    fields = row.asDict()
    return WindowEvent(
        query=QUERY,
        batch=batch,
        start_ms=fields["start_ms"],
        end_ms=fields["end_ms"],
        type=fields["type"],
        rows=fields["rows"],
        measurements={
            name: MeasurementSummary(
                count=fields[f"{name}_count"],
                mean=mean if isfinite(mean := fields[f"{name}_mean"]) else None,  # a sum of huge numbers overflows
                min=fields[f"{name}_min"],
                max=fields[f"{name}_max"],
            )
            for name in map(column_name, MEASUREMENTS)
            if fields[f"{name}_count"]
        },
    )
