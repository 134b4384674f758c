"""Settings of each Spark job beside ``[stream]``, a table each."""

__all__ = [
    "AnomalySettings",
    "AuditSettings",
    "BronzeSettings",
    "DevicesSettings",
    "GoldSettings",
    "LakeSettings",
    "RetentionSettings",
    "SilverSettings",
]

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from config.values.grammar import ByteCount, Count, Duration
from config.values.model import Table
from config.values.names import KafkaTopicName
from config.values.window_shapes import check_windows

_Kept = Annotated[Duration, Field(ge=timedelta(days=1), le=timedelta(days=36_600))] | None


class RetentionSettings(Table):
    """How long each table's rows are kept, by their day; unset: for ever. Whole days go, the next time `gateway stream
    maintain` runs."""

    bronze: _Kept = None
    """Records as they came, by the day the gateway received them. What `silver` is rebuilt from; with `silver` alone,
    a schema that was wrong cannot be corrected any more."""

    silver: _Kept = None
    """Typed readings, by the day of their event time. Longer than any message may be late:
    one that comes again after its first copy is gone is taken for a new one, and `gold` computes a window from what is
    left of it."""

    silver_quarantine: _Kept = None
    """Records that could not be decoded, by the day the gateway received them."""

    gold: _Kept = None
    """Aggregates, by the day their window begins. Longer than `silver`: they are small, and not computed again once
    the readings are gone."""

    device_events: _Kept = None
    """What happened to devices (online, offline, gaps, flapping), by the day it happened. The table `devices` stays."""

    anomalies: _Kept = None
    """Alerts of the anomaly detector, by the day of the reading. The Kafka topic has a retention of its own."""

    audit: _Kept = None
    """Counts of what is in Kafka against the ledger, by the day of the minute that was counted."""

    telemetry: _Kept = None
    """The job `ingest`'s table `stream.output`, by the day the gateway received the records."""

    quarantine: _Kept = None
    """The job `ingest`'s table `stream.quarantine`, by the day the gateway received the records."""


class LakeSettings(Table):
    path: Path = Path("data/lake")
    """Folder (or URL of a file system that Spark knows, such as `s3a://bucket/lake`) with one folder per table."""

    catalog: Annotated[str, Field(min_length=1)] | None = None
    """Catalog and schema (`main.iot`, `spark_catalog.default`) in which the Delta tables are named, instead of being
    known by their folders alone. The catalog itself is configured with `--conf spark.sql.catalog.…`."""

    compact_after: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(days=366))] = timedelta(days=1)
    """How long a day must be over before `gateway stream maintain` puts its small files together. 1 day leaves late
    records time to arrive; 0 compacts yesterday at midnight and again when more came."""

    target_file_size: Annotated[ByteCount, Field(ge=1 << 20, le=1 << 34)] = 128 << 20
    """Size of the files that compaction makes. Larger ones are fewer to list, and less parallel to read."""

    vacuum_after: Annotated[Duration, Field(ge=timedelta(hours=1), le=timedelta(days=3660))] = timedelta(days=7)
    """How long files that no longer belong to a Delta table stay, for readers and streams that began before. It has to
    be longer than any query, any batch, and any time that a job which reads a table as a stream may be behind. What
    `forget` deletes is in such files until then."""

    maintain_days: Annotated[Count, Field(ge=1, le=100_000)] = 31
    """Days of one table that one run of `gateway stream maintain` compacts at most, oldest first; the rest is the next
    run's. Bounds how long a run takes after a long time without."""

    retention: RetentionSettings = RetentionSettings()
    """How long each table's rows are kept."""


class BronzeSettings(Table):
    format: Literal["parquet", "delta"] = "parquet"
    """How raw records are kept. Parquet is the cheapest to write; Delta has one log for every reader."""


class SilverSettings(Table):
    schemas: Path | None = None
    """Folder with a schema for each device type. Unset: the schemas that come with the gateway."""

    registry: Path | None = None
    """Table of the devices, with the columns `device`, `type` and `site`: the folder (or URL) of a Delta table or of
    Parquet files, or a CSV file with a header line. It is read again when it has changed. Unset: readings have no
    site."""

    clockless_within: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(days=366))] = timedelta(days=7)
    """How far apart two copies of a message may be received and still be found to be one, for device types whose
    readings carry no time of their own (`time = { received = true }` in their schema). Others are compared however far
    apart: a copy has the time of its original. Longer makes every batch look through more files."""


class GoldSettings(Table):
    windows: Annotated[tuple[str, ...], Field(min_length=1, max_length=8), AfterValidator(check_windows)] = (
        "1m tumbling",
        "1h tumbling",
        "15m sliding 5m",
    )
    """The windows of the aggregates, by event time, each `LENGTH tumbling` or `LENGTH sliding STEP`, aligned to UTC.
    All are put together from their greatest common length (an hour at the most), which is kept as a window too: 1 min
    with the defaults. Shorter steps make more rows. They are fixed once the job has begun."""

    trigger: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(hours=24))] = timedelta(seconds=30)
    """Time between micro-batches of this job. Each batch computes the windows that are open anew, so twice as many cost
    twice as much; longer shows an open window later."""


