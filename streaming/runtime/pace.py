"""How many of Kafka's records a batch reads: fewer while batches take too long. Decides without I/O."""

from dataclasses import dataclass
from typing import Final

_LEAST: Final = 100_000
"""What a batch costs beside its rows would else be most of what it costs."""
_MOST_GROWTH: Final = 2


@dataclass(slots=True)
class Pace:
    """A query's limit: at most ``most`` records, and about as many as take ``longest_s``, but not less than 100,000."""

    most: int
    longest_s: float
    limit: int = 0

    def __post_init__(self) -> None:
        self.limit = self.limit or self.most

    def after(self, rows: int, seconds: float) -> bool:
        """Takes a batch into account; whether the limit is another now. A batch that was not nearly full says nothing:
        it was short of records, or the first of a cold process."""
        if 2 * rows < self.limit or seconds <= 0:
            return False
        wanted = int(rows * self.longest_s / seconds)
        before = self.limit
        self.limit = max(min(self.most, _LEAST), min(wanted, self.most, _MOST_GROWTH * before))
        return self.limit != before
