"""A tool's process: ``python -m streaming.upkeep.tool NAME --arguments JSON``."""

import argparse
import importlib
import json
import os
import signal
import sys
from pathlib import Path

from config.errors import GatewayError
from config.prose import fitted
from streaming import options
from streaming.runtime.session import start_spark
from streaming.upkeep.tool_options import TOOLS


def main(argv: list[str] | None = None) -> int:
    """Starts Spark on this machine or the cluster, runs the tool, and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m streaming.upkeep.tool")
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--arguments", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--jars", default="", metavar="PATHS")
    told = parser.parse_args(argv)
    arguments = argparse.Namespace(**told.arguments)
    try:
        settings = options.load_settings(arguments)
        conf = options.parse_spark_conf(arguments.conf)
        interrupted = signal.getsignal(signal.SIGINT)
        spark = start_spark(settings, [Path(path) for path in told.jars.split(os.pathsep) if path], conf)
        try:
            if interrupted is not signal.SIG_IGN:
                # As SIGTERM does: this process ends, and the JVM with it. pyspark's own handler raises in the middle
                # of py4j, which then prints pages about it.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            module = "report.job" if told.tool == "report" else f"upkeep.{told.tool}"
            return int(importlib.import_module(f"streaming.{module}").run(spark.session, settings, arguments))
        finally:
            spark.end()
    except GatewayError as error:
        print(fitted(f"error: {error}", sys.stderr), file=sys.stderr)  # noqa: T201 (what the user reads)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
