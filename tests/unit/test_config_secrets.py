"""A secret in the wrong place is told by no error. ``test_canaries`` has each secret in its own place."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from config.errors import ConfigError
from config.loading.load import load
from config.settings import KafkaSettings, MqttSettings, SaslSettings, Settings
from tests.canaries import MARK as SECRET
from tests.unit.test_canaries import assert_error_silent

pytestmark = pytest.mark.usefixtures("elsewhere")

REJECTED = [
    f'[mqtt]\npassword_file = ["{SECRET}"]',
    f'[mqtt]\naddresses = ["mqtt://gateway:{SECRET}@broker"]',
    f'[mqtt]\naddresses = "mqtt://gateway:{SECRET}@broker"',
    f'[mqtt]\nwebsocket_headers = "{SECRET}"',
    f'[mqtt]\nwebsocket_headers = {{ Authorization = ["{SECRET}"] }}',
    f'[mqtt]\nproxy = "http://u:{SECRET}@proxy"',
    f'mqtt = "{SECRET}"',
    f'[kafka]\nsasl = "{SECRET}"',
    f'[kafka]\nbootstrap_servers = ["u:{SECRET}@k:1"]',
    f'[kafka.sasl]\nusername = "u"\npassword = "{SECRET}"',
    f'[kafka.sasl]\nusername = "u"\npassword = "{SECRET}"\nmechanism = "NONE"',
    f"password = {SECRET}",
    f'[mqtt]\npassword = "{SECRET}',
    f"[mqtt]\npassword = '''{SECRET}",
]

REJECTED_NAMES = [
    {"GATEWAY_MQTT__PASWORD": SECRET},
    {"GATEWAY_MQTT__PASSWORD_FILE": SECRET},
    {"GATEWAY_MQTT": SECRET},
    {"GATEWAY_MQTT": f'"{SECRET}"'},
    {"GATEWAY_MQTT": f'{{"password": "{SECRET}"'},
    {"GATEWAY_MQTT": f'{{"password": ["{SECRET}"]}}'},
    {"GATEWAY_KAFKA__SASL": f'{{"password": "{SECRET}"}}'},
    {"GATEWAY_MQTT__PROXY": f"http://u:{SECRET}@p"},
    {"GATEWAY_MQTT__ADDRESSES": f"mqtt://u:{SECRET}@a,mqtt://b"},
    {"GATEWAY_MQTT__WEBSOCKET_HEADERS": f"Authorization={SECRET}"},
]


@pytest.mark.parametrize(
    ("text", "environ"), [*((text, {}) for text in REJECTED), *(("", environ) for environ in REJECTED_NAMES)]
)
def test_a_file_or_variable_that_is_rejected_tells_no_secret(
    text: str, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "gateway.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(environ=environ)
    assert_error_silent(caught.value)


@pytest.mark.parametrize("make", [
    lambda: Settings(mqtt={"password": [SECRET]}),
    lambda: Settings(mqtt={"pasword": SECRET}),
    lambda: MqttSettings(password=[SECRET]),
    lambda: MqttSettings(addresses=(f"mqtt://u:{SECRET}@b",)),
    lambda: KafkaSettings(sasl=SECRET),
    lambda: SaslSettings(password=[SECRET]),
])  # fmt: skip
def test_the_models_themselves_tell_no_secret(make: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert_error_silent(caught.value)
