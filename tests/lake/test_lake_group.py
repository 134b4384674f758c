"""A query's place in Kafka under a group's name, and its metrics on a port, with real Kafka and Spark."""

import asyncio
import queue
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from config.settings import KafkaSettings, Settings, StreamSettings
from config.tables.stream import StreamMetricsSettings
from gateway.local.embedded.kafka import KafkaCluster
from streaming.job import JobContext
from streaming.kafka.source import read_records, trigger
from streaming.metrics import serve
from streaming.progress import Event
from streaming.runtime.queries import run_queries
from tests.integration.streaming_support import base_ms, messages, produce


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    """What Kafka says of a group, asked by another client."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        return [place.offset for place in consumer.committed(places, timeout=60)]
    finally:
        consumer.close()


def scraped(url: str) -> str:
    with urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def settings_for(kafka: KafkaCluster, topic: str, folder: Path, **stream: Any) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=(kafka.bootstrap,)),
        stream=StreamSettings(
            topics=(topic,), checkpoint=folder / "checkpoints", trigger=stream.pop("trigger", 0),
            metrics=StreamMetricsSettings(port=0), **stream,
        ),
    )  # fmt: skip


def read_all(spark: SparkSession, settings: Settings, _context: JobContext) -> StreamingQuery:
    """A query that reads everything and keeps nothing."""
    return (
        read_records(spark, settings, allow_data_loss=False)
        .writeStream.queryName("reader")
        .option("checkpointLocation", str(settings.stream.checkpoint / "reader"))
        .trigger(**trigger(settings.stream))
        .format("noop")
        .start()
    )


async def test_a_groups_lag_is_the_checkpoints(
    spark: SparkSession, kafka: KafkaCluster, make_topic: Any, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=3)
    produce(kafka.bootstrap, topic, messages(range(300), base_ms(), 3))
    settings = settings_for(kafka, topic, tmp_path, available_now=True, max_offsets_per_trigger=120)
    events: list[Event] = []
    context = JobContext(events.append)
    run_queries(spark, settings, [read_all], context, queue.SimpleQueue())
    ends = [event.end_offsets for event in events if event.event == "batch"]  # type: ignore[union-attr]
    assert len(ends) > 1, "max_offsets_per_trigger holds"
    found = committed(kafka.bootstrap, f"{settings.stream.group}-reader", topic, 3)
    assert sum(found) == 300
    assert found == [ends[-1][topic][str(number)] for number in range(3)]

    served = serve(context.metrics, settings.stream.metrics)
    assert served is not None
    try:
        page = await asyncio.to_thread(scraped, context.metrics.url)
    finally:
        served.shutdown()
        served.server_close()
    assert 'gateway_stream_rows_total{query="reader"} 300.0' in page
    assert f'gateway_stream_offsets_behind{{partition="2",query="reader",topic="{topic}"}} 0.0' in page
    assert 'gateway_stream_group_commit_failures_total{query="reader"} 0.0' in page


async def test_a_group_that_cannot_be_committed_is_told_once_and_ends_nothing(
    spark: SparkSession, kafka: KafkaCluster, make_topic: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    topic = await make_topic(partitions=2)
    produce(kafka.bootstrap, topic, messages(range(60), base_ms(), 2))
    tried = threading.Event()

    def refuse(*_: Any) -> Any:
        tried.set()
        raise RuntimeError("GroupAuthorizationException: no")

    monkeypatch.setattr("streaming.kafka.admin.KafkaAdmin.commit", refuse)
    settings = settings_for(kafka, topic, tmp_path, available_now=True, max_offsets_per_trigger=20)
    run_queries(spark, settings, [read_all], JobContext(lambda _: None), queue.SimpleQueue())
    assert tried.is_set()
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: how far reader")]
    assert len(said) == 1, said
    assert f"{settings.stream.group}-reader" in said[0]
    assert "Read on" in said[0]
