"""The job ``audit``: what is in Kafka against what the gateways' ledger says was acknowledged.

    gateway stream audit

It keeps which offsets it has read (``audit_seen``) and the ledger's entries (``audit_ledger``), and judges all minutes
of the last ``stream.audit.keep`` that have settled, again each time: an entry that comes hours later, because Kafka did
not take it before, revises what was said. Exactly once in effect: Delta ignores a batch of the two that it has already,
and a judgement replaces the one before.

Records that Kafka deleted before they were read end no audit: they are ``expired``.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.streaming.query import StreamingQuery

from config.errors import ConfigError
from config.settings import Settings
from streaming.audit import transforms as audit_transforms
from streaming.audit.transforms import AUDIT, AUDIT_PARTITIONS, ENTRIES, EXTENTS, SEEN
from streaming.job import JobContext
from streaming.kafka.admin import KafkaAdmin, Place
from streaming.kafka.offsets import planned_ranges
from streaming.kafka.options import topics
from streaming.kafka.source import read_records
from streaming.kafka.topic_ids import TopicIds
from streaming.lake.lake import DeltaTable, held
from streaming.lake.ranges import EPOCH, millis, text
from streaming.lake.storage import Folder
from streaming.metrics import BatchCounts
from streaming.progress import ImbalanceEvent
from streaming.runtime.checkpoint import Checkpoint, prepare_checkpoint

QUERY: Final = "audit"
_JUDGE_EVERY_S: Final = 30.0  # minutes settle once a minute; judging every batch would say the same again
_SLACK: Final = timedelta(hours=1)
"""For so long more is kept than is judged: gateways' clocks can be ahead of this one, or be put back, and Kafka can
acknowledge a record late that was read long before."""
_KEPT_FROM: Final = "_kept_from"  # in the folder of ``audit_seen``: since when nothing is deleted of what is judged by
_MOST_LINES: Final = 100  # imbalances that are printed of one judgement; the table has all
_KEY: Final = ("minute_date", "minute", "gateway", "route", "topic", "partition")
_TOLD: Final = tuple(it.name for it in fields(ImbalanceEvent))[2:]  # all but query and batch
_COUNTS: Final = ("acknowledged", "present", "missing", "unaccounted", "expired", "open", "state")


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it. Raises ConfigError if there is no ledger, or the checkpoint does not fit."""
    if not settings.ledger.topic:
        raise ConfigError(
            'ledger.topic is "", so the gateway keeps no account that Kafka could be compared with: name a topic.'
        )
    stream = settings.stream
    names = tuple(dict.fromkeys((*topics(settings), *settings.dead_letter_topics, settings.ledger.topic)))
    checkpoint = prepare_checkpoint(spark, stream, QUERY, {"ledger.topic": settings.ledger.topic}, topics=names)
    auditor = _Auditor(spark, settings, context, checkpoint)
    return checkpoint.start(read_records(spark, settings, names, allow_data_loss=True), stream, auditor.write)


