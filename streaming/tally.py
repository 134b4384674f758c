"""What queries count themselves while they write a batch, until it is reported."""

from __future__ import annotations

__all__ = ["BatchCounts", "Tally"]

import threading
from typing import NamedTuple


class BatchCounts(NamedTuple):
    """What a query counted itself while it wrote a batch."""

    rows: int
    quarantined: int
    duplicates: int = 0
    """Of ``rows``, those that the table had already, or that came twice in the batch."""
    strangers: int = 0
    """Of ``rows``, readings of devices that the registry has no site for."""
    late: int = 0
    """Rows that came too late for what they belong to, and changed nothing."""


class Tally:
    """Counts of batches that are written but not yet reported. Queries' threads write, the listener's thread takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], BatchCounts] = {}

    def put(self, query: str, batch: int, counts: BatchCounts) -> None:
        with self._lock:
            self._counts[query, batch] = counts

    def take(self, query: str, batch: int) -> BatchCounts | None:
        """The counts of a batch, once; None for a query that counts nothing."""
        with self._lock:
            return self._counts.pop((query, batch), None)
