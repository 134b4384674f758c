"""Progress lines out of Spark's own reports."""

from __future__ import annotations

__all__ = ["ProgressListener"]

import json
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from streaming.progress import BatchEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from streaming.job import JobContext
    from streaming.progress import Offsets


class Terminated(NamedTuple):
    """A query has ended, and all its progress has been reported. ``query_id`` is Spark's id of it."""

    query_id: str


class ProgressListener(StreamingQueryListener):
    """Emits a line for each completed batch and tells ``on_terminated`` of each query that ended.

    Spark calls it from one thread of its own, in order, a moment after the fact.
    """

    def __init__(self, context: JobContext, on_terminated: Callable[[Terminated], None]) -> None:
        self._context = context
        self._on_terminated = on_terminated

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 (Spark's name)
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (Spark's name)
        self._context.emit(self._batch(event.progress))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 (Spark's name)
        self._on_terminated(Terminated(str(event.id)))

    def _batch(self, progress: StreamingQueryProgress) -> BatchEvent:
        query = progress.name or str(progress.id)
        counts = self._context.tally.take(query, progress.batchId)
        # Spark counts a record again each time a batch is read, so what the query counted itself goes first.
        rows = progress.numInputRows if counts is None else counts.rows
        duration_ms = progress.durationMs.get("triggerExecution", 0)
        watermark = progress.eventTime.get("watermark")
        return BatchEvent(
            query=query,
            batch=progress.batchId,
            rows=rows,
            quarantined=0 if counts is None else counts.quarantined,
            late=sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators),
            rows_per_s=round(rows * 1000 / duration_ms, 1) if duration_ms else 0.0,
            duration_ms=duration_ms,
            end_offsets=_offsets(progress),
            watermark_ms=None if watermark is None else _milliseconds(watermark),
            at_ms=_milliseconds(progress.timestamp),
        )


def _offsets(progress: StreamingQueryProgress) -> Offsets:
    (source,) = progress.sources
    end = source.endOffset
    offsets: dict[str, dict[str, int]] = json.loads(end) if isinstance(end, str) else end
    return offsets


def _milliseconds(moment: str) -> int:
    """Spark writes ``2026-11-21T08:15:30.123Z``."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)
