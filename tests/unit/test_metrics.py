"""Every metric is defined once, exists at 0 from the start, and is read at scrape time."""

import ast
import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import prometheus_client
import pytest
import structlog
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from bridge.errors import (
    BridgeError,
    IncarnationError,
    LeaderMissingError,
    PoisonedError,
    RefusedError,
    ReplicasMissingError,
    RetriableError,
    TimestampError,
    UnreachableError,
)
from bridge.interceptors import TIMED_ONE_IN, Chain, Chains, Drop, Interceptor, Stage
from bridge.ledger import Ledger
from bridge.message import MessageView
from bridge.record import Record
from config.settings import InterceptorSettings, MqttSettings, RouteSettings, Settings
from config.tables.commands import CommandSettings
from gateway.base.instruments import EventLoopProbe, Histogram
from gateway.base.lifecycle import Lifecycle, State
from gateway.base.metrics import Metrics, send_failure_labels
from tests.scripts import loaded_after
from tests.waiting import until

SETTINGS = Settings(
    mqtt=MqttSettings(sessions=2),
    routes=(
        RouteSettings(name="telemetry", filters=("devices/+/telemetry",), topic="telemetry"),
        RouteSettings(
            name="by-site",
            filters=("sites/#",),
            topic="site-${topic[1]}",
            interceptors=(InterceptorSettings(use="filter", name="hot"),),
        ),
    ),
    commands=(CommandSettings(name="switches", topics=("commands",), status_topic="command-status"),),
)
DEFINITIONS = Metrics.definitions()
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(metrics: Metrics, accept: str = "") -> str:
    encode, _ = choose_encoder(accept)
    return encode(metrics).decode()


def samples(metrics: Metrics) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(scrape(metrics))
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, labels: Mapping[str, str] | None = None) -> float:
    return samples(metrics)[name, frozenset((labels or {}).items())]


# ---- the definitions ----


def test_a_definition_keeps_prometheus_conventions() -> None:
    names = [definition.name for definition in DEFINITIONS]
    assert len(names) == len(set(names))
    for one in DEFINITIONS:
        name = one.name
        assert re.fullmatch(r"gateway_[a-z0-9_]+", name)
        assert (one.kind == "counter") == name.endswith("_total"), f"{name}: counters, and only they, end in _total"
        assert one.unit not in {"seconds", "bytes"} or one.exposed_unit == one.unit, f"{name} does not say its unit"
        assert one.meaning.endswith("."), name
        assert one.turn, name
        assert (one.kind == "histogram") == bool(one.bounds), name
        assert list(one.bounds) == sorted(set(one.bounds)), name
        assert not {"client_id", "clientid", "mqtt_topic", "device"} & set(one.labels), f"{name}: a label without bound"
        assert all(len(row) == len(one.fixed[0]) <= len(one.labels) for row in one.fixed), name


def test_what_to_turn_names_settings_that_exist() -> None:
    for definition in DEFINITIONS:
        turn = re.sub(r"EMQX caps it with \S+", "", definition.turn)
        for section, name in re.findall(r"\b(mqtt|kafka|flow|http|dead_letter)\.([a-z_]+)", turn):
            fields = type(getattr(SETTINGS, section)).model_fields
            assert name in fields, f"{definition.name}: there is no setting {section}.{name}"
        for name in re.findall(r"routes\[\]\.([a-z_]+)", turn):
            assert name in RouteSettings.model_fields


def test_the_reference_page_is_current() -> None:
    docs = Path(__file__).parents[2] / "docs"
    printed = subprocess.check_output([sys.executable, docs / "print_metrics.py"], text=True)
    assert (docs / "metrics.md").read_text() == printed, "run: python docs/print_metrics.py > docs/metrics.md"


# ---- what a scrape sees ----


class Fussy(Interceptor):
    drop_reasons = ("too_old",)

    def on_send(self, record: Record) -> Record | Drop:
        return record if record.value else Drop("too_old")


