"""What the running queries tell Prometheus, kept current by the listener and read at scrape time.

Names and meanings are in ``metric_names``. Values are written by the listener's thread and the thread that commits
groups, read by the scraper's; a lock keeps a scrape to one moment. There is no label ``job``: Prometheus sets that
itself. A query is called as its job is.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from config.errors import ConfigError
from streaming.metric_names import PHASES, SERIES, STORES

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.metrics_core import Metric
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from config.tables.stream import StreamMetricsSettings
    from streaming.progress import BatchEvent, Offsets

_PREFIX: Final = "gateway_stream_"


class BatchCounts(NamedTuple):
    """What a query counted itself while it wrote a batch."""

    rows: int
    quarantined: int = 0
    late: int = 0
    """Rows that came too late for what they belong to, and changed nothing."""


class StreamMetrics:
    """All series of one process. Any thread may call it; nothing blocks for longer than a scrape copies numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[tuple[str, ...], float]] = {one.name: {} for one in SERIES}
        self._finished_s: dict[str, float] = {}
        self._heard_s: dict[str, float] = {}
        self._watermark_s: dict[str, float] = {}

    def start(self, query: str) -> None:
        with self._lock:
            for one in SERIES:
                if one.labels[1:2] not in ((), ("phase",), ("store",)):
                    continue  # topics and partitions are known once they are read
                for row in one.fixed:
                    self._values[one.name].setdefault((query, *row), 0.0)
            self._finished_s[query] = self._heard_s[query] = time.monotonic()
            self._set("up", 1, query)
            self._set("started_timestamp_seconds", time.time(), query)

    def end(self, query: str) -> None:
        with self._lock:
            self._set("up", 0, query)

    def idle(self, query: str) -> None:
        with self._lock:
            self._heard_s[query] = time.monotonic()

    def batch(self, batch: BatchEvent, progress: StreamingQueryProgress) -> None:
        """A batch is finished; ``progress`` is Spark's report of it."""
        query = batch.query
        with self._lock:
            self._finished_s[query] = self._heard_s[query] = time.monotonic()
            self._set("batch_rows", batch.rows, query)
            self._add("batches_total", 1, query)
            self._add("rows_total", batch.rows, query)
            self._add("rows_quarantined_total", batch.quarantined, query)
            self._add("rows_late_total", batch.late, query)
            self._phases(query, progress.durationMs)
            self._state(query, progress.stateOperators)
            if batch.watermark_ms is not None:
                self._watermark_s[query] = batch.watermark_ms / 1000
            for source in progress.sources:
                self._offsets(query, kafka_offsets(source.endOffset), kafka_offsets(source.latestOffset))

    def data_lost(self, query: str, topic: str, offsets: int) -> None:
        """So many offsets of a topic were gone before they were read."""
        with self._lock:
            self._add("data_loss_offsets_total", offsets, query, topic)

    def audit(self, query: str, *, missing: int, unaccounted: int) -> None:
        """What an audit found out of balance, in records, of all that it looks at."""
        with self._lock:
            self._set("audit_missing_records", missing, query)
            self._set("audit_unaccounted_records", unaccounted, query)

    def commit_failed(self, query: str) -> None:
        with self._lock:
            self._add("group_commit_failures_total", 1, query)

    def collect(self) -> Iterator[Metric]:
        """Every family with its present values: makes this a collector of prometheus_client."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            self._ages()
            values = {name: dict(rows) for name, rows in self._values.items()}
        for one in SERIES:
            make = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
            family = make(one.name.removesuffix("_total"), one.meaning, labels=one.labels)
            for row, value in values[one.name].items():
                family.add_metric(row, value)
            yield family

    def _set(self, name: str, value: float, *labels: str) -> None:
        self._values[_PREFIX + name][labels] = value

    def _add(self, name: str, more: float, *labels: str) -> None:
        rows = self._values[_PREFIX + name]
        rows[labels] = rows.get(labels, 0.0) + more

    def _ages(self) -> None:
        now_s, clock_s = time.monotonic(), time.time()
        for query, finished_s in self._finished_s.items():
            self._set("batch_age_seconds", now_s - finished_s, query)
            self._set("silence_seconds", now_s - self._heard_s[query], query)
            # Before the first record Spark's watermark is 1970.
            watermark_s = self._watermark_s.get(query, 0.0)
            self._set("watermark_delay_seconds", max(0.0, clock_s - watermark_s) if watermark_s > 0 else 0.0, query)

    def _phases(self, query: str, duration_ms: Mapping[str, int]) -> None:
        for phase in PHASES:
            seconds = duration_ms.get(phase, 0) / 1000
            self._set("batch_seconds", seconds, query, phase)
            self._add("phase_seconds_total", seconds, query, phase)

    def _state(self, query: str, operators: Iterable[Any]) -> None:
        rows = memory = disk = 0
        for one in operators:
            rows += one.numRowsTotal
            memory += one.memoryUsedBytes
            disk += one.customMetrics.get("rocksdbSstFileSize", 0)
        self._set("state_rows", rows, query)
        for store, size in zip(STORES, (memory, disk), strict=True):
            self._set("state_bytes", size, query, store)

    def _offsets(self, query: str, end: Offsets, latest: Offsets) -> None:
        for topic, partitions in end.items():
            self._values[f"{_PREFIX}data_loss_offsets_total"].setdefault((query, topic), 0.0)
            for partition, offset in partitions.items():
                newest = latest.get(topic, {}).get(partition, offset)
                self._set("offsets_behind", max(0, newest - offset), query, topic, partition)


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


class Served(NamedTuple):
    """Where Prometheus finds the metrics, and the server, whose thread ends with the process."""

    url: str
    server: WSGIServer


def serve(metrics: StreamMetrics, settings: StreamMetricsSettings) -> Served | None:
    """Serves the metrics and those of the process; None where ``stream.metrics.port`` is not set.

    Raises ConfigError if the port cannot be had: another job of this machine has it, as a rule.
    """
    if settings.port is None:
        return None
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(metrics)
    try:
        server, _ = start_http_server(settings.port, settings.host, registry)
    except OSError as error:
        raise ConfigError(
            f"stream.metrics.port is {settings.port}, which cannot be listened on at {settings.host}"
            f" ({error.strerror or error}). Does another job of this machine use it? Give each a port of its own"
            " (--metrics-port), 0 for any free one, or run the jobs in one process (gateway stream all)."
        ) from error
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    return Served(f"http://{shown}:{server.server_port}/metrics", server)
