"""The benchmark for people: one line a run while it goes, a table and the ratios at the end."""

from collections.abc import Sequence

from tests.bench.machine import Machine
from tests.bench.measurement import Figure, Measurement
from tests.bench.result import Ratio, Result

_COLUMNS: dict[Figure, str] = {
    "cpu_s_per_million": "CPU s/M",
    "messages_per_s": "msg/s",
    "rss_mib": "RSS MiB",
    "pss_mib": "PSS MiB",
    "supervisor_mib": "supervisor RSS",
    "supervisor_pss_mib": "PSS",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "seconds": "seconds",
    "raw_share": "of raw",
    "per_s": "answers/s",
    "share_of_echo": "of echo",
    "share_of_small": "of small",
    "rows_per_cpu_s": "rows/CPU s",
    "share_of_bronze": "of bronze",
    "times_plain": "times plain",
    "p99_s": "p99 s",
    "nab_score": "NAB score",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "us_per_reading": "µs/reading",
    "bytes_each": "bytes each",
    "worker_percent": "worker %",
    "supervisor_percent": "supervisor %",
    "times_small": "times small",
}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def machine_lines(machine: Machine) -> list[str]:
    """The machine in a few lines."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    load = " ".join(f"{value:.2f}" for value in machine.load_average)
    return [
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_mib:,} MiB, Linux {machine.kernel}, {machine.python}",
        versions,
        f"load average {load}; reference step {machine.reference_ns:g} ns",
    ]


def run_line(name: str, run: Measurement) -> str:
    """One run of one row."""
    shown = [f"{label} {_number(run.figures[figure])}" for figure, label in _COLUMNS.items() if figure in run.figures]
    return f"  {name}: {', '.join(shown)}"


def _cell(result: Result, figure: Figure) -> str:
    found = result.spread(figure)
    if found is None:
        return ""
    low, middle, high = map(_number, found)
    return middle if low == high else f"{middle} ({low}-{high})"


def _verdict(result: Result) -> str:
    if result.failures:
        return "FAILED, see above"
    judged = [
        f"{_COLUMNS[target.figure]} {target} {'met' if result.met(target) else 'MISSED'}"
        for target in result.row.targets
    ]
    return "; ".join(judged) + _moved(result.moved)


def table(results: Sequence[Result]) -> list[str]:
    """Median (smallest-largest) of each figure, and each target with its outcome."""
    used = [figure for figure in _COLUMNS if any(result.spread(figure) for result in results)]
    rows = [["row", *(_COLUMNS[figure] for figure in used), "target"]]
    rows += [[result.row.name, *(_cell(result, figure) for figure in used), _verdict(result)] for result in results]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1])) for row in rows
    ]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def ratio_lines(found: Sequence[Ratio]) -> list[str]:
    """Ours beside the plain bridges."""
    if not found:
        return []
    pairs = [f"{ratio.ours} : {ratio.theirs}" for ratio in found]
    width = max(map(len, pairs))
    return ["CPU, ours : theirs (median of rounds, smallest-largest)"] + [
        f"  {pair.ljust(width)}  {ratio.ratio:.3f} ({ratio.smallest:.3f}-{ratio.largest:.3f}), "
        f"{_number(ratio.throughput)} times the msg/s{_moved(ratio.moved)}"
        for pair, ratio in zip(pairs, found, strict=True)
    ]


def _moved(moved: bool) -> str:
    return "  (the reference step MOVED)" if moved else ""