def test_interceptors_are_counted_and_timed_and_their_reasons_are_there_at_zero() -> None:
    stage = Stage(Fussy(), label="hot", where="here", policy="drop")
    chains = Chains({"by-site": Chain("by-site", [stage])})
    metrics = Metrics(SETTINGS)
    metrics.watch_chains(chains)
    for reason in ("too_old", "interceptor_error", "other"):
        assert value(metrics, "gateway_messages_filtered_total", {"route": "by-site", "reason": reason}) == 0
    for payload in [b"x"] * (TIMED_ONE_IN - 1) + [b""]:
        (chain,) = chains
        chain.run(Record(MessageView("sites/1"), "t", None, payload, [], 0))
    assert value(metrics, "gateway_intercept_total", {"interceptor": "hot", "outcome": "pass"}) == TIMED_ONE_IN - 1
    assert value(metrics, "gateway_intercept_total", {"interceptor": "hot", "outcome": "drop"}) == 1
    assert value(metrics, "gateway_intercept_seconds_count", {"interceptor": "hot"}) == TIMED_ONE_IN


def test_every_series_known_from_the_settings_exists_at_zero_from_the_start() -> None:
    found = samples(Metrics(SETTINGS))
    names = {name for name, _ in found}
    for definition in DEFINITIONS:
        if {"broker", "partition", "group", "problem"} & set(definition.labels):
            continue  # Kafka names them, or they last as long as a problem
        assert {definition.name, f"{definition.name}_count"} & names, f"{definition.name} has no series"
    for name, labels in [
        ("gateway_mqtt_connected", {"session": "1"}),
        ("gateway_mqtt_messages_received_total", {"route": "by-site", "qos": "2"}),
        ("gateway_mqtt_disconnects_total", {"reason": "keepalive"}),
        ("gateway_messages_filtered_total", {"route": "", "reason": "no_route"}),
        ("gateway_intercept_total", {"interceptor": "hot", "outcome": "error"}),
        ("gateway_intercept_seconds_count", {"interceptor": "hot"}),
        ("gateway_dlq_records_total", {"reason": "topic_limit"}),
        ("gateway_kafka_records_sent_total", {"topic": "telemetry"}),
        ("gateway_kafka_records_sent_total", {"topic": "gateway-dead-letters"}),
        ("gateway_kafka_send_failures_total", {"topic": "telemetry", "reason": "refused", "retriable": "false"}),
        ("gateway_last_ack_timestamp_seconds", {"topic": "telemetry"}),
        ("gateway_ledger_messages_total", {"term": "returned"}),
        ("gateway_ledger_imbalance", {}),
        ("gateway_end_to_end_seconds_bucket", {"route": "telemetry", "le": "+Inf"}),
        ("gateway_kafka_produce_seconds_count", {}),
    ]:
        assert found[name, frozenset(labels.items())] == 0, (name, labels)


def test_a_topic_made_from_a_template_appears_when_it_is_made() -> None:
    metrics = Metrics(SETTINGS)
    assert not [labels for _, labels in samples(metrics) if ("topic", "site-${topic[1]}") in labels]
    metrics.kafka_records_sent.child("site-7").value += 3
    assert value(metrics, "gateway_kafka_records_sent_total", {"topic": "site-7"}) == 3


def test_workers_in_one_process_do_not_share_series() -> None:
    one, other = Metrics(SETTINGS), Metrics(SETTINGS)
    one.mqtt_acks.child().value += 5
    assert value(one, "gateway_mqtt_acks_total") == 5
    assert value(other, "gateway_mqtt_acks_total") == 0


@pytest.mark.parametrize(
    ("accept", "parse"), [("", parse_text), ("application/openmetrics-text;version=1.0.0", parse_openmetrics)]
)
def test_both_formats_are_well_formed(accept: str, parse: object) -> None:
    metrics = Metrics(SETTINGS)
    metrics.kafka_produce_seconds.child().observe_many(3_000_000, 5)
    families = {family.name: family for family in parse(scrape(metrics, accept))}
    assert families["gateway_kafka_produce_seconds"].type == "histogram"
    assert families["gateway_mqtt_acks"].type == "counter"
    assert families["gateway_mqtt_unacked"].type == "gauge"


def test_settings_that_are_limits_are_shown() -> None:
    metrics = Metrics(SETTINGS)
    assert value(metrics, "gateway_buffer_limit_bytes", {"store": "memory"}) == SETTINGS.flow.memory_bytes
    assert value(metrics, "gateway_mqtt_receive_window", {"session": "1"}) == SETTINGS.mqtt.receive_maximum


