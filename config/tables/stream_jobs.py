"""Settings of each Spark job beside ``[stream]``, a table each."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from config.values.grammar import ByteCount, Count, Duration, Number, duration, within
from config.values.model import Table
from config.values.names import Folder, KafkaTopicName
from config.values.window_shapes import check_windows

_Kept = Annotated[Duration, within("1d", "36600d")] | None


class RetentionSettings(Table):
    """How long each table's rows are kept, by their day; unset: for ever. Whole days go, the next time `gateway stream
    maintain` runs."""

    bronze: _Kept = None
    """Records as received, from which `silver` is rebuilt. Without them a wrong schema cannot be corrected later."""

    silver: _Kept = None
    """Typed readings, by the day of their event time. Keep them longer than any message may be late: a later copy
    counts as new, and `gold` computes its window from the remaining readings."""

    silver_quarantine: _Kept = None
    """Records that `silver` could not decode."""

    gold: _Kept = None
    """Aggregates, by the day their window begins. Keep them longer than `silver`, without which they cannot be computed
    again."""

    device_events: _Kept = None
    """Events of devices, by the day of the event."""

    anomalies: _Kept = None
    """Alerts of the anomaly detector, by the day of the reading."""

    audit: _Kept = None
    """Counts against the ledger, by the day of the counted minute."""


class LakeSettings(Table):
    path: Folder = Path("data/lake")
    """Folder, or URL of a file system that Spark knows (`s3a://bucket/lake`), with a folder for each table."""

    catalog: Annotated[str, Field(pattern=r"^(\w+|`[^`]+`)(\.(\w+|`[^`]+`))*$")] | None = None
    """Catalog and schema that name the Delta tables (`main.iot`, `spark_catalog.default`)."""

    compact_after: Annotated[Duration, within("0s", "366d")] = duration("1d")
    """How long after a day's end `gateway stream maintain` compacts its small files."""

    target_file_size: Annotated[ByteCount, Field(ge=1 << 20, le=1 << 34)] = 128 << 20
    """Size of the files that compaction makes."""

    vacuum_after: Annotated[Duration, within("1h", "3660d")] = duration("7d")
    """How long files that a Delta table no longer uses stay for readers that began earlier. Choose more than the
    longest query, batch, or lag of a reading job. Data deleted by `forget` stays until then."""

    maintain_days: Annotated[Count, Field(ge=1, le=100_000)] = 31
    """Most days of a table that one run of `gateway stream maintain` compacts."""

    retention: RetentionSettings = RetentionSettings()
    """How long each table keeps its rows. `gateway stream maintain` deletes whole days, which are those of reception
    unless the setting names another. Unset: for ever."""


class SilverSettings(Table):
    schemas: Path | None = None
    """Folder with a schema for each device type. Unset: the schemas delivered with the gateway."""

    registry: Path | None = None
    """Table of the devices with the columns `device`, `type` and `site`: a folder or URL of a Delta table or Parquet
    files, or a CSV file with a header line. Changes are read. Unset: readings have no site."""

    clockless_within: Annotated[Duration, within("0s", "366d")] = duration("7d")
    """Longest time between two copies of a message that count as one, for device types whose readings have no time of
    their own (`time = { received = true }` in their schema). Long: every batch reads more files."""


class GoldSettings(Table):
    windows: Annotated[tuple[str, ...], Field(min_length=1, max_length=8), AfterValidator(check_windows)] = (
        "1m tumbling",
        "1h tumbling",
        "15m sliding 5m",
    )
    """Windows of the aggregates, by event time: `LENGTH tumbling` or `LENGTH sliding STEP`, aligned to UTC. Their
    greatest common length, at most an hour, is a window too: 1 minute by default. They cannot change after the first
    start."""

    trigger: Annotated[Duration, within("0s", "1d")] = duration("30s")
    """Time between micro-batches of this job. Each computes all open windows again: half the time costs twice as
    much."""


