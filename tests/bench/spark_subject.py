"""One query of Spark's as a process: ``python -m tests.bench.spark_subject NAME ARGUMENTS`` (those of its job)."""

from __future__ import annotations

import importlib
import sys

from streaming import driver

_OF_JOB = {"windows": "ingest"}  # which runs two queries


def main() -> int:
    """Runs the query ``streaming.NAME`` alone; returns the job's exit status."""
    name, *argv = sys.argv[1:]
    return driver.main(_OF_JOB.get(name, name), (importlib.import_module(f"streaming.{name}").start,), argv)


if __name__ == "__main__":
    sys.exit(main())
