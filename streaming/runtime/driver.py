"""A job's process: command line, signals, progress lines, Spark's start and end, and the exit status."""

import argparse
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from config.errors import ExitStatus, GatewayError
from config.prose import fitted
from config.settings import Settings
from streaming import options
from streaming.errors import StreamError
from streaming.job import Job, JobContext
from streaming.metrics import StreamMetrics, serve
from streaming.progress import BatchEvent, Event, FailedEvent, StoppedEvent, format_line
from streaming.runtime import reach
from streaming.runtime.queries import Mailbox, SparkEnded, run_queries
from streaming.runtime.session import start_spark

_PROCESS_START_S = time.monotonic()
_REACH_TIMEOUT_S = 5.0


class _StopAtOnce(BaseException):
    """A signal came while there is nothing to finish."""


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
    """SIGTERM and SIGINT: a message to whoever waits while ``let_finish``, else an exception."""

    def __init__(self) -> None:
        self.mailbox: Mailbox = queue.SimpleQueue()
        self.let_finish = False
        """Whether something must be finished: batches, or Spark's end."""
        # What was ignored when the process began (a shell does that to SIGINT for background jobs) stays ignored.
        self._numbers = [n for n in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(n) is not signal.SIG_IGN]
        self._ignored = {signal.SIGTERM, signal.SIGINT}.difference(self._numbers)
        self.first: signal.Signals | None = None

    def install(self) -> None:
        """Also to be called after a SparkContext is made, which takes SIGINT for itself."""
        for number in self._numbers:
            signal.signal(number, self._handle)
        for number in self._ignored:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        received = signal.Signals(number)
        self.first = self.first or received
        if not self.let_finish:
            raise _StopAtOnce
        self.mailbox.put(received)  # a SimpleQueue may be put to from a signal handler; an Event may deadlock

    def reraise(self) -> None:
        """Ends the process by the signal that stopped it, so that its parent sees why; returns if there was none."""
        if self.first is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            signal.signal(self.first, signal.SIG_DFL)
            signal.raise_signal(self.first)


Stages = Callable[[argparse.Namespace, Settings], Sequence[Sequence[Job]]]
"""Which jobs to run, once the command line and the settings are read: those of a stage together, then the next."""
Work = Callable[[SparkSession, Settings, argparse.Namespace], None]


def main(
    name: str, stages: Stages, argv: list[str] | None, prepare: Work | None = None, at_end: Work | None = None
) -> int:
    """Runs ``prepare``, the jobs until all end by themselves or a signal comes, and then ``at_end``, all with one
    Spark. Returns the exit status, or ends by the signal."""
    parser = argparse.ArgumentParser(prog=f"python -m streaming.run {name}", description=f"The Spark job {name}.")
    options.add_arguments(parser, name)
    options.add_jars(parser)
    arguments = parser.parse_args(argv)
    emit = _Printer()
    signals = _Signals()
    signals.install()
    try:
        settings = options.load_settings(arguments)
        conf = options.parse_spark_conf(arguments.conf)
        chosen = stages(arguments, settings)
        if name == "all":
            conf = {"spark.scheduler.mode": "FAIR", **conf}  # or the first job's batch takes all cores until it ends
        reach.require_kafka(settings.kafka.bootstrap_servers, _REACH_TIMEOUT_S)
        reach.require_master(settings.stream.master, _REACH_TIMEOUT_S)
        metrics = StreamMetrics()
        served = serve(metrics, settings.stream.metrics)
        context = JobContext(
            emit,
            allow_data_loss=arguments.allow_data_loss,
            metrics=metrics,
            metrics_url=None if served is None else served.url,
            begun_s=_PROCESS_START_S,
        )
        spark = start_spark(settings, arguments.jars, conf)
        try:
            signals.install()
            signals.let_finish = True
            spark.tell_when_ended(lambda status: signals.mailbox.put(SparkEnded(status)))
            if prepare is not None:
                prepare(spark.session, settings, arguments)
            for stage in chosen:
                if signals.first is None:
                    run_queries(spark.session, settings, stage, context, signals.mailbox)
            if at_end is not None:
                signals.let_finish = False
                at_end(spark.session, settings, arguments)
        except PySparkException as error:
            error.add_note(str(error))  # its text is asked of the JVM, which ends now
            raise
        finally:
            signals.let_finish = True
            spark.end()
    except _StopAtOnce:
        pass
    except GatewayError as error:
        query = error.query if isinstance(error, StreamError) else None
        emit(FailedEvent(query=query, error=str(error)))
        who = f"{query}: " if query is not None and name == "all" else ""  # all have ended, for one of many
        print(fitted(f"error: {who}{error}", sys.stderr), file=sys.stderr)  # noqa: T201 (what the user reads)
        return error.exit_status
    except Exception as error:
        emit(FailedEvent(query=None, error="\n".join([repr(error), *getattr(error, "__notes__", ())])))
        raise
    else:
        reason = f"signal {signals.first.name}" if signals.first else "everything there was is read"
        emit(StoppedEvent(reason, emit.batches))
    signals.reraise()
    return ExitStatus.OK
