"""One query of Spark's as a process: ``python -m tests.bench.spark_subject NAME ARGUMENTS`` (those of its job)."""

import importlib
import sys

from streaming.job import Job
from streaming.runtime import driver

_OF_JOB = {"plain": "silver", "fleet": "devices"}  # by whose arguments it runs
_MODULES = {"plain": "tests.bench.spark_plain", "fleet": "tests.bench.spark_fleet"}


def main() -> int:
    """Runs the query NAME alone; returns the job's exit status."""
    name, *argv = sys.argv[1:]
    start: Job = importlib.import_module(_MODULES.get(name, f"streaming.{name}.job")).start
    return driver.main(_OF_JOB.get(name, name), lambda *_: [[start]], argv)


if __name__ == "__main__":
    sys.exit(main())
