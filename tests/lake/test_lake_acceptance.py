"""Recordings through the real way: MQTT, gateway, Kafka, Spark jobs that are killed. Every table against pandas.

The readings are real (tests/recordings); copies, reordering, corrupt messages, a clock in 2036, and a site that comes
days late are mixed in. What is expected is computed from the recordings without Spark.
"""

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import paho.mqtt.client as mqtt
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from config.loading.load import load
from config.settings import StreamSettings
from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from streaming import lake_tables
from streaming.lake.lake import DeltaTable
from streaming.progress import BatchEvent
from tests.brokers.client import hang_up
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import FULL, Gateway
from tests.integration.job_process import JobProcess, wait_for
from tests.lake.replay import CLOCK_DEVICE, SITES, Sent, Traffic, make_traffic
from tests.spark import run_to_the_end
from tests.toml_text import to_toml
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

SCHEMAS = Path(__file__).with_name("schemas")
SIGNALS = ["temperature", "humidity", "light", "co2", "flow"]
SHAPES = {
    "1h tumbling": (timedelta(hours=1), timedelta(hours=1)),
    "6h sliding 3h": (timedelta(hours=6), timedelta(hours=3)),
}
ROUTE = {
    "name": "telemetry",
    "filters": ["devices/#"],
    "device": "${topic[1]}",
    "key": "${device}",
    "message_id": "${device}-${payload.seq}",
    "metadata_headers": ["topic", "message_id", "gateway", "device"],
}


def publish(port: int, messages: list[tuple[str, bytes]]) -> None:
    """Publishes at QoS 1 and returns when all is acknowledged."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"replay-{time.monotonic_ns()}")
    client.max_inflight_messages_set(500)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        for pending in [client.publish(topic, payload, qos=1) for topic, payload in messages]:
            pending.wait_for_publish(60)
    finally:
        hang_up(client)


def celsius(one: Sent) -> dict[str, float]:
    """The values in the units of the lake."""
    if one.type != "weather":
        return one.measured
    return {"temperature": (one.measured["temperature"] - 32) * 5 / 9}


def expected_silver(traffic: Traffic) -> pd.DataFrame:
    """Each reading once, in canonical units, by the recordings alone. The wrong clock's event time is left out."""
    rows = [
        {
            "device": one.device,
            "type": one.type,
            "site": SITES.get(one.device),
            "seq": one.seq,
            "device_time": pd.Timestamp(one.ts_ms, unit="ms"),
            **celsius(one),
        }
        for one in traffic.readings
    ]
    return pd.DataFrame(rows)


