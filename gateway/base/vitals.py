"""Measurements of a worker once a second: waits, rates, delay of the event loop.

Nothing here is on the data path. A look costs some microseconds for each partition in use, and reads counters that the
data path keeps anyway.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from bridge.waiting import until_beat_s
from gateway.base.instruments import Histogram

SECOND_NS: Final = 1_000_000_000
INTERVAL_S: Final = 1.0
STALL_NS: Final = 500_000_000
BLOCKED_NS: Final = SECOND_NS
MINUTE_NS: Final = 60 * SECOND_NS
# The bounds of the histograms of times, in seconds.
LATENCIES: Final = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Stalls:
    """Pauses of the event loop: no answer could be read then, so they do not count as silence."""

    def __init__(self) -> None:
        self._found: deque[tuple[int, int]] = deque(maxlen=600)  # when it ended, how long
        self._due_ns = 0

    def tick(self, now_ns: int, next_ns: int) -> None:
        """Note a look at ``now_ns``; the next one is due at ``next_ns``."""
        late_ns = now_ns - self._due_ns
        if self._due_ns and late_ns > STALL_NS:
            self._found.append((now_ns, late_ns))
        self._due_ns = next_ns

    def since(self, since_ns: int, now_ns: int) -> int:
        """The sum of pauses after a moment, including a present one."""
        total_ns = sum(late_ns for ended_ns, late_ns in self._found if ended_ns > since_ns)
        late_ns = now_ns - self._due_ns
        if self._due_ns and late_ns > STALL_NS:
            total_ns += late_ns
        return min(total_ns, max(0, now_ns - since_ns))

    def blocked(self, now_ns: int) -> tuple[int, int]:
        """Pauses of more than a second within the last minute: their number and the longest."""
        found = [late for ended, late in self._found if ended > now_ns - MINUTE_NS and late >= BLOCKED_NS]
        return len(found), max(found, default=0)


class Lasting:
    """Since when each named condition has been true."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}

    def look(self, names: Iterable[str], now_ns: int) -> None:
        """Notes the conditions that are true now. All others end."""
        before = self._since
        self._since = {name: before.get(name, now_ns) for name in names}

    def lengths(self, now_ns: int, stalls: Stalls) -> dict[str, int]:
        """Name to duration in nanoseconds, without pauses of the event loop."""
        return {name: now_ns - since - stalls.since(since, now_ns) for name, since in self._since.items()}


class Rates:
    """Counters' growth over about ten seconds."""

    def __init__(self, read: Callable[[], Mapping[str, float]], span_ns: int = 10 * SECOND_NS) -> None:
        self._read = read
        self._span_ns = span_ns
        self._seen: deque[tuple[int, Mapping[str, float]]] = deque()

    def look(self, now_ns: int) -> None:
        """Note the counters. Called once a second, whatever the span."""
        self._seen.append((now_ns, self._read()))
        while len(self._seen) > 1 and self._seen[0][0] < now_ns - self._span_ns:
            self._seen.popleft()

    def growth(self) -> dict[str, float]:
        """How much each counter has grown since the oldest note; empty before the first."""
        if not self._seen:
            return {}
        before = self._seen[0][1]
        return {name: max(0, value - before.get(name, 0)) for name, value in self._read().items()}

    def per_second(self, now_ns: int) -> dict[str, float]:
        """Growth per second; 0 before the first note."""
        if not self._seen:
            return dict.fromkeys(self._read(), 0.0)
        seconds = (now_ns - self._seen[0][0]) / 1e9
        return {name: round(grown / seconds, 3) if seconds > 0 else 0.0 for name, grown in self.growth().items()}


class Window:
    """A histogram's observations of the last minute."""

    def __init__(self, read: Callable[[], Sequence[Histogram]]) -> None:
        self._read = read
        self._seen: deque[list[int]] = deque(maxlen=13)

    def look(self) -> None:
        """Note the counts. Called every five seconds."""
        self._seen.append(self._counts())

    def counts(self) -> list[int]:
        """Observations in each bucket within the last minute; empty before the first."""
        now = self._counts()
        if not self._seen or not now:
            return now
        before = self._seen[0] or [0] * len(now)
        return [max(0, count - earlier) for count, earlier in zip(now, before, strict=True)]

    def _counts(self) -> list[int]:
        """The sum over all histograms, by bucket; empty without one."""
        total: list[int] = []
        for histogram in self._read():
            counts = histogram.counts()
            total = [a + b for a, b in zip(total, counts, strict=True)] if total else counts
        return total


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """The value below which a share of the observations lies, interpolated within its bucket. None without
    observations; the last bound if the value lies above it."""
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    below = 0.0
    lower = 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if count and below + count >= wanted:
            return lower + (upper - lower) * (wanted - below) / count
        below += count
        lower = upper
    return lower


def latency(counts: Sequence[int], bounds: Sequence[float]) -> dict[str, object]:
    """Observed times as /status shows them: the median, the 99th percentile, and the buckets."""
    p50, p99 = (quantile(counts, bounds, share) for share in (0.5, 0.99))
    return {
        "p50": None if p50 is None else round(p50, 5),
        "p99": None if p99 is None else round(p99, 5),
        "buckets": list(counts),
    }


class Vitals:
    """A component of the service that looks once a second, the first to start and the last to stop.

    ``looks`` are called each second with the time, ``seldom`` every five, ``minutely`` every sixty. Belongs to the
    event loop's thread. ``failed`` is called with a defect: the looks end with it.
    """

    name: Final = "vitals"

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self.stalls = Stalls()
        self.looks: list[Callable[[int], None]] = []  # called every second
        self.seldom: list[Callable[[], None]] = []  # every five seconds
        self.minutely: list[Callable[[int], None]] = []
        self._failed = failed
        self._timer: asyncio.TimerHandle | None = None
        self._count = 0

    async def start(self) -> None:
        self._look()

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - there is nothing to wait for
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Call what is due, each second. The first exception ends the looks of that second and goes to ``failed``."""
        loop = asyncio.get_running_loop()
        wait_s = until_beat_s(INTERVAL_S)
        self._timer = loop.call_later(wait_s, self._look)
        now_ns = time.monotonic_ns()
        self.stalls.tick(now_ns, now_ns + round(wait_s * 1e9))
        try:
            for look in self.looks:
                look(now_ns)
            if self._count % 5 == 0:
                for rarely in self.seldom:
                    rarely()
            if self._count % 60 == 0:
                for look in self.minutely:
                    look(now_ns)
        except Exception as error:  # noqa: BLE001 - the loop would only log it, and the looks would end
            self._failed(error)
        self._count += 1
