"""What somebody reads who runs ``gateway run`` with something wrong, and the exit status a supervisor sees."""

import json
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config.errors import ExitStatus
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.client import Client
from tests.brokers.mosquitto import Mosquitto
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import run_to_end
from tests.chaos.threaded import ThreadedBroker
from tests.waiting import wait_until

SECRET = "do-not-print-me"


def tables(mqtt_port: int, bootstrap: str, topic: str, **more: Any) -> dict[str, Any]:
    """Settings that would do, were it not for ``more``."""
    settings: dict[str, Any] = {
        "mqtt": {"addresses": [f"mqtt://127.0.0.1:{mqtt_port}"], "sessions": 2},
        "kafka": {"bootstrap_servers": [bootstrap], "topics": {"create": True, "partitions": 2, "replication": 1}},
        "dead_letter": {"topic": f"{topic}-dead"},
        "http": {"port": 0},
        "routes": [{"name": "telemetry", "filters": ["devices/#"], "topic": topic}],
    }
    for name, table in more.items():
        settings[name] = {**settings.get(name, {}), **table} if isinstance(table, dict) else table
    return settings


def said(stderr: str) -> str:
    """The sentence at the end; above it are log lines, one JSON object each, and never a traceback or a secret."""
    assert "Traceback" not in stderr, stderr
    assert SECRET not in stderr
    *log, _ = re.split(r"^(?=gateway: )", stderr, maxsplit=1, flags=re.MULTILINE)
    for line in "".join(log).splitlines():
        json.loads(line)
    return stderr[stderr.rindex("gateway: ") :].strip()


# --- 77, refused: test_outward_secrets, for each side and with and without a supervisor ---
# --- 69: something is not there ---


