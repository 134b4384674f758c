"""Settings of the Spark jobs, which run in a process of their own."""

__all__ = ["StreamMetricsSettings", "StreamSettings"]

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field

from config.stream_jobs import (
    AnomalySettings,
    AuditSettings,
    BronzeSettings,
    DevicesSettings,
    GoldSettings,
    LakeSettings,
    SilverSettings,
)
from config.values.grammar import Count, Duration
from config.values.model import Table
from config.values.names import KafkaTopicName


class StreamMetricsSettings(Table):
    host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    """Address that a job's metrics are served on. This machine alone unless told; there is no password, so elsewhere
    let nobody but Prometheus reach the port."""

    port: Annotated[Count, Field(ge=0, le=65535)] | None = None
    """Port that a job serves `/metrics` on. Unset: none, so that several jobs of one machine do not meet at one port;
    0 takes a free one and says which. `--metrics-port` gives each job its own."""


class StreamSettings(Table):
    master: Annotated[str, Field(min_length=1)] = "local[2]"
    """Spark's master URL. `local[2]` runs in this process with two cores, enough for 80k rows a second;
    `spark://host:7077` submits to a cluster."""

    output: Path = Path("data/telemetry")
    """Folder (or URL of a file system that Spark knows) for the Parquet files, partitioned by UTC ingest date."""

    quarantine: Path = Path("data/quarantine")
    """Folder for records that could not be parsed, each with its reason."""

    checkpoint: Path = Path("data/checkpoints")
    """Folder where Spark keeps how far it has read. It belongs to `output`: without it the job refuses to start beside
    rows that are there, for it would write everything twice. Delete both to begin anew."""

    topics: tuple[KafkaTopicName, ...] = ()
    """Kafka topics to read. Empty: the topics that the routes name; those of a route with a template have to be spelt
    out here."""

    trigger: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(hours=24))] = timedelta(seconds=5)
    """Time between micro-batches. 5 s makes files of a useful size at a latency that people accept; 0 starts the next
    batch at once and makes many small files."""

    available_now: bool = False
    """Whether to read what is there, in batches, and end, instead of running for ever; for a nightly job."""

    window: Annotated[Duration, Field(gt=timedelta(0), le=timedelta(days=366))] = timedelta(seconds=10)
    """Length of the windows that are aggregated. Short windows of many device types make much state."""

    watermark: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(days=366))] = timedelta(minutes=5)
    """How late a record may be, by event time, and still count in its window. 5 min covers devices that buffer;
    longer keeps more state in memory and delays the results that wait for it."""

    max_ahead: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(days=366))] = timedelta(minutes=5)
    """How far a device's clock may run ahead: later event times are set to the receive time plus this. Without it a
    clock in the year 2036 would drag the watermark along and make everybody else late."""

    shuffle_partitions: Annotated[Count, Field(ge=1, le=100_000)] = 2
    """Spark's `spark.sql.shuffle.partitions`. 2 fits two cores and is twice as fast there as Spark's own 200; on a
    cluster give as many as there are cores."""

    max_offsets_per_trigger: Annotated[Count, Field(ge=1)] | None = None
    """Records that one micro-batch takes at most. Unset: all there are, which after a long stop may be more than
    memory holds; for the job `silver`, which holds a batch while it works on it, 1,000,000."""

    group: Annotated[str, Field(max_length=200, pattern=r"^[a-zA-Z0-9._-]*$")] = "gateway-stream"
    """Beginning of the consumer groups (`gateway-stream-bronze`) that each query's place is committed to after every
    batch, so that `gateway groups` and Kafka's own tools show its lag. Nothing reads it back: the checkpoint alone says
    where a query goes on. The Kafka user needs Read on these groups. Empty: nothing is committed."""

    metrics: StreamMetricsSettings = StreamMetricsSettings()
    """Where Prometheus finds a job's metrics."""

    lake: LakeSettings = LakeSettings()
    """Where the tables of the jobs `bronze` to `audit` are."""

    bronze: BronzeSettings = BronzeSettings()
    """The job `bronze`: every record as it came."""

    silver: SilverSettings = SilverSettings()
    """The job `silver`: typed readings, each once."""

    gold: GoldSettings = GoldSettings()
    """The job `gold`: aggregates over windows of time."""

    devices: DevicesSettings = DevicesSettings()
    """The job `devices`: what is known of each device now."""

    anomalies: AnomalySettings = AnomalySettings()
    """The job `anomalies`: readings that do not fit those before."""

    audit: AuditSettings = AuditSettings()
    """The job `audit`: what is in Kafka against the gateway's ledger."""
