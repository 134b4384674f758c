"""The job ``bronze``: what is in Kafka is in the table once, and what is not in Kafka any more is told."""

import queue
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError
from config.settings import KafkaSettings, Settings, StreamSettings
from config.tables.stream_jobs import LakeSettings
from gateway.local.embedded.kafka import KafkaCluster
from streaming import lake_tables
from streaming.bronze import job as bronze
from streaming.bronze.job import BRONZE
from streaming.errors import DataLossError, StreamError
from streaming.job import Job, JobContext
from streaming.kafka.topic_ids import TopicIds
from streaming.lake.lake import DeltaTable
from streaming.progress import BatchEvent, Event, GapEvent
from streaming.runtime.queries import run_queries
from streaming.silver import job as silver
from tests.brokers.fixtures import MakeTopic
from tests.brokers.topics import delete_before, delete_topics, topic_names
from tests.integration.streaming_support import Message, base_ms, messages, produce
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]


def settings(folder: Path, cluster: KafkaCluster, *topics: str, **stream: Any) -> Settings:
    chosen: dict[str, Any] = {
        "topics": topics,
        "available_now": True,
        "checkpoint": folder / "checkpoints",
        "lake": LakeSettings(path=folder / "lake"),
    }
    kafka = KafkaSettings(bootstrap_servers=tuple(cluster.bootstrap.split(",")))
    return Settings(kafka=kafka, stream=StreamSettings(**chosen | stream))


def run(
    spark: SparkSession, chosen: Settings, *, allow_data_loss: bool = False, job: Job = bronze.start
) -> list[Event]:
    events: list[Event] = []
    context = JobContext(events.append, allow_data_loss=allow_data_loss)
    run_queries(spark, chosen, (job,), context, queue.SimpleQueue())
    return events


def rows(spark: SparkSession, chosen: Settings) -> list[Row]:
    return lake_tables.bronze(spark, chosen.stream).orderBy("topic", "partition", "offset").collect()


def gaps(spark: SparkSession, chosen: Settings) -> list[tuple[Any, ...]]:
    found = lake_tables.bronze_gaps(spark, chosen.stream).collect()
    return sorted((it.topic, it.partition, it.first_offset, it.last_offset, it.reason) for it in found)


