"""The job ``bronze``: every record of Kafka as it came, with all its metadata, append-only, by UTC day and topic.

    gateway stream bronze

Exactly once in effect: a batch that the table has is not written again, and the day a record lies under is that of its
own timestamp, whenever it is written.

What Kafka lost before it was read ends the job with the offsets, to the record; ``--allow-data-loss`` goes on and keeps
them in the table ``bronze_gaps``. Spark itself is told to step over losses, for it can only end without saying how
much; each batch's rows are counted against the offsets it was planned with instead.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.streaming.query import StreamingQuery

from config.errors import ConfigError
from config.numbers import some
from config.settings import Settings
from streaming.errors import DataLossError
from streaming.job import JobContext
from streaming.kafka.admin import KafkaAdmin
from streaming.kafka.offsets import Gap, Planned, lost_before, planned_ranges, unreadable
from streaming.kafka.options import topics
from streaming.kafka.source import read_records
from streaming.kafka.topic_ids import TopicIds, present_ids
from streaming.lake.columns import HEADERS, columns
from streaming.lake.lake import DeltaTable
from streaming.lake.storage import Folder
from streaming.metrics import BatchCounts
from streaming.progress import GapEvent
from streaming.runtime.checkpoint import Checkpoint, prepare_checkpoint

QUERY: Final = "bronze"
BRONZE: Final = columns(
    "key binary, value binary, partition integer, offset long, timestamp timestamp, timestamp_type integer,"
    " headers headers, ingest_date date, topic string, batch long",
    headers=HEADERS,
)
"""Kafka's columns under Spark's names for them, so that what decodes a record from Kafka decodes one from here."""
BRONZE_PARTITIONS: Final = ("ingest_date", "topic")
GAPS: Final = columns(
    "topic string, partition integer, first_offset long, last_offset long, reason string, seen_at timestamp, batch long"
)


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it. Raises ConfigError if folders or checkpoint do not fit."""
    stream = settings.stream
    bronze = DeltaTable(spark, stream, "bronze")
    if not bronze.exists() and any("=" in name for name in Folder(spark, bronze.url).names()):
        raise ConfigError(
            f"{bronze.url} holds Parquet files, as earlier versions wrote them; bronze is a Delta table now. Turn them"
            ' into one, or move the folder away and begin anew: docs/upgrade.md, "Spark\'s tables", has the steps.'
        )
    checkpoint = prepare_checkpoint(spark, stream, QUERY, topics=topics(settings), doubled="bronze")
    writer = _BatchWriter(spark, settings, context, checkpoint)
    _take_up(spark, settings, checkpoint)
    return checkpoint.start(read_records(spark, settings, allow_data_loss=True), stream, writer.write)


def _take_up(spark: SparkSession, settings: Settings, checkpoint: Folder) -> None:
    """Goes on with topics that left ``stream.topics`` and are back where they were left. Spark's offsets of a batch
    name the topics of that batch alone: it would read all that Kafka holds of them again. Puts those places into the
    offsets that the next batch begins with, and takes the rows that call what came then ``gone`` out of the gaps. A
    topic that is another one of its name now is read from its beginning. Raises a StreamError if Kafka does not tell
    which it is."""
    gaps = DeltaTable(spark, settings.stream, "bronze_gaps")
    commits = [int(name) for name in checkpoint.names("commits") if name.isdecimal()]
    plans = {
        f"offsets/{name}": (checkpoint.read_text(f"offsets/{name}") or "").splitlines()
        for name in checkpoint.names("offsets")
        if name.isdecimal() and commits and int(name) >= max(commits)  # with one that is not finished
    }
    unplanned = set(topics(settings)).difference(*(json.loads(lines[-1]) for lines in plans.values()))
    if not commits or not unplanned or not gaps.exists():
        return
    gone = gaps.read().where((F.col("reason") == "gone") & F.col("topic").isin([*unplanned]))
    left: dict[str, dict[str, int]] = {}
    for row in gone.groupBy("topic", "partition").agg(F.max("first_offset").alias("offset")).collect():
        left.setdefault(row.topic, {})[str(row.partition)] = row.offset
    if not left:
        return
    ids = present_ids(spark, settings, QUERY, left)
    if not (back := sorted(ids.keys() - TopicIds(spark, settings, QUERY).changed(ids))):
        return
    for name, lines in plans.items():
        places = json.loads(lines[-1]) | {topic: left[topic] for topic in back}
        checkpoint.write_text(name, "\n".join([*lines[:-1], json.dumps(places)]))
    named = ", ".join(f"'{topic}'" for topic in back)
    gaps.delete(f"reason = 'gone' AND topic IN ({named})")


def raw_rows(records: DataFrame, batch: int) -> DataFrame:
    """Kafka's records as rows of the table. ``ingest_date`` is the UTC day of the record's timestamp, when the gateway
    received it: a batch that is repeated after midnight finds its rows where they were."""
    ours = {"ingest_date": F.to_date("timestamp"), "batch": F.lit(batch).cast("long")}
    return records.withColumnRenamed("timestampType", "timestamp_type").withColumns(ours).select(*BRONZE.names)


