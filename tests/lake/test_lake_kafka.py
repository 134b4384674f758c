"""What a job says when Kafka does not give it what it asks for."""

import queue
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyspark.sql import DataFrame, SparkSession

from config.settings import KafkaSettings, SaslSettings, Settings, StreamSettings, TlsSettings
from config.tables.stream_jobs import LakeSettings
from gateway.local.embedded.kafka import KafkaCluster
from streaming import jvm, lake_tables
from streaming.bronze import job as bronze
from streaming.errors import DataLossError, KafkaRefusedError, KafkaUnavailableError
from streaming.job import Job, JobContext
from streaming.kafka.source import read_records
from streaming.runtime.queries import run_queries
from streaming.silver import job as silver
from tests.brokers.fixtures import MakeTopic
from tests.brokers.secured import SecuredKafka
from tests.brokers.topics import delete_before
from tests.integration.streaming_support import base_ms, messages, produce


def settings(folder: Path, topic: str, kafka: KafkaSettings) -> Settings:
    stream = StreamSettings(
        topics=(topic,), available_now=True, checkpoint=folder / "checkpoints", lake=LakeSettings(path=folder / "lake")
    )
    return Settings(kafka=kafka, stream=stream)


def plain(cluster: KafkaCluster) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=tuple(cluster.bootstrap.split(",")))


def run(spark: SparkSession, chosen: Settings, job: Job, *, allow_data_loss: bool = False) -> None:
    """Reads what there is."""
    context = JobContext(lambda _event: None, allow_data_loss=allow_data_loss)
    run_queries(spark, chosen, (job,), context, queue.SimpleQueue())


async def test_silver_does_not_step_over_records_that_vanished(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=1)
    chosen = settings(tmp_path, topic, plain(kafka))
    produce(kafka.bootstrap, topic, messages(range(50), base_ms(), 1))
    run(spark, chosen, silver.start)
    produce(kafka.bootstrap, topic, messages(range(50, 100), base_ms(), 1))
    delete_before(kafka.bootstrap, topic, 0, 80)

    def offsets() -> list[int]:
        rows = lake_tables.silver(spark, chosen.stream).select("kafka_offset").collect()
        return sorted(row.kafka_offset for row in rows)

    with pytest.raises(DataLossError, match="--allow-data-loss"):
        run(spark, chosen, silver.start)
    assert offsets() == list(range(50))
    run(spark, chosen, silver.start, allow_data_loss=True)
    assert offsets() == [*range(50), *range(80, 100)]


async def test_the_batches_of_a_running_query_get_another_limit(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path, unique: str
) -> None:
    topic = await make_topic(partitions=1)
    chosen = settings(tmp_path, topic, plain(kafka))
    limited = chosen.stream.model_copy(update={"max_offsets_per_trigger": 100})
    produce(kafka.bootstrap, topic, messages(range(300), base_ms(), 1))
    records = read_records(spark, chosen.model_copy(update={"stream": limited}), allow_data_loss=False)
    sizes = []

    def take(rows: DataFrame, batch: int) -> None:
        sizes.append(rows.count())
        (query,) = (it for it in spark.streams.active if it.name == unique)
        jvm.limit_rows(spark, query, 30 if batch == 0 else 1000)

    writer = records.writeStream.queryName(unique).option("checkpointLocation", str(tmp_path / "here"))
    writer.trigger(availableNow=True).foreachBatch(take).start().awaitTermination()
    assert sizes == [100, 30, 170]


async def test_a_topic_that_is_not_there_is_named(
    spark: SparkSession, kafka: KafkaCluster, unique: str, tmp_path: Path
) -> None:
    with pytest.raises(KafkaUnavailableError, match=unique):
        run(spark, settings(tmp_path, unique, plain(kafka)), bronze.start)


@pytest.mark.slow
async def test_a_secured_kafka_is_read_with_password_and_certificate(
    spark: SparkSession, make_kafka: Callable[..., SecuredKafka], make_topic: MakeTopic, tmp_path: Path
) -> None:
    cluster = make_kafka(sasl=True, tls=True, users={"spark": 'qu"ote\\d'})
    topic = await make_topic(partitions=1, cluster=cluster)
    produce(cluster.bootstrap, topic, messages(range(20), base_ms(), 1))

    def secured(password: str, ca: Path | None) -> KafkaSettings:
        return KafkaSettings(
            bootstrap_servers=(cluster.sasl_tls_bootstrap,),
            security="SASL_SSL",
            sasl=SaslSettings(mechanism="SCRAM-SHA-512", username="spark", password=SecretStr(password)),
            tls=TlsSettings(ca_file=ca),
        )

    ca_file = cluster.certificates.ca_file
    right = settings(tmp_path / "right", topic, secured('qu"ote\\d', ca_file))
    run(spark, right, bronze.start)
    assert lake_tables.bronze(spark, right.stream).count() == 20
    with pytest.raises(KafkaRefusedError, match=r"kafka\.sasl"):
        run(spark, settings(tmp_path / "wrong", topic, secured("wrong", ca_file)), bronze.start)
    with pytest.raises(KafkaRefusedError, match=r"kafka\.tls"):
        run(spark, settings(tmp_path / "unknown", topic, secured('qu"ote\\d', None)), bronze.start)
