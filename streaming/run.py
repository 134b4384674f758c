"""The process of a job or a tool: ``python -m streaming.run NAME``, which ``gateway stream NAME`` becomes.

    spark-submit --master … --packages … streaming/run.py silver --config gateway.toml

The job ``all`` runs several jobs in one process, a query and a checkpoint each: six Sparks do not fit on a laptop. The
queries share its cores by turns (Spark's fair scheduler, a pool each), so that a long batch of one does not hold up the
others. When one fails, all end, and the error names it: a table that silently stands still while others go on is worse.
With ``--available-now`` the jobs that read silver begin when silver has read everything, and so see all of it.
"""

import argparse
import importlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from pyspark.errors import PySparkException

from config.errors import ExitStatus, GatewayError
from streaming import options
from streaming.errors import StreamError, tell
from streaming.job import JobContext
from streaming.kafka.admin import ensure_topic
from streaming.metrics import serve
from streaming.progress import BatchEvent, Event, FailedEvent, StoppedEvent, format_line
from streaming.runtime import reach
from streaming.runtime.queries import Mailbox, SparkEnded, run_queries
from streaming.runtime.session import start_spark

_READ_SILVER: Final = frozenset({"gold", "devices", "anomalies"})
_PROCESS_START_S = time.monotonic()
_REACH_TIMEOUT_S = 5.0


class _StopAtOnce(BaseException):
    """A signal came while there is nothing to finish."""


class _Printer:
    """Writes progress lines, a whole line at a time, from any thread; counts batches. Goes quiet if nobody reads any
    more: the data matters, not who watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.batches: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, BatchEvent):
                self.batches[event.query] = self.batches.get(event.query, 0) + 1
            try:
                print(format_line(event), flush=True)  # noqa: T201 (standard output is this module's product)
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer, too


class _Signals:
    """SIGTERM and SIGINT: a message to whoever waits while ``let_finish``, else an exception."""

    def __init__(self) -> None:
        self.mailbox: Mailbox = queue.SimpleQueue()
        self.let_finish = False  # whether something must be finished: batches, or Spark's end
        # What was ignored when the process began (a shell does that to SIGINT for background jobs) stays ignored.
        self._ignored = [n for n in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(n) is signal.SIG_IGN]
        self.first: signal.Signals | None = None

    def install(self) -> None:
        """Sets the handlers; to be done again after a SparkContext is made, which takes SIGINT for itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN if number in self._ignored else self._handle)

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


def stages(jobs: Sequence[str], *, available_now: bool) -> list[list[str]]:
    """The chosen jobs: those of a list run together, a list after the other."""
    first = [one for one in jobs if not (available_now and one in _READ_SILVER)]
    return [part for part in (first, [one for one in jobs if one not in first]) if part]


def main(argv: list[str] | None = None) -> int:
    """Runs a job or a tool. Returns the exit status, or ends by a signal."""
    name, *words = (sys.argv[1:] if argv is None else argv) or [""]
    known = [*options.JOBS, *options.TOOLS]
    if name not in known:
        tell(f"error: {name!r} is no job; jobs and tools are {', '.join(known)}.")
        return ExitStatus.USAGE
    arguments = options.process_arguments(name, words)
    try:
        return _run_tool(name, arguments) if name in options.TOOLS else _run_jobs(name, arguments)
    except GatewayError as error:
        # All jobs have ended for one of many.
        who = f"{error.query}: " if name == "all" and isinstance(error, StreamError) and error.query else ""
        tell(f"error: {who}{error}")
        return error.exit_status


def _run_jobs(name: str, arguments: argparse.Namespace) -> int:
    """Runs the jobs until all end by themselves or a signal comes, and then draws the report, all with one Spark."""
    emit = _Printer()
    signals = _Signals()
    signals.install()
    try:
        settings = options.load_settings(arguments)
        conf = dict(arguments.conf)
        chosen = [
            [importlib.import_module(f"streaming.{job}.job").start for job in part]
            for part in stages(arguments.jobs, available_now=settings.stream.available_now)
        ]
        if name == "all":
            conf = {"spark.scheduler.mode": "FAIR", **conf}  # or the first job's batch takes all cores until it ends
        reach.require_kafka(settings.kafka.bootstrap_servers, _REACH_TIMEOUT_S)
        reach.require_master(settings.stream.master, _REACH_TIMEOUT_S)
        context = JobContext(emit, allow_data_loss=arguments.allow_data_loss, begun_s=_PROCESS_START_S)
        serve(context.metrics, settings.stream.metrics)
        spark = start_spark(settings, arguments.jars, conf)
        try:
            signals.install()
            signals.let_finish = True
            spark.tell_when_ended(lambda status: signals.mailbox.put(SparkEnded(status)))
            if "anomalies" in arguments.jobs:  # told before the first stage, which may take hours
                ensure_topic(spark.session, settings, settings.stream.anomalies.topic, "stream.anomalies.topic")
            for stage in chosen:
                if signals.first is None:
                    run_queries(spark.session, settings, stage, context, signals.mailbox)
            signals.let_finish = False
            if arguments.report is not None:
                from streaming.report.lake import read_lake  # late: few jobs draw plots
                from streaming.report.page import write_page

                write_page(read_lake(spark.session, settings.stream), arguments.report)
        except PySparkException as error:
            error.add_note(str(error))  # its text is asked of the JVM, which ends now
            raise
        finally:
            signals.let_finish = True
            spark.end()
    except _StopAtOnce:
        pass
    except Exception as error:
        said = str(error) if isinstance(error, GatewayError) else repr(error)
        query = error.query if isinstance(error, StreamError) else None
        emit(FailedEvent(query, "\n".join([said, *getattr(error, "__notes__", ())])))
        raise
    else:
        reason = f"signal {signals.first.name}" if signals.first else "everything there was is read"
        emit(StoppedEvent(reason, emit.batches))
    signals.reraise()
    return ExitStatus.OK


def _run_tool(name: str, arguments: argparse.Namespace) -> int:  # the exit status
    settings = options.load_settings(arguments)
    interrupted = signal.getsignal(signal.SIGINT)  # before Spark replaces it
    spark = start_spark(settings, arguments.jars, dict(arguments.conf), records_classes=name == "prepare")
    try:
        if interrupted is not signal.SIG_IGN:
            # As SIGTERM does: this process ends, and the JVM with it. pyspark's own handler raises in the middle of
            # py4j, which then prints pages about it.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        module = "report.lake" if name == "report" else f"upkeep.{name}"
        status = int(importlib.import_module(f"streaming.{module}").run(spark.session, settings, arguments))
    finally:
        spark.end()
    if name == "prepare":
        print(_prepared(spark.archive))  # noqa: T201 (what the user reads)
    return status


def _prepared(archive: Path | None) -> str:
    """What ``prepare`` says at its end. Raises StreamError when there are no class data."""
    if archive is None:
        raise StreamError(
            "Spark's class data were not written: check that the folder of the jars can be written and has 300 MB free,"
            " and that neither --conf nor the environment has JVM flags about them"
        )
    return f"Spark maps {archive} from now on ({archive.stat().st_size / 1e6:.0f} MB)."


if __name__ == "__main__":
    sys.exit(main())
