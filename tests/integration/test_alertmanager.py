"""The example for Alertmanager: it is taken, it knows the alerts by their names, and a frozen broker is one message.
Run for real where Alertmanager is installed."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.local.runtime.process import GuardedProcess
from tests.monitoring import CASE_FILES, PROMETHEUS, read_yaml, rules, tool
from tests.waiting import wait_until

EXAMPLE = PROMETHEUS / "alertmanager.yml"
ALERTS = {rule["alert"] for rule in rules("alert")}
# What a broker that stands still has raised, in a gateway with several topics and a canary.
FROZEN = {
    "GatewayBrokerSilent": "critical",
    "GatewayPartitionSilent": "critical",
    "GatewayPartitionLeaderless": "critical",
    "GatewayOldestUnackedTooOld": "critical",
    "GatewayCanaryFailing": "critical",
    "GatewayLatencyBudgetBurns": "critical",
    "GatewayAvailabilityBudgetBurns": "critical",
    "GatewaySpoolFull": "critical",
    "GatewaySpoolFilling": "warning",
    "GatewayEndToEndLatencyHigh": "warning",
    "KafkaUnderReplicated": "warning",
    "KafkaLastCopy": "critical",
}
ACTS = {"GatewaySpoolFull", "KafkaLastCopy"}  # each asks for an act of its own


def amtool(*words: str) -> str:
    ran = subprocess.run([tool("amtool"), *words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def labels_of(alert: str, severity: str) -> dict[str, str]:
    """As the rule gives them, by the case in which it fires."""
    for file in CASE_FILES:
        for case in read_yaml(file)["tests"]:
            for one in case["alert_rule_test"]:
                for found in one["exp_alerts"] if one["alertname"] == alert else ():
                    if found["exp_labels"]["severity"] == severity:
                        return {"alertname": alert, **found["exp_labels"]}
    raise AssertionError(f"no case in which {alert} fires as {severity}")


def matched(matchers: list[str]) -> set[str]:
    """The names in ``alertname = A`` and ``alertname =~ "A|B"``; all alerts where it is about severities."""
    [matcher] = matchers
    label, _, value = matcher.partition("=")
    return set(value.strip('~ "').split("|")) if label.strip() == "alertname" else set()


def inhibitions() -> Iterator[dict[str, Any]]:
    yield from read_yaml(EXAMPLE)["inhibit_rules"]


def test_it_is_taken() -> None:
    amtool("check-config", str(EXAMPLE))


@pytest.mark.parametrize(("labels", "receiver"), [
    ("alertname=GatewayWatchdog severity=none", "dead-man"),
    ("alertname=GatewayBrokerSilent severity=critical", "on-call"),
    ("alertname=GatewayWindowSaturated severity=warning", "working-hours"),
    ("alertname=GatewayUncleanShutdown severity=info", "nobody"),
])  # fmt: skip
def test_who_is_told(labels: str, receiver: str) -> None:
    assert amtool("config", "routes", "test", f"--config.file={EXAMPLE}", *labels.split()).strip() == receiver


def test_every_alert_that_is_named_exists() -> None:
    named = {
        name for rule in inhibitions() for side in ("source", "target") for name in matched(rule[f"{side}_matchers"])
    }
    assert "GatewayBrokerSilent" in named
    assert named - ALERTS == set()


def test_what_has_to_be_equal_is_there_on_both_sides() -> None:
    """A label that neither alert has is equal, and says nothing; one that only one of them has is never."""
    severities = {(rule["alert"], rule["labels"]["severity"]) for rule in rules("alert")}
    for rule in inhibitions():
        names = matched(rule["source_matchers"]) | matched(rule["target_matchers"])
        for alert, severity in sorted(severities):
            if alert in names:
                missing = set(rule.get("equal", ())) - labels_of(alert, severity).keys() - {"worker"}
                assert not missing, f"{alert} has no {missing}: {rule}"


def test_what_asks_for_an_act_of_its_own_is_not_held_back() -> None:
    targets = {name for rule in inhibitions() for name in matched(rule["target_matchers"])}
    never = {"GatewaySpoolFull", "GatewaySpoolBroken", "GatewayMessagesLost", "GatewayEmqxQueueDropping",
             "GatewaySessionLost", "GatewayLedgerImbalance", "GatewayRouteStopped", "GatewayDeadLetters",
             "GatewayAclRefused", "KafkaLastCopy", "GatewayDown", "GatewayWorkerDown"}  # fmt: skip
    assert never <= ALERTS
    assert not never & targets


@pytest.fixture
def alertmanager(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[str]:
    program = tool("prometheus-alertmanager")
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    process = GuardedProcess(
        [
            program,
            f"--config.file={EXAMPLE}",
            f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        log=tmp_path / "log",
    )
    try:
        wait_until(lambda: ready(url), "Alertmanager is ready")
        yield url
    finally:
        process.kill()


def ready(url: str) -> bool:
    ran = subprocess.run(
        [tool("amtool"), f"--alertmanager.url={url}", "alert"], capture_output=True, text=True, check=False
    )
    return ran.returncode == 0


def told(url: str, *, inhibited: bool) -> set[str]:
    state = "--inhibited" if inhibited else "--active"
    found = json.loads(amtool(f"--alertmanager.url={url}", "alert", "query", state, "--output=json") or "[]")
    return {one["labels"]["alertname"] for one in found if (one["status"]["state"] == "suppressed") is inhibited}


def test_of_a_frozen_broker_one_message_is_sent(alertmanager: str) -> None:
    for alert, severity in FROZEN.items():
        labels = labels_of(alert, severity)
        # Of one gateway: the cases call theirs by several names.
        labels |= {name: value for name, value in (("instance", "g:9464"),) if name in labels and "Gateway" in alert}
        amtool(
            f"--alertmanager.url={alertmanager}", "alert", "add", *(f"{name}={value}" for name, value in labels.items())
        )
    held_back = FROZEN.keys() - {"GatewayBrokerSilent"} - ACTS
    wait_until(lambda: told(alertmanager, inhibited=True) == held_back, "all but the cause are held back")
    assert told(alertmanager, inhibited=False) == {"GatewayBrokerSilent", *ACTS}
