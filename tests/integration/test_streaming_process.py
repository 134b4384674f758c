"""Jobs as a process, stopped: nothing is lost or doubled, and nothing is left running."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gateway.local.embedded.kafka import KafkaCluster
from streaming.progress import FailedEvent, StartedEvent, StoppedEvent
from tests.brokers.fixtures import MakeTopic
from tests.integration.job_process import JobProcess, wait_for
from tests.integration.streaming_support import base_ms, messages, offsets_in, produce, rows_in, write_config
from tests.spark import run_to_the_end

pytestmark = pytest.mark.slow

JOBS = "bronze,silver,gold"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., JobProcess]]:
    """Starts a JobProcess with these words; ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> JobProcess:
            process = JobProcess(tmp_path, "--jobs", JOBS, *words, name="all")
            stack.callback(process.kill)
            return process

        yield start


def numbers_in(folder: Path) -> set[int]:
    """Batches noted in a log of a checkpoint."""
    return {int(file.name) for file in folder.glob("*") if file.name.isdigit()}


async def test_stopped_in_a_batch_it_finishes_that_and_the_next_run_loses_and_doubles_nothing(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, job: Callable[..., JobProcess], tmp_path: Path
) -> None:
    topic = await make_topic(partitions=3)
    config = write_config(tmp_path, kafka.bootstrap, topic, trigger="0s", max_offsets_per_trigger=100)
    queries = [tmp_path / "checkpoints" / query for query in ("bronze", "silver", "gold")]
    produce(kafka.bootstrap, topic, messages(range(300), base_ms(), 3))

    def begun() -> list[set[int]]:
        return [numbers_in(query / "offsets") for query in queries]

    first = job("--config", str(config))
    wait_for("silver has begun its second batch", lambda: begun()[1] - {0})
    batches_of_each = begun()
    first.send(signal.SIGTERM)
    assert first.wait() == -signal.SIGTERM, first.log()

    stopped = first.events()[-1]
    assert isinstance(stopped, StoppedEvent)
    assert stopped.reason == "signal SIGTERM"
    for query, batches in zip(queries, batches_of_each, strict=True):
        assert batches <= numbers_in(query / "commits"), f"{query.name} left the batch it was in unfinished"

    sent = 600
    produce(kafka.bootstrap, topic, messages(range(300, sent), base_ms() + 3000, 3))
    write_config(tmp_path, kafka.bootstrap, topic)  # what is left in one batch of each
    run_to_the_end(spark, config, JOBS)
    rows = rows_in(tmp_path / "lake" / "silver")
    assert sorted((row["device"], row["seq"]) for row in rows) == sorted(
        (f"sensor-{number % 40:02d}", number // 40) for number in range(sent)
    )
    assert offsets_in(rows) == offsets_in(rows_in(tmp_path / "lake" / "bronze"))
    for partition, offsets in offsets_in(rows).items():
        assert offsets == list(range(len(offsets))), f"partition {partition} has offsets twice or not at all"
    windows = [
        row for row in rows_in(tmp_path / "lake" / "gold") if row["level"] == "type" and row["window"] == "1m tumbling"
    ]
    counted = sum(row["readings"] for row in windows if row["signal"] == "temperature")
    assert counted == sent, "gold has each reading once"


async def test_stopped_while_it_starts_it_ends_and_leaves_nothing(
    kafka: KafkaCluster, make_topic: MakeTopic, job: Callable[..., JobProcess], tmp_path: Path
) -> None:
    process = job("--config", str(write_config(tmp_path, kafka.bootstrap, await make_topic())))
    wait_for("the JVM is starting", process.jvm)
    process.send(signal.SIGINT)
    assert process.wait() == -signal.SIGINT, process.log()
    assert "Traceback" not in process.log()
    assert not (tmp_path / "lake").exists()


async def test_a_jvm_that_is_killed_is_told(
    kafka: KafkaCluster, make_topic: MakeTopic, job: Callable[..., JobProcess], tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    logged = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={tmp_path / 'log'}")
    config = str(write_config(tmp_path, kafka.bootstrap, await make_topic()))
    process = job("--config", config, "--jobs", "bronze", *logged)
    wait_for("the job runs", lambda: any(isinstance(event, StartedEvent) for event in process.events()))
    assert list((tmp_path / "log").iterdir()), "Spark's event log can be switched on"
    jvm = process.jvm()
    assert jvm is not None
    jvm.kill()
    assert process.wait() == 1
    failed = process.events()[-1]
    assert isinstance(failed, FailedEvent)
    assert "status -9" in failed.error


def test_without_kafka_it_says_so_at_once(job: Callable[..., JobProcess], tmp_path: Path) -> None:
    process = job("--config", str(write_config(tmp_path, "127.0.0.1:1", "telemetry")))
    assert process.wait() == 69
    (failed,) = process.events()
    assert isinstance(failed, FailedEvent)
    assert "127.0.0.1:1 (Connection refused)" in failed.error
    assert process.log() == f"error: {failed.error}\n", "no traceback, and no JVM that had to be started for it"
