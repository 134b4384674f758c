"""Runs queries to their end: starts them, tells of their batches, waits, and stops them in order.

Order of a stop: each query finishes the batch it is in (written and committed), then ends. A second signal, or the
deadline (``shutdown_timeout``), ends queries inside their batch; it is repeated at the next start and nothing is lost
or doubled by that.
"""

import queue
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import inf
from typing import Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming import listener as spark_events
from pyspark.sql.streaming.query import StreamingQuery

from config.settings import Settings
from streaming import jvm
from streaming.errors import StreamError, UnfinishedBatchError, tell
from streaming.job import Job, JobContext
from streaming.kafka.failures import explain
from streaming.kafka.group import GroupCommitter
from streaming.metrics import BatchCounts, kafka_offsets
from streaming.progress import BatchEvent, StartedEvent


class Terminated(NamedTuple):
    """A query has ended, and all its progress has been reported. ``query_id`` is Spark's id of it."""

    query_id: str


class SparkEnded(NamedTuple):
    """The JVM is gone, and nothing of the queries will be heard any more. ``status`` as of a child process."""

    status: int


Message = signal.Signals | Terminated | SparkEnded
Mailbox = queue.SimpleQueue[Message]
"""What is waited on while queries run: queries that ended, and signals, any of which means stop."""

_BETWEEN_LOOKS_S = 0.05
_LAST_REPORTS_S = 10.0
_PASSING = (
    ("DELTA_SCHEMA_CHANGED", 1, "the table it reads has new columns"),
    # Spark waits 10 s for a Python process that it has started, and has no setting for it.
    ("Python worker failed to connect back", 5, "Python took more than 10 s to start, so the machine is busy"),
)
"""Failures that pass: a part of the text, how often in a row it is taken for that, and what is said of it."""
_LEAST_LONGEST_S = 20.0  # batches that are kept shorter than this cost much more for each row
_LEAST_ROWS: Final = 100_000  # of fewer, most of a batch's cost would be beside its rows
_MOST_GROWTH: Final = 2
_ENDING_SHARE = 0.2
"""Of ``shutdown_timeout``, what is kept for ending queries, Spark and the JVM after the last batch; 5 s at the most."""


def run_queries(
    session: SparkSession, settings: Settings, jobs: Sequence[Job], context: JobContext, mailbox: Mailbox
) -> None:
    """Starts the queries and returns when all have ended, by themselves or because a signal was put into ``mailbox``.

    Blocks. Raises ConfigError if one cannot start, a StreamError if one fails (the others are then ended too), and
    UnfinishedBatchError if the stop did not wait for a batch.
    """
    group = GroupCommitter(session, settings.kafka, settings.stream.group, context.metrics)
    running: dict[str, _Running] = {}
    # A stop waits for a batch for shutdown_timeout, less what ending takes; so long may a batch be.
    longest_s = max(_LEAST_LONGEST_S, settings.shutdown_timeout.total_seconds() * (1 - _ENDING_SHARE))

    def finished(batch: BatchEvent) -> None:  # called after each batch
        group.offer(batch.query, batch.end_offsets)
        for one in [*running.values()]:
            if one.query.name == batch.query and one.pace.after(batch.rows, batch.duration_ms / 1000):
                jvm.limit_rows(session, one.query, one.pace.limit)

    listener = ProgressListener(context, mailbox.put, finished)
    session.streams.addListener(listener)
    try:
        for job in jobs:
            start = partial(job, session, settings, context)
            query = start()
            running[str(query.id)] = _Running(query, start, Pace(settings.stream.max_offsets_per_trigger, longest_s))
        names = tuple(str(one.query.name) for one in running.values())
        spark, startup_s = session.sparkContext, round(time.monotonic() - context.begun_s, 2)
        context.emit(StartedEvent(names, str(spark.master), str(spark.applicationId), startup_s, context.metrics.url))
        _wait(running, mailbox, settings)
    finally:
        with suppress(Exception):  # a JVM that is gone refuses both, and what ended us is more worth telling
            for one in running.values():
                one.query.stop()
            session.streams.removeListener(listener)
        group.close()


class Pace:
    """How many of Kafka's records a batch of a query reads: at most ``most``, and about as many as take ``longest_s``,
    but not less than 100,000."""

    def __init__(self, most: int, longest_s: float) -> None:
        self.most, self._longest_s, self.limit = most, longest_s, most

    def after(self, rows: int, seconds: float) -> bool:
        """Takes a batch into account; whether the limit is another now. A batch that was not nearly full says nothing:
        it was short of records, or the first of a cold process."""
        if 2 * rows < self.limit or seconds <= 0:
            return False
        wanted = int(rows * self._longest_s / seconds)
        before = self.limit
        self.limit = max(min(self.most, _LEAST_ROWS), min(wanted, self.most, _MOST_GROWTH * before))
        return self.limit != before