class DevicesSettings(Table):
    offline_after: Annotated[Duration, within("1s", "366d")] = duration("10m")
    """Silence after which a device counts as offline, by the readings of its gateway's other devices, or by a ledger
    entry without messages, not by the wall clock. If it is shorter than the pause between two readings, every device
    flaps."""

    gateway_after: Annotated[Duration, within("2s", "366d")] = duration("5m")
    """Time without readings and ledger entries after which a gateway counts as lost and its devices as unknown. Choose
    several times `ledger.interval`."""

    presence_topics: tuple[KafkaTopicName, ...] = ()
    """Kafka topics with births and deaths of devices: EMQX's client events, last wills, Sparkplug's NBIRTH and NDEATH.
    They must exist. Empty: devices are online while they send."""

    heartbeats: bool = True
    """Whether to read `ledger.topic`, which must exist and tells a stopped gateway from one without traffic."""

    gap_after: Annotated[Duration, within("0s", "31d")] = duration("1m")
    """How long a missing sequence number may be late before an event `gap` is written."""

    flap_transitions: Annotated[Count, Field(ge=2, le=1000)] = 6
    """A device flaps when it went online and offline more often than this within `flap_window`."""

    flap_window: Annotated[Duration, within("1s", "31d")] = duration("1h")
    """Time within which `flap_transitions` are counted."""

    forget_after: Annotated[Duration, within("1m", "3660d")] = duration("30d")
    """Silence after which a device loses its state and its row in `devices`."""

    shards: Annotated[Count, Field(ge=1, le=10_000)] = 16
    """Parts into which devices are divided, one after the other in memory: a part holds its share of a batch's readings
    (0.8 KB each) and of the devices that send or whose gateway is lost (2 KB each). Each reads all gateways' ledgers;
    one for 50,000 devices is enough. To change it after the first start: `gateway stream reset devices`."""


class AnomalySettings(Table):
    topic: KafkaTopicName = "anomalies"
    """Kafka topic of alerts, and of scores from `score_from` on. Missing: `kafka.topics.create` creates it, else the
    job does not start."""

    score_from: Annotated[Number, Field(ge=0, le=10)] = 1.0
    """Scores from here on go to the topic, even below `threshold`. 1 is usual for the signal. 0 sends one record for
    each measured number, several times the telemetry."""

    threshold: Annotated[Number, Field(ge=1, le=3)] = 1.3
    """Score at which a reading is an anomaly: its distance from the mean of its hour of the day, in units of what is
    usual for the signal ([how](streaming.md#anomalies-readings-that-do-not-fit-and-silences)). 1.1 finds smaller faults
    and gives more false alerts."""

    warm_up: Annotated[Count, Field(ge=20, le=10_000)] = 60
    """Readings of a signal before its first alert. A level that lasts a day and as many readings is the new normal."""

    stuck_after: Annotated[Count, Field(ge=2, le=1_000_000)] = 60
    """Equal readings in a row after which a signal counts as stuck: at least this, and at least four times its longest
    run so far."""

    scale_share: Annotated[Number, Field(ge=0, le=1)] = 0.005
    """Smallest standard deviation, as a share of the mean, so that the last digit of a constant signal may change."""

    min_scale: dict[str, Annotated[Number, Field(gt=0, le=1e12)]] = Field(default={})
    """Smallest standard deviation of single signals, in their own unit, instead of the share: `{ temperature = 0.2
    }`."""

    skip: tuple[str, ...] = ()
    """Signals that are not judged, such as growing counters and switches."""

    silence_factor: Annotated[Number, Field(ge=1, le=1e6)] = 5.0
    """How many of its usual intervals (the 90th percentile of its last 32) a device may be silent while others send."""

    min_silence: Annotated[Duration, within("1s", "366d")] = duration("2m")
    """Least silence of a device that can be an anomaly."""


class AuditSettings(Table):
    settle: Annotated[Duration, within("0s", "1d")] = duration("5m")
    """How long after its end a minute is judged: the ledger is written each `ledger.interval`, and records may be late.
    Later entries revise the judgement. Short: more revisions."""

    keep: Annotated[Duration, within("1h", "31d")] = duration("1d")
    """How long a minute is judged again when more arrives. Choose more than messages may wait in a spool. Each day
    keeps one or two rows for every minute and partition."""
