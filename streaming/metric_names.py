"""Every metric of a Spark job: name, kind, unit, labels, meaning, and what to turn when it looks wrong.

No pyspark and no prometheus_client here: ``docs/metrics.md`` is printed from this list, beside the gateway's own.
"""

from __future__ import annotations

__all__ = ["PHASES", "SERIES", "STORES", "Series"]

from dataclasses import dataclass
from typing import Final, Literal

PHASES: Final = (
    "triggerExecution", "latestOffset", "queryPlanning", "walCommit", "getBatch", "addBatch", "commitOffsets",
)  # fmt: skip
"""What Spark times of a batch, in its words; ``triggerExecution`` is all of it."""
STORES: Final = ("memory", "disk")


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
           "1 while the query runs; 0 once it has ended, for as long as its process is still there.",
           "the error the job ended with, on its standard error"),
    Series("gateway_stream_started_timestamp_seconds", "gauge", "seconds",
           "When the query was started, in Unix time. It changes with every restart.",
           "why it is started again and again: the job's standard error"),
    Series("gateway_stream_rows_total", "counter", "rows",
           "Rows that finished batches have read. A batch that is repeated after a crash counts in the life that"
           " finished it.",
           "stream.topics, when it stands still"),
    Series("gateway_stream_input_rows_per_second", "gauge", "rows/s",
           "Rows that came in a second, between the last batch and the one before.",
           "none: this is the load"),
    Series("gateway_stream_processed_rows_per_second", "gauge", "rows/s",
           "Rows the last batch processed a second. Below the input for long: the query falls behind.",
           "stream.master (cores), stream.shuffle_partitions"),
    Series("gateway_stream_batches_total", "counter", "batches", "Batches finished since the process began.",
           "stream.trigger"),
    Series("gateway_stream_batch_id", "gauge", "batches",
           "Number of the last finished batch; -1 before the first of this process. It goes on across restarts.",
           "none: it names a file in the checkpoint"),
    Series("gateway_stream_batch_rows", "gauge", "rows", "Rows of the last batch.", "stream.max_offsets_per_trigger"),
    Series("gateway_stream_batch_seconds", "gauge", "seconds",
           "How long the last batch took, by phase; triggerExecution is all of it, addBatch the reading and writing.",
           "stream.max_offsets_per_trigger, stream.trigger", ("query", "phase"), tuple((one,) for one in PHASES)),
    Series("gateway_stream_phase_seconds_total", "counter", "seconds",
           "Time spent in each phase by all batches since the process began.",
           "as gateway_stream_batch_seconds", ("query", "phase"), tuple((one,) for one in PHASES)),
    Series("gateway_stream_batch_age_seconds", "gauge", "seconds",
           "Time since the last batch was finished, or since the start if there was none. Where nothing comes in it"
           " grows, too.",
           "stream.trigger; gateway_stream_silence_seconds tells a query that hangs from one with nothing to read"),
    Series("gateway_stream_silence_seconds", "gauge", "seconds",
           "Time since Spark reported a finished batch, or that there was nothing to read (which it does every 10 s):"
           " long while one batch runs long, growing without end when the query hangs.",
           "stream.max_offsets_per_trigger when batches are long; a thread dump of the JVM when it hangs"),
    Series("gateway_stream_offsets_behind", "gauge", "records",
           "Records in Kafka that the last batch left for the next, by partition, as Spark saw it when it planned that"
           " batch. 0 where stream.max_offsets_per_trigger is not set, since a batch then takes all there are: see"
           " gateway_stream_batch_seconds.",
           "stream.max_offsets_per_trigger, cores, partitions", ("query", "topic", "partition")),
    Series("gateway_stream_end_offset", "gauge", "offset",
           "The next offset to read of each partition, behind the last finished batch: what is in the checkpoint.",
           "none: compare it with Kafka's end", ("query", "topic", "partition")),
    Series("gateway_stream_watermark_delay_seconds", "gauge", "seconds",
           "How far the event-time watermark is behind the clock; 0 for a query without one, and before its first"
           " record.",
           "stream.watermark; devices whose clocks are behind; a source that nothing comes from"),
    Series("gateway_stream_state_rows", "gauge", "rows", "Keys in the state of the query's operators.",
           "stream.watermark, the number of devices"),
    Series("gateway_stream_state_bytes", "gauge", "bytes",
           "Size of the state: what is in memory (with RocksDB its caches and write buffers), and its files on disk.",
           "--conf spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage=true; stream.watermark",
           ("query", "store"), tuple((one,) for one in STORES)),
    Series("gateway_stream_rows_late_total", "counter", "rows",
           "Rows, or groups of rows, that came too late for their window or their state and were dropped there.",
           "stream.watermark"),
    Series("gateway_stream_rows_quarantined_total", "counter", "rows",
           "Rows that could not be used and went to quarantine instead of the table.",
           "the reasons in the quarantine table; stream.silver.schemas"),
    Series("gateway_stream_data_loss_offsets_total", "counter", "records",
           "Offsets that Kafka no longer had when they were to be read, and that were stepped over because of"
           " --allow-data-loss. The job names their range.",
           "the topic's retention; stream.max_offsets_per_trigger", ("query", "topic")),
    Series("gateway_stream_audit_missing_records", "gauge", "records",
           "Records that Kafka acknowledged to a gateway and does not have, in the minutes of the last"
           " stream.audit.keep. 0 for other queries than the audit.",
           "none: records are lost; the table audit says which route, partition and minute"),
    Series("gateway_stream_audit_unaccounted_records", "gauge", "records",
           "Records in Kafka with a gateway's name that its ledger does not name, in the minutes of the last"
           " stream.audit.keep: as after a crash, or copies after a lost answer. 0 for other queries than the audit.",
           "stream.audit.settle, if the account only comes late"),
    Series("gateway_stream_group_commit_failures_total", "counter", "commits",
           "Times the offsets could not be committed to Kafka under stream.group. Reading is not affected: they are"
           " there to be looked at.",
           "the rights of kafka's user: Read on the group and the topics"),
)  # fmt: skip
