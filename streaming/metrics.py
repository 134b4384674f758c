"""What the running queries tell Prometheus, kept current by the listener and read at scrape time.

Values are written by the listener's thread and the thread that commits groups, read by the scraper's. There is no label
``job``: Prometheus sets that itself. A query is called as its job is. prometheus_client is imported by a job alone.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from config.errors import ConfigError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from config.tables.stream import StreamMetricsSettings
    from streaming.progress import BatchEvent, Offsets

PHASES: Final = (
    "triggerExecution", "latestOffset", "queryPlanning", "walCommit", "getBatch", "addBatch", "commitOffsets",
)  # fmt: skip
"""What Spark times of a batch, in its words; ``triggerExecution`` is all of it."""


@dataclass(frozen=True, slots=True)
class Series:
    """A metric: what it means, and what to ``turn`` when it looks wrong. ``fixed``: the values that its last label can
    have, where they are known beforehand. ``docs/metrics.md`` is printed from these."""

    name: str
    meaning: str
    turn: str
    labels: tuple[str, ...] = ("query",)
    fixed: tuple[tuple[str, ...], ...] = ((),)


_BY_PHASE: Final = tuple((phase,) for phase in PHASES)
SERIES: Final = (
    Series("gateway_stream_up", "1 while the query runs; 0 after it ended, while its process still exists.",
           "the error at the end of the job's standard error"),
    Series("gateway_stream_started_timestamp_seconds", "Start time of the query.",
           "the cause of repeated restarts in the job's standard error"),
    Series("gateway_stream_rows_total", "Rows read by finished batches, each once.",
           "stream.topics if it does not grow"),
    Series("gateway_stream_batches_total", "Batches finished since the process started.", "stream.trigger"),
    Series("gateway_stream_batch_rows", "Rows of the last batch.", "stream.max_offsets_per_trigger"),
    Series("gateway_stream_batch_seconds",
           "Duration of the last batch, by phase. triggerExecution is the whole; addBatch reads and writes.",
           "stream.max_offsets_per_trigger, stream.trigger", ("query", "phase"), _BY_PHASE),
    Series("gateway_stream_phase_seconds_total", "Duration of each phase, of all batches since the process started.",
           "as gateway_stream_batch_seconds", ("query", "phase"), _BY_PHASE),
    Series("gateway_stream_batch_age_seconds", "Time since the last finished batch, also without input.",
           "stream.trigger; see gateway_stream_silence_seconds for a hanging query"),
    Series("gateway_stream_silence_seconds",
           "Time since Spark reported a finished batch or an idle query (every 10 s).",
           "stream.max_offsets_per_trigger for long batches; a thread dump of the JVM"),
    Series("gateway_stream_offsets_behind", "Records that the last batch left for the next, by partition.",
           "stream.max_offsets_per_trigger, cores, partitions; gateway_stream_batch_seconds",
           ("query", "topic", "partition")),
    Series("gateway_stream_watermark_delay_seconds", "Delay of the watermark behind the clock; 0 without one.",
           "as gateway_stream_offsets_behind; a source without input"),
    Series("gateway_stream_state_rows", "Keys in the query's state.",
           "the number of devices, stream.devices.forget_after"),
    Series("gateway_stream_state_bytes", "Size of the state.",
           "--conf spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage=true; stream.devices.forget_after",
           ("query", "store"), (("memory",), ("disk",))),
    Series("gateway_stream_rows_late_total", "Rows, or groups of rows, that came too late.",
           "stream.lake.retention.silver"),
    Series("gateway_stream_rows_quarantined_total", "Unusable rows written to quarantine instead of the table.",
           "the reasons in the quarantine table; stream.silver.schemas"),
    Series("gateway_stream_data_loss_offsets_total",
           "Offsets that Kafka deleted unread, skipped by --allow-data-loss. Bronze only.",
           "the topic's retention; stream.max_offsets_per_trigger", ("query", "topic")),
    Series("gateway_stream_audit_missing_records",
           "Records that Kafka acknowledged and does not have, within stream.audit.keep. Audit only.",
           "none: records are lost; the table audit has route, partition and minute"),
    Series("gateway_stream_audit_unaccounted_records",
           "Records with a gateway's name that no ledger counts, within stream.audit.keep: after a crash, or"
           " duplicates. Audit only.",
           "stream.audit.settle if the ledger is late"),
    Series("gateway_stream_group_commit_failures_total", "Failed commits of offsets to Kafka under stream.group.",
           "the rights of kafka's user: Read on the group and the topics"),
)  # fmt: skip


class BatchCounts(NamedTuple):
    """What a query counted itself while it wrote a batch."""

    rows: int
    quarantined: int = 0
    late: int = 0  # rows that came too late for what they belong to, and changed nothing


class StreamMetrics:
    """All series of one process. Any thread may call it."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

        self.url: str | None = None  # where they are served, if they are
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._series: dict[str, Any] = {}
        for one in SERIES:
            kind = Counter if one.name.endswith("_total") else Gauge
            self._series[one.name] = kind(one.name, one.meaning, one.labels, registry=self.registry)

    def of(self, name: str, *labels: str) -> Any:
        """prometheus_client's child of the metric ``gateway_stream_NAME`` with these labels' values."""
        return self._series[f"gateway_stream_{name}"].labels(*labels)

    def start(self, query: str) -> None:  # makes its series
        for one in SERIES:
            if one.labels[-1] not in {"topic", "partition"}:  # those are known once they are read
                for row in one.fixed:  # values of its last label
                    self._series[one.name].labels(query, *row)
        self._restart(query, "batch_age_seconds", "silence_seconds")
        self.of("up", query).set(1)
        self.of("started_timestamp_seconds", query).set_to_current_time()

    def idle(self, query: str) -> None:  # Spark has reported it
        self._restart(query, "silence_seconds")

    def batch(self, batch: BatchEvent, progress: StreamingQueryProgress) -> None:
        """A batch is finished; ``progress`` is Spark's report of it."""
        query = batch.query
        self._restart(query, "batch_age_seconds", "silence_seconds")
        self.of("batch_rows", query).set(batch.rows)
        self.of("batches_total", query).inc()
        self.of("rows_total", query).inc(batch.rows)
        self.of("rows_quarantined_total", query).inc(batch.quarantined)
        self.of("rows_late_total", query).inc(batch.late)
        for phase in PHASES:
            seconds = progress.durationMs.get(phase, 0) / 1000
            self.of("batch_seconds", query, phase).set(seconds)
            self.of("phase_seconds_total", query, phase).inc(seconds)
        state = progress.stateOperators
        disk = sum(one.customMetrics.get("rocksdbSstFileSize", 0) for one in state)
        self.of("state_rows", query).set(sum(one.numRowsTotal for one in state))
        self.of("state_bytes", query, "memory").set(sum(one.memoryUsedBytes for one in state))
        self.of("state_bytes", query, "disk").set(disk)
        if batch.watermark_ms:  # before the first record Spark's is 1970
            at_s = batch.watermark_ms / 1000
            self.of("watermark_delay_seconds", query).set_function(lambda: max(0.0, time.time() - at_s))
        for source in progress.sources:
            latest = kafka_offsets(source.latestOffset)
            for topic, partitions in kafka_offsets(source.endOffset).items():
                self.of("data_loss_offsets_total", query, topic)
                for partition, offset in partitions.items():
                    behind = latest.get(topic, {}).get(partition, offset) - offset
                    self.of("offsets_behind", query, topic, partition).set(max(0, behind))

    def _restart(self, query: str, *names: str) -> None:  # these count seconds from now on
        now_s = time.monotonic()
        for name in names:
            self.of(name, query).set_function(lambda: time.monotonic() - now_s)


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
