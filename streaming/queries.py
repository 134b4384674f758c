"""Runs queries to their end: starts them, waits, and stops them in order.

Order of a stop: each query finishes the batch it is in (written and committed), then ends. A second signal, or the
deadline (``shutdown_timeout``), ends queries inside their batch; it is repeated at the next start and nothing is lost
or doubled by that.
"""

from __future__ import annotations

__all__ = ["Mailbox", "run_queries"]

import queue
import signal
import time
from typing import TYPE_CHECKING

from streaming.errors import UnfinishedBatchError
from streaming.failures import explain
from streaming.listener import ProgressListener, Terminated
from streaming.progress import StartedEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from config.settings import Settings
    from streaming.job import Job, JobContext

Mailbox = queue.SimpleQueue[signal.Signals | Terminated]
"""What is waited on while queries run: queries that ended, and signals, any of which means stop."""

_BETWEEN_LOOKS_S = 0.05
_LAST_REPORTS_S = 10.0
_ENDING_SHARE = 0.2
"""Of ``shutdown_timeout``, what is kept for ending queries, Spark and the JVM after the last batch; 5 s at the most."""


def run_queries(
    session: SparkSession, settings: Settings, jobs: Sequence[Job], context: JobContext, mailbox: Mailbox
) -> None:
    """Starts the queries and returns when all have ended, by themselves or because a signal was put into ``mailbox``.

    Blocks. Raises ConfigError if one cannot start, a StreamError if one fails (the others are then ended too), and
    UnfinishedBatchError if the stop did not wait for a batch.
    """
    listener = ProgressListener(context, mailbox.put)
    session.streams.addListener(listener)
    try:
        _run(session, settings, jobs, context, mailbox)
    finally:
        session.streams.removeListener(listener)


def _run(session: SparkSession, settings: Settings, jobs: Sequence[Job], context: JobContext, mailbox: Mailbox) -> None:
    running: dict[str, StreamingQuery] = {}
    try:
        for job in jobs:
            query = job(session, settings, context)
            running[str(query.id)] = query
    except BaseException:
        _end_now(running.values())
        raise
    context.emit(
        StartedEvent(
            queries=tuple(str(query.name) for query in running.values()),
            master=str(session.sparkContext.master),
            application=str(session.sparkContext.applicationId),
            startup_s=round(time.monotonic() - context.begun_s, 2),
        )
    )
    while running:
        message = mailbox.get()
        if isinstance(message, Terminated):
            ended = running.pop(message.query_id)
            if failure := ended.exception():
                _end_now(running.values())
                raise explain(str(ended.name), failure, settings)
        else:
            timeout_s = settings.shutdown_timeout.total_seconds()
            deadline_s = time.monotonic() + timeout_s - min(5.0, timeout_s * _ENDING_SHARE)
            _stop(running, mailbox, deadline_s)


def _end_now(queries: Iterable[StreamingQuery]) -> None:
    for query in queries:
        query.stop()


def _stop(running: dict[str, StreamingQuery], mailbox: Mailbox, deadline_s: float) -> None:
    """Ends each query as soon as the batch it is in is committed, or at once when told again or when the time is over.

    Spark has no "stop after this batch", and nothing to wait on for it: hence the looking, while a stop is under way.
    Empties ``running``. Raises UnfinishedBatchError if a batch was not awaited.
    """
    batches = {name: _last_batch(query) for name, query in running.items()}
    cut_off: list[str] = []
    stopped: set[str] = set()
    forced = False
    while running:
        for name, query in running.items():
            if name in stopped:
                continue
            finished = not query.status["isTriggerActive"] or _last_batch(query) != batches[name]
            forced = forced or time.monotonic() >= deadline_s
            if finished or forced:
                if not finished:
                    cut_off.append(str(query.name))
                query.stop()
                stopped.add(name)
                deadline_s = max(deadline_s, time.monotonic() + _LAST_REPORTS_S)
        try:
            message = mailbox.get(timeout=_BETWEEN_LOOKS_S)
        except queue.Empty:
            if len(stopped) == len(running) and time.monotonic() >= deadline_s:
                break  # all have ended, only Spark's last report of it does not come
            continue
        if isinstance(message, Terminated):
            running.pop(message.query_id)
            stopped.discard(message.query_id)
        else:
            forced = True
    running.clear()
    if cut_off:
        raise UnfinishedBatchError(
            f"The stop did not wait until the last batch of {' and '.join(cut_off)} was written: a second signal came,"
            " or shutdown_timeout was over. Nothing is lost: it is read and written again at the next start."
        )


def _last_batch(query: StreamingQuery) -> int | None:
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])
