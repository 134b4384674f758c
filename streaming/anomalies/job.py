"""The job ``anomalies``: silver's readings against those before, and devices' silences; to Kafka and a table.

    silver (Delta) ─▶ measured ─▶ by device: transformWithState ─┬─▶ Kafka topic: alerts, and scores of note
                                                                 └─▶ table anomalies: alerts

Readings are judged one by one in order of event time, so the result does not depend on how they were cut into batches.

- Table ``anomalies``: exactly once in effect. The same batch from the same state makes the same alerts with the same
  ``alert_id``, and the MERGE inserts only those that are not there.
- Kafka: **at least once**. Spark's Kafka sink has no transactions, so a batch that is repeated after a crash is sent
  again; ``alert_id`` is the same, and consumers drop copies by it.

Silence is counted on silver's clock, ``ingested_at``, by event-time timers: its watermark stands still when nothing
comes from anybody, and no row is dropped for being behind it, however late devices, gateways or spools deliver.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import NumericType

from bridge.wire import GATEWAY_DEVICE, GATEWAY_ID, GATEWAY_MESSAGE_ID, GATEWAY_MESSAGE_ID_KIND, MessageIdKind
from config.settings import Settings
from config.tables.stream_jobs import AnomalySettings
from streaming import lake_tables
from streaming.anomalies.detectors import Limits
from streaming.anomalies.processor import ANOMALIES, STATE_VERSION, Detect
from streaming.job import JobContext
from streaming.kafka.options import source_options
from streaming.lake.forgotten import Forgotten
from streaming.lake.lake import DeltaTable, held
from streaming.lake.ranges import TimeRange, joined, timestamp
from streaming.metrics import BatchCounts
from streaming.runtime.checkpoint import prepare_checkpoint
from streaming.silver.schema import signals_of

QUERY: Final = "anomalies"
_CLOCK_SLACK: Final = "10 seconds"  # by which silver's own clock may go back, after an NTP step or on another driver
_MOST_SPANS: Final = 50  # stretches that a MERGE's condition names one by one
_FILES_PER_BATCH: Final = "64"  # of silver's: a first start beside a large table must not take it at once


def limits_of(settings: AnomalySettings) -> Limits:
    return Limits(
        threshold=settings.threshold,
        warm_up=settings.warm_up,
        stuck_after=settings.stuck_after,
        scale_share=settings.scale_share,
        min_scale=dict(settings.min_scale),
        silence_factor=settings.silence_factor,
        min_silence_us=settings.min_silence // timedelta(microseconds=1),
    )


def measured(silver: DataFrame, signals: Sequence[str]) -> DataFrame:
    """What the detectors read of silver; moments in microseconds, the signals as doubles in one array."""
    return silver.where(F.col("device").isNotNull()).select(
        "device",
        "type",
        "ingested_at",
        F.unix_micros("event_time").alias("event_us"),
        F.unix_micros("received_at").alias("received_us"),
        F.unix_micros("ingested_at").alias("ingested_us"),
        "record_id",
        F.array(*(F.col(f"`{name}`").cast("double") for name in signals)).cast("array<double>").alias("measurements"),
    )


def kafka_records(rows: DataFrame, gateway: str) -> DataFrame:
    """Alerts and scores as records: key is the device, value JSON without nulls, headers as the gateway's own records
    have them. The message id is ``alert_id``."""
    fields = [F.col(name) for name in ANOMALIES.names[:-3]]
    value = F.to_json(F.struct(*fields), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"})

    def header(name: str, value: Any) -> Any:
        return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))

    return rows.select(
        F.col("device").cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        F.array(
            header(GATEWAY_ID, F.lit(gateway)),
            header(GATEWAY_DEVICE, F.col("device")),
            header(GATEWAY_MESSAGE_ID, F.col("alert_id")),
            header(GATEWAY_MESSAGE_ID_KIND, F.lit(MessageIdKind.DEVICE.value)),
        ).alias("headers"),
    )


def publish(rows: DataFrame, settings: Settings) -> None:
    """Sends the rows to the topic, each at least once. Blocks until Kafka has them."""
    options = {name: value for name, value in source_options(settings.kafka).items() if name.startswith("kafka.")}
    topic = settings.stream.anomalies.topic
    kafka_records(rows, settings.instance).write.format("kafka").options(topic=topic, **options).save()


def insert(table: DeltaTable, alerts: DataFrame, spans: Sequence[TimeRange]) -> None:
    """Inserts the alerts that are not there. ``spans``: where their event times are. An alert that is there lies within
    them too, since the event time is part of ``alert_id``, and Delta reads only files that may."""
    within = " OR ".join(
        f"t.event_time BETWEEN {timestamp(one.first)} AND {timestamp(one.end - 1)}"
        for one in joined(spans, _MOST_SPANS)
    )
    table.merge(alerts, f"t.alert_id = s.alert_id AND ({within})", "WHEN NOT MATCHED THEN INSERT *")


def _write(rows: DataFrame, batch: int, *, table: DeltaTable, settings: Settings, context: JobContext) -> None:
    with held(rows) as computed:  # or the state would be computed once for each place it goes to
        # The state still makes rows of what came before, such as a forgotten device's silence.
        kept = Forgotten(rows.sparkSession, settings.stream).without(computed)
        alerted_us = F.when(F.col("kind") != "score", F.unix_micros("event_time"))
        counts = F.count(F.lit(1)).alias("rows"), F.min(alerted_us).alias("first"), F.max(alerted_us).alias("last")
        days = kept.groupBy("event_date").agg(*counts).collect()
        total = sum(day.rows for day in days)
        if spans := [TimeRange(day.first, day.last + 1) for day in days if day.first is not None]:
            alerts = kept.where("kind <> 'score'").dropDuplicates(["alert_id"])
            insert(table, alerts, spans)
        if total:
            publish(kept, settings)  # to Kafka, the scores too
        context.counts[QUERY, batch] = BatchCounts(total)


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it. Raises ConfigError if silver is not there or the checkpoint does not fit.
    The topic must be there."""
    stream = settings.stream
    silver = lake_tables.existing(spark, stream, "silver", job="silver")
    fixed = {"detector": STATE_VERSION, "stream.shuffle_partitions": stream.shuffle_partitions}
    checkpoint = prepare_checkpoint(spark, stream, QUERY, fixed)
    table = DeltaTable(spark, stream, "anomalies")
    table.create(ANOMALIES, delta_autoOptimize_autoCompact="true")
    readings = silver.read_stream(maxFilesPerTrigger=_FILES_PER_BATCH)
    skipped = stream.anomalies.skip
    signals = tuple(it for it in signals_of(readings.schema, NumericType) if it not in skipped)
    detect = Detect(limits_of(stream.anomalies), signals, stream.anomalies.score_from)
    rows = measured(readings, signals).withWatermark("ingested_at", _CLOCK_SLACK)
    # Without the watermark's column Spark drops no row as late. A first start beside a table takes its files in the
    # order they were written in, and maintain has written those of older days anew.
    found = rows.drop("ingested_at").groupBy("device").transformWithState(detect, ANOMALIES, "Append", "EventTime")
    return checkpoint.start(found, stream, partial(_write, table=table, settings=settings, context=context))
