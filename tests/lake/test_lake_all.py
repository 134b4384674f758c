"""Several jobs in one process, each to its end, silver's readers after silver."""

from pathlib import Path
from typing import Any

import pytest

from config.settings import StreamSettings
from config.tables.stream_jobs import LakeSettings
from gateway.local.embedded.kafka import KafkaCluster
from streaming.progress import BatchEvent, StartedEvent, StoppedEvent
from streaming.upkeep.status import collect
from tests.chaos.harness import FULL
from tests.integration.job_process import JobProcess
from tests.integration.streaming_support import base_ms, messages, produce


@pytest.mark.skipif(not FULL, reason="takes minutes: CHAOS=full")
async def test_jobs_share_a_process_and_keep_their_places_apart(
    kafka: KafkaCluster, make_topic: Any, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=2)
    produce(kafka.bootstrap, topic, messages(range(80), base_ms(), 2))
    config = tmp_path / "gateway.toml"
    config.write_text(f'[kafka]\nbootstrap_servers = ["{kafka.bootstrap}"]\n')
    stream = StreamSettings(checkpoint=tmp_path / "checkpoints", lake=LakeSettings(path=tmp_path / "lake"))
    words = ("--config", str(config), "--topic", topic, "--metrics-port", "0", "--available-now",
             "--report", str(tmp_path / "report.html"))  # fmt: skip
    folders = ("--checkpoint", str(stream.checkpoint), "--lake", str(stream.lake.path))
    job = JobProcess(tmp_path, *words, *folders, "--jobs", "gold,bronze,silver", name="all")
    try:
        assert job.wait() == 0, job.log()
    finally:
        job.kill()
    events = job.events()
    started = [event for event in events if isinstance(event, StartedEvent)]
    assert [set(event.queries) for event in started] == [{"bronze", "silver"}, {"gold"}]
    assert started[0].metrics is not None
    assert started[0].metrics.startswith("http://127.0.0.1:")
    rows = {event.query: event.rows for event in events if isinstance(event, BatchEvent) and event.rows}
    assert rows == {"bronze": 80, "silver": 80, "gold": 80}
    assert isinstance(events[-1], StoppedEvent)

    found = collect(stream)
    assert {one.query: one.running for one in found.queries} == {"bronze": None, "silver": None, "gold": None}
    offsets = {one.query: sum(one.progress.offsets.get(topic, {}).values()) for one in found.queries}
    assert offsets == {"bronze": 80, "silver": 80, "gold": 0}
    tables = {one.table: one.rows for one in found.tables}
    assert tables["silver"] == 80
    assert tables["gold"]
    assert "<dt>readings</dt><dd>80</dd>" in (tmp_path / "report.html").read_text()
