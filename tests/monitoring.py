"""What the alert rules, the dashboard and their tests have in common: files, Debian's promtool, names in PromQL."""

import functools
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from gateway.auth_service.metrics import AuthMetrics
from gateway.base.metrics import Metrics
from gateway.supervisor.metrics import SupervisorMetrics
from streaming.metrics import SERIES
from tests.programs import find

ROOT = Path(__file__).parents[1]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULE_FILES = sorted((PROMETHEUS / "rules").glob("*.yml"))
CASE_FILES = sorted((PROMETHEUS / "tests").glob("*.yml"))
ADDED_BY_SCRAPE = {"job", "instance", "worker"}

_PROCESS = dict.fromkeys(
    ("process_start_time_seconds", "process_open_fds", "process_max_fds", "process_resident_memory_bytes",
     "process_virtual_memory_bytes", "process_cpu_seconds_total"), frozenset[str]()
)  # fmt: skip
# Series of others: EMQX 5.8 (emqx_prometheus.erl, emqx_prometheus_data_integration.erl), kafka_exporter 1.9's README,
# Prometheus itself.
FOREIGN: dict[str, frozenset[str]] = {
    **_PROCESS,
    "up": frozenset(),
    "emqx_cluster_nodes_running": frozenset(),
    "emqx_cluster_nodes_stopped": frozenset(),
    "emqx_live_connections_count": frozenset(),
    "emqx_messages_received": frozenset(),
    "emqx_messages_sent": frozenset(),
    "emqx_messages_dropped": frozenset(),
    "emqx_messages_dropped_no_subscribers": frozenset(),
    "emqx_delivery_dropped_queue_full": frozenset(),
    "emqx_authorization_allow": frozenset(),
    "emqx_authorization_deny": frozenset(),
    "emqx_authorization_nomatch": frozenset(),
    "emqx_cert_expiry_at": frozenset({"listener_type", "listener_name"}),
    "emqx_action_dropped": frozenset({"id"}),
    "kafka_brokers": frozenset(),
    "kafka_topic_partition_leader": frozenset({"topic", "partition"}),
    "kafka_topic_partition_replicas": frozenset({"topic", "partition"}),
    "kafka_topic_partition_in_sync_replica": frozenset({"topic", "partition"}),
    "kafka_topic_partition_under_replicated_partition": frozenset({"topic", "partition"}),
    "kafka_consumergroup_lag": frozenset({"consumergroup", "topic", "partition"}),
    "kafka_consumergroup_current_offset": frozenset({"consumergroup", "topic", "partition"}),
}

_SERIES = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{(?:[^{}\"]|\"[^\"]*\")*\})?\s*(\()?")
_KEYWORDS = {
    "and", "or", "unless", "on", "by", "ignoring", "without", "offset", "bool", "group_left", "group_right", "inf",
}  # fmt: skip


def tool(name: str) -> str:
    """The path of a program of Prometheus or Alertmanager; without it the test is skipped, or fails in CI."""
    return find(name, "prometheus-alertmanager" if name in {"amtool", "prometheus-alertmanager"} else "prometheus")


@functools.cache
def dashboard_module() -> ModuleType:
    """``deploy/grafana/dashboard.py``, which finds its neighbour as a script does."""
    folder = str(ROOT / "deploy" / "grafana")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("dashboard")
    finally:
        sys.path.remove(folder)


def read_yaml(file: Path) -> Any:
    """A file of ours, by the fast parser where there is one."""
    return yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@functools.cache
def rules(kind: str) -> list[dict[str, Any]]:
    """Every rule with the key ``alert`` or ``record``."""
    groups = [group for file in RULE_FILES for group in read_yaml(file)["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


@functools.cache
def known_series() -> dict[str, frozenset[str]]:
    """Every series there can be, with the labels it has beside those of the scrape."""
    known = dict(FOREIGN)
    for one in (*Metrics.definitions(), *SupervisorMetrics.definitions(), *AuthMetrics.definitions()):
        labels = frozenset(one.labels)
        known[one.name] = labels
        if one.kind == "histogram":
            known |= {f"{one.name}_{part}": labels for part in ("count", "sum")}
            known[f"{one.name}_bucket"] = labels | {"le"}
    known |= {series.name: frozenset(series.labels) for series in SERIES}
    return known


def selections(expression: str) -> list[tuple[str, str]]:
    """The series that an expression of PromQL asks for: their name, and the name with what chooses among them.

    No parser: functions and aggregations are told by the bracket after their name, label lists by the word before
    theirs, and ranges, offsets and numbers are left out. Good for what is written in this repository.
    """
    text = re.sub(r"#[^\n]*", "", expression)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)", " ", text)
    text = re.sub(r"\[[^\]]*\]", " ", text)
    text = re.sub(r"\boffset\s+\w+", " ", text)
    text = re.sub(r"(?<![\w:\"])[\d.]+(?:e\d+)?(?![\w\"])", " ", text)  # numbers
    found = []
    for match in _SERIES.finditer(text):
        name, chosen, called = match.groups()
        if not called and name not in _KEYWORDS:
            found.append((name, name + (chosen or "")))
    return found


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """As ``selections``, with the labels by which the expression chooses."""
    found = []
    for name, selection in selections(expression):
        labels = re.findall(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)", re.sub(r"\"[^\"]*\"", "", selection))
        found.append((name, set(labels)))
    return found
