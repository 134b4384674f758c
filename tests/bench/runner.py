"""Runs the chosen rows in rounds, so that what is compared is measured in turn and not an hour apart."""

from collections.abc import Sequence

from tests.bench.machine import reference_ns
from tests.bench.measurement import Row
from tests.bench.processes import BenchError
from tests.bench.report import run_line
from tests.bench.result import Result
from tests.bench.site import Site


def run_rows(rows: Sequence[Row], site: Site, runs: int) -> list[Result]:
    """Each row ``runs`` times, one round after the other. A row that failed is not run again; the others go on.

    Prints a line for each run. KeyboardInterrupt goes through, with everything that was started ended.
    """
    results = [Result(row) for row in rows]
    for number in range(runs):
        print(f"round {number + 1} of {runs}", flush=True)
        for result in results:
            for _ in range(-(-result.row.minimum_runs // runs)):
                if not result.failures:
                    _run_once(result, site)
    return results


def _run_once(result: Result, site: Site) -> None:
    result.reference_ns.append(reference_ns())
    try:
        run = result.row.run(site)
    except (BenchError, OSError) as error:
        result.failures.append(str(error) or type(error).__name__)
        print(f"  {result.row.name}: FAILED: {result.failures[-1]}", flush=True)
    else:
        result.reference_ns.append(reference_ns())
        result.runs.append(run)
        print(run_line(result.row.name, run), flush=True)
