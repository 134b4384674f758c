"""The alert rules: Prometheus takes them, they ask for series that exist, and each fires when it should and not when it
should not (deploy/prometheus/tests)."""

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import Metric

from config.settings import CanarySettings, EmqxSettings, MqttSettings, RouteSettings, Settings
from gateway.auth_service.metrics import AuthMetrics
from gateway.base.metrics import Metrics
from gateway.supervisor.metrics import SupervisorMetrics
from streaming.metrics import StreamMetrics
from tests.monitoring import (
    ADDED_BY_SCRAPE,
    CASE_FILES,
    PROMETHEUS,
    RULE_FILES,
    known_series,
    read_yaml,
    rules,
    selectors,
    tool,
)

ROOT = Path(__file__).parents[2]
MONITORING_PAGE = (ROOT / "docs/monitoring.md").read_text()
ALERTS = sorted({rule["alert"]: None for rule in rules("alert")})
RECORDED = {rule["record"] for rule in rules("record")}


def promtool(*words: str | Path) -> None:
    ran = subprocess.run([tool("promtool"), *map(str, words)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_prometheus_takes_the_configuration_and_its_rules(tmp_path: Path) -> None:
    """With the token in a place that is here: it is made on the first start, and Prometheus looks whether it is."""
    shutil.copytree(PROMETHEUS / "rules", tmp_path / "rules")
    text = (PROMETHEUS / "prometheus.yml").read_text()
    place = "/run/gateway-operator/http_token"
    assert place in text
    (tmp_path / "http_token").write_text("of-the-test")
    (tmp_path / "prometheus.yml").write_text(text.replace(place, str(tmp_path / "http_token")))
    promtool("check", "config", tmp_path / "prometheus.yml")


@pytest.mark.parametrize("command", re.findall(r"^ {4}((?:prom|am)tool check.*)$", MONITORING_PAGE, re.MULTILINE))
def test_a_check_that_the_page_gives_finds_nothing(command: str) -> None:
    tool(command.split(maxsplit=1)[0])
    ran = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("file", CASE_FILES, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should_and_only_then(file: Path) -> None:
    promtool("test", "rules", file)


@functools.cache
def cases() -> list[dict[str, Any]]:
    return [case for file in CASE_FILES for case in read_yaml(file)["tests"]]


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    fires = {(one["alertname"], bool(one["exp_alerts"])) for case in cases() for one in case["alert_rule_test"]}
    assert {(alert, fired) for alert in ALERTS for fired in (True, False)} - fires == {("GatewayWatchdog", False)}


def test_an_alert_says_what_is_wrong_and_where_to_read_on() -> None:
    for rule in rules("alert"):
        name, said = rule["alert"], rule["annotations"]
        assert rule["labels"].keys() == {"severity"}, name
        assert rule["labels"]["severity"] in {"critical", "warning", "info", "none"}, name
        assert said.keys() == {"summary", "description", "runbook_url"}, name
        assert re.fullmatch(r"[A-Za-z{\"].*\.", said["summary"]), f"{name}: no sentence"
        page, _, anchor = said["runbook_url"].partition("#")
        assert page == "docs/runbook.md", name
        if name.startswith("Gateway"):
            assert anchor == "-".join(re.findall(r"[A-Z][a-z0-9]*", name.removeprefix("Gateway"))).lower()


def expressions() -> Iterable[tuple[str, str]]:
    for rule in (*rules("alert"), *rules("record")):
        name = rule.get("alert") or rule["record"]
        yield name, rule["expr"]
        for text in rule.get("annotations", {}).values():
            for query in re.findall(r'query \(printf "((?:[^"\\]|\\.)*)"', text):
                yield f"{name}'s text", query.replace("%q", '"x"').replace("'", '"')


def test_what_a_rule_asks_for_exists() -> None:
    known = known_series()
    for name, expression in expressions():
        asked = selectors(expression)
        assert asked or name == "GatewayWatchdog", name
        for series, labels in asked:
            if series not in RECORDED:
                assert series in known, f"{name} asks for {series}, which nobody has"
                assert labels <= known[series] | ADDED_BY_SCRAPE, f"{series} has no label {labels - known[series]}"


def test_the_cases_are_about_series_that_exist() -> None:
    known = known_series()
    for case in cases():
        for one in case["input_series"]:
            [(series, labels)] = selectors(one["series"])
            assert series in known, f"{case['name']}: {series}"
            assert labels - ADDED_BY_SCRAPE == known[series] - ADDED_BY_SCRAPE, f"{case['name']}: {one['series']}"


# --- nothing is said in a quiet hour, nor through restarts -----------------------------------------------------------

SETTINGS = Settings(
    mqtt=MqttSettings(sessions=2),
    routes=(RouteSettings(name="telemetry", filters=("devices/#",), topic="telemetry"),),
    emqx=EmqxSettings(),
    canary=CanarySettings(),
)
HEALTHY = {
    "gateway_mqtt_connected": 1, "gateway_mqtt_session_present": 1, "gateway_lifecycle_state": 3,
    "gateway_worker_up": 1,
    "gateway_auth_backend_up": 1, "gateway_config_reload_success": 1, "gateway_canary_enabled": 1,
    "gateway_canary_success": 1, "gateway_emqx_watched": 1, "gateway_emqx_up": 1,
    "process_resident_memory_bytes": 90 << 20,  # and not that of the tests themselves
}  # fmt: skip


def series_of(families: Iterable[Metric], labels: str, values: str = "{value:g}x{count}") -> list[dict[str, str]]:
    """Every sample as it is when all is well, told again and again."""
    found = []
    for family in families:
        for sample in family.samples:
            value = HEALTHY.get(sample.name, sample.value)
            own = "".join(f',{name}="{text}"' for name, text in sample.labels.items())
            found.append({"series": f"{sample.name}{{{labels}{own}}}", "values": values.format(value=value, count=400)})
    return found


def all_series(workers: Iterable[str], values: str) -> list[dict[str, str]]:
    """What Prometheus sees of a gateway with such workers (one without a supervisor for none) and of the service."""
    target, service = 'job="gateway",instance="g:9464"', 'job="auth",instance="a:9465"'
    found = [{"series": f"up{{{labels}}}", "values": "1x400"} for labels in (target, service)]
    process = list(ProcessCollector(registry=None).collect())
    names = list(workers)
    for worker in names or [""]:
        labels = f'{target},worker="{worker}"' if worker else target
        metrics = Metrics(SETTINGS)
        for broker in ("1", "2", "3"):
            metrics.kafka_broker_up.child(broker).value = 1
            metrics.kafka_broker_silence.child(broker)
            metrics.kafka_broker_mute.child(broker)
        metrics.kafka_partition_silence.child("telemetry", "0")
        found += series_of([*metrics.collect(), *process], labels, values)
    if names:
        fleet = SupervisorMetrics()
        for worker in names:
            fleet.worker_up.child(worker)
            fleet.worker_restarts.child(worker)
        found += series_of(fleet.collect(), target)
        found += series_of(process, f'{target},worker="supervisor"')
    jobs = StreamMetrics()
    for query in ("bronze", "silver"):
        jobs.start(query)
    found += series_of([*jobs.registry.collect(), *process], 'job="stream",instance="s:9466"', values)
    return found + series_of([*AuthMetrics(SETTINGS.auth).collect(), *process], service)


@pytest.mark.parametrize("workers", [[], ["0", "1"]], ids=["one process", "workers"])
@pytest.mark.parametrize(
    "values", ["{value:g}x{count}", "{value:g}x100 _x3 {value:g}x{count}"], ids=["a quiet hour", "a restart"]
)
def test_all_is_still(workers: list[str], values: str, tmp_path: Path) -> None:
    """Of all alerts of our own, through an hour in which nothing comes in, and through one with a restart."""
    ours = [file for file in RULE_FILES if file.stem.startswith("gateway")]
    alerts = [name for name in ALERTS if name.startswith("Gateway") and name != "GatewayWatchdog"]
    moments = ("10m", "27m", "60m")
    looks = [{"eval_time": at, "alertname": alert, "exp_alerts": []} for at in moments for alert in alerts]
    case = {"interval": "15s", "input_series": all_series(workers, values), "alert_rule_test": looks}
    file = tmp_path / "still.yml"
    text = {"rule_files": [str(one) for one in ours], "evaluation_interval": "1m", "tests": [case]}
    file.write_text(json.dumps(text))  # which is YAML, and written in a fiftieth of the time
    promtool("test", "rules", file)
