"""The job as a process: killed, stopped, on a cluster. Nothing is lost or doubled, and nothing is left running."""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark
import pytest

from streaming.progress import BatchEvent, FailedEvent, StartedEvent, StoppedEvent
from tests.integration.job_process import QUICK, JobProcess, environment, wait_for
from tests.integration.streaming_support import base_ms, messages, offsets_in, produce, rows_in, write_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.local.embedded.kafka import KafkaCluster
    from tests.brokers.fixtures import MakeTopic

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., JobProcess]]:
    """Starts a JobProcess with these words; ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> JobProcess:
            process = JobProcess(tmp_path, *words)
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
    checkpoint = tmp_path / "checkpoints" / "ingest"
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
    assert rows_in(tmp_path / "telemetry"), "it had written something"
    cut_off = max(numbers_in(checkpoint / "offsets"))
    sent = send()

    second = job("--config", str(config))
    wait_for(
        "the second run has read everything",
        lambda: any(sum(event.end_offsets[topic].values()) == sent for event in ingested(second)),
    )
    assert ingested(second)[0].batch == cut_off, "the batch that was cut off comes first"
    sent = send()
    wait_for("the second run is in a batch again", lambda: in_a_batch(cut_off) or len(committed(second)) == sent)
    queries = [checkpoint.parent / query for query in ("ingest", "windows")]
    begun = [numbers_in(query / "offsets") for query in queries]
    second.send(signal.SIGTERM)
    assert second.wait() == -signal.SIGTERM, second.log()

    stopped = second.events()[-1]
    assert isinstance(stopped, StoppedEvent)
    assert stopped.reason == "signal SIGTERM"
    for query, batches in zip(queries, begun, strict=True):
        assert batches <= numbers_in(query / "commits"), f"{query.name} left the batch it was in unfinished"

    third = job("--config", str(config), "--available-now")
    assert third.wait() == 0, third.log()
    rows = rows_in(tmp_path / "telemetry")
    assert sorted((row["device"], row["seq"]) for row in rows) == sorted(
        (f"sensor-{number % 40:02d}", number // 40) for number in range(sent)
    )
    for partition, offsets in offsets_in(rows).items():
        assert offsets == list(range(len(offsets))), f"partition {partition} has offsets twice or not at all"
    assert not staging(tmp_path / "telemetry"), "what the killed run left aside was removed"


def staging(table: Path) -> list[Path]:
    return list(table.glob(".spark-staging*"))


def ingested(process: JobProcess) -> list[BatchEvent]:
    return [event for event in process.events() if isinstance(event, BatchEvent) and event.query == "ingest"]


def committed(process: JobProcess) -> range:
    """The records that the process said it has read."""
    ends = [sum(offsets.values()) for event in ingested(process) for offsets in event.end_offsets.values()]
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
    assert not (tmp_path / "telemetry").exists()


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


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone Spark of one master and one worker out of pyspark's own jars; yields the master's URL."""
    started: list[subprocess.Popen[bytes]] = []
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    settings = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1", "SPARK_WORKER_DIR": str(tmp_path / "work")}

    def start(name: str, kind: str, *words: str) -> Path:
        log = tmp_path / f"{name}.log"
        with log.open("wb") as out:
            command = [str(script), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", "--port", "0"]
            started.append(
                subprocess.Popen(
                    [*command, "--webui-port", "0", *words],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**environment(), **settings},
                )
            )
        return log

    def found(log: Path, pattern: str) -> re.Match[str] | None:
        assert all(one.poll() is None for one in started), log.read_text()
        return re.search(pattern, log.read_text())

    try:
        log = start("master", "master.Master")
        url = wait_for("the master listens", lambda: found(log, r"Starting Spark master at (spark://\S+)"))[1]
        wait_for("the master leads", lambda: found(log, "New state: ALIVE"))
        log = start("worker", "worker.Worker", "--cores", "2", "--memory", "1g", url)
        wait_for("the worker is registered", lambda: found(log, "Successfully registered with master"))
        yield url
    finally:
        family = {one for parent in started for one in _family(parent.pid)}
        for parent in reversed(started):
            parent.terminate()
        for parent in started:
            parent.wait(30)
        _, alive = psutil.wait_procs(family, timeout=30)
        for one in alive:
            one.kill()
        assert not alive, f"left running by the cluster: {alive}"


def _family(pid: int) -> list[psutil.Process]:
    try:
        this = psutil.Process(pid)
        return [this, *this.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


async def test_the_same_job_runs_on_a_cluster(
    kafka: KafkaCluster, make_topic: MakeTopic, job: Callable[..., JobProcess], cluster: str, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=3)
    sent = messages(range(600), base_ms(), 3)
    produce(kafka.bootstrap, topic, sent)
    config = write_config(tmp_path, kafka.bootstrap, topic, available_now=True)
    loopback = ("spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1")
    small = ("spark.executor.memory=512m", f"spark.executor.extraJavaOptions={QUICK.partition('=')[2]}")
    words = [word for pair in (*loopback, *small) for word in ("--conf", pair)]
    process = job("--config", str(config), "--master", cluster, *words)
    assert process.wait() == 0, process.log()
    started = process.events()[0]
    assert isinstance(started, StartedEvent)
    assert started.master == cluster
    assert started.application.startswith("app-"), "a standalone master gives such names, a local Spark others"
    ends = {partition: sum(message.partition == partition for message in sent) for partition in range(3)}
    assert offsets_in(rows_in(tmp_path / "telemetry")) == {
        partition: list(range(end)) for partition, end in ends.items()
    }
    assert rows_in(tmp_path / "windows")