def windows_of(at: pd.Timestamp, length: timedelta, every: timedelta) -> Iterator[pd.Timestamp]:
    """The starts of the windows a moment is in, aligned to 1970."""
    start = pd.Timestamp(at.value // pd.Timedelta(every).value * pd.Timedelta(every).value)
    while start > at - length:
        yield start
        start -= every


def expected_gold(silver: pd.DataFrame, shapes: dict[str, tuple[timedelta, timedelta]]) -> pd.DataFrame:
    """Aggregates of every level, window and signal, by pandas over readings with ``event_time``."""
    long = silver.melt(id_vars=["device", "type", "site", "event_time"], value_vars=SIGNALS, var_name="signal")
    long = long.dropna(subset=["value"])
    parts = []
    for label, (length, every) in shapes.items():
        spread = long.assign(window_start=[list(windows_of(at, length, every)) for at in long["event_time"]]).explode(
            "window_start"
        )
        spread["window_start"] = pd.to_datetime(spread["window_start"])
        for level in ("device", "type", "site"):
            grouped = spread.dropna(subset=[level]).groupby([level, "signal", "window_start"])["value"]
            made = grouped.agg(readings="count", mean="mean", min="min", max="max", stddev="std").reset_index()
            parts.append(made.rename(columns={level: "key"}).assign(level=level, window=label))
    return pd.concat(parts)


def table(spark: SparkSession, stream: StreamSettings, name: str) -> pd.DataFrame:
    frame = DeltaTable(spark, stream, name).read().toPandas()
    for column in frame.columns:
        if isinstance(frame[column].dtype, pd.DatetimeTZDtype):
            frame[column] = frame[column].dt.tz_localize(None)
    return frame


class Lake:
    """The jobs on one Spark, in a folder of their own; started and killed as often as one likes."""

    JOBS = "bronze,silver,gold,devices"

    def __init__(self, folder: Path, bootstrap: str, topic: str) -> None:
        self._folder = folder
        registry = "".join(f"{device},{site}\n" for device, site in SITES.items())
        (folder / "registry.csv").write_text(f"device,site\n{registry}")
        self.tables = {
            "topics": [topic],
            "checkpoint": str(folder / "checkpoints"),
            "max_offsets_per_trigger": 500 if FULL else 200,
            "trigger": "0s",
            "lake": {"path": str(folder / "lake")},
            "silver": {"schemas": str(SCHEMAS), "registry": str(folder / "registry.csv")},
            "gold": {"windows": list(SHAPES)},
        }
        self.config = folder / "lake.toml"
        self.config.write_text(to_toml({"kafka": {"bootstrap_servers": [bootstrap]}, "stream": self.tables}))

    @property
    def stream(self) -> StreamSettings:
        return load(self.config).settings.stream

    def run_and_kill(self, rng: random.Random) -> None:
        """Lets it finish a few batches, and kills driver and JVM at some moment after."""
        job = JobProcess(self._folder, "--config", str(self.config), "--jobs", self.JOBS, name="all")
        try:
            enough = rng.randrange(2, 6)
            wait_for("batches", lambda: len(batches(job)) >= enough or job.ended)
            assert not job.ended, job.log()
            moment = time.monotonic() + 2 * rng.random()
            wait_until(lambda: time.monotonic() > moment, "the moment")
        finally:
            job.kill()


def batches(job: JobProcess) -> list[BatchEvent]:
    return [event for event in job.events() if isinstance(event, BatchEvent) and event.rows]


def test_recordings_through_everything_with_drivers_killed(
    spark: SparkSession,
    kafka: KafkaCluster,
    mqtt_broker: MqttBroker,
    make_gateway: MakeGateway,
    unique: str,
    tmp_path: Path,
) -> None:
    rng = random.Random(unique)
    end = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=2)
    # Every day is a partition of its own in every batch, and minutes of test in all.
    traffic = make_traffic(end, span=None if FULL else timedelta(days=2))
    gateway = make_gateway(mqtt_broker.port, kafka.bootstrap, unique, routes=[{**ROUTE, "topic": unique}])
    gateway.start()
    lake = Lake(tmp_path, kafka.bootstrap, unique)

    publish(mqtt_broker.port, traffic.now)
    wait_until(lambda: delivered(gateway) >= len(traffic.now), "all is in Kafka")
    for _ in range(6 if FULL else 1):
        lake.run_and_kill(rng)
    if FULL:
        run_to_the_end(spark, lake.config, lake.JOBS, compiled=True)
    publish(mqtt_broker.port, traffic.late)
    wait_until(lambda: delivered(gateway) >= len(traffic.now) + len(traffic.late), "the late site, too")
    if FULL:
        lake.run_and_kill(rng)
    run_to_the_end(spark, lake.config, lake.JOBS, compiled=True)

    stream = lake.stream
    silver = table(spark, stream, "silver")
    assert_silver(silver, expected_silver(traffic))
    assert table(spark, stream, "silver_quarantine")["reason"].value_counts().to_dict() == traffic.corrupt
    assert_gold(table(spark, stream, "gold"), expected_gold(with_event_time(traffic, silver), SHAPES))
    devices = table(spark, stream, "devices").set_index("device")
    assert set(devices.index) == set(silver["device"])
    for device in ("flow-1", "office-1", "weather-sf", "weather-sea"):
        assert devices.loc[device, "seq_last"] == max(one.seq for one in traffic.readings if one.device == device)
        assert devices.loc[device, "missing"] == 0, "whatever came out of order came in the end"
    kept = lake_tables.bronze(spark, stream).select("topic", "partition", "offset").toPandas()
    assert len(kept) == len(kept.drop_duplicates()) == len(traffic.now) + len(traffic.late)


def delivered(gateway: Gateway) -> int:
    return int(gateway.status()["ledger"]["delivered"])


def with_event_time(traffic: Traffic, silver: pd.DataFrame) -> pd.DataFrame:
    """The expected readings with the event time they have: their own, but for the wrong clock's, which is taken from
    silver, where :func:`assert_silver` has judged it."""
    rows = expected_silver(traffic).assign(event_time=lambda frame: frame["device_time"])
    clamped = silver[silver["device"] == CLOCK_DEVICE].set_index("seq")["event_time"]
    wrong = rows["device"] == CLOCK_DEVICE
    rows.loc[wrong, "event_time"] = rows.loc[wrong, "seq"].map(clamped)
    return rows


def assert_silver(silver: pd.DataFrame, expected: pd.DataFrame) -> None:
    by = ["device", "device_time", "seq"]
    columns = [*by, "type", "site", *SIGNALS]
    found = silver[columns].sort_values(by, ignore_index=True)
    wanted = expected.reindex(columns=columns).sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, rtol=1e-12)
    wrong = silver["device"] == CLOCK_DEVICE
    assert (silver["clock_ahead"] == wrong).all()
    assert (silver.loc[~wrong, "event_time"] == silver.loc[~wrong, "device_time"]).all()
    assert (silver.loc[wrong, "event_time"] - silver.loc[wrong, "received_at"] == pd.Timedelta(minutes=5)).all()


def assert_gold(gold: pd.DataFrame, expected: pd.DataFrame) -> None:
    by = ["window", "level", "key", "signal", "window_start"]
    columns = [*by, "readings", "mean", "min", "max"]
    found = gold[gold["window"].isin(SHAPES)][columns].sort_values(by, ignore_index=True)
    wanted = expected[columns].sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, rtol=1e-9, atol=1e-9)
    # Put together from those of panes, in doubles: to some millionths of what the series spans.
    stddev = gold[gold["window"].isin(SHAPES)].sort_values(by, ignore_index=True)["stddev"]
    wanted_stddev = expected.sort_values(by, ignore_index=True)["stddev"]
    pd.testing.assert_series_equal(stddev, wanted_stddev, check_dtype=False, rtol=1e-6, atol=1e-4)
