"""What one run of a row yields, and what a row promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.bench.account import Span
from tests.bench.site import Site

Figure = Literal[
    "cpu_s_per_million", "messages_per_s", "rss_mib", "pss_mib", "supervisor_mib", "supervisor_pss_mib", "p50_ms",
    "p99_ms", "seconds", "raw_share", "per_s", "share_of_echo", "share_of_small", "rows_per_cpu_s",
    "share_of_bronze", "times_plain", "p99_s", "nab_score", "precision", "recall", "f1", "us_per_reading",
    "bytes_each", "worker_percent", "supervisor_percent", "times_small",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run, verified. ``figures`` holds what the row is judged by; ``details`` what explains it (user and system
    time, …).
    """

    figures: Mapping[Figure, float]
    details: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_span(
        cls, messages: int, span: Span, memory: Mapping[Figure, float], details: Mapping[str, float] | None = None
    ) -> Measurement:
        """A run that moved ``messages`` in that span."""
        figures: dict[Figure, float] = {
            "cpu_s_per_million": span.cpu.total_ns / 1e3 / messages,
            "messages_per_s": messages * 1e9 / span.ns,
            **memory,
        }
        shares = {
            "messages": float(messages),
            "user_s_per_million": span.cpu.user_ns / 1e3 / messages,
            "system_s_per_million": span.cpu.system_ns / 1e3 / messages,
        }
        return cls(figures, {**shares, **(details or {})})


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a figure's median over the runs (memory: on its maximum)."""

    figure: Figure
    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Whether the bound holds."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:,g}"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: its name, what it measures in a few words, its targets and how to run it once.

    minimum_runs: runs are repeated within a round until there are that many (a row of one short event needs more).
    """

    name: str
    what: str
    targets: tuple[Target, ...]
    run: Callable[[Site], Measurement]
    minimum_runs: int = 1
    kafka: bool = True  # whether it needs one
    asked: bool = False  # run only when it is named: it takes minutes
