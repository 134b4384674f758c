"""``gateway stream``: the Spark jobs. A job is a process of its own, which this one becomes; no pyspark in here."""

from __future__ import annotations

__all__ = ["add_parser"]

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.errors import ConfigError

if TYPE_CHECKING:
    import argparse

_EXAMPLES = """\
examples:
  gateway stream ingest                             on this machine, until stopped
  gateway stream ingest --available-now             what is in Kafka now, then end
  gateway stream ingest --master spark://host:7077  on a cluster

Standard output carries one JSON object per line: batches, windowed aggregates and how it ended. Messages for people and
Spark's log go to standard error. SIGTERM or Ctrl-C finishes the batch first; a second one does not wait for it.
"""


def add_parser(commands: Any) -> None:
    """Add ``gateway stream`` to the command's parser."""

    parser = commands.add_parser("stream", help="run a Spark job", description="Run a Spark job on what is in Kafka.")
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", required=True)
    ingest = jobs.add_parser(
        "ingest",
        help="write what is in Kafka to Parquet, and aggregate it",
        description="Write telemetry from Kafka to Parquet, set aside what cannot be read, and aggregate it.",
        epilog=_EXAMPLES,
    )
    _options().add_arguments(ingest)
    ingest.set_defaults(run=_run, job="ingest")


def _run(arguments: argparse.Namespace) -> int:
    """Becomes the job's process: signals reach it directly, its exit status is ours, and nothing stands between."""
    options = _options()
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError(
            "Spark is not installed: the package pyspark is missing."
            ' Install it with: pip install "mqtt-kafka-gateway[streaming]"'
        )
    options.load_settings(arguments)  # says what is wrong with them before anything is fetched
    options.parse_spark_conf(arguments.conf)
    from gateway.embedded.jars import resolve
    from gateway.embedded.java import ensure_java

    java_home = ensure_java().spark_home()
    jars = os.pathsep.join(map(str, resolve("spark")))
    # -P and PYTHONPATH: the job is the one beside us, whatever folder or module of that name the working directory has.
    command = [sys.executable, "-P", "-m", f"streaming.{arguments.job}", "--jars", jars, *options.to_argv(arguments)]
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, "JAVA_HOME": str(java_home), "PYTHONPATH": path}
    os.execve(sys.executable, command, environment)  # noqa: S606 (no shell is wanted)


def _options() -> Any:
    """The jobs' options. Loaded late: naming the commands must not load any of Spark's jobs."""
    from streaming import options

    return options
