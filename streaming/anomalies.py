"""The job ``anomalies``: silver's readings against those before, and devices' silences; to Kafka and a table.

    silver (Delta) ─▶ measured ─▶ by device: transformWithState ─┬─▶ Kafka topic: alerts, and scores of note
                                                                 └─▶ table anomalies: alerts

The state is RocksDB's, one value of bytes per device (``streaming.detector_state``); what an anomaly is, is decided in
``streaming.detectors``, reading by reading in order of event time, so the result does not depend on how readings were
cut into batches.

- Table ``anomalies``: exactly once in effect. The same batch from the same state makes the same alerts with the same
  ``alert_id``, and the MERGE inserts only those that are not there.
- Kafka: **at least once**. Spark's Kafka sink has no transactions, so a batch that is repeated after a crash is sent
  again; ``alert_id`` (also the header ``gateway.message_id``) is the same, and consumers drop copies by it.

Silence is counted on silver's clock, ``ingested_at``, by event-time timers: its watermark stands still when nothing
comes from anybody, and rows are never behind it, however late devices, gateways or spools deliver.
"""

from __future__ import annotations

__all__ = [
    "ANOMALIES",
    "Detect",
    "detected",
    "kafka_records",
    "limits_of",
    "main",
    "measured",
    "publish",
    "start",
    "unseen",
    "without_forgotten",
]