def test_the_build_and_the_process_are_shown() -> None:
    found = samples(Metrics(SETTINGS))
    [labels] = [dict(labels) for name, labels in found if name == "gateway_build_info"]
    assert set(labels) == {"version", "python", "build"}
    assert labels["build"] in {"pure", "compiled"}
    assert found["process_cpu_seconds_total", frozenset()] > 0
    assert found["process_resident_memory_bytes", frozenset()] > 1 << 20


def test_watched_values_are_read_at_each_scrape_and_the_last_watch_counts() -> None:
    metrics = Metrics(SETTINGS)
    unacked = 7
    metrics.mqtt_unacked.watch(lambda: -1, "0")
    metrics.mqtt_unacked.watch(lambda: unacked, "0")
    assert value(metrics, "gateway_mqtt_unacked", {"session": "0"}) == 7
    unacked = 8
    assert value(metrics, "gateway_mqtt_unacked", {"session": "0"}) == 8
    assert value(metrics, "gateway_mqtt_unacked", {"session": "1"}) == 0


def test_watched_rows_join_the_series_known_from_the_start() -> None:
    metrics = Metrics(SETTINGS)
    metrics.kafka_records_sent.watch_rows(lambda: {("telemetry",): 4, ("site-1",): 2})
    assert value(metrics, "gateway_kafka_records_sent_total", {"topic": "telemetry"}) == 4
    assert value(metrics, "gateway_kafka_records_sent_total", {"topic": "site-1"}) == 2
    assert value(metrics, "gateway_kafka_records_sent_total", {"topic": "gateway-dead-letters"}) == 0