class DevicesSettings(Table):
    offline_after: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(days=366))] = timedelta(minutes=10)
    """Silence after which a device counts as offline, if it did not say goodbye before. It counts by the readings of
    its gateway's other devices, or by the gateway's ledger where that says that nothing came; not by the clock on the
    wall. Shorter than the pause between two readings makes every device flap."""

    gateway_after: Annotated[Duration, Field(ge=timedelta(seconds=2), le=timedelta(days=366))] = timedelta(minutes=5)
    """Silence after which a gateway counts as lost, and its devices as unknown: neither a reading nor an entry in the
    ledger, which has one per `ledger.interval`. Give it several of these. A gateway without a ledger is given
    `offline_after`."""

    presence_topics: tuple[KafkaTopicName, ...] = ()
    """Kafka topics with births and deaths of devices: EMQX's client events, last wills, Sparkplug's NBIRTH and NDEATH.
    Empty: devices are online while they send. They must exist."""

    heartbeats: bool = True
    """Whether to read `ledger.topic`, which tells a gateway that is down from one without traffic. Off where the
    gateways keep no ledger in this Kafka: the topic must exist."""

    gap_after: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(days=31))] = timedelta(minutes=1)
    """How long a missing sequence number may come late before there is an event `gap`. The counts in the table do not
    wait."""

    flap_transitions: Annotated[Count, Field(ge=2, le=1000)] = 6
    """A device flaps when it went online and offline more than so many times within `flap_window`."""

    flap_window: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(days=31))] = timedelta(hours=1)
    """The time within which `flap_transitions` are counted. Longer calls a device flapping that is restarted now and
    then."""

    forget_after: Annotated[Duration, Field(ge=timedelta(minutes=1), le=timedelta(days=3660))] = timedelta(days=30)
    """A device that nothing was heard of for so long loses its state and its row in `devices`. Its state is what costs
    memory and disk."""

    shards: Annotated[Count, Field(ge=1, le=10_000)] = 16
    """Parts that the devices are divided into; each is one task's work at a time. More than all cores together gain
    nothing. Fixed once the checkpoint is begun."""


class AnomalySettings(Table):
    topic: KafkaTopicName = "anomalies"
    """Kafka topic that alerts, and scores from `score_from` on, are written to. Missing, it is made if
    `kafka.topics.create` allows it, else the job does not start."""

    score_from: Annotated[float, Field(ge=0, le=1e6)] = 4.0
    """Scores from here on go to the topic, also those below `threshold` that are no alert. 0 sends one record for each
    number that a device measures, several times the telemetry."""

    threshold: Annotated[float, Field(gt=0, le=1e6)] = 6.0
    """How many robust standard deviations (1.4826 times the median absolute deviation) a reading has to be away from
    the median of its window to be an anomaly. 6 is quiet: of a steady noise less than one reading in 10,000 is beyond.
    4 finds smaller faults, and more that are none."""

    window: Annotated[Count, Field(ge=5, le=10_000)] = 60
    """How many readings of a device's signal the next one is measured by. The state has 16 bytes for each. Short
    windows get used to everything; long ones call the afternoon an anomaly of the night."""

    window_time: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(days=366))] = timedelta(days=7)
    """Age beyond which a reading leaves the window, however few are in it: what was normal before a device was away for
    so long is not asked any more."""

    warm_up: Annotated[Count, Field(ge=5, le=10_000)] = 20
    """Readings a window needs before anything is said, and outliers in a row that make a new level normal."""

    stuck_after: Annotated[Count, Field(ge=2, le=1_000_000)] = 60
    """Equal readings in a row after which a signal that used to change is called stuck; at least four times the longest
    run of equal readings it ever had."""

    scale_share: Annotated[float, Field(ge=0, le=1)] = 0.005
    """The least that counts as one standard deviation, as a share of the median, so that a constant signal may have its
    last digit change: 0.005 lets 230 V vary by 1.15 V, and calls 6.9 V an anomaly."""

    min_scale: dict[str, Annotated[float, Field(gt=0, le=1e12)]] = Field(default={})
    """The same for single signals, in their own unit and instead of the share: `{ temperature = 0.2 }`."""

    skip: tuple[str, ...] = ()
    """Signals that are not judged, such as counters that only grow and switches that go on and off."""

    silence_factor: Annotated[float, Field(ge=1, le=1e6)] = 5.0
    """How many of its usual intervals a device may be silent while others are not. A device's usual interval is the
    90th percentile of its last 32."""

    min_silence: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(days=366))] = timedelta(minutes=2)
    """A shorter silence is no anomaly, however often the device usually speaks."""


class AuditSettings(Table):
    settle: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(hours=24))] = timedelta(minutes=5)
    """How long after a minute's end it is judged: the ledger is written once a minute, and records may be on their
    way. An entry that comes later still revises the judgement; shorter means more that is revised."""

    keep: Annotated[Duration, Field(ge=timedelta(hours=1), le=timedelta(days=31))] = timedelta(days=1)
    """How long a minute is judged again when something comes. Longer than messages may wait in a gateway's spool, and
    than Kafka may be away; each day keeps a row or two for every minute and partition."""
