"""The dashboard's queries and the alerts, in a real Prometheus that scrapes a real gateway and access service.

Two workers under a supervisor between a real Kafka and a real MQTT broker, with traffic, logins, the canary and an
interceptor, so that hardly anything has a reason to be empty.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from config.tables.stream import StreamMetricsSettings
from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from streaming.metrics import StreamMetrics, serve
from streaming.progress import BatchEvent
from tests.auth_process import auth_serve
from tests.batch_reports import batch_report
from tests.brokers.client import Client
from tests.chaos.fixtures import MakeGateway
from tests.monitoring import PROMETHEUS, RULE_FILES, dashboard_module, known_series, rules, selections
from tests.prometheus import Prometheus
from tests.waiting import wait_until

TOKEN = "of-the-test-" * 4
SHOWS_NOTHING = {  # of the dashboard, and why
    "nothing fires",
    "EMQX is not scraped here",
    "kafka_exporter does not run here",
    "no certificate or token is shown here",
    "admin.watch_groups names no group",
    "the settings have no commands",
    "no command has been finished in the interval",
}
HAS_NO_SERIES = {  # of the alerts' series, those of the gateway and the access service
    "gateway_auth_jwks_failures_total": "no key set is fetched",
    "gateway_consumer_lag_seconds": "no group is watched",
    "gateway_commands_paused_partitions": "the settings have no commands",
    "gateway_commands_deleted_unread_total": "the settings have no commands",
    "gateway_commands_finished_total": "the settings have no commands",
    "gateway_commands_oldest_seconds": "the settings have no commands",
    "gateway_commands_imbalance": "the settings have no commands",
}


def looking(folder: Path, targets: dict[str, str]) -> Prometheus:
    """A Prometheus that looks and judges once a second instead of every 15 s."""
    folder.mkdir()
    token = folder / "http_token"
    token.write_text(TOKEN)
    jobs = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    jobs = [one for one in jobs if one["job_name"] in targets]
    for job in jobs:
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
        if "authorization" in job:  # a Spark job has no token
            job["authorization"]["credentials_file"] = str(token)
    rules = {file.name: file.read_text().replace("interval: 30s", "interval: 1s") for file in RULE_FILES}
    return Prometheus(folder, 1, jobs, rules)


@pytest.fixture
def site(
    kafka: KafkaCluster,
    mqtt_broker: MqttBroker,
    make_gateway: MakeGateway,
    free_ports: Callable[[int], list[int]],
    tmp_path: Path,
    unique: str,
) -> Iterator[Prometheus]:
    """Everything, with messages and logins that go on."""
    gateway = make_gateway(
        mqtt_broker.port, kafka.bootstrap, unique,
        workers=2, instance=unique, mqtt={"sessions": 1, "share_group": "monitored"},
        canary={"enabled": True, "interval": "500ms"},
        ledger={"topic": f"{unique}-ledger"},
        routes=[
            {"name": "telemetry", "filters": [f"{unique}/#"], "topic": unique,
             "interceptors": [{"use": "headers", "add": {"site": "plant-7"}}]},
            {"name": "canary", "filters": [f"canary/{unique}"], "topic": f"{unique}-canary"},
        ],
    )  # fmt: skip
    gateway.configure(http={"token": TOKEN})
    stop = threading.Event()
    (tmp_path / "auth").mkdir()
    with auth_serve(tmp_path / "auth", f'[http]\ntoken = "{TOKEN}"') as service, Client(mqtt_broker.port) as device:
        gateway.start(ready=False)
        service.wait_for("auth_ready")
        service.add_user("device-1", "right", generated=True)
        gateway.wait_ready()

        def live() -> None:
            count = 0
            while not stop.wait(0.02):
                device.publish(f"{unique}/{count % 50}", b"{}")
                if count % 10 == 0:
                    service.login("device-1", "right" if count % 20 else "wrong")
                count += 1

        living = threading.Thread(target=live)
        living.start()
        job = spark_job()
        stream = serve(job, StreamMetricsSettings(port=0))
        assert stream is not None
        targets = {
            "gateway": f"127.0.0.1:{gateway.http_port}",
            "auth": f"127.0.0.1:{service.port('operator_url')}",
            "stream": urlsplit(job.url).netloc,
        }
        try:
            with looking(tmp_path / "prometheus", targets) as prometheus:
                yield prometheus
        finally:
            stop.set()
            living.join()
            stream.shutdown()
            stream.server_close()


def spark_job() -> StreamMetrics:
    """What a Spark job serves after a batch; Spark itself does not run here."""
    metrics = StreamMetrics()
    metrics.start("silver")
    metrics.batch(BatchEvent("silver", 6, 100, 0, 0, 50.0, 2000, {}, None, 0), batch_report())
    return metrics


def expanded(expression: str, **chosen: str) -> str:
    """As Grafana puts its variables in; what is not chosen is All."""
    values = {"instance": ".*", "worker": ".*", "auth": ".*", "__rate_interval": "4s", **chosen}
    text = re.sub(r"\$(\w+)", lambda found: values[found[1]], expression)
    assert "$" not in text
    return text


def panels_of(dashboard: ModuleType) -> Iterator[Any]:
    for row in dashboard.ROWS:
        yield from row.panels


def test_every_query_has_data_and_nothing_fires(site: Prometheus) -> None:
    dashboard = dashboard_module()
    due = {
        (panel.title, query.expr): expanded(query.expr)
        for panel in panels_of(dashboard)
        if panel.empty not in SHOWS_NOTHING
        for query in panel.queries
    }

    def all_have() -> bool:
        for key, expression in list(due.items()):
            if site.query(expression):
                del due[key]
        return not due

    with contextlib.suppress(AssertionError):
        wait_until(all_have, "every query has data")
    troubles: dict[str, str] = {}

    def all_answer() -> bool:  # within the second that a look may take here
        troubles.update({one["labels"]["job"]: one["lastError"] for one in site.ask("targets")["activeTargets"]})
        return troubles == {"gateway": "", "auth": "", "stream": ""}

    wait_until(all_answer, lambda: f"every look is answered: {troubles}")
    assert not due, f"no data for {list(due)}"

    # Those that are rightly empty are at least PromQL.
    for panel in panels_of(dashboard):
        for query in panel.queries:
            site.query(expanded(query.expr, instance="127\\\\.0\\\\.0\\\\.1:1|x", worker="(0|1)"))

    check_variables(site, dashboard)
    check_alerts(site)


def check_variables(site: Prometheus, dashboard: ModuleType) -> None:
    """What is offered at the top of the dashboard exists."""
    found = {}
    for variable in dashboard.VARIABLES:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert match is not None
            rows = site.ask("series", **{"match[]": expanded(match[1])})
            found[variable["name"]] = sorted({row.get(match[2], "") for row in rows})
    assert found["worker"] == ["0", "1"]
    assert [len(found["instance"]), len(found["auth"])] == [1, 1]
    chosen = {name: f"({'|'.join(map(re.escape, values))})".replace("\\", "\\\\") for name, values in found.items()}
    query = expanded('gateway_lifecycle_state{instance=~"$instance", worker=~"$worker"}', **chosen)
    wait_until(lambda: site.query(query), query)  # a look that was not answered in time has ended every series


def check_alerts(site: Prometheus) -> None:
    """Every rule can be judged, what it asks for is there, and of all alerts the watchdog alone fires."""
    judged = [rule for group in site.ask("rules")["groups"] for rule in group["rules"]]
    assert len(judged) == len(rules("alert")) + len(rules("record"))
    for rule in judged:
        assert rule["health"] == "ok", f"{rule['name']}: {rule.get('lastError')}"
    ours = {name for name in known_series() if name.startswith(("gateway_", "process_"))} | {"up"}
    for name in HAS_NO_SERIES:
        assert not site.query(name), f"{name} need not be left out"
    for rule in (one for one in rules("alert") if one["alert"].startswith("Gateway")):
        for name, selection in selections(rule["expr"]):
            if name in ours and name not in HAS_NO_SERIES and name != "gateway_problems":  # there while one is
                asks = f"{rule['alert']} asks for {selection}, which nobody has"
                wait_until(lambda selection=selection: site.query(selection), asks)
    firing = {alert["labels"]["alertname"] for alert in site.alerts() if alert["state"] == "firing"}
    assert firing == {"GatewayWatchdog"}