class _Auditor:
    """Takes batches in and judges. Called by the query's thread alone."""

    def __init__(self, spark: SparkSession, settings: Settings, context: JobContext, checkpoint: Checkpoint) -> None:
        self._settings, self._context, self._checkpoint = settings, context, checkpoint
        self._kafka, self._known = KafkaAdmin(spark, settings.kafka), TopicIds(spark, settings, QUERY)
        names = ("audit_seen", "audit_ledger", "audit")
        self._seen, self._entries, self._audit = (DeltaTable(spark, settings.stream, name) for name in names)
        self._seen.create(SEEN)
        self._entries.create(ENTRIES)
        self._audit.create(AUDIT, AUDIT_PARTITIONS)
        if not checkpoint.exists("metadata"):
            # What they hold is the state of a checkpoint that is gone; all of it is read again.
            for table in (self._seen, self._entries):
                table.delete("true")
        self._beside = Folder(spark, self._seen.url)
        kept_from = self._beside.read_text(_KEPT_FROM)
        self._kept_from = EPOCH if kept_from is None else datetime.fromisoformat(kept_from)
        self._judged_s = -inf  # on the monotonic clock; -inf: not yet
        self._purged_s = time.monotonic()

    def write(self, records: DataFrame, batch: int) -> None:  # called for each batch
        # Each judgement opens all files of a day, of which every batch adds some.
        records.sparkSession.conf.set("spark.databricks.delta.autoCompact.enabled", "true")  # the query's own session
        ledger = self._settings.ledger.topic
        now, writer = datetime.now(UTC), f"{QUERY}-{self._checkpoint.id}"
        read_to = self._read_to(batch)
        self._note_ids({topic for topic, _ in read_to})
        with held(audit_transforms.slim(records, ledger)) as slim:
            for table, rows in (
                (self._seen, audit_transforms.seen(slim, ledger)),
                (self._entries, audit_transforms.entries(slim, ledger)),
            ):
                table.append(rows.withColumn("read_at", F.lit(now)), query=writer, batch=batch)
            count = slim.count()
        if self._settings.stream.available_now or time.monotonic() - self._judged_s >= _JUDGE_EVERY_S:
            self._judge(records.sparkSession, batch, now, read_to)
            self._judged_s = time.monotonic()
        self._context.counts[QUERY, batch] = BatchCounts(count)

    def _read_to(self, batch: int) -> dict[Place, int]:
        """The partitions that the batch was planned to read, but for the ledger's, and the offsets before which."""
        return {
            (one.topic, one.partition): one.end
            for one in planned_ranges(self._checkpoint, batch)
            if one.end is not None and one.topic != self._settings.ledger.topic
        }

    def _note_ids(self, topics: Collection[str]) -> None:
        """Notes the topics' ids, and of one made anew when the one before was read last. Before the batch is written:
        what is read later is of the new one."""
        ids = self._kafka.topic_ids(topics)
        if changed := self._known.changed(ids):
            rows = self._seen.read().where(F.col("topic").isin([*changed]))
            for topic, last in rows.groupBy("topic").agg(F.unix_millis(F.max("read_at"))).collect():
                self._known.keep({topic: ids[topic]}, last)
        self._known.keep(ids, 0)

    def _judge(self, spark: SparkSession, batch: int, now: datetime, read_to: Mapping[Place, int]) -> None:
        settings = self._settings.stream.audit
        # What is judged: minutes in between, but none from before a keep that was shorter.
        oldest, youngest = max(now - settings.keep, self._kept_from + _SLACK), now - settings.settle
        kept_from = oldest - _SLACK
        extents = self._extents(read_to)
        rows = audit_transforms.judged(
            self._seen.read().where(F.col("read_at") >= F.lit(kept_from)),
            self._entries.read().where(F.col("to_ms") >= millis(kept_from)),
            spark.createDataFrame(extents, EXTENTS),
        )
        settled = F.col("minute").between(F.lit(oldest), F.lit(youngest - timedelta(minutes=1)))
        with held(rows.where(settled).withColumn("judged_at", F.lit(now))) as kept:
            self._tell(kept, batch)
            self._replace(kept, oldest, sorted({topic for topic, *_ in extents}))
        if time.monotonic() - self._purged_s >= settings.keep.total_seconds() / 24:
            # No judgement looks at these any more, whatever keep is by then.
            self._beside.write_text(_KEPT_FROM, kept_from.isoformat())
            self._kept_from = kept_from
            self._seen.delete(f"read_at < TIMESTAMP'{kept_from:%Y-%m-%d %H:%M:%S}'")
            self._entries.delete(f"to_ms < {millis(kept_from)}")
            self._purged_s = time.monotonic()

    def _extents(self, read_to: Mapping[Place, int]) -> list[tuple[str, int, int, int, int, int]]:
        """Rows of :data:`EXTENTS`."""
        earliest, latest = self._kafka.earliest(read_to), self._kafka.latest(read_to)
        return [
            (*place, earliest[place], end, latest[place], self._known.since(place[0]))
            for place, end in sorted(read_to.items())
        ]

    def _replace(self, rows: DataFrame, oldest: datetime, topics: Sequence[str]) -> None:
        """Puts the judgement of these topics in the place of the one before. What is as it was keeps its
        ``judged_at``; so does what was said of a topic that is not there, or not read, any more."""
        same = " AND ".join(f"t.{name} <=> s.{name}" for name in _KEY)
        differs = " OR ".join(f"t.{name} <> s.{name}" for name in _COUNTS)
        looked_at = f"t.minute_date >= DATE'{oldest:%Y-%m-%d}' AND t.minute >= TIMESTAMP'{oldest:%Y-%m-%d %H:%M:%S}'"
        judged = " OR ".join(f"t.topic = {text(it)}" for it in topics) or "false"
        clauses = (
            f"WHEN MATCHED AND ({differs}) THEN UPDATE SET *",
            "WHEN NOT MATCHED THEN INSERT *",
            # What was unaccounted for, and has turned out to be another route's.
            f"WHEN NOT MATCHED BY SOURCE AND {looked_at} AND ({judged}) THEN DELETE",
        )
        self._audit.merge(rows, f"{looked_at} AND {same}", *clauses)

    def _tell(self, rows: DataFrame, batch: int) -> None:
        """Reports rows that are out of balance and not so in the table yet, and sets the metrics to the totals."""
        wrong = rows.where("state IN ('missing', 'unaccounted')")
        said = self._audit.read().select(*_KEY, "missing", "unaccounted")
        same = [F.col(f"s.{name}").eqNullSafe(F.col(f"t.{name}")) for name in said.columns]
        news = wrong.alias("s").join(said.alias("t"), same, "left_anti")
        newest = news.withColumn("minute_ms", F.unix_millis("minute")).orderBy(F.desc("minute")).limit(_MOST_LINES)
        for row in newest.select(*_TOLD).collect():
            self._context.emit(ImbalanceEvent(QUERY, batch, *row))
        ((missing, unaccounted),) = wrong.agg(F.sum("missing"), F.sum("unaccounted")).collect()
        self._context.metrics.of("audit_missing_records", QUERY).set(missing or 0)
        self._context.metrics.of("audit_unaccounted_records", QUERY).set(unaccounted or 0)
