"""A row's runs put together: medians, spread, targets, and the row about memory that all others feed."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from tests.bench.measurement import Figure, Measurement, Row, Target
from tests.bench.site import Site

MOVED = 1.15  # a machine whose reference step changed more than so was not one machine


@dataclass(slots=True)
class Result:
    """What is known of a row: its verified runs, or why there is none."""

    row: Row
    runs: list[Measurement] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    reference_ns: list[float] = field(default_factory=list)

    def spread(self, figure: Figure) -> tuple[float, float, float] | None:
        """Smallest, median and largest of a figure over the runs; None when the row does not have it."""
        values = [run.figures[figure] for run in self.runs if figure in run.figures]
        return (min(values), statistics.median(values), max(values)) if values else None

    def value(self, figure: Figure) -> float | None:
        """What the row is judged by: the median, of memory the maximum."""
        found = self.spread(figure)
        return None if found is None else found[2 if figure.endswith("_mib") else 1]

    def met(self, target: Target) -> bool:
        """Whether a target was met; never when a run failed."""
        value = self.value(target.figure)
        return value is not None and not self.failures and target.met(value)

    @property
    def moved(self) -> bool:
        """Whether the machine was faster around one of its runs than around another: its CPU figures say little."""
        return bool(self.reference_ns) and max(self.reference_ns) > MOVED * min(self.reference_ns)

    def as_json(self) -> dict[str, Any]:
        """The row for machines. The first four keys are there in every row; null where the row has no such figure."""
        figures: tuple[Figure, ...] = ("cpu_s_per_million", "messages_per_s", "rss_mib")
        extra: tuple[Figure, ...] = tuple(figure for figure in get_args(Figure) if figure not in figures)
        shown: dict[str, Any] = {"name": self.row.name}
        shown |= {figure: _rounded(self.value(figure)) for figure in figures}
        shown |= {figure: _rounded(value) for figure in extra if (value := self.value(figure)) is not None}
        spreads = {figure: found for figure in (*figures, *extra) if (found := self.spread(figure)) is not None}
        return shown | {
            "what": self.row.what,
            "verified": bool(self.runs) and not self.failures,
            "failures": self.failures,
            "targets": [
                {"figure": target.figure, "target": str(target), "met": self.met(target)} for target in self.row.targets
            ],
            "spread": {
                figure: dict(zip(("min", "median", "max"), map(_rounded, found), strict=True))
                for figure, found in spreads.items()
            },
            "runs": [
                {name: _rounded(value) for name, value in (*run.figures.items(), *run.details.items())}
                for run in self.runs
            ],
            "reference_ns": [round(value, 1) for value in self.reference_ns],
            "moved": self.moved,
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times a baseline's CPU ours is: the median, smallest and largest of the rounds; and the same of its
    messages a second.
    """

    ours: str
    theirs: str
    ratio: float
    smallest: float
    largest: float
    throughput: float
    moved: bool


def ratios(results: Sequence[Result], pairs: Sequence[tuple[str, str]]) -> list[Ratio]:
    """The comparisons of which both sides were measured, round by round."""
    found = {result.row.name: result for result in results if result.runs}
    compared = []
    for ours, theirs in pairs:
        if ours in found and theirs in found:
            cpu = _quotients("cpu_s_per_million", found[ours], found[theirs])
            throughput = statistics.median(_quotients("messages_per_s", found[ours], found[theirs]))
            moved = found[ours].moved or found[theirs].moved
            compared.append(Ratio(ours, theirs, statistics.median(cpu), min(cpu), max(cpu), throughput, moved))
    return compared


def _quotients(figure: Figure, ours: Result, theirs: Result) -> list[float]:
    return [
        mine.figures[figure] / other.figures[figure] for mine, other in zip(ours.runs, theirs.runs, strict=False)
    ]  # one that failed has fewer rounds


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def memory_row(results: Sequence[Result], limit_mib: float) -> Result:
    """The row `rss`: the most memory a gateway worker had in any run of any row."""
    measured = [run.figures for result in results if result.row.targets and result.row.kafka for run in result.runs]
    peaks = [figures["rss_mib"] for figures in measured if "rss_mib" in figures]
    row = Row("rss", "a worker's peak in any row above", (Target("rss_mib", limit_mib),), run=_not_run)
    return Result(row, [Measurement({"rss_mib": peak}) for peak in peaks], [] if peaks else ["no row was measured"])


def _not_run(_site: Site) -> Measurement:
    raise AssertionError("this row is made from the others")
