"""The settings that somebody begins with: what the README gives to paste and what `gateway init` writes start."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from tests.brokers.mosquitto import Mosquitto
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import Gateway

ROOT = Path(__file__).parents[2]


def starts_without_a_red_line(gateway: Gateway) -> None:
    gateway.start()
    lines = gateway.log()
    red = [line for line in lines if line["level"] not in {"debug", "info"}]
    assert not red, red
    assert any(line["event"] == "mqtt_subscribed" for line in lines)
    gateway.stop()


def test_the_settings_of_the_readme_start_as_pasted(
    kafka: KafkaCluster, make_mosquitto: Callable[..., Mosquitto], make_gateway: MakeGateway, tmp_path: Path
) -> None:
    """The file is the README's to the letter; where the brokers are, and the password, the environment says."""
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "password").write_text("right")
    broker = make_mosquitto(users={"gateway": "right"})
    gateway = make_gateway(broker.port, kafka.bootstrap, "unused")
    (tmp_path / "gateway-1" / "gateway.toml").write_text(text)
    gateway.environment = {
        "GATEWAY_MQTT__ADDRESSES": f"mqtt://127.0.0.1:{broker.port}",
        "GATEWAY_MQTT__PASSWORD_FILE": str(tmp_path / "password"),
        "GATEWAY_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap,
        "GATEWAY_HTTP__PORT": str(gateway.http_port),
        "GATEWAY_DATA_DIR": str(tmp_path / "data"),
        "GATEWAY_WORKERS": "0",
    }
    starts_without_a_red_line(gateway)


@pytest.mark.parametrize("user", [False, True])
def test_what_init_writes_starts(
    kafka: KafkaCluster,
    mqtt_broker: MqttBroker,
    make_mosquitto: Callable[..., Mosquitto],
    make_gateway: MakeGateway,
    tmp_path: Path,
    unique: str,
    user: bool,
) -> None:
    port, login = mqtt_broker.port, []
    if user:
        (tmp_path / "password").write_text("right")
        port = make_mosquitto(users={"gateway": "right"}).port
        login = ["--username", "gateway", "--password-file", str(tmp_path / "password")]
    gateway = make_gateway(port, kafka.bootstrap, "unused")
    file = tmp_path / "gateway-1" / "gateway.toml"
    file.unlink()
    where = ["--mqtt", f"mqtt://127.0.0.1:{port}", "--kafka", kafka.bootstrap, "--data-dir", str(tmp_path / "data")]
    assert main(["init", str(file), *where, *login, "--topic", unique, "--instance", unique]) == 0
    gateway.environment = {"GATEWAY_HTTP__PORT": str(gateway.http_port), "GATEWAY_WORKERS": "0"}
    starts_without_a_red_line(gateway)
