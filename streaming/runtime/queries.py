"""Runs queries to their end: starts them, waits, and stops them in order.

Order of a stop: each query finishes the batch it is in (written and committed), then ends. A second signal, or the
deadline (``shutdown_timeout``), ends queries inside their batch; it is repeated at the next start and nothing is lost
or doubled by that.
"""

import queue
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from config.settings import Settings
from streaming import jvm
from streaming.errors import StreamError, UnfinishedBatchError
from streaming.job import Job, JobContext
from streaming.kafka.failures import explain
from streaming.kafka.group import GroupCommitter
from streaming.progress import BatchEvent, StartedEvent
from streaming.runtime.listener import ProgressListener, Terminated


class SparkEnded(NamedTuple):
    """The JVM is gone, and nothing of the queries will be heard any more. ``status`` as of a child process."""

    status: int


Message = signal.Signals | Terminated | SparkEnded
Mailbox = queue.SimpleQueue[Message]
"""What is waited on while queries run: queries that ended, and signals, any of which means stop."""

_BETWEEN_LOOKS_S = 0.05


class _Passing(NamedTuple):
    """A failure that passes, by a part of its text, and how often in a row it is taken for that."""

    named: str
    most: int
    why: str


_PASSING = (
    _Passing("DELTA_SCHEMA_CHANGED", 1, "the table it reads has new columns"),
    # Spark waits 10 s for a Python process that it has started, and has no setting for it.
    _Passing("Python worker failed to connect back", 5, "Python took more than 10 s to start, so the machine is busy"),
)
_LAST_REPORTS_S = 10.0
_LEAST_LONGEST_S = 20.0
"""Batches that are kept shorter than this cost much more for each row."""
_LEAST_ROWS: Final = 100_000
"""What a batch costs beside its rows would else be most of what it costs."""
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
    prefix = settings.stream.group
    group = GroupCommitter(session, settings.kafka, prefix, context.metrics) if prefix else None
    running: dict[str, _Running] = {}

    def finished(batch: BatchEvent) -> None:  # called after each batch
        if group is not None:
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
            running[str(query.id)] = _Running(query, start, _pace(settings))
        context.emit(
            StartedEvent(
                queries=tuple(str(one.query.name) for one in running.values()),
                master=str(session.sparkContext.master),
                application=str(session.sparkContext.applicationId),
                startup_s=round(time.monotonic() - context.begun_s, 2),
                metrics=context.metrics.url,
            )
        )
        _wait(running, mailbox, settings)
    finally:
        with suppress(Exception):  # a JVM that is gone refuses both, and what ended us is more worth telling
            for one in running.values():
                one.query.stop()
            session.streams.removeListener(listener)
        if group is not None:
            group.close()


@dataclass(slots=True)
class Pace:
    """How many of Kafka's records a batch of a query reads: at most ``most``, and about as many as take ``longest_s``,
    but not less than 100,000."""

    most: int
    longest_s: float
    limit: int = 0

    def __post_init__(self) -> None:
        self.limit = self.limit or self.most

    def after(self, rows: int, seconds: float) -> bool:
        """Takes a batch into account; whether the limit is another now. A batch that was not nearly full says nothing:
        it was short of records, or the first of a cold process."""
        if 2 * rows < self.limit or seconds <= 0:
            return False
        wanted = int(rows * self.longest_s / seconds)
        before = self.limit
        self.limit = max(min(self.most, _LEAST_ROWS), min(wanted, self.most, _MOST_GROWTH * before))
        return self.limit != before


@dataclass(slots=True)
class _Running:
    """A query, and how it goes on if it ends though nothing is wrong with it: it begins anew where it was."""

    query: StreamingQuery
    start: Callable[[], StreamingQuery]
    pace: Pace
    last_batch: int | None = None
    times: int = 0
    batch_before: int | None = None
    """The last one when a stop began."""
    stopped_s: float = inf

    def begins_anew(self, failure: BaseException) -> bool:
        """Starts it anew after a failure that passes. False: another failure, or too many without a batch between."""
        text = str(failure)
        passing = next((known for known in _PASSING if known.named in text), None)
        if passing is None:
            return False
        last_batch = _last_batch(self.query)
        if last_batch not in (None, self.last_batch):
            self.times, self.last_batch = 0, last_batch
        if self.times >= passing.most:
            return False
        self.times += 1
        note = f"note: {self.query.name} begins anew where it was: {passing.why}."
        print(note, file=sys.stderr, flush=True)  # noqa: T201 (what people read)
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


def _pace(settings: Settings) -> Pace:
    """A stop waits for a batch for ``shutdown_timeout``, less what ending takes; so long may a batch be."""
    longest_s = max(_LEAST_LONGEST_S, settings.shutdown_timeout.total_seconds() * (1 - _ENDING_SHARE))
    return Pace(settings.stream.max_offsets_per_trigger, longest_s)


def _wait(running: dict[str, _Running], mailbox: Mailbox, settings: Settings) -> None:
    """Takes out of ``running`` what ends, until nothing is left or there is something to raise.

    From the first signal on, each query is ended as soon as the batch it is in is committed, or at once when told again
    or when the time is over. Spark has no "stop after this batch", and nothing to wait on for it: hence the looking.
    Raises UnfinishedBatchError if a batch was not awaited.
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
            case Terminated():
                _take_out(running, message, settings, may_begin_anew=deadline_s == inf)
            case SparkEnded():
                raise StreamError(
                    f"Spark's JVM ended by itself with status {message.status}; what it said last is on standard error."
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


def _take_out(running: dict[str, _Running], message: Terminated, settings: Settings, *, may_begin_anew: bool) -> None:
    """Takes out a query that has ended. Raises what it failed with, unless it begins anew."""
    one = running.pop(message.query_id, None)
    if one is None or (failure := one.query.exception()) is None:
        return
    if not may_begin_anew or not one.begins_anew(failure):
        raise explain(str(one.query.name), failure, settings)
    running[message.query_id] = one


def _last_batch(query: StreamingQuery) -> int | None:
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])
