"""A secret is printed nowhere: not in repr, not in messages, not in tracebacks, not by show."""

import json
import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from config.errors import ConfigError
from config.loading.load import load
from config.loading.show import as_data, as_text
from config.settings import KafkaSettings, MqttSettings, SaslSettings, Settings

pytestmark = pytest.mark.usefixtures("elsewhere")

SECRET = "hunter2"  # short on purpose: pydantic truncates long inputs, and prints short ones whole

SOUND = f"""
[mqtt]
addresses = ["wss://broker"]
username = "gateway"
password = "{SECRET}"
websocket_headers = {{ Authorization = "Bearer {SECRET}" }}
tls = {{ certificate_file = "c", key_password = "{SECRET}" }}
proxy = {{ host = "p", port = 1, username = "u", password = "{SECRET}" }}
[kafka]
security = "SASL_SSL"
[kafka.sasl]
username = "gateway"
password = "{SECRET}"
"""

REJECTED = [
    f'[mqtt]\npassword = ["{SECRET}"]',
    f'[mqtt]\npassword = {{ value = "{SECRET}" }}',
    f'[mqtt]\npasword = "{SECRET}"',
    f'[mqtt]\npassword_file = "{SECRET}"',
    f'[mqtt]\npassword_file = ["{SECRET}"]',
    f'[mqtt]\npassword = "{SECRET}"\npassword_file = "{SECRET}"',
    f'[mqtt]\naddresses = ["mqtt://gateway:{SECRET}@broker"]',
    f'[mqtt]\naddresses = "mqtt://gateway:{SECRET}@broker"',
    f'[mqtt]\nwebsocket_headers = "{SECRET}"',
    f'[mqtt]\nwebsocket_headers = {{ Authorization = ["{SECRET}"] }}',
    f'[mqtt]\nproxy = "http://u:{SECRET}@proxy"',
    f'[mqtt.proxy]\nhost = "p"\npassword = "{SECRET}"',
    f'mqtt = "{SECRET}"',
    f'[kafka]\nsasl = "{SECRET}"',
    f'[kafka]\nbootstrap_servers = ["u:{SECRET}@k:1"]',
    f'[kafka.sasl]\npassword = "{SECRET}"',
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


def assert_silent(error: BaseException) -> None:
    """Neither the error nor anything it is chained to, printed as a traceback, repr or pickled log field, tells."""
    for text in ("".join(traceback.format_exception(error)), repr(error), str(error.args), str(error.__dict__)):
        assert SECRET not in text


@pytest.mark.parametrize("text", REJECTED)
def test_a_rejected_file_tells_no_secret(text: str, tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(environ={})
    assert_silent(caught.value)


@pytest.mark.parametrize("environ", REJECTED_NAMES)
def test_a_rejected_variable_tells_no_secret(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ=environ)
    assert_silent(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Settings(mqtt={"password": [SECRET]}),
        lambda: Settings(mqtt={"pasword": SECRET}),
        lambda: MqttSettings(password=[SECRET]),
        lambda: MqttSettings(addresses=(f"mqtt://u:{SECRET}@b",)),
        lambda: KafkaSettings(sasl=SECRET),
        lambda: SaslSettings(password=[SECRET]),
    ],
)
def test_the_models_themselves_tell_no_secret(make: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert_silent(caught.value)


def test_sound_settings_tell_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "gateway.toml").write_text(SOUND)
    loaded = load(environ={})
    assert loaded.settings.mqtt.password is not None
    assert loaded.settings.mqtt.password.get_secret_value() == SECRET
    logging.getLogger("test").warning("%s %r", loaded, loaded.settings)
    shown = [
        repr(loaded),
        str(loaded.settings),
        repr(loaded.settings.mqtt),
        repr(loaded.settings.kafka.sasl),
        str(loaded.settings.mqtt.proxy),
        str(loaded.warnings),
        as_text(loaded),
        json.dumps(as_data(loaded)),
        caplog.text,
    ]
    assert [text for text in shown if SECRET in text] == []
    assert "Authorization" in as_text(loaded)  # which header is sent is no secret


def test_settings_with_secrets_reach_a_worker_process(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(SOUND)
    settings = load(environ={}).settings
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_secret_file_that_cannot_be_read_leaves_no_trace_of_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={"GATEWAY_KAFKA__SASL__PASSWORD_FILE": str(tmp_path / SECRET)})
    assert_silent(caught.value)
