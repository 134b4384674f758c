"""A job on a standalone cluster: its tasks run in an executor of the cluster's, not in the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.dataset as arrow
import pytest

from streaming.progress import BatchEvent
from tests.chaos.harness import FULL
from tests.integration.job_process import JobProcess
from tests.integration.streaming_support import base_ms, messages, produce
from tests.lake.cluster import SparkCluster

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.local.embedded.kafka import KafkaCluster
    from tests.brokers.fixtures import MakeTopic


@pytest.mark.skipif(not FULL, reason="takes minutes: CHAOS=full")
async def test_a_job_runs_on_a_cluster(kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path) -> None:
    topic = await make_topic(partitions=2)
    produce(kafka.bootstrap, topic, messages(range(500), base_ms(), 2))
    (tmp_path / "gateway.toml").write_text(
        f'[kafka]\nbootstrap_servers = ["{kafka.bootstrap}"]\n'
        f'[stream]\ntopics = ["{topic}"]\navailable_now = true\ncheckpoint = "{tmp_path / "checkpoints"}"\n'
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
        job = JobProcess(tmp_path, "--config", "gateway.toml", "--master", cluster.url, *words, name="bronze")
        try:
            assert job.wait() == 0, job.log()
        finally:
            job.kill()
        (ran,) = (cluster.state() or {})["completedapps"]
    assert (ran["name"], ran["state"], ran["cores"] or 2) == ("gateway-stream", "FINISHED", 2)
    assert [it.rows for it in job.events() if isinstance(it, BatchEvent)] == [500]
    assert arrow.dataset(tmp_path / "lake" / "bronze", partitioning="hive", format="parquet").count_rows() == 500