def write_only(spark: SparkSession, chosen: Settings) -> None:
    """Runs until a batch is written, and ends before it is committed."""

    def broken(*_: object) -> None:
        raise OSError("the disk of the checkpoint is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicIds, "keep", broken)
        with pytest.raises(StreamError, match="the disk of the checkpoint is full"):
            run(spark, chosen)


def places(found: Sequence[Row]) -> list[tuple[str, int, int]]:
    return [(row.topic, row.partition, row.offset) for row in found]


async def test_every_record_is_kept_as_it_came_and_neither_a_repeated_batch_nor_a_new_checkpoint_makes_a_copy(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    first, second = await make_topic(partitions=2), await make_topic(partitions=1)
    chosen = settings(tmp_path, kafka, first, second)
    sent = messages(range(100), base_ms(), 2)
    produce(kafka.bootstrap, first, sent)
    produce(kafka.bootstrap, second, [Message(b"\xff\x00 no text", base_ms(), 0)])
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(second, None, None, 0, timestamp=base_ms())
    assert producer.flush(30) == 0

    write_only(spark, chosen)
    events = run(spark, chosen)

    found = rows(spark, chosen)
    expected = [(first, it.partition, it.value) for it in sorted(sent, key=lambda it: it.partition)]
    expected += [(second, 0, b"\xff\x00 no text"), (second, 0, None)]
    assert sorted((it.topic, it.partition, None if it.value is None else bytes(it.value)) for it in found[:-1]) == (
        sorted(expected[:-1])
    )
    assert len(set(places(found))) == len(found) == 102
    for row in found[:100]:
        assert (bytes(row.key), row.timestamp_type) == (b"key", 0)
        assert [(it.key, bytes(it.value)) for it in row.headers] == [("mqtt.topic", b"devices/any/telemetry")]
    assert (found[-1].key, found[-1].value, found[-1].headers) == (None, None, None)
    assert lake_tables.bronze(spark, chosen.stream).where("ingest_date <> to_date(timestamp)").isEmpty()
    assert [(it.batch, it.rows) for it in events if isinstance(it, BatchEvent)] == [(0, 102)]
    (folder,) = {it.parent for it in (tmp_path / "lake" / "bronze").glob(f"ingest_date=*/topic={second}/**/*.parquet")}
    assert folder.relative_to(tmp_path / "lake" / "bronze").parts[1] == f"topic={second}"

    produce(kafka.bootstrap, first, messages(range(100, 120), base_ms(), 2))
    run(spark, chosen)
    assert len(set(places(rows(spark, chosen)))) == len(rows(spark, chosen)) == 122

    with pytest.raises(ConfigError, match=r"stream\.lake\.path and stream\.checkpoint"):
        run(spark, settings(tmp_path, kafka, first, second, checkpoint=tmp_path / "others"))


async def test_what_kafka_deleted_before_it_was_read_is_told_to_the_offset(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=1)
    chosen = settings(tmp_path, kafka, topic)
    produce(kafka.bootstrap, topic, messages(range(50), base_ms(), 1))
    run(spark, chosen)
    produce(kafka.bootstrap, topic, messages(range(50, 100), base_ms(), 1))
    delete_before(kafka.bootstrap, topic, 0, 80)

    with pytest.raises(DataLossError, match=rf"{topic}/0 offsets 50 to 79 \(deleted\).*--allow-data-loss"):
        run(spark, chosen)
    assert len(rows(spark, chosen)) == 50, "nothing was stepped over"

    events = run(spark, chosen, allow_data_loss=True)
    assert [it[2] for it in places(rows(spark, chosen))] == [*range(50), *range(80, 100)]
    assert [it for it in events if isinstance(it, GapEvent)] == [
        GapEvent("bronze", 1, topic, 0, first_offset=50, last_offset=79, reason="deleted")
    ]
    assert gaps(spark, chosen) == [(topic, 0, 50, 79, "deleted")]


async def test_rows_that_were_written_and_deleted_before_the_batch_was_committed_are_no_loss(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=1)
    chosen = settings(tmp_path, kafka, topic)
    produce(kafka.bootstrap, topic, messages(range(5), base_ms(), 1))
    run(spark, chosen)
    produce(kafka.bootstrap, topic, messages(range(5, 50), base_ms(), 1))
    write_only(spark, chosen)
    DeltaTable(spark, chosen.stream, "bronze").delete("offset < 10")  # as forget and retention do
    delete_before(kafka.bootstrap, topic, 0, 30)
    run(spark, chosen)
    assert gaps(spark, chosen) == []
    assert [it[2] for it in places(rows(spark, chosen))] == [*range(10, 50)]


async def test_a_topic_made_anew_is_noticed_even_if_it_is_longer_than_the_old_one(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=1)
    chosen = settings(tmp_path, kafka, topic)
    produce(kafka.bootstrap, topic, messages(range(20), base_ms(), 1))
    run(spark, chosen)
    run(spark, chosen, job=silver.start)
    await delete_topics(kafka.bootstrap, [topic])
    await until(lambda: topic not in topic_names(kafka.bootstrap), "the broker knows that it is gone")
    await make_topic(topic, partitions=1)
    produce(kafka.bootstrap, topic, messages(range(30), base_ms(), 1))

    with pytest.raises(DataLossError, match=rf"{topic}/0 offsets 0 to 19 \(recreated\)"):
        run(spark, chosen)
    run(spark, chosen, allow_data_loss=True)
    assert gaps(spark, chosen) == [(topic, 0, 0, 19, "recreated")]
    assert [it[2] for it in places(rows(spark, chosen))] == list(range(30))
    produce(kafka.bootstrap, topic, messages(range(5), base_ms(), 1))
    run(spark, chosen)
    assert len(rows(spark, chosen)) == 35, "what is known now is no loss any more"

    with pytest.raises(DataLossError, match=f"{topic}: Kafka has another topic of that name now.*stream reset silver"):
        run(spark, chosen, job=silver.start)
    told = run(spark, chosen, job=silver.start, allow_data_loss=True)
    assert [it.rows for it in told if isinstance(it, BatchEvent)] == [15]
    run(spark, chosen, job=silver.start)


async def test_a_topic_that_comes_back_goes_on_where_it_was_left(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    stays, leaves = await make_topic(partitions=1), await make_topic(partitions=2)
    both, one = settings(tmp_path, kafka, stays, leaves), settings(tmp_path, kafka, stays)
    produce(kafka.bootstrap, stays, messages(range(1), base_ms(), 1))
    produce(kafka.bootstrap, leaves, messages(range(20), base_ms(), 2))
    run(spark, both)
    produce(kafka.bootstrap, stays, messages(range(1, 2), base_ms(), 1))
    run(spark, one, allow_data_loss=True)
    assert gaps(spark, both) == [(leaves, 0, 10, None, "gone"), (leaves, 1, 10, None, "gone")]

    produce(kafka.bootstrap, leaves, messages(range(20, 30), base_ms(), 2))
    run(spark, both)
    assert places(rows(spark, both)) == sorted(
        [(stays, 0, 0), (stays, 0, 1), *((leaves, partition, it) for partition in range(2) for it in range(15))]
    )
    assert gaps(spark, both) == []


async def test_offsets_without_a_record_are_no_loss_and_what_goes_while_it_is_read_is(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await make_topic(partitions=1)
    chosen = settings(tmp_path, kafka, topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(3):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.commit_transaction(30)
    run(spark, chosen)
    assert [it[2] for it in places(rows(spark, chosen))] == [0, 2, 4], "each transaction's end takes an offset"

    produce(kafka.bootstrap, topic, messages(range(20), base_ms(), 1))
    checked = bronze.lost_before

    def deleting(*arguments: Any) -> Any:
        lost = checked(*arguments)
        delete_before(kafka.bootstrap, topic, 0, 16)  # after the look before the batch is read
        return lost

    monkeypatch.setattr(bronze, "lost_before", deleting)
    with pytest.raises(DataLossError, match=rf"{topic}/0 offsets 6 to 15 \(deleted\)"):
        run(spark, chosen)
    run(spark, chosen, allow_data_loss=True)
    assert gaps(spark, chosen) == [(topic, 0, 6, 15, "deleted")]
    assert [it[2] for it in places(rows(spark, chosen))] == [0, 2, 4, *range(16, 26)]


def test_files_of_earlier_versions_are_not_taken_for_a_table(spark: SparkSession, tmp_path: Path) -> None:
    chosen = Settings(stream=StreamSettings(lake=LakeSettings(path=tmp_path)))
    (tmp_path / "bronze" / "ingest_date=2026-11-21" / "topic=t" / "batch=0").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"holds Parquet files.*docs/upgrade\.md"):
        bronze.start(spark, chosen, JobContext(lambda _event: None))


def test_a_parquet_table_of_earlier_versions_goes_on_as_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    """The statement of docs/upgrade.md, on folders as earlier versions wrote them."""
    stream = StreamSettings(checkpoint=tmp_path / "checkpoints", lake=LakeSettings(path=tmp_path / "lake"))
    url = str(tmp_path / "lake" / "bronze")
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    headers = [("mqtt.topic", b"devices/any")]
    old = spark.createDataFrame([(b"k", b"v", 0, 7, at, 0, headers, at.date(), "t", 3)], BRONZE)
    old.write.mode("overwrite").partitionBy("ingest_date", "topic", "batch").parquet(url)
    text = (ROOT / "docs" / "upgrade.md").read_text()
    statement = " ".join(line.strip() for line in text.splitlines() if re.match(r" +(CONVERT|PARTITIONED)", line))
    spark.sql(statement.replace("/data/lake/bronze", url).rstrip(";"))

    new = old.withColumns({"offset": F.lit(8).cast("long"), "batch": F.lit(4).cast("long")})
    DeltaTable(spark, stream, "bronze").append(new, query="bronze", batch=4)
    assert [row.offset for row in lake_tables.bronze(spark, stream).orderBy("offset").collect()] == [7, 8]
    assert [row.offset for row in lake_tables.bronze(spark, stream).where("batch = 3").collect()] == [7]
    assert lake_tables.bronze(spark, stream).schema.fieldNames() == BRONZE.fieldNames()
