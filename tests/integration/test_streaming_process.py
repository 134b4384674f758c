"""Jobs as a process: killed, stopped. Nothing is lost or doubled, and nothing is left running."""

import contextlib
import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from streaming.progress import BatchEvent, FailedEvent, StartedEvent, StoppedEvent
from tests.brokers.fixtures import MakeTopic
from tests.integration.job_process import JobProcess, wait_for
from tests.integration.streaming_support import base_ms, messages, offsets_in, produce, rows_in, write_config

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., JobProcess]]:
    """Starts a JobProcess with these words; ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> JobProcess:
            process = JobProcess(tmp_path, "--jobs", "bronze,silver,gold", *words, name="all")
            stack.callback(process.kill)
            return process

        yield start


def numbers_in(folder: Path) -> set[int]:
    """Batches noted in a log of a checkpoint."""
    return {int(file.name) for file in folder.glob("*") if file.name.isdigit()}


async def test_killed_in_a_batch_and_stopped_in_order_it_loses_and_doubles_nothing(
    kafka: KafkaCluster, make_topic: MakeTopic, job: Callable[..., JobProcess], tmp_path: Path
) -> None:
    topic = await make_topic(partitions=3)
    config = write_config(tmp_path, kafka.bootstrap, topic, trigger="0s", max_offsets_per_trigger=150)
    checkpoint = tmp_path / "checkpoints" / "silver"
    counter = itertools.count(0, 300)

    def send() -> int:
        start = next(counter)
        produce(kafka.bootstrap, topic, messages(range(start, start + 300), base_ms() + start * 10, 3))
        return start + 300

    def in_a_batch(after: int) -> bool:
        """A batch beyond ``after`` is planned in the checkpoint and not committed."""
        return max(numbers_in(checkpoint / "offsets") - numbers_in(checkpoint / "commits"), default=-1) > after

    send()
    first = job("--config", str(config))
    wait_for("the job is in its second batch or later", lambda: in_a_batch(0))
    first.kill()
    assert rows_in(tmp_path / "lake" / "silver"), "it had written something"
    cut_off = max(numbers_in(checkpoint / "offsets"))
    sent = send()

    second = job("--config", str(config))
    wait_for(
        "the second run has read everything",
        lambda: any(sum(event.end_offsets[topic].values()) == sent for event in written(second)),
    )
    assert written(second)[0].batch == cut_off, "the batch that was cut off comes first"
    sent = send()
    wait_for("the second run is in a batch again", lambda: in_a_batch(cut_off) or len(committed(second)) == sent)
    queries = [checkpoint.parent / query for query in ("bronze", "silver", "gold")]
    begun = [numbers_in(query / "offsets") for query in queries]
    second.send(signal.SIGTERM)
    assert second.wait() == -signal.SIGTERM, second.log()

    stopped = second.events()[-1]
    assert isinstance(stopped, StoppedEvent)
    assert stopped.reason == "signal SIGTERM"
    for query, batches in zip(queries, begun, strict=True):
        assert batches <= numbers_in(query / "commits"), f"{query.name} left the batch it was in unfinished"

    (tmp_path / "log").mkdir()
    logged = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={tmp_path / 'log'}")
    third = job("--config", str(config), "--available-now", *logged)
    assert third.wait() == 0, third.log()
    assert list((tmp_path / "log").iterdir()), "Spark's event log can be switched on"
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


def written(process: JobProcess) -> list[BatchEvent]:
    return [event for event in process.events() if isinstance(event, BatchEvent) and event.query == "silver"]


def committed(process: JobProcess) -> range:
    """The records that the process said it has read."""
    ends = [sum(offsets.values()) for event in written(process) for offsets in event.end_offsets.values()]
    return range(max(ends, default=0))


async def test_stopped_while_it_starts_it_ends_and_leaves_nothing(
    kafka: KafkaCluster, make_topic: MakeTopic, job: Callable[..., JobProcess], tmp_path: Path
) -> None:
    config = write_config(tmp_path, kafka.bootstrap, await make_topic())
    process = job("--config", str(config))
    wait_for("the JVM is starting", process.jvm)
    process.send(signal.SIGINT)
    assert process.wait() == -signal.SIGINT, process.log()
    assert "Traceback" not in process.log()
    assert not (tmp_path / "lake").exists()


async def test_a_jvm_that_is_killed_is_told(
    kafka: KafkaCluster, make_topic: MakeTopic, job: Callable[..., JobProcess], tmp_path: Path
) -> None:
    process = job("--config", str(write_config(tmp_path, kafka.bootstrap, await make_topic())))
    wait_for("the job runs", lambda: any(isinstance(event, StartedEvent) for event in process.events()))
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
