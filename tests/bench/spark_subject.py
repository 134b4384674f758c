"""One query of Spark's as a process: ``python -m tests.bench.spark_subject NAME ARGUMENTS`` (those of its job)."""

import importlib
import sys

from streaming import run

_OF_JOB = {"plain": "silver", "fleet": "devices"}  # by whose arguments it runs
_MODULES = {"plain": "tests.bench.spark_plain", "fleet": "tests.bench.spark_fleet"}


def main() -> int:
    """Runs the query NAME alone; returns the job's exit status."""
    name, *argv = sys.argv[1:]
    job = _OF_JOB.get(name, name)
    if name in _MODULES:
        start = importlib.import_module(_MODULES[name]).start
        vars(importlib.import_module(f"streaming.{job}.job"))["start"] = start
    return run.main([job, *argv])


if __name__ == "__main__":
    sys.exit(main())
