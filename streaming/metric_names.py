"""Every metric of a Spark job: name, kind, unit, labels, meaning, and what to turn when it looks wrong.

No pyspark and no prometheus_client here: ``docs/metrics.md`` is printed from this list, beside the gateway's own.
"""

from dataclasses import dataclass
from typing import Final, Literal

PHASES: Final = (
    "triggerExecution", "latestOffset", "queryPlanning", "walCommit", "getBatch", "addBatch", "commitOffsets",
)  # fmt: skip
"""What Spark times of a batch, in its words; ``triggerExecution`` is all of it."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric. ``fixed``: the values that its last label can have, where they are known beforehand."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    meaning: str
    turn: str
    labels: tuple[str, ...] = ("query",)
    fixed: tuple[tuple[str, ...], ...] = ((),)
    bounds: tuple[float, ...] = ()


SERIES: Final = (
    Series("gateway_stream_up", "gauge", "state",
           "1 while the query runs; 0 after it ended, while its process still exists.",
           "the error at the end of the job's standard error"),
    Series("gateway_stream_started_timestamp_seconds", "gauge", "seconds",
           "Start time of the query.",
           "the cause of repeated restarts in the job's standard error"),
    Series("gateway_stream_rows_total", "counter", "rows",
           "Rows read by finished batches, each once.",
           "stream.topics if it does not grow"),
    Series("gateway_stream_batches_total", "counter", "batches", "Batches finished since the process started.",
           "stream.trigger"),
    Series("gateway_stream_batch_rows", "gauge", "rows", "Rows of the last batch.", "stream.max_offsets_per_trigger"),
    Series("gateway_stream_batch_seconds", "gauge", "seconds",
           "Duration of the last batch, by phase. triggerExecution is the whole; addBatch reads and writes.",
           "stream.max_offsets_per_trigger, stream.trigger", ("query", "phase"), tuple((one,) for one in PHASES)),
    Series("gateway_stream_phase_seconds_total", "counter", "seconds",
           "Duration of each phase, of all batches since the process started.",
           "as gateway_stream_batch_seconds", ("query", "phase"), tuple((one,) for one in PHASES)),
    Series("gateway_stream_batch_age_seconds", "gauge", "seconds",
           "Time since the last finished batch, also without input.",
           "stream.trigger; see gateway_stream_silence_seconds for a hanging query"),
    Series("gateway_stream_silence_seconds", "gauge", "seconds",
           "Time since Spark reported a finished batch or an idle query (every 10 s).",
           "stream.max_offsets_per_trigger for long batches; a thread dump of the JVM"),
    Series("gateway_stream_offsets_behind", "gauge", "records",
           "Records that the last batch left for the next, by partition.",
           "stream.max_offsets_per_trigger, cores, partitions;"
           " gateway_stream_batch_seconds", ("query", "topic", "partition")),
    Series("gateway_stream_watermark_delay_seconds", "gauge", "seconds",
           "Delay of the watermark behind the clock; 0 without one.",
           "as gateway_stream_offsets_behind; a source without input"),
    Series("gateway_stream_state_rows", "gauge", "rows", "Keys in the query's state.",
           "the number of devices, stream.devices.forget_after"),
    Series("gateway_stream_state_bytes", "gauge", "bytes",
           "Size of the state.",
           "--conf spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage=true; stream.devices.forget_after",
           ("query", "store"), (("memory",), ("disk",))),
    Series("gateway_stream_rows_late_total", "counter", "rows",
           "Rows, or groups of rows, that came too late.",
           "stream.lake.retention.silver"),
    Series("gateway_stream_rows_quarantined_total", "counter", "rows",
           "Unusable rows written to quarantine instead of the table.",
           "the reasons in the quarantine table; stream.silver.schemas"),
    Series("gateway_stream_data_loss_offsets_total", "counter", "records",
           "Offsets that Kafka deleted before they were read, skipped by --allow-data-loss.",
           "the topic's retention; stream.max_offsets_per_trigger", ("query", "topic")),
    Series("gateway_stream_audit_missing_records", "gauge", "records",
           "Records that Kafka acknowledged and does not have, within stream.audit.keep. Audit only.",
           "none: records are lost; the table audit has route, partition and minute"),
    Series("gateway_stream_audit_unaccounted_records", "gauge", "records",
           "Records with a gateway's name that no ledger counts, within stream.audit.keep: after a crash, or"
           " duplicates. Audit only.",
           "stream.audit.settle if the ledger is late"),
    Series("gateway_stream_group_commit_failures_total", "counter", "commits",
           "Failed commits of offsets to Kafka under stream.group.",
           "the rights of kafka's user: Read on the group and the topics"),
)  # fmt: skip
