"""Settings of the Spark jobs, which run in a process of their own."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from config.tables.stream_jobs import (
    AnomalySettings,
    AuditSettings,
    DevicesSettings,
    GoldSettings,
    LakeSettings,
    SilverSettings,
)
from config.values.addresses import HostText
from config.values.grammar import Count, Duration, duration, within
from config.values.model import Table
from config.values.names import Folder, KafkaTopicName


class StreamMetricsSettings(Table):
    host: HostText = "127.0.0.1"
    """Address of a job's metrics port, which has no password: beyond this machine, let only Prometheus reach it."""

    port: Annotated[Count, Field(ge=0, le=65535)] | None = None
    """Port of a job's `/metrics`. Unset: none, because jobs on one machine cannot share a port; `--metrics-port` gives
    each its own. 0 takes a free port and prints it."""


class StreamSettings(Table):
    master: Annotated[str, Field(min_length=1)] = "local[2]"
    """Spark's master URL. `local[2]` runs here with two cores, for 80,000 rows a second. `spark://host:7077` submits to
    a cluster."""

    checkpoint: Folder = Path("data/checkpoints")
    """Folder of Spark's progress, with a folder for each job. `gateway stream reset` begins a job anew."""

    topics: tuple[KafkaTopicName, ...] = ()
    """Kafka topics to read. Empty: the routes' topics, of which none may be a template."""

    trigger: Annotated[Duration, within("0s", "1d")] = duration("5s")
    """Time between micro-batches. 0 makes many small files."""

    available_now: bool = False
    """Whether to read what is there and then end, for a nightly job."""

    max_ahead: Annotated[Duration, within("0s", "366d")] = duration("5m")
    """How far a device's clock may run ahead. Later event times become the receive time plus this."""

    shuffle_partitions: Annotated[Count, Field(ge=1, le=100_000)] = 2
    """Spark's `spark.sql.shuffle.partitions`. Use the number of cores. Fixed once the job `devices` or `anomalies` has
    begun."""

    max_offsets_per_trigger: Annotated[Count, Field(ge=1, le=1_000_000_000)] = 1_000_000
    """Most records in one micro-batch; fewer where batches take too long. The job `silver` holds a batch, 500 bytes a
    record, in memory and what does not fit on disk."""

    group: Annotated[str, Field(max_length=200, pattern=r"^[a-zA-Z0-9._-]*$")] = "gateway-stream"
    """Prefix of the consumer groups (`gateway-stream-bronze`) to which each query commits its offsets, so that Kafka's
    tools show its lag. The Kafka user needs Read on the groups. Empty: nothing is committed."""

    metrics: StreamMetricsSettings = StreamMetricsSettings()
    """Where Prometheus reads a job's metrics."""

    lake: LakeSettings = LakeSettings()
    """Tables of the jobs `bronze` to `audit`."""

    silver: SilverSettings = SilverSettings()
    """The job `silver`: typed readings, each once."""

    gold: GoldSettings = GoldSettings()
    """The job `gold`: aggregates over windows of time."""

    devices: DevicesSettings = DevicesSettings()
    """The job `devices`: the present state of each device."""

    anomalies: AnomalySettings = AnomalySettings()
    """The job `anomalies`: readings that differ from earlier ones."""

    audit: AuditSettings = AuditSettings()
    """The job `audit`: Kafka's contents compared with the gateway's ledger."""