import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import (
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bridge.wire import GATEWAY_DEVICE, GATEWAY_ID, GATEWAY_MESSAGE_ID, GATEWAY_MESSAGE_ID_KIND, MessageIdKind
from config.errors import ConfigError
from streaming import driver
from streaming.checkpoint import prepare_checkpoint
from streaming.delta_upkeep import retried
from streaming.detector_state import STATE_VERSION, DeviceDetector
from streaming.detectors import Limits, severity
from streaming.forgotten import Forgotten
from streaming.kafka import source_options
from streaming.kafka_topic import ensure_topic
from streaming.lake import DeltaTable
from streaming.silver_schema import FIXED
from streaming.source import trigger
from streaming.tally import BatchCounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues

    from config.settings import Settings
    from config.stream_jobs import AnomalySettings
    from streaming.detectors import Silence, Verdict
    from streaming.job import JobContext

QUERY: Final = "anomalies"
_CLOCK_SLACK: Final = "10 seconds"
"""How far silver's own clock may go back, after an NTP step or on another driver."""
_FILES_PER_BATCH: Final = "64"
"""Of silver's files, a batch takes at most so many: a first start beside a large table must not take it at once."""

ANOMALIES: Final = StructType(
    [
        StructField("alert_id", StringType(), nullable=False),
        StructField("device", StringType(), nullable=False),
        StructField("type", StringType()),
        StructField("signal", StringType()),
        StructField("kind", StringType(), nullable=False),
        StructField("severity", StringType(), nullable=False),
        StructField("event_time", TimestampType()),
        StructField("value", DoubleType()),
        StructField("score", DoubleType()),
        StructField("median", DoubleType()),
        StructField("mad", DoubleType()),
        StructField("run", IntegerType()),
        StructField("received_at", TimestampType()),
        StructField("ingested_at", TimestampType()),
        StructField("event_date", DateType()),
    ]
)
"""Columns of the table, and, but for the last three, fields of the JSON. For a silence ``signal`` and ``mad`` are null,
``value`` is its length and ``median`` the usual interval, in seconds, ``event_time`` the last reading's."""

_ROW = Row(*ANOMALIES.names)
_NUMBERS = (DoubleType, FloatType, LongType, IntegerType)


def limits_of(settings: AnomalySettings) -> Limits:
    """The settings as the detectors take them."""
    return Limits(
        threshold=settings.threshold,
        window=settings.window,
        window_us=_microseconds(settings.window_time),
        warm_up=settings.warm_up,
        stuck_after=settings.stuck_after,
        scale_share=settings.scale_share,
        min_scale=dict(settings.min_scale),
        silence_factor=settings.silence_factor,
        min_silence_us=_microseconds(settings.min_silence),
    )


def measured(silver: DataFrame, *, skip: tuple[str, ...] = ()) -> DataFrame:
    """What the detectors read of silver: device, type, three moments in microseconds, ``ingested_at`` and the signals
    that are numbers, but those to ``skip``, as doubles in one array, in the order of :func:`_signals`."""
    signals = _signals(silver.schema, skip)
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


def _signals(schema: StructType, skip: tuple[str, ...]) -> tuple[str, ...]:
    fixed = set(FIXED.names) | set(skip)
    return tuple(f.name for f in schema if f.name not in fixed and isinstance(f.dataType, _NUMBERS))


class Detect(StatefulProcessor):
    """The detectors of one device after the other, each with the state that Spark kept of it.

    ``score_from``: scores below are not put out, unless they are alerts.
    """

    def __init__(self, limits: Limits, signals: tuple[str, ...], score_from: float) -> None:
        self._limits = limits
        self._names = signals
        self._score_from = score_from

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("detector", "type string, packed binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803, ARG002 (Spark's names)
        kept = self._state.get()
        device = DeviceDetector(self._limits) if kept is None else DeviceDetector.unpack(bytes(kept[1]), self._limits)
        # The order of rows within a batch is anyone's. A device's own is by its clock.
        ordered = sorted(rows, key=_order)
        for row in ordered:
            for name, value in zip(self._names, row.measurements, strict=True):
                if value is None or not isfinite(value):
                    continue
                verdict = device.window(name).judge(row.event_us, value)
                if verdict is not None and (verdict.kind != "score" or verdict.score >= self._score_from):
                    yield _reading_row(key[0], row, name, value, verdict, self._limits)
        for row in sorted(ordered, key=_arrival):
            device.habit.heard(row.received_us, row.event_us, row.ingested_us)
        self._keep(device, ordered[-1].type)

    def handleExpiredTimer(  # noqa: N802 (Spark's name)
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803 (Spark's name)
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803, ARG002 (Spark's name)
    ) -> Iterator[Row]:
        kept = self._state.get()
        if kept is None:
            return
        device = DeviceDetector.unpack(bytes(kept[1]), self._limits)
        silence = device.habit.look(1000 * timerValues.getCurrentWatermarkInMs())
        if silence is not None:
            yield _silence_row(key[0], kept[0], device, silence)
        self._keep(device, kept[0])

    def _keep(self, device: DeviceDetector, kind: str | None) -> None:
        look_at_us = device.habit.plan()
        if look_at_us is not None:
            self._handle.registerTimer(-(-look_at_us // 1000))
        self._state.update((kind, device.pack()))

    def close(self) -> None:
        pass


def _order(row: Any) -> tuple[int, str]:
    return row.event_us, row.record_id


def _arrival(row: Any) -> tuple[int, int]:
    return row.ingested_us, row.received_us


def _alert_id(device: str, signal: str, kind: str, event_us: int, value: float) -> str:
    text = f"{device}\0{signal}\0{kind}\0{event_us}\0{value!r}"
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _reading_row(device: str, row: Any, signal: str, value: float, verdict: Verdict, limits: Limits) -> Row:
    kind, event_us = verdict.kind, row.event_us
    score = min(verdict.score, sys.float_info.max)  # JSON knows no infinity
    moment = _moment(event_us)
    return _ROW(
        _alert_id(device, signal, kind, event_us, value),
        device,
        row.type,
        signal,
        kind,
        severity(kind, score, limits),
        moment,
        value,
        score,
        verdict.median,
        verdict.mad,
        verdict.run,
        _moment(row.received_us),
        _moment(row.ingested_us),
        moment.date(),
    )


def _silence_row(device: str, kind_of_device: str | None, detector: DeviceDetector, silence: Silence) -> Row:
    habit = detector.habit
    moment = _moment(habit.last_event_us)
    return _ROW(
        _alert_id(device, "", "silence", habit.last_received_us, 0.0),
        device,
        kind_of_device,
        None,
        "silence",
        "warning",
        moment,
        silence.silent_us / 1e6,
        silence.silent_us / silence.usual_us,
        silence.usual_us / 1e6,
        None,
        0,
        _moment(habit.last_received_us),
        _moment(habit.counted_to_us),
        moment.date(),
    )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def detected(rows: DataFrame, limits: Limits, signals: tuple[str, ...], score_from: float) -> DataFrame:
    """Alerts and scores of :func:`measured` rows, columns :data:`ANOMALIES`. A streaming DataFrame; keeps state."""
    return (
        rows.withWatermark("ingested_at", _CLOCK_SLACK)
        .groupBy("device")
        .transformWithState(Detect(limits, signals, score_from), ANOMALIES, "Append", "EventTime")
    )


def kafka_records(rows: DataFrame, gateway: str) -> DataFrame:
    """Alerts and scores as records: key is the device, value JSON without nulls, headers as the gateway's own records
    have them; ``alert_id`` is the message id, of kind ``device``: the same again means the same alert again."""
    kept_back = {"received_at", "ingested_at", "event_date"}
    fields = [F.col(name) for name in ANOMALIES.names if name not in kept_back]

    def header(name: str, value: Any) -> Any:
        return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))

    return rows.select(
        F.col("device").cast("binary").alias("key"),
        F.to_json(F.struct(*fields), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"})
        .cast("binary")
        .alias("value"),
        F.array(
            header(GATEWAY_ID, F.lit(gateway)),
            header(GATEWAY_DEVICE, F.col("device")),
            header(GATEWAY_MESSAGE_ID, F.col("alert_id")),
            header(GATEWAY_MESSAGE_ID_KIND, F.lit(MessageIdKind.DEVICE.value)),
        ).alias("headers"),
    )


def unseen(rows: DataFrame) -> DataFrame:
    """The alerts among the rows, each once."""
    return rows.where(F.col("kind") != "score").dropDuplicates(["alert_id"])


def without_forgotten(marked: DataFrame) -> DataFrame:
    """The rows without those that the state makes of what came before their device was forgotten, such as its silence.
    ``marked``: with ``forgotten_ms``."""
    after = F.unix_millis("received_at") > F.col("forgotten_ms")
    return marked.where(F.col("forgotten_ms").isNull() | after).drop("forgotten_ms")


def publish(rows: DataFrame, settings: Settings) -> None:
    """Sends the rows to the topic, each at least once. Blocks until Kafka has them."""
    options = {name: value for name, value in source_options(settings.kafka).items() if name.startswith("kafka.")}
    topic = settings.stream.anomalies.topic
    kafka_records(rows, settings.instance).write.format("kafka").options(topic=topic, **options).save()


def _write(rows: DataFrame, batch: int, *, table: DeltaTable, settings: Settings, context: JobContext) -> None:
    kept = computed = rows.persist()  # or the state would be computed once for each place it goes to
    try:
        spark = kept.sparkSession
        if (marked := Forgotten(spark, settings.stream).marked(kept)) is not None:
            kept = without_forgotten(marked)
        alerts = unseen(kept)
        counted = kept.agg(F.count(F.lit(1)), F.count(F.when(F.col("kind") != "score", 1))).first()
        assert counted is not None
        if counted[1]:
            alerts.createOrReplaceTempView("new_anomalies")
            statement = (
                f"MERGE INTO {table.sql_name} AS old USING new_anomalies AS new ON old.alert_id = new.alert_id"
                " WHEN NOT MATCHED THEN INSERT *"
            )
            retried(lambda: spark.sql(statement))  # compaction or forget may have rewritten what it read
        if counted[0]:
            publish(kept, settings)
        context.tally.put(QUERY, batch, BatchCounts(counted[0], 0))
    finally:
        computed.unpersist()


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it. Raises ConfigError if silver is not there or the checkpoint does not fit,
    KafkaUnavailableError if the topic is not there and may not be made."""
    stream = settings.stream
    silver = DeltaTable(spark, stream, "silver")
    if not silver.exists():
        raise ConfigError(
            f"There is no table silver at {silver.url} to read: start gateway stream silver first, or is"
            " stream.lake.path another folder?"
        )
    ensure_topic(spark, settings, stream.anomalies.topic, "stream.anomalies.topic")
    table = DeltaTable(spark, stream, "anomalies")
    table.create(ANOMALIES)
    checkpoint = prepare_checkpoint(
        spark, stream, QUERY, {"detector": STATE_VERSION, "stream.shuffle_partitions": stream.shuffle_partitions}
    )
    # withEventTimeOrder: a first start beside a table reads its files in order of the watermark's column.
    readings = silver.read_stream(maxFilesPerTrigger=_FILES_PER_BATCH, withEventTimeOrder="true")
    signals = _signals(readings.schema, stream.anomalies.skip)
    rows = readings.transform(measured, skip=stream.anomalies.skip)
    return (
        detected(rows, limits_of(stream.anomalies), signals, stream.anomalies.score_from)
        .writeStream.queryName(QUERY)
        .outputMode("append")
        .option("checkpointLocation", checkpoint.url)
        .trigger(**trigger(stream))
        .foreachBatch(partial(_write, table=table, settings=settings, context=context))
        .start()
    )


def _microseconds(length: timedelta) -> int:
    return length // timedelta(microseconds=1)


def main(argv: list[str] | None = None) -> int:
    """Runs the query until it ends or a signal comes. Returns the exit status (``config.errors.ExitStatus``)."""
    return driver.main("anomalies", (start,), argv)


if __name__ == "__main__":
    sys.exit(main())