def test_an_http_port_that_is_taken(kafka: KafkaCluster, tmp_path: Path, unique: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, ThreadedBroker() as broker:
        port = taken.getsockname()[1]
        status, stderr = run_to_end(tmp_path, tables(broker.port, kafka.bootstrap, unique, http={"port": port}))
    assert status == 69
    assert f"port {port} is taken" in said(stderr)


# --- 78: settings ---

BAD: dict[str, tuple[dict[str, Any] | str, str]] = {
    "no routes": ({"routes": []}, "routes"),
    "a CA file that is not there": (
        {"mqtt": {"addresses": ["mqtts://127.0.0.1:1"], "tls": {"ca_file": "/nowhere/ca.pem"}}}, "mqtt.tls.ca_file"
    ),
    "a secret of the wrong kind": ({"mqtt": {"password": 5}}, "mqtt.password"),
    "no TOML": ("mqtt = [", "gateway.toml"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_settings(case: str, free_ports: Callable[[int], list[int]], tmp_path: Path, unique: str) -> None:
    bad, words = BAD[case]
    mqtt, kafka = free_ports(2)
    settings = bad if isinstance(bad, str) else tables(mqtt, f"127.0.0.1:{kafka}", unique, **bad)
    began = time.monotonic()
    status, stderr = run_to_end(tmp_path, settings)
    assert status == ExitStatus.CONFIG == 78
    assert words in said(stderr)
    assert time.monotonic() - began < 20, "before anything is started or waited for"


def test_a_second_gateway_on_the_same_data(
    kafka: KafkaCluster, make_gateway: MakeGateway, tmp_path: Path, unique: str
) -> None:
    """The two would end each other's sessions for ever."""
    with ThreadedBroker() as broker:
        first = make_gateway(broker.port, kafka.bootstrap, unique)
        first.start()
        second = tables(broker.port, kafka.bootstrap, unique, data_dir=str(tmp_path / "gateway-1" / "data"))
        status, stderr = run_to_end(tmp_path / "second", second)
        assert status == 78
        assert str(first.process.pid) in said(stderr)
        assert first.ready()


# --- it goes on trying, and says why ---


def test_an_mqtt_port_where_nobody_listens(
    kafka: KafkaCluster, make_gateway: MakeGateway, free_ports: Callable[[int], list[int]], unique: str
) -> None:
    (port,) = free_ports(1)
    gateway = make_gateway(port, kafka.bootstrap, unique, mqtt={"sessions": 1})
    gateway.start(ready=False)
    wait_until(lambda: gateway.events("mqtt_connect_failed"), "the failure is logged")
    line = gateway.events("mqtt_connect_failed")[0]
    assert line["error"] == (
        f"mqtt://127.0.0.1:{port} refused the connection. Is the broker running, and is this its port?"
    )
    assert line["reason"] == "unreachable"
    assert line["level"] == "warning"
    (reason,) = [text for text in gateway.reasons() if "MQTT session" in text]
    assert "Is the broker running" in reason
    assert gateway.metric("gateway_mqtt_connect_failures_total") >= 1
    began = time.monotonic()
    assert gateway.stop() == -signal.SIGTERM
    assert time.monotonic() - began < 20, "a stop does not wait for a broker that is not there"


@pytest.mark.parametrize("silent", [False, True], ids=["nobody listens", "nobody answers"])
def test_a_stop_while_kafka_is_waited_for(
    silent: bool, make_gateway: MakeGateway, free_ports: Callable[[int], list[int]], unique: str
) -> None:
    with ThreadedBroker() as broker, socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1] if silent else free_ports(1)[0]
        gateway = make_gateway(broker.port, f"127.0.0.1:{port}", unique, kafka={"request_timeout": "1s"})
        gateway.start(ready=False)
        wait_until(lambda: gateway.events("kafka_not_ready"), "Kafka is waited for")
        error = gateway.events("kafka_not_ready")[0]["error"]
        assert f"127.0.0.1:{port}" in error
        assert ("no answer within kafka.request_timeout" if silent else "connection refused") in error
        began = time.monotonic()
        assert gateway.stop() == -signal.SIGTERM
        assert time.monotonic() - began < 20
        assert not gateway.events("stopped_undrained")
        assert "worker 0     stopped in good order" in gateway.command("identity", "show")[1]


# --- stopping ---


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_what_was_received_is_in_kafka_after_a_stop_also_at_qos_0(
    protocol: str, kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """Nobody would send it again."""
    with ThreadedBroker() as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, mqtt={"protocol": protocol})
        gateway.start()
        broker.start_load(3000, qos=0)
        wait_until(lambda: gateway.metric("gateway_kafka_records_sent_total") > 3000, "messages flow")
        assert gateway.stop() == -signal.SIGTERM
        (stopped,) = gateway.events("worker_stopped")
        found = re.search(r"received (\d+) .* delivered (\d+) .* in flight (\d+) .*imbalance 0", stopped["ledger"])
        assert found, stopped
        received, delivered, in_flight = map(int, found.groups())
        assert (delivered, in_flight) == (received, 0)


# --- the status message ---


def test_the_will_of_a_killed_gateway_says_offline(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    gateway = make_gateway(mosquitto.port, kafka.bootstrap, unique, instance="plant-7")

    def state(client: Client) -> dict[str, Any]:
        return dict(json.loads(client.receive().payload))

    gateway.start()
    with Client(mosquitto.port) as client:
        client.subscribe("gateways/plant-7/status")
        assert state(client)["state"] == "online"
        gateway.kill()
        assert state(client) == {"state": "offline", "instance": "plant-7", "worker": 0, "sessions": 4}
        gateway.start()
        assert state(client)["state"] == "online"
        assert gateway.stop() == -signal.SIGTERM
        assert [state(client)["state"] for _ in range(2)] == ["stopping", "stopped"]
    with Client(mosquitto.port) as late:
        late.subscribe("gateways/+/status")
        message = late.receive()
        assert message.retain
        assert json.loads(message.payload)["state"] == "stopped", "retained, and not replaced by the will"