class _BatchWriter:
    """Writes batches and accounts for their offsets. Called by the query's thread alone."""

    def __init__(self, spark: SparkSession, settings: Settings, context: JobContext, checkpoint: Checkpoint) -> None:
        stream = settings.stream
        self._spark, self._context, self._checkpoint = spark, context, checkpoint
        self._table, self._gaps = DeltaTable(spark, stream, "bronze"), DeltaTable(spark, stream, "bronze_gaps")
        self._kafka = KafkaAdmin(spark, settings.kafka)
        self._known = TopicIds(spark, settings, QUERY)
        self._first = True  # the next batch is the first since the start

    def write(self, records: DataFrame, batch: int) -> None:
        """Writes one batch. Raises DataLossError, with the batch not committed, for losses that are not allowed."""
        planned = planned_ranges(self._checkpoint, batch)
        places = [(one.topic, one.partition) for one in planned if one.end is not None]
        earliest = self._kafka.earliest(places)
        planned = [it._replace(start=earliest[it.topic, it.partition]) if it.start < 0 else it for it in planned]
        ids = self._kafka.topic_ids({topic for topic, _ in places})
        gaps = lost_before(planned, earliest, self._known.changed(ids, batch))
        expected = sum(one.size for one in planned)
        first, self._first = self._first, False  # a batch is only ever repeated after a start
        if first:
            self._table.create(BRONZE, BRONZE_PARTITIONS)
        is_written = first and 0 < expected == self._table.rows_added(QUERY, batch)  # whole, and not committed
        if is_written:  # what Kafka deleted since was here, though forget or retention may have deleted it, too
            gaps = [gap for gap in gaps if gap.reason != "deleted"]
        self._must_go_on(gaps)
        written = expected if is_written else self._write(records, batch, counted=not first)
        if written != expected:
            gaps = self._lost_while_reading(planned, batch, gaps)
            self._must_go_on(gaps)
        self._tell(gaps, batch)
        self._known.keep(ids, batch)
        self._context.counts[QUERY, batch] = BatchCounts(written)

    def _write(self, records: DataFrame, batch: int, *, counted: bool) -> int:
        """Writes the rows and returns how many the table has of the batch. ``counted``: while they are written. Not
        so for a batch that the table may have already: then its rows are not computed."""
        rows = records.transform(raw_rows, batch)
        if not counted:
            self._table.append(rows, query=QUERY, batch=batch)
            return self._rows_of(batch).count()
        seen = Observation()
        self._table.append(rows.observe(seen, F.count(F.lit(1)).alias("rows")), query=QUERY, batch=batch)
        return int(seen.get["rows"])

    def _rows_of(self, batch: int) -> DataFrame:
        return self._table.read().where(F.col("batch") == batch)

    def _must_go_on(self, gaps: Sequence[Gap]) -> None:  # DataLossError if there are any, unless allowed
        if gaps and not self._context.allow_data_loss:
            raise DataLossError(
                f"Kafka no longer has records that were not read yet: {some(gaps, 20)}."
                " Was the job away for longer than the topic's retention, or was a topic deleted, made anew or taken"
                " out of stream.topics? Nothing was stepped over. To go on with what is there, start once with"
                " --allow-data-loss: the ranges are then kept in the table bronze_gaps."
            )

    def _tell(self, gaps: Sequence[Gap], batch: int) -> None:  # into bronze_gaps, events and metrics
        if not gaps:
            return
        rows = self._spark.createDataFrame([(*gap, datetime.now(UTC), batch) for gap in gaps], GAPS)
        self._gaps.create(GAPS)
        self._gaps.append(rows, query=QUERY, batch=batch)
        for gap in gaps:
            self._context.emit(GapEvent(QUERY, batch, *gap))
            # Of what is gone nobody knows how much it was; one tells the alert that there was some.
            self._context.metrics.of("data_loss_offsets_total", QUERY, gap.topic).inc(gap.size or 1)

    def _lost_while_reading(self, planned: Sequence[Planned], batch: int, before: Sequence[Gap]) -> list[Gap]:
        """All that is lost of the batch: what has no row, and no place in Kafka's log. ``before``: found earlier."""
        there = {(one.topic, one.partition): one for one in planned if one.end is not None}
        low, high = self._kafka.earliest(there), self._kafka.latest(there)
        lost = [gap for gap in before if gap.reason in {"gone", "recreated"}]  # the deleted ones are found again below
        for place, one in there.items():
            for gap in unreadable(one, low[place], high[place]):
                lost += _without_rows(gap, self._rows_of(batch))
        return lost


def _without_rows(gap: Gap, rows: DataFrame) -> list[Gap]:
    """The parts of a gap that no row has."""
    first, last = gap.first_offset, gap.last_offset
    assert last is not None, "what is gone has no rows to be missing"
    is_here = (F.col("topic") == gap.topic) & (F.col("partition") == gap.partition)
    found = rows.where(is_here & F.col("offset").between(first, last)).select("offset")
    offsets = found.union(rows.sparkSession.range(last + 1, last + 2).toDF("offset"))
    order = Window.orderBy("offset")  # one task, of one partition that lost something
    steps = offsets.withColumn("before", F.lag("offset", 1, first - 1).over(order)).where("offset > before + 1")
    return [
        gap._replace(first_offset=step.before + 1, last_offset=step.offset - 1)
        for step in steps.orderBy("offset").collect()
    ]
