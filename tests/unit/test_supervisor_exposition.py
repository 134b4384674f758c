"""Several workers' metrics are one valid exposition, in which every sample says whose it is."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from config.settings import Settings
from gateway.base.instruments import MetricSet
from gateway.base.metrics import Metrics
from gateway.supervisor.exposition import merge, text_of
from gateway.supervisor.metrics import ProcessMetrics, SupervisorMetrics

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


BOTH = pytest.mark.parametrize(("accept", "parse"), [("text/plain", parse_text), (OPENMETRICS, parse_openmetrics)])


def worker_metrics(acks: int) -> Metrics:
    metrics = Metrics(Settings())
    metrics.mqtt_acks.child().value = acks
    metrics.messages_filtered.child('a "route"} with # and , in it', "sampled").value = acks + 1
    metrics.end_to_end_seconds.child("telemetry").observe_many(3_000_000, acks)
    return metrics


@BOTH
def test_no_sample_is_lost_or_changed(accept: str, parse: Callable[[str], Iterable[Any]]) -> None:
    encode, _ = choose_encoder(accept)
    texts = {str(number): encode(worker_metrics(number * 10)).decode() for number in range(3)}
    merged = merge(list(texts.items()))
    found = {}
    described = []
    for family in parse(merged):
        described.append((family.name, family.type, family.documentation))
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    first = [(family.name, family.type, family.documentation) for family in parse(texts["0"])]
    assert described == first, "each family stands together and is described once"
    expected = {
        (sample.name, tuple(sorted({**sample.labels, "worker": worker}.items()))): sample.value
        for worker, text in texts.items()
        for family in parse(text)
        for sample in family.samples
    }
    assert found == expected


@BOTH
def test_the_own_text_is_what_prometheus_client_would_write(accept: str, parse: Callable[[str], Iterable[Any]]) -> None:
    def parsed(text: str) -> list[Any]:
        return [(one.name, one.documentation, one.type, one.samples) for one in parse(text)]

    encode, _ = choose_encoder(accept)
    metrics = SupervisorMetrics()
    metrics.worker_restarts.child("0").value = 3
    metrics.worker_up.watch_rows(lambda: {("0",): 1, ("1",): 0})
    own = merge([(None, text_of(metrics, openmetrics=accept == OPENMETRICS))])
    theirs = encode(metrics).decode()
    assert parsed(own + "# EOF\n" * (accept == OPENMETRICS)) == parsed(theirs)


def test_the_process_has_the_series_of_prometheus_client() -> None:
    def shape(metrics: MetricSet | ProcessCollector) -> dict[str, tuple[str, str]]:
        return {one.name: (one.type, one.documentation) for one in metrics.collect()}

    metrics = ProcessMetrics()
    assert shape(metrics) == shape(ProcessCollector(registry=None))
    ours, theirs = (
        {sample.name: sample.value for one in metrics.collect() for sample in one.samples}
        for metrics in (metrics, ProcessCollector(registry=None))
    )
    assert ours["process_max_fds"] == theirs["process_max_fds"]
    for size in ("resident", "virtual"):
        name = f"process_{size}_memory_bytes"
        assert ours[name] == pytest.approx(theirs[name], rel=0.2), name
    assert ours["process_cpu_seconds_total"] == pytest.approx(theirs["process_cpu_seconds_total"], rel=0.2)


def test_a_worker_that_does_not_answer_is_absent_and_the_supervisors_own_stay_as_they_are() -> None:
    encode, _ = choose_encoder("")
    metrics = SupervisorMetrics()
    metrics.worker_up.watch_rows(lambda: {("0",): 1, ("1",): 0})
    merged = merge([(None, encode(metrics).decode()), ("0", encode(worker_metrics(5)).decode())])
    assert 'gateway_worker_up{worker="0"} 1.0\n' in merged
    assert 'gateway_worker_up{worker="1"} 0.0\n' in merged
    assert 'gateway_mqtt_acks_total{worker="0"} 5.0\n' in merged
    assert 'gateway_mqtt_acks_total{worker="1"}' not in merged
    assert "gateway_config_reload_success 1.0\n" in merged


def test_lines_that_a_format_may_have() -> None:
    assert merge([("7", 'a 1\nb{} 2\nc{x="}"} 3\n# EOF\n')]) == (
        'a{worker="7"} 1\nb{worker="7"} 2\nc{worker="7",x="}"} 3\n# EOF\n'
    )
    assert merge([]) == ""
