"""The job ``anomalies`` over silver's stream: what it finds, once, whatever fails; and its topic."""

import json
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BooleanType, DoubleType, LongType, StructField

from config.errors import ConfigError
from config.settings import KafkaSettings, Settings, StreamSettings
from config.tables.stream_jobs import LakeSettings
from gateway.local.embedded.kafka import KafkaCluster
from streaming import lake_tables
from streaming.anomalies import job as anomalies
from streaming.errors import KafkaUnavailableError
from streaming.job import JobContext
from streaming.kafka.admin import ensure_topic
from streaming.lake.lake import DeltaTable
from streaming.lake.ranges import TimeRange
from streaming.silver.schema import PARTITIONS, silver_schema
from tests.brokers.fixtures import MakeTopic
from tests.chaos.harness import FULL
from tests.waiting import until

BEGIN = datetime(2026, 11, 21, 8, tzinfo=UTC)
STEP_S = 5
SCHEMA = silver_schema(
    [StructField("temperature", DoubleType()), StructField("rssi", LongType()), StructField("door", BooleanType())]
)


def settings(folder: Path, **kafka: Any) -> Settings:
    stream = StreamSettings(
        trigger=timedelta(0), checkpoint=folder / "checkpoints", lake=LakeSettings(path=folder / "lake")
    )
    return Settings(kafka=KafkaSettings(**kafka), stream=stream)


def reading(device: str, at_s: int, ingested_s: int, random_: random.Random) -> tuple[Any, ...]:
    moment = BEGIN + timedelta(seconds=at_s)
    values = {
        "device": device,
        "type": "room",
        "seq": at_s // STEP_S,
        "device_time": moment,
        "event_time": moment,
        "clock_ahead": False,
        "received_at": moment,
        "record_id": f"{device}-{at_s}",
        "event_date": moment.date(),
        "ingested_at": BEGIN + timedelta(seconds=ingested_s),
        "temperature": 20.0 + random_.gauss(0.0, 0.1),
        "rssi": -70 + random_.randint(-1, 1),
    }
    if (device, at_s) == ("room-1", 300):
        values["temperature"] = 28.0
    return tuple(values.get(name) for name in SCHEMA.names)


def feed(spark: SparkSession, table: DeltaTable, begin_s: int, end_s: int, devices: Iterable[str]) -> None:
    """What the devices measure from begin to end comes into silver in one batch."""
    random_ = random.Random(begin_s)
    rows = [reading(device, at_s, end_s, random_) for device in devices for at_s in range(begin_s, end_s, STEP_S)]
    spark.createDataFrame(rows, SCHEMA).write.format("delta").mode("append").save(table.url)


@contextmanager
def running(spark: SparkSession, chosen: Settings) -> Iterator[StreamingQuery]:
    query = anomalies.start(spark, chosen, JobContext(lambda _event: None))
    try:
        yield query
    finally:
        query.stop()


def found(spark: SparkSession, chosen: Settings) -> list[Row]:
    return lake_tables.anomalies(spark, chosen.stream).orderBy("event_time").collect()


@pytest.mark.skipif(not FULL, reason="takes minutes: CHAOS=full")
def test_a_spike_and_a_silence_are_in_the_table_once_though_the_batch_is_run_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt at the batch with the spike fails after the table is written, before Kafka has it."""
    chosen = settings(tmp_path)
    silver = DeltaTable(spark, chosen.stream, "silver")
    silver.create(SCHEMA, PARTITIONS)
    sent: list[dict[str, Any]] = []

    def publish(rows: DataFrame, settings: Settings) -> None:
        sent.extend(json.loads(row.value) for row in anomalies.kafka_records(rows, settings.instance).collect())

    def fail(rows: DataFrame, settings: Settings) -> None:
        raise RuntimeError("Kafka is away")

    monkeypatch.setattr(anomalies, "publish", fail)
    feed(spark, silver, 0, 310, ("room-0", "room-1", "room-2"))
    with running(spark, chosen) as query, pytest.raises(StreamingQueryException, match="Kafka is away"):
        query.awaitTermination()
    assert [(row.device, row.kind) for row in found(spark, chosen)] == [("room-1", "outlier")]
    monkeypatch.setattr(anomalies, "publish", publish)
    with running(spark, chosen) as query:
        for begin_s in (310, 430, 550, 670, 790):  # room-2 is silent, the others are not
            query.processAllAvailable()
            feed(spark, silver, begin_s, begin_s + 120, ("room-0", "room-1"))
        query.processAllAvailable()
    rows = found(spark, chosen)
    assert [(row.device, row.kind, row.signal, row.severity) for row in rows] == [
        ("room-1", "outlier", "temperature", "critical"),
        ("room-2", "silence", None, "warning"),
    ]
    spike, silence = rows
    assert (spike.value, spike.run, spike.type) == (28.0, 1, "room")
    assert spike.score == 10
    assert abs(spike.median - 20.0) < 0.1
    assert silence.median == STEP_S
    assert silence.value == 120.0
    alerts = [record for record in sent if record["kind"] != "score"]
    assert [record["alert_id"] for record in alerts] == [spike.alert_id, silence.alert_id]
    assert alerts[0]["event_time"] == "2026-11-21T08:05:00.000000Z"
    assert "signal" not in alerts[1]


def test_of_a_table_whose_older_files_were_put_together_later_all_is_judged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first start takes the files that are there in the order they were written in."""
    chosen = settings(tmp_path)
    silver = DeltaTable(spark, chosen.stream, "silver")
    silver.create(SCHEMA, PARTITIONS)
    for begin_s, device in ((86_400, "room-0"), (86_720, "room-0"), (0, "room-1")):
        feed(spark, silver, begin_s, begin_s + 310, (device,))
    monkeypatch.setattr(anomalies, "_FILES_PER_BATCH", "2")  # as many as a feed makes
    monkeypatch.setattr(anomalies, "publish", lambda *_: None)
    with running(spark, chosen) as query:
        query.processAllAvailable()
    assert [(row.device, row.kind) for row in found(spark, chosen)] == [("room-1", "outlier")]


