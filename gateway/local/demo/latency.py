"""Latency percentiles, over the whole run and over the last seconds, in bounded memory."""

from collections import Counter, deque

_CEILING_MS = 600_000  # later than this is counted here; it bounds the number of different values


def percentile(counts: Counter[int], share: float) -> int | None:
    """The smallest value that at least ``share`` of the counted ones do not exceed; None of nothing."""
    rank = share * counts.total()
    passed = 0
    for value in sorted(counts):
        passed += counts[value]
        if passed >= rank:
            return value
    return None


class Latencies:
    """Counts whole milliseconds, exactly; the recent ones in slices that the owner turns with :meth:`tick`."""

    def __init__(self, recent_slices: int = 10) -> None:
        self.total: Counter[int] = Counter()
        self._slices: deque[Counter[int]] = deque([Counter()], maxlen=recent_slices)

    def add(self, latency_ms: int) -> None:
        """One message took this long. A clock step can make it negative, which counts as 0."""
        value = min(_CEILING_MS, max(0, latency_ms))
        self.total[value] += 1
        self._slices[-1][value] += 1

    def tick(self) -> None:
        """Begins a new slice; the oldest is forgotten."""
        self._slices.append(Counter())

    def recent(self, share: float) -> int | None:
        """A percentile over the slices kept; None if they are empty."""
        return percentile(sum(self._slices, Counter()), share)

    def overall(self, share: float) -> int | None:
        """A percentile over everything; None if there was nothing."""
        return percentile(self.total, share)
