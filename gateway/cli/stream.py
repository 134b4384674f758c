"""``gateway stream``: the Spark jobs. A job is a process of its own, which this one becomes; no pyspark in here."""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from config.errors import ConfigError
from config.extras import how_to_install
from gateway.cli.arguments import load_noted
from gateway.cli.parser import Commands

_EXAMPLES = """\
examples:
  gateway stream {name}                             on this machine, until stopped
  gateway stream {name} --available-now             what is in Kafka now, then end
  gateway stream {name} --master spark://host:7077  on a cluster

Standard output carries one JSON object per line: batches, losses and how it ended. Messages for people and
Spark's log go to standard error. SIGTERM or Ctrl-C finishes the batch first; a second one does not wait for it.
"""


def add_parser(commands: Commands) -> None:
    jobs = commands.group("stream", "Run a Spark job on what is in Kafka.", metavar="JOB")
    for name, does in _options().JOBS.items():
        examples = _EXAMPLES.format(name=name)
        job = jobs.add_parser(name, help=does, description=f"Spark job: {does}.", epilog=examples)
        _options().add_arguments(job, name)
        job.set_defaults(run=_run, job=name)
    for name, (does, _) in _options().TOOLS.items():
        tool = jobs.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
        _options().add_arguments(tool, name)
        tool.set_defaults(run=_files if name in {"status", "reset"} else _run, tool=name)


def _files(arguments: argparse.Namespace) -> int:
    """Runs a tool that needs Spark only where the folders are not this machine's."""
    from gateway.cli import stream_files

    tool = stream_files.status if arguments.tool == "status" else stream_files.reset
    return tool(arguments, lambda: _command(arguments))


def _run(arguments: argparse.Namespace) -> int:
    """Becomes the job's process: signals reach it directly, its exit status is ours, and nothing stands between."""
    command, environment = _command(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, command, environment)  # noqa: S606 (no shell is wanted)


def _command(arguments: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """The words and the environment of a process with Spark in it. Fetches Java and the jars if they are not there.

    Raises ConfigError if Spark is not installed, or for settings that cannot be used, before anything is fetched.
    """
    options = _options()
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError(
            f"Spark is not installed: the package pyspark is missing. To install it: {how_to_install('streaming')}"
        )
    settings = load_noted(arguments.config, overrides=options.overrides(arguments)).settings
    from streaming.decoding.device_schemas import READERS, load_device_schemas

    if READERS.intersection(getattr(arguments, "jobs", None) or [arguments.tool]):
        load_device_schemas(settings.stream.silver.schemas)  # or a mistake would be told after Spark's start
    from gateway.local.runtime.jars import resolve
    from gateway.local.runtime.java import ensure_java

    java_home = ensure_java().spark_home()
    jars = os.pathsep.join(map(str, resolve("spark")))
    # -P and PYTHONPATH: the job is the one beside us, whatever folder or module of that name the working directory has.
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "JAVA_HOME": str(java_home), "PYTHONPATH": path}
    return [sys.executable, "-P", "-m", "streaming.run", *arguments.words, "--jars", jars], environment


def _options() -> Any:
    """The jobs' options. Loaded late: naming the commands must not load any of Spark's jobs."""
    from streaming import options

    return options
