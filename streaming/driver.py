"""Runs a job's queries in this process: starts Spark, waits, stops in order, and says how it ended.

Order of a stop: each query finishes the batch it is in (written and committed), then ends; then Spark, then the JVM. A
second signal, or the deadline (``shutdown_timeout``), ends queries inside their batch; it is repeated at the next start
and nothing is lost or doubled by that.
"""

from __future__ import annotations

__all__ = ["main"]

import argparse
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from config.errors import ExitStatus, GatewayError
from streaming import kafka, options
from streaming.errors import StreamError, UnfinishedBatchError
from streaming.failures import explain
from streaming.job import JobContext
from streaming.listener import ProgressListener, Terminated
from streaming.progress import BatchEvent, FailedEvent, StartedEvent, StoppedEvent, format_line
from streaming.session import start_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from config.settings import Settings
    from streaming.job import Job
    from streaming.progress import Event

_PROCESS_START_S = time.monotonic()
_REACH_TIMEOUT_S = 5.0
_BETWEEN_LOOKS_S = 0.05
_LAST_REPORTS_S = 10.0
_ENDING_SHARE = 0.2
"""Of ``shutdown_timeout``, what is kept for ending queries, Spark and the JVM after the last batch; 5 s at the most."""

Mailbox = queue.SimpleQueue[signal.Signals | Terminated]
"""What the main thread waits on while the queries run."""


class _StopDuringStartup(BaseException):
    """A signal came before the queries ran, so there is nothing to finish."""


class _Printer:
    """Writes progress lines, a whole line at a time, from any thread; counts batches. Goes quiet if nobody reads any
    more: the data matters, not who watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self.batches: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, BatchEvent):
                self.batches[event.query] = self.batches.get(event.query, 0) + 1
            if self._open:
                try:
                    print(format_line(event), flush=True)  # noqa: T201 (standard output is this module's product)
                except BrokenPipeError:
                    self._open = False
                    # Or Python would complain when it flushes at exit.
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Signals:
    """SIGTERM and SIGINT: an exception while Spark starts, later a message to whoever waits."""

    def __init__(self) -> None:
        self.mailbox: Mailbox = queue.SimpleQueue()
        self._starting = True
        self.first: signal.Signals | None = None

    def install(self) -> None:
        """Also to be called after a SparkContext is made, which takes SIGINT for itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def running(self) -> None:
        """From here on there are batches to finish."""
        self._starting = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        received = signal.Signals(number)
        self.first = self.first or received
        if self._starting:
            raise _StopDuringStartup
        self.mailbox.put(received)  # a SimpleQueue may be put to from a signal handler; an Event may deadlock

    def reraise(self) -> None:
        """Ends the process by the signal that stopped it, so that its parent sees why; returns if there was none."""
        if self.first is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            signal.signal(self.first, signal.SIG_DFL)
            signal.raise_signal(self.first)


def main(name: str, jobs: Sequence[Job], argv: list[str] | None) -> int:
    """Runs ``jobs`` until all end by themselves or a signal comes. Returns the exit status, or ends by the signal."""
    parser = argparse.ArgumentParser(prog=f"python -m streaming.{name}", description=f"The Spark job {name}.")
    options.add_arguments(parser)
    parser.add_argument(
        "--jars", default="", metavar="PATHS", help=f"jars of Spark's Kafka source, separated by {os.pathsep!r}"
    )
    arguments = parser.parse_args(argv)
    emit = _Printer()
    signals = _Signals()
    signals.install()
    try:
        settings = options.load_settings(arguments)
        conf = options.parse_spark_conf(arguments.conf)
        kafka.require_reachable(settings.kafka.bootstrap_servers, _REACH_TIMEOUT_S)
        context = JobContext(emit, allow_data_loss=arguments.allow_data_loss)
        jars = [Path(path) for path in arguments.jars.split(os.pathsep) if path]
        spark = start_spark(settings, jars, conf)
        try:
            signals.install()
            _run(spark.session, settings, jobs, context, signals=signals)
        finally:
            spark.end()
    except _StopDuringStartup:
        pass
    except GatewayError as error:
        emit(FailedEvent(query=error.query if isinstance(error, StreamError) else None, error=str(error)))
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 (what the user reads)
        return error.exit_status
    else:
        reason = f"signal {signals.first.name}" if signals.first else "everything there was is read"
        emit(StoppedEvent(reason, emit.batches))
    signals.reraise()
    return ExitStatus.OK


def _run(
    session: SparkSession, settings: Settings, jobs: Sequence[Job], context: JobContext, *, signals: _Signals
) -> None:
    """Starts the queries and returns when all have ended, in order. Raises what ended one of them otherwise."""
    mailbox = signals.mailbox
    session.streams.addListener(ProgressListener(context, mailbox.put))
    signals.running()
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
            startup_s=round(time.monotonic() - _PROCESS_START_S, 2),
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
