"""What a Spark job tells Prometheus, from Spark's reports to the port that is scraped. Spark is played by fakes."""

import json
import socket
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from config.errors import ConfigError
from config.tables.stream import StreamMetricsSettings
from streaming.job import JobContext
from streaming.metrics import PHASES, SERIES, BatchCounts, StreamMetrics, kafka_offsets, serve
from streaming.progress import Event
from streaming.runtime.queries import ProgressListener, Terminated
from tests.batch_reports import batch_operator, batch_report, batch_source

DELTA = {"sourceVersion": 1, "reservoirId": "4f1", "reservoirVersion": 7, "index": -1, "isStartingVersion": False}


def values(metrics: StreamMetrics) -> dict[tuple[str, ...], float]:
    """Each sample by its name without the prefix, and the values of its labels."""
    return {
        (sample.name.removeprefix("gateway_stream_"), *sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }


def heard(*reports: Any, context: JobContext | None = None) -> tuple[ProgressListener, JobContext, list[Any]]:
    """A listener that was told of a query's start and of its batches, and what it told of offsets."""
    events: list[Event] = []
    context = context or JobContext(events.append)
    offsets: list[Any] = []
    listener = ProgressListener(context, offsets.append, lambda batch: offsets.append((batch.query, batch.end_offsets)))
    listener.onQueryStarted(SimpleNamespace(id="1-2", name="silver"))  # type: ignore[arg-type]
    for report in reports:
        listener.onQueryProgress(SimpleNamespace(progress=report))  # type: ignore[arg-type]
    return listener, context, offsets


def test_a_query_has_all_its_series_from_its_start() -> None:
    _, context, _ = heard()
    found = values(context.metrics)
    assert found["up", "silver"] == 1
    names = {name for name, *_ in found}
    due = {one.name.removeprefix("gateway_stream_") for one in SERIES if one.labels[-1] not in {"topic", "partition"}}
    assert due <= names
    assert {key[2] for key in found if key[0] == "batch_seconds"} == set(PHASES)
    for name in ("rows_total", "rows_quarantined_total", "rows_late_total", "group_commit_failures_total"):
        assert found[name, "silver"] == 0


def test_batches_add_up() -> None:
    context = JobContext(lambda _: None)
    context.counts["silver", 6] = BatchCounts(rows=90, quarantined=4)
    report = batch_report(
        stateOperators=[batch_operator(), batch_operator()], eventTime={"watermark": "2026-11-21T08:10:00.000Z"}
    )
    heard(report, batch_report(batchId=7), context=context)
    found = values(context.metrics)
    assert found["rows_total", "silver"] == 190, "the query's own count goes before Spark's"
    assert found["batches_total", "silver"] == 2
    assert found["rows_quarantined_total", "silver"] == 4
    assert found["rows_late_total", "silver"] == 4
    assert found["batch_seconds", "silver", "triggerExecution"] == 2
    assert found["phase_seconds_total", "silver", "addBatch"] == 3
    assert found["watermark_delay_seconds", "silver"] > 0, "the last one known"
    assert found["offsets_behind", "silver", "t", "0"] == 4
    assert found["offsets_behind", "silver", "t", "1"] == 0
    assert found["data_loss_offsets_total", "silver", "t"] == 0


def test_the_state_is_that_of_the_last_batch() -> None:
    _, context, _ = heard(
        batch_report(stateOperators=[batch_operator(), batch_operator()]),
        batch_report(stateOperators=[batch_operator()]),
    )
    found = values(context.metrics)
    assert found["state_rows", "silver"] == 40
    assert found["state_bytes", "silver", "memory"] == 5000
    assert found["state_bytes", "silver", "disk"] == 300


def test_a_watermark_before_the_first_record_is_no_delay_of_56_years() -> None:
    _, context, _ = heard(batch_report(eventTime={"watermark": "1970-01-01T00:00:00.000Z"}))
    assert values(context.metrics)["watermark_delay_seconds", "silver"] == 0


def test_an_end_is_seen() -> None:
    listener, context, told = heard(batch_report())
    listener.onQueryTerminated(SimpleNamespace(id="1-2"))  # type: ignore[arg-type]
    assert values(context.metrics)["up", "silver"] == 0
    assert told[-1] == Terminated("1-2")


def test_two_sources_of_kafka_are_one_place_and_a_table_is_none() -> None:
    two = [batch_source({"t": {"0": 1}}), batch_source({"ledger": {"0": 5}}), batch_source(DELTA, DELTA)]
    events: list[Event] = []
    _, _, offsets = heard(batch_report(sources=two), context=JobContext(events.append))
    (batch,) = events
    assert batch.end_offsets == {"t": {"0": 1}, "ledger": {"0": 5}}
    assert offsets == [("silver", {"t": {"0": 1}, "ledger": {"0": 5}})]


@pytest.mark.parametrize("position", [None, "", "3", "{}", json.dumps(DELTA), "no json", [1]])
def test_what_is_no_place_in_kafka_is_none(position: Any) -> None:
    assert kafka_offsets(position) == {}


def test_ages_grow_until_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("streaming.metrics.time.monotonic", lambda: now_s)
    listener, context, _ = heard(batch_report())
    now_s = 1030.0
    assert values(context.metrics)["batch_age_seconds", "silver"] == 30
    listener.onQueryIdle(SimpleNamespace(id="1-2"))  # type: ignore[arg-type]
    now_s = 1031.0
    found = values(context.metrics)
    assert (found["batch_age_seconds", "silver"], found["silence_seconds", "silver"]) == (31, 1)


def test_prometheus_can_read_it() -> None:
    _, context, _ = heard(batch_report())
    context.metrics.of("data_loss_offsets_total", "silver", 't"\n').inc(12)
    served = serve(context.metrics, StreamMetricsSettings(port=0))
    try:
        with urlopen(context.metrics.url, timeout=60) as answer:
            families = {family.name: family for family in parse_text(answer.read().decode())}
    finally:
        served.shutdown()
        served.server_close()
    assert {one.name.removesuffix("_total") for one in SERIES} <= families.keys()
    assert "process_resident_memory_bytes" in families
    lost = {sample.labels["topic"]: sample.value for sample in families["gateway_stream_data_loss_offsets"].samples}
    assert lost == {"t": 0, 't"\n': 12}


def test_a_port_that_is_taken_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"stream\.metrics\.port is {port}.*--metrics-port"):
            serve(StreamMetrics(), StreamMetricsSettings(port=port))


def test_without_a_port_nothing_listens() -> None:
    assert serve(StreamMetrics(), StreamMetricsSettings()) is None
