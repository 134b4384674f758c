"""What every job is given, and what it gives back: how the modules with queries and the driver that runs them meet."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from config.settings import Settings
from streaming.metrics import BatchCounts, StreamMetrics
from streaming.progress import Event


@dataclass(frozen=True, slots=True)
class JobContext:
    emit: Callable[[Event], None]  # writes a progress line, from any thread
    counts: dict[tuple[str, int], BatchCounts] = field(default_factory=dict)
    """Of a query's batch that is written and not yet reported. The query's thread puts, the listener's takes."""
    allow_data_loss: bool = False
    """Step over records that vanished from Kafka before they were read, with a warning, instead of ending."""
    metrics: StreamMetrics = field(default_factory=StreamMetrics)
    begun_s: float = field(default_factory=time.monotonic)  # when the job began; ``started`` counts from it


Job = Callable[[SparkSession, Settings, JobContext], StreamingQuery]
"""Starts one query and returns it while it runs."""
