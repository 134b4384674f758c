"""`python -m tests.bench`: measures the gateway and prints, and writes, what it found. Rows are run in rounds, so that
what is compared is measured in turn and not an hour apart."""

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gateway.local.embedded.kafka import KafkaCluster
from tests.bench import against, machine, report
from tests.bench.measurement import Row
from tests.bench.processes import BenchError
from tests.bench.records import Kafka
from tests.bench.result import Result, memory_row, ratios
from tests.bench.rows import RATIOS, ROWS, RSS_LIMIT_MIB
from tests.bench.site import Site

_WORSE_STATUS = 3
_HEAP_MIB = 1024  # Kafka should not be what is short
_MEMORY_ROW = "rss"
_NAB_ROW = "anomalies-nab"  # with the plain detectors on the same series
_GROUPS = ("anomalies", "auth", "commands", "spark")  # of rows whose names begin so
_FEEDS_MEMORY_ROW = ("cold-topics", "drain-qos1")  # measured for it when nothing else is


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    names = [row.name for row in ROWS] + [_MEMORY_ROW]
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*names, *_GROUPS],
        metavar="NAME",
        help=f"these rows alone: {', '.join(names)}; {' or '.join(_GROUPS)} for all rows that begin so",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, rows and ratios as JSON")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with the JSON of an earlier call")
    parser.add_argument(
        "--bound", type=float, default=15, metavar="PERCENT", help="what counts as worse or better (default: 15)"
    )
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="measurements of each row (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one run, a fifth of the messages: a look, not a figure")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a running Kafka to use instead of an embedded one")
    parser.add_argument("--nab", type=Path, metavar="FOLDER", help="windows.json and data of the anomalies rows")
    parser.add_argument(
        "--devices", type=int, metavar="N", help="how many spark-devices and spark-gold have (default: 100,000)"
    )
    parser.add_argument("--readings", type=int, default=10, metavar="N", help="how many each of them has (default: 10)")
    arguments = parser.parse_args(argv)
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    if arguments.readings < 2:
        parser.error("--readings must be at least 2: one before a restart, one after it")
    return arguments


def _chosen(only: Sequence[str] | None) -> list[Row]:
    if only is None:
        return [row for row in ROWS if not row.asked]
    wanted = set(only)
    for group in wanted.intersection(_GROUPS):
        wanted.update(row.name for row in ROWS if row.name.startswith(f"{group}-"))
    if _NAB_ROW in wanted:
        wanted.update(row.name for row in ROWS if row.name.startswith(f"{_NAB_ROW}-"))
    if wanted == {_MEMORY_ROW}:
        wanted.update(_FEEDS_MEMORY_ROW)
    return [row for row in ROWS if row.name in wanted]


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
    result.reference_ns.append(machine.reference_ns())
    try:
        run = result.row.run(site)
    except (BenchError, OSError) as error:
        result.failures.append(str(error) or type(error).__name__)
        print(f"  {result.row.name}: FAILED: {result.failures[-1]}", flush=True)
    else:
        result.reference_ns.append(machine.reference_ns())
        result.runs.append(run)
        print(report.run_line(result.row.name, run), flush=True)


def _terminate(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the chosen rows; 0 when every one of them was measured and its messages all accounted for, 3 when one is
    worse than in the earlier call.

    A missed target is shown, not a failure: the targets belong to a machine of about the speed of the documented one.
    """
    arguments = _arguments(argv)
    earlier = None if arguments.against is None else json.loads(arguments.against.read_text())
    if earlier is not None and "quick" not in earlier:
        sys.exit(
            f"{arguments.against} is not the --json of this benchmark; an older one did not write what is compared."
        )
    signal.signal(signal.SIGTERM, _terminate)  # unwinds: everything that was started is ended
    found = machine.describe()
    print(*report.machine_lines(found), sep="\n", flush=True)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-bench-")))
        chosen = _chosen(arguments.only)
        kafka = None
        if any(row.kafka for row in chosen):
            bootstrap = arguments.kafka
            if bootstrap is None:
                cluster = KafkaCluster(directory=directory / "kafka", heap_mib=_HEAP_MIB)
                bootstrap = stack.enter_context(cluster).bootstrap
            kafka = Kafka(bootstrap)
            kafka.warm_up()
        site = stack.enter_context(
            Site(
                kafka, directory, quick=arguments.quick, nab=arguments.nab,
                devices=arguments.devices, readings=arguments.readings,
            )
        )  # fmt: skip
        results = run_rows(chosen, site, 1 if arguments.quick else arguments.runs)
    if arguments.only is None or _MEMORY_ROW in arguments.only:
        results.append(memory_row(results, RSS_LIMIT_MIB))
    compared = ratios(results, RATIOS)
    content = {
        "machine": dataclasses.asdict(found),
        "quick": arguments.quick,
        "rows": [result.as_json() for result in results],
        "ratios": [dataclasses.asdict(ratio) for ratio in compared],
    }
    print("", *report.ratio_lines(compared), "", *report.table(results), sep="\n", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    status = 1 if any(result.failures for result in results) else 0
    if earlier is not None:
        verdicts = against.verdicts(content, earlier, 1 + arguments.bound / 100)
        print("", *against.lines(verdicts), sep="\n", flush=True)
        if not status and any(verdict.kind == "worse" for verdict in verdicts):
            return _WORSE_STATUS
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; everything that was started has been ended")
