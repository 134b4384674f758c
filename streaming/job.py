"""What every job is given, and what it gives back: how the modules with queries and the driver that runs them meet."""

from __future__ import annotations

__all__ = ["BatchCounts", "Job", "JobContext", "Tally"]

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from streaming.metrics import StreamMetrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from config.settings import Settings
    from streaming.progress import Event


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


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a job needs beside the settings."""

    emit: Callable[[Event], None]
    """Writes a progress line. May be called from any thread."""
    tally: Tally = field(default_factory=Tally)
    allow_data_loss: bool = False
    """Step over records that vanished from Kafka before they were read, with a warning, instead of ending."""
    metrics: StreamMetrics = field(default_factory=StreamMetrics)
    """What Prometheus is told; a job that steps over lost records calls its ``data_lost``."""
    metrics_url: str | None = None
    """Where the metrics are served, if they are."""
    begun_s: float = field(default_factory=time.monotonic)
    """When the job began, by the monotonic clock; ``started`` counts from it."""


Job = Callable[["SparkSession", "Settings", JobContext], "StreamingQuery"]
"""Starts one query and returns it while it runs."""