class ProgressListener(spark_events.StreamingQueryListener):
    """Emits a line for each completed batch, keeps the metrics, and tells ``on_terminated`` of each query that ended.
    ``on_batch`` is told of each batch too, after it is in the checkpoint. Spark calls this from one thread of its own,
    in order, a moment after the fact."""

    def __init__(
        self, context: JobContext, on_terminated: Callable[[Terminated], None], on_batch: Callable[[BatchEvent], None]
    ) -> None:
        self._context, self._on_terminated, self._on_batch = context, on_terminated, on_batch
        self._names: dict[str, str] = {}  # query by Spark's id of it: some events carry no name

    def onQueryStarted(self, event: spark_events.QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        self._names[str(event.id)] = query = event.name or str(event.id)
        self._context.metrics.start(query)

    def onQueryIdle(self, event: spark_events.QueryIdleEvent) -> None:  # noqa: N802 (Spark's name)
        if (query := self._names.get(str(event.id))) is not None:
            self._context.metrics.idle(query)

    def onQueryProgress(self, event: spark_events.QueryProgressEvent) -> None:  # noqa: N802 (Spark's name)
        batch = self._batch(event.progress)
        self._context.metrics.batch(batch, event.progress)
        self._context.emit(batch)
        self._on_batch(batch)

    def onQueryTerminated(self, event: spark_events.QueryTerminatedEvent) -> None:  # noqa: N802 (Spark's name)
        if (query := self._names.get(str(event.id))) is not None:
            self._context.metrics.of("up", query).set(0)
        self._on_terminated(Terminated(str(event.id)))

    def _batch(self, progress: spark_events.StreamingQueryProgress) -> BatchEvent:
        query = progress.name or str(progress.id)
        # Spark counts a record again each time a batch is read, so what the query counted itself goes first.
        counts = self._context.counts.pop((query, progress.batchId), BatchCounts(progress.numInputRows))
        duration_ms = progress.durationMs.get("triggerExecution", 0)
        watermark = progress.eventTime.get("watermark")
        return BatchEvent(
            query=query,
            batch=progress.batchId,
            rows=counts.rows,
            quarantined=counts.quarantined,
            late=counts.late + sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators),
            rows_per_s=round(counts.rows * 1000 / duration_ms, 1) if duration_ms else 0.0,
            duration_ms=duration_ms,
            end_offsets=kafka_offsets(*(source.endOffset for source in progress.sources)),
            watermark_ms=None if watermark is None else _milliseconds(watermark),
            at_ms=_milliseconds(progress.timestamp),
        )


def _milliseconds(moment: str) -> int:  # as Spark writes it: 2026-11-21T08:15:30.123Z
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


@dataclass(slots=True)
class _Running:
    """A query, and how it goes on if it ends though nothing is wrong with it: it begins anew where it was."""

    query: StreamingQuery
    start: Callable[[], StreamingQuery]
    pace: Pace
    last_batch: int | None = None
    times: int = 0
    batch_before: int | None = None  # the last one when a stop began
    stopped_s: float = inf

    def begins_anew(self, failure: BaseException) -> bool:
        """Starts it anew after a failure that passes. False: another failure, or too many without a batch between."""
        last_batch = _last_batch(self.query)
        if last_batch not in (None, self.last_batch):
            self.times, self.last_batch = 0, last_batch
        why = next((why for named, most, why in _PASSING if named in str(failure) and self.times < most), None)
        if why is None:
            return False
        self.times += 1
        tell(f"note: {self.query.name} begins anew where it was: {why}.")
        self.query, self.pace.limit = self.start(), self.pace.most
        return True

    def cut_off(self, *, forced: bool) -> bool:
        """Ends the query, once in a stop, if its batch is committed or ``forced``. Whether a batch was cut off."""
        if self.stopped_s < inf:
            return False
        finished = not self.query.status["isTriggerActive"] or _last_batch(self.query) != self.batch_before
        if finished or forced:
            with suppress(Exception):  # not within spark.sql.streaming.stopTimeout: the JVM's end will end it
                self.query.stop()
            self.stopped_s = time.monotonic()
        return forced and not finished


def _wait(running: dict[str, _Running], mailbox: Mailbox, settings: Settings) -> None:
    """Takes out of ``running`` what ends, until nothing is left or there is something to raise: UnfinishedBatchError if
    a batch was not awaited.

    From the first signal on, each query is ended as soon as the batch it is in is committed, or at once when told again
    or when the time is over. Spark has no "stop after this batch", and nothing to wait on for it: hence the looking.
    """
    deadline_s = inf
    cut_off: list[str] = []
    while running:
        if deadline_s < inf:
            forced = time.monotonic() >= deadline_s
            cut_off += [str(one.query.name) for one in running.values() if one.cut_off(forced=forced)]
            if time.monotonic() - max(one.stopped_s for one in running.values()) > _LAST_REPORTS_S:
                running.clear()  # all have ended, only Spark's last report of it does not come
                break
        try:
            message = mailbox.get(timeout=None if deadline_s == inf else _BETWEEN_LOOKS_S)
        except queue.Empty:
            continue
        match message:
            case Terminated(query_id):
                one = running.pop(query_id, None)
                failure = None if one is None else one.query.exception()
                if one is not None and failure is not None:
                    if deadline_s < inf or not one.begins_anew(failure):
                        raise explain(str(one.query.name), failure, settings)
                    running[query_id] = one
            case SparkEnded(status):
                raise StreamError(
                    f"Spark's JVM ended by itself with status {status}; what it said last is on standard error."
                    " -9 is a kill: was the machine short of memory? 52 is its own heap: give it more with --conf"
                    " spark.driver.memory=3g."
                )
            case signal.Signals() if deadline_s == inf:
                for one in running.values():
                    one.batch_before = _last_batch(one.query)
                timeout_s = settings.shutdown_timeout.total_seconds()
                deadline_s = time.monotonic() + timeout_s - min(5.0, timeout_s * _ENDING_SHARE)
            case signal.Signals():
                deadline_s = -inf
    if cut_off:
        raise UnfinishedBatchError(
            f"The stop did not wait until the last batch of {' and '.join(cut_off)} was written: a second signal came,"
            " or shutdown_timeout was over. Nothing is lost: it is read and written again at the next start."
        )


def _last_batch(query: StreamingQuery) -> int | None:
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])
