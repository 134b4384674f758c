"""A job on a standalone cluster of two workers: its tasks run in executors of the cluster's, not in the driver."""

from pathlib import Path

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from streaming.lake.delta_files import read_rows
from streaming.progress import BatchEvent
from tests.brokers.fixtures import MakeTopic
from tests.chaos.harness import FULL
from tests.integration.job_process import JobProcess, wait_for
from tests.integration.streaming_support import base_ms, messages, produce
from tests.lake.cluster import SparkCluster

RECORDS = 40_000


@pytest.mark.skipif(not FULL, reason="takes minutes: CHAOS=full")
async def test_a_job_goes_on_without_a_worker(kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Four batches of silver. After the first one a worker is killed with its executor, which had half of the tasks."""
    topic = await make_topic(partitions=2)
    produce(kafka.bootstrap, topic, messages(range(RECORDS), base_ms(), 2))
    (tmp_path / "gateway.toml").write_text(
        f'[kafka]\nbootstrap_servers = ["{kafka.bootstrap}"]\n'
        f'[stream]\ntopics = ["{topic}"]\navailable_now = true\ncheckpoint = "{tmp_path / "checkpoints"}"\n'
        f"max_offsets_per_trigger = {RECORDS // 4}\n"
        f'[stream.lake]\npath = "{tmp_path / "lake"}"\n'
    )
    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    words = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
    with SparkCluster(tmp_path) as cluster:
        job = JobProcess(tmp_path, "--config", "gateway.toml", "--master", cluster.url, *words, name="silver")
        try:
            wait_for("the first batch", lambda: any(isinstance(it, BatchEvent) for it in job.events()))
            cluster.kill_worker()
            assert job.wait() == 0, job.log()
        finally:
            job.kill()
        assert cluster.alive() == 1
        (ran,) = (cluster.state() or {})["completedapps"]
    assert (ran["name"], ran["state"]) == ("gateway-stream", "FINISHED")
    assert sum(it.rows for it in job.events() if isinstance(it, BatchEvent)) == RECORDS
    found = read_rows(str(tmp_path / "lake" / "silver"), ["kafka_partition", "kafka_offset"]).to_pylist()
    assert len(found) == len({tuple(row.values()) for row in found}) == RECORDS
