"""The speed of messages, over seconds to days, and how long this process waits for a CPU.

Read every five seconds from counters that the data path keeps anyway. No message passes through this module.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from gateway.base.metrics import Metrics
from gateway.base.process.machine_facts import CpuWaits, cpu_waits
from gateway.base.vitals import LATENCIES, SECOND_NS, Lasting, Rates, Stalls, Vitals
from gateway.health.model import END_TO_END, OBJECTIVE_S, PRODUCE, SLOW_S, BudgetView, CpuView, PaceView

NOW_NS: Final = 20 * SECOND_NS
MINUTE_NS: Final = 60 * SECOND_NS
WHILE_NS: Final = 300 * SECOND_NS  # as the rates of the alerts
_FINE: Final = (1, 361)  # a note a minute, for six hours
_COARSE: Final = (10, 433)  # every ten minutes, for three days


class Pace:
    """Belongs to the event loop's thread; its methods read small files of the kernel. ``routes`` are the names of all
    routes of this life, removed ones included."""

    def __init__(self, metrics: Metrics, routes: Iterable[str], vitals: Vitals) -> None:
        self._metrics = metrics
        self._routes = routes
        self._stalls: Stalls = vitals.stalls
        self._now = Rates(self._ways, NOW_NS)  # growth of the counts of each timed way
        self._lately = Rates(self._ways, WHILE_NS)  # the same over five minutes
        self._slow = Lasting()  # ways of which more than 1 % is late, since when
        self._fine = _Notes(self._objective, *_FINE)  # late and all messages, each minute
        self._coarse = _Notes(self._objective, *_COARSE)  # each ten minutes
        self._waits = cpu_waits()  # the last read
        self._cpu = Rates(self._cpu_totals, MINUTE_NS)
        vitals.seldom.append(self._look)
        vitals.minutely += [self._lately.look, self._fine.look, self._coarse.look]
        for by in CpuWaits._fields:
            metrics.cpu_starved.watch(partial(self._waited, by), by)

    def ways(self, now_ns: int) -> tuple[PaceView, ...]:
        """Every way that was timed within the last five minutes."""
        now, lately = self._now.growth(), self._lately.growth()
        lasted = self._slow.lengths(now_ns, self._stalls)
        return tuple(
            PaceView(*_split(name), _share(now, name), _share(lately, name), lasted.get(name, 0))
            for name in _names(lately)
        )

    def budget(self) -> tuple[BudgetView, ...]:
        """Late messages by length of the span, for spans that are not longer than this life."""
        spans = {self._fine: (5, 30, 60, 120, 360), self._coarse: (1440, 4320)}
        found = ((minutes, notes.grown(minutes)) for notes, lengths in spans.items() for minutes in lengths)
        return tuple(BudgetView(minutes, *grown) for minutes, grown in found if grown is not None)

    def cpu(self) -> CpuView:
        """The CPU's shares of the last minute."""
        self._waits = cpu_waits()
        shares = self._cpu.per_second(time.monotonic_ns())
        waited = None if self._waits.waited is None else shares["waited"]
        return CpuView(waited, shares["throttled"], shares["pressure"])

    def _look(self) -> None:
        """Every five seconds: note the counts, and the ways of which more than 1 % is late."""
        now_ns = time.monotonic_ns()
        self._now.look(now_ns)
        self._waits = cpu_waits()
        self._cpu.look(now_ns)
        lately = self._lately.growth()
        self._slow.look((name for name in _names(lately) if _share(lately, name) > 0.01), now_ns)

    def _ways(self) -> dict[str, float]:
        """Running counts: ``all NAME`` and ``late NAME`` for Kafka's answers and for each route."""
        found: dict[str, float] = {}
        produce = self._metrics.kafka_produce_seconds.child().counts()
        _note(found, PRODUCE, produce)
        for route in self._routes:
            _note(found, f"{END_TO_END} {route}", self._metrics.end_to_end_seconds.child(route).counts())
        return found

    def _objective(self) -> tuple[float, float]:
        """Messages later than the objective, and all messages."""
        late = every = 0.0
        for route in self._routes:
            counts = self._metrics.end_to_end_seconds.child(route).counts()
            late += above(counts, LATENCIES, OBJECTIVE_S)
            every += sum(counts)
        return late, every

    def _cpu_totals(self) -> dict[str, float]:
        return {by: self._waited(by) for by in CpuWaits._fields}

    def _waited(self, by: str) -> float:
        return getattr(self._waits, by) or 0.0


class _Notes:
    """The values of two counters, noted every ``every`` minutes."""

    def __init__(self, read: Callable[[], tuple[float, float]], every: int, keep: int) -> None:
        self._read = read
        self._every = every
        self._notes: deque[tuple[float, float]] = deque(maxlen=keep)
        self._looks = 0

    def look(self, _now_ns: int) -> None:
        """Called every minute."""
        if self._looks % self._every == 0:
            self._notes.append(self._read())
        self._looks += 1

    def grown(self, minutes: int) -> tuple[float, float] | None:
        """The growth within so many minutes, or up to one note more; None without a note of that age."""
        back = minutes // self._every + 1
        if back > len(self._notes):
            return None
        before, now = self._notes[-back], self._read()
        return max(0.0, now[0] - before[0]), max(0.0, now[1] - before[1])


def above(counts: Sequence[float], bounds: Sequence[float], value: float) -> float:
    """How many observations are above a value. Those of its own bucket are taken as evenly spread, as ``quantile``
    takes them: more than 5 % are above the value exactly when the 95th percentile is."""
    found = 0.0
    lower = 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if value <= lower:
            found += count
        elif value < upper:
            found += count * (upper - value) / (upper - lower)
        lower = upper
    return found + sum(counts[len(bounds) :])


def _note(found: dict[str, float], name: str, counts: Sequence[int]) -> None:
    found[f"all {name}"] = sum(counts)
    found[f"late {name}"] = above(counts, LATENCIES, SLOW_S[_split(name)[0]])


def _names(grown: Mapping[str, float]) -> Iterator[str]:
    return (name.removeprefix("all ") for name, count in grown.items() if name.startswith("all ") and count)


def _share(grown: Mapping[str, float], name: str) -> float:
    count = grown.get(f"all {name}", 0)
    return grown[f"late {name}"] / count if count else 0.0


def _split(name: str) -> tuple[str, str]:
    kind, _, route = name.partition(" ")
    return kind, route