def alert(number: int, moment: datetime) -> tuple[Any, ...]:
    return (f"id-{number}", "room-1", "room", "temperature", "outlier", "critical", moment, 28.0, 9.0, 20.0, 0.07, 1,
            moment, moment, moment.date())  # fmt: skip


def test_alerts_are_compared_with_those_of_their_own_time_only(spark: SparkSession, tmp_path: Path) -> None:
    """Sixty days of alerts, a file each; the files of all other days are gone from the disk, so reading one fails."""
    chosen = settings(tmp_path)
    table = DeltaTable(spark, chosen.stream, "anomalies")
    table.create(anomalies.ANOMALIES)
    moments = [BEGIN + timedelta(days=day) for day in range(60)]
    for day in (0, 20, 21, 40, 59):
        first = spark.createDataFrame([alert(day, moments[day])], anomalies.ANOMALIES)
        first.coalesce(1).write.format("delta").mode("append").save(table.url)
    read = table.read()
    wanted = {
        row.file
        for row in read.where("alert_id IN ('id-20', 'id-59')").selectExpr("input_file_name() AS file").collect()
    }
    for file in read.inputFiles():
        if file not in wanted:
            Path(url2pathname(urlsplit(file).path)).unlink()
    again = [alert(20, moments[20]), alert(59, moments[59]), alert(60, moments[59] + timedelta(seconds=1))]
    alerts = spark.createDataFrame(again, anomalies.ANOMALIES)
    micros = [round(moment.timestamp() * 1e6) for moment in (moments[20], moments[59])]
    spans = [TimeRange(micros[0], micros[0] + 1), TimeRange(micros[1], micros[1] + 1_000_001)]
    anomalies.insert(table, alerts, spans)
    last = table.read().where("event_date >= '2027-01-01'")
    assert sorted(row.alert_id for row in last.collect()) == ["id-59", "id-60"]
    with pytest.raises(Exception, match=r"FILE_NOT_FOUND|FILE_NOT_EXIST|FAILED_READ_FILE"):
        anomalies.insert(table, alerts, [TimeRange(micros[0], micros[1] + 1)])


def test_without_silver_or_topic_it_says_what_is_missing(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    chosen = settings(tmp_path, bootstrap_servers=tuple(kafka.bootstrap.split(",")))
    with pytest.raises(ConfigError, match=r"no table silver at .*gateway stream silver"):
        anomalies.start(spark, chosen, JobContext(lambda _event: None))
    with pytest.raises(KafkaUnavailableError, match=r"no topic 'anomalies', which stream\.anomalies\.topic names"):
        ensure_topic(spark, chosen, "anomalies", "stream.anomalies.topic")


async def test_the_topic_is_made_if_it_may_be_and_its_records_have_key_headers_and_json(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = await make_topic("anomalies", partitions=2)
    servers = tuple(kafka.bootstrap.split(","))
    declared = {"create": True, "declare": [{"name": f"{topic}-made", "partitions": 3, "replication": 1}]}
    made = settings(tmp_path, bootstrap_servers=servers, topics=declared)
    ensure_topic(spark, made, f"{topic}-made", "stream.anomalies.topic")
    ensure_topic(spark, made, f"{topic}-made", "stream.anomalies.topic")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "none", "auto.offset.reset": "earliest"})
    try:
        await until(
            lambda: len(consumer.list_topics(f"{topic}-made", timeout=60).topics[f"{topic}-made"].partitions) == 3,
            "the broker knows what was made",
        )
        stream = made.stream.model_copy(update={"anomalies": made.stream.anomalies.model_copy(update={"topic": topic})})
        moment = datetime(2026, 11, 21, 8, 5, tzinfo=UTC)
        row = ("id-1", "röm-1", "room", "temperature", "outlier", "critical", moment, 28.0, 75.0, 20.0, 0.07, 1,
               moment, moment, moment.date())  # fmt: skip
        rows = spark.createDataFrame([row], anomalies.ANOMALIES)
        anomalies.publish(rows, made.model_copy(update={"stream": stream}))
        consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
        message = consumer.poll(30)
    finally:
        consumer.close()
    assert message is not None
    assert message.error() is None
    assert message.key() == "röm-1".encode()
    assert dict(message.headers()) == {
        "gateway.id": b"gateway",
        "gateway.device": "röm-1".encode(),
        "gateway.message_id": b"id-1",
        "gateway.message_id_kind": b"device",
    }
    assert json.loads(message.value()) == {
        "alert_id": "id-1",
        "device": "röm-1",
        "type": "room",
        "signal": "temperature",
        "kind": "outlier",
        "severity": "critical",
        "event_time": "2026-11-21T08:05:00.000000Z",
        "value": 28.0,
        "score": 75.0,
        "median": 20.0,
        "mad": 0.07,
        "run": 1,
    }