def test_a_reader_that_raises_takes_no_other_metric_away_and_is_logged() -> None:
    metrics = Metrics(SETTINGS)
    metrics.mqtt_unacked.watch(lambda: 1 // 0, "0")
    metrics.kafka_records_sent.watch_rows(lambda: {("too", "many"): 1})
    metrics.mqtt_acks.child().value = 3
    with structlog.testing.capture_logs() as logs:
        assert value(metrics, "gateway_mqtt_acks_total") == 3
    unreadable = {line["metric"] for line in logs if line["event"] == "metric_unreadable"}
    assert unreadable == {"gateway_mqtt_unacked", "gateway_kafka_records_sent_total"}


@pytest.mark.parametrize("values", [(), ("a",), ("a", "b", "c")])
def test_a_wrong_number_of_label_values_is_refused(values: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="gateway_mqtt_messages_received_total has the labels"):
        Metrics(SETTINGS).mqtt_messages_received.child(*values)


def test_the_ledger_and_the_lifecycle_are_shown() -> None:
    metrics, lifecycle = Metrics(SETTINGS), Lifecycle()
    ledger = Ledger(lambda: 4)
    metrics.watch_ledger(ledger)
    metrics.watch_lifecycle(lifecycle)
    ledger.received, ledger.delivered = 10, 5
    lifecycle.advance(State.STARTING)
    assert value(metrics, "gateway_ledger_messages_total", {"term": "received"}) == 10
    assert value(metrics, "gateway_ledger_messages_total", {"term": "delivered"}) == 5
    assert value(metrics, "gateway_ledger_in_flight") == 4
    assert value(metrics, "gateway_ledger_imbalance") == 1
    assert value(metrics, "gateway_lifecycle_state") == 1


@pytest.mark.parametrize(("error", "labels"), [
    (LeaderMissingError("x"), ("leader_missing", "true")),
    (ReplicasMissingError("x"), ("replicas_missing", "true")),
    (TimestampError("x"), ("timestamp", "true")),
    (UnreachableError("x"), ("unreachable", "true")),
    (RetriableError("x"), ("retriable", "true")),
    (IncarnationError("x"), ("incarnation", "true")),
    (PoisonedError("x"), ("poisoned", "false")),
    (RefusedError("x"), ("refused", "false")),
    (BridgeError("x"), ("other", "false")),
    (RuntimeError("x"), ("other", "false")),
])  # fmt: skip
def test_a_failed_batch_gets_the_labels_of_the_most_specific_error(error: Exception, labels: tuple[str, str]) -> None:
    assert send_failure_labels(error) == labels
    assert labels in Metrics.kafka_send_failures.fixed, "its series would not exist from the start"


def literals_of_calls(folder: str, functions: set[str], place: int) -> set[str]:
    """Constant strings given as argument ``place`` to any of ``functions`` in the modules of a folder."""
    found = set()
    for path in (Path(__file__).parents[2] / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or len(node.args) <= place:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            argument = node.args[place]
            if name in functions and isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found.add(argument.value)
    return found


@pytest.mark.parametrize(("functions", "place", "definition"), [
    ({"ConnectError", "MqttRefusedError"}, 1, Metrics.mqtt_connect_failures),
    ({"_end_connection"}, 0, Metrics.mqtt_disconnects),
], ids=["connect failures", "disconnects"])  # fmt: skip
def test_reasons_the_sessions_give_are_in_the_table(functions: set[str], place: int, definition: object) -> None:
    used = literals_of_calls("gateway/mqtt", functions, place)
    assert used, "the calls this test reads have changed their names"
    assert used <= {reason for (reason,) in definition.fixed}, "their series would not exist from the start"


# ---- histograms ----


def test_a_histogram_counts_as_the_client_librarys_own_does() -> None:
    bounds_s = Metrics.end_to_end_seconds.bounds
    theirs = prometheus_client.Histogram("x", "x", buckets=bounds_s, registry=None)
    metrics = Metrics(SETTINGS)
    ours = metrics.end_to_end_seconds.child("telemetry")
    draw = random.Random(7)
    values_ns = [draw.randrange(200_000_000_000) for _ in range(200)]
    values_ns += [round(bound * 1e9) for bound in bounds_s]  # on the bound is below it
    for value_ns in values_ns:
        count = draw.randrange(1, 20)
        ours.observe_many(value_ns, count)
        for _ in range(count):
            theirs.observe(value_ns / 1e9)
    expected = {
        sample.labels.get("le"): sample.value for sample in theirs.collect()[0].samples if "le" in sample.labels
    }
    found = {
        dict(labels)["le"]: number
        for (name, labels), number in samples(metrics).items()
        if name == "gateway_end_to_end_seconds_bucket" and ("route", "telemetry") in labels
    }
    assert found == expected
    total_s = value(metrics, "gateway_end_to_end_seconds_sum", {"route": "telemetry"})
    assert total_s == pytest.approx(next(s.value for s in theirs.collect()[0].samples if s.name == "x_sum"))


def test_a_histogram_of_sizes_keeps_its_unit() -> None:
    metrics = Metrics(SETTINGS)
    metrics.kafka_batch_bytes.child().observe(256)
    metrics.kafka_batch_bytes.child().observe(2_000_000)
    assert value(metrics, "gateway_kafka_batch_bytes_bucket", {"le": "256.0"}) == 1
    assert value(metrics, "gateway_kafka_batch_bytes_bucket", {"le": "1048576.0"}) == 1
    assert value(metrics, "gateway_kafka_batch_bytes_sum") == 2_000_256
    assert value(metrics, "gateway_kafka_batch_bytes_count") == 2


# ---- the event loop ----


async def test_the_event_loop_probe_sees_a_blocked_loop_and_stops() -> None:
    delay = Histogram([20_000_000])
    probe = EventLoopProbe(delay, interval_s=0.01)
    await probe.start()
    loop = asyncio.get_running_loop()
    await until(lambda: delay.cumulative()[0] >= 2)  # while nothing blocks, delays are short
    late = delay.count - delay.cumulative()[0]
    blocked_until_s = loop.time() + 0.1
    while loop.time() < blocked_until_s:
        pass
    await until(lambda: delay.count - delay.cumulative()[0] > late)
    assert delay.sum > 50_000_000

    await probe.stop(0)
    count = delay.count
    later = asyncio.Event()
    loop.call_later(0.03, later.set)  # timers run in order: the probe's next one would have come before
    await asyncio.wait_for(later.wait(), 60)
    assert delay.count == count


def test_the_client_library_is_not_imported_before_the_first_scrape() -> None:
    code = "from config.settings import Settings; from gateway.base.metrics import Metrics; Metrics(Settings())"
    assert not {"prometheus_client", "aiohttp"} & loaded_after(f"{code}; import gateway.http.server")
