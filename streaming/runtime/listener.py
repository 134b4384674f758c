"""Progress lines out of Spark's own reports."""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from streaming.job import JobContext
from streaming.metrics import BatchCounts, kafka_offsets
from streaming.progress import BatchEvent


class Terminated(NamedTuple):
    """A query has ended, and all its progress has been reported. ``query_id`` is Spark's id of it."""

    query_id: str


class ProgressListener(StreamingQueryListener):
    """Emits a line for each completed batch, keeps the metrics, and tells ``on_terminated`` of each query that ended.

    ``on_batch`` is told of each batch too, after it is in the checkpoint.
    Spark calls this from one thread of its own, in order, a moment after the fact.
    """

    def __init__(
        self,
        context: JobContext,
        on_terminated: Callable[[Terminated], None],
        on_batch: Callable[[BatchEvent], None],
    ) -> None:
        self._context = context
        self._on_terminated = on_terminated
        self._on_batch = on_batch
        self._names: dict[str, str] = {}
        """Query by Spark's id of it: some events carry no name."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        self._names[str(event.id)] = query = event.name or str(event.id)
        self._context.metrics.start(query)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 (Spark's name)
        if (query := self._names.get(str(event.id))) is not None:
            self._context.metrics.idle(query)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (Spark's name)
        batch = self._batch(event.progress)
        self._context.metrics.batch(batch, event.progress)
        self._context.emit(batch)
        self._on_batch(batch)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 (Spark's name)
        if (query := self._names.get(str(event.id))) is not None:
            self._context.metrics.end(query)
        self._on_terminated(Terminated(str(event.id)))

    def _batch(self, progress: StreamingQueryProgress) -> BatchEvent:
        query = progress.name or str(progress.id)
        # Spark counts a record again each time a batch is read, so what the query counted itself goes first.
        counts = self._context.counts.pop((query, progress.batchId), BatchCounts(progress.numInputRows))
        duration_ms = progress.durationMs.get("triggerExecution", 0)
        watermark = progress.eventTime.get("watermark")
        return BatchEvent(
            query=query,
            batch=progress.batchId,
            rows=counts.rows,
            quarantined=counts.quarantined,
            late=counts.late + sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators),
            rows_per_s=round(counts.rows * 1000 / duration_ms, 1) if duration_ms else 0.0,
            duration_ms=duration_ms,
            end_offsets=kafka_offsets(*(source.endOffset for source in progress.sources)),
            watermark_ms=None if watermark is None else _milliseconds(watermark),
            at_ms=_milliseconds(progress.timestamp),
        )


def _milliseconds(moment: str) -> int:
    """Spark writes ``2026-11-21T08:15:30.123Z``."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)
