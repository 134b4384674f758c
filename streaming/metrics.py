"""What the running queries tell Prometheus, kept current by the listener and read at scrape time.

Names and meanings are in ``metric_names``. Values are written by the listener's thread and the thread that commits
groups, read by the scraper's. There is no label ``job``: Prometheus sets that itself. A query is called as its job is.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from config.errors import ConfigError
from streaming.metric_names import PHASES, SERIES

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from config.tables.stream import StreamMetricsSettings
    from streaming.progress import BatchEvent, Offsets


class BatchCounts(NamedTuple):
    """What a query counted itself while it wrote a batch."""

    rows: int
    quarantined: int = 0
    late: int = 0
    """Rows that came too late for what they belong to, and changed nothing."""


class StreamMetrics:
    """All series of one process. Any thread may call it."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

        self.url: str | None = None
        """Where they are served, if they are."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        makes = {"counter": Counter, "gauge": Gauge}
        self._series: dict[str, Any] = {
            one.name: makes[one.kind](one.name, one.meaning, one.labels, registry=self.registry) for one in SERIES
        }
        self._finished_s: dict[str, float] = {}  # by query: its last batch, on the monotonic clock
        self._heard_s: dict[str, float] = {}  # by query: Spark's last report, on the same clock
        self._watermark_s: dict[str, float] = {}  # by query: since 1970

    def start(self, query: str) -> None:  # makes its series
        for one in SERIES:
            if one.labels[-1] not in {"topic", "partition"}:  # those are known once they are read
                for row in one.fixed:  # values of its last label
                    self._series[one.name].labels(query, *row)
        self._finished_s[query] = self._heard_s[query] = time.monotonic()
        self._of("batch_age_seconds", query).set_function(lambda: time.monotonic() - self._finished_s[query])
        self._of("silence_seconds", query).set_function(lambda: time.monotonic() - self._heard_s[query])
        self._of("watermark_delay_seconds", query).set_function(lambda: self._delay_s(query))
        self._of("up", query).set(1)
        self._of("started_timestamp_seconds", query).set_to_current_time()

    def end(self, query: str) -> None:
        self._of("up", query).set(0)

    def idle(self, query: str) -> None:
        self._heard_s[query] = time.monotonic()

    def batch(self, batch: BatchEvent, progress: StreamingQueryProgress) -> None:
        """A batch is finished; ``progress`` is Spark's report of it."""
        query = batch.query
        self._finished_s[query] = self._heard_s[query] = time.monotonic()
        self._of("batch_rows", query).set(batch.rows)
        self._of("batches_total", query).inc()
        self._of("rows_total", query).inc(batch.rows)
        self._of("rows_quarantined_total", query).inc(batch.quarantined)
        self._of("rows_late_total", query).inc(batch.late)
        for phase in PHASES:
            seconds = progress.durationMs.get(phase, 0) / 1000
            self._of("batch_seconds", query, phase).set(seconds)
            self._of("phase_seconds_total", query, phase).inc(seconds)
        state = progress.stateOperators
        disk = sum(one.customMetrics.get("rocksdbSstFileSize", 0) for one in state)
        self._of("state_rows", query).set(sum(one.numRowsTotal for one in state))
        self._of("state_bytes", query, "memory").set(sum(one.memoryUsedBytes for one in state))
        self._of("state_bytes", query, "disk").set(disk)
        if batch.watermark_ms is not None:
            self._watermark_s[query] = batch.watermark_ms / 1000
        for source in progress.sources:
            latest = kafka_offsets(source.latestOffset)
            for topic, partitions in kafka_offsets(source.endOffset).items():
                self._of("data_loss_offsets_total", query, topic)
                for partition, offset in partitions.items():
                    behind = latest.get(topic, {}).get(partition, offset) - offset
                    self._of("offsets_behind", query, topic, partition).set(max(0, behind))

    def data_lost(self, query: str, topic: str, offsets: int) -> None:
        """So many offsets of a topic were gone before they were read."""
        self._of("data_loss_offsets_total", query, topic).inc(offsets)

    def audit(self, query: str, *, missing: int, unaccounted: int) -> None:
        """What an audit found out of balance, in records, of all that it looks at."""
        self._of("audit_missing_records", query).set(missing)
        self._of("audit_unaccounted_records", query).set(unaccounted)

    def commit_failed(self, query: str) -> None:
        self._of("group_commit_failures_total", query).inc()

    def _of(self, name: str, *labels: str) -> Any:
        return self._series[f"gateway_stream_{name}"].labels(*labels)

    def _delay_s(self, query: str) -> float:
        watermark_s = self._watermark_s.get(query, 0.0)  # before the first record Spark's is 1970
        return max(0.0, time.time() - watermark_s) if watermark_s > 0 else 0.0


def kafka_offsets(*positions: Any) -> Offsets:
    """Sources' positions as offsets by topic and partition; nothing of a source that is not Kafka."""
    ends: dict[str, dict[str, int]] = {}
    for position in positions:
        try:
            found = json.loads(position) if isinstance(position, str) else position
        except ValueError:
            continue
        if isinstance(found, dict) and all(isinstance(one, dict) for one in found.values()):
            for topic, partitions in found.items():
                ends.setdefault(topic, {}).update(partitions)
    return ends


def serve(metrics: StreamMetrics, settings: StreamMetricsSettings) -> WSGIServer | None:
    """Serves the metrics and those of the process, in a thread that ends with it; None where ``stream.metrics.port`` is
    not set. Raises ConfigError if the port cannot be had: another job of this machine has it, as a rule."""
    if settings.port is None:
        return None
    from prometheus_client import ProcessCollector, start_http_server

    ProcessCollector(registry=metrics.registry)
    try:
        server, _ = start_http_server(settings.port, settings.host, metrics.registry)
    except OSError as error:
        raise ConfigError(
            f"stream.metrics.port is {settings.port}, which cannot be listened on at {settings.host}"
            f" ({error.strerror or error}). Does another job of this machine use it? Give each a port of its own"
            " (--metrics-port), 0 for any free one, or run the jobs in one process (gateway stream all)."
        ) from error
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    metrics.url = f"http://{shown}:{server.server_port}/metrics"
    return server
