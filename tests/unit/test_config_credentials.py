"""Sound ways to prove oneself load without a word, and a start needs the files that it shows."""

from pathlib import Path

import pytest

from config.errors import ConfigError
from config.loading.load import load, require_runnable
from tests.credential_cases import BEARER, KAFKA_TOKEN, OAUTH, SCRAM, SECRET
from tests.unit.test_config_relations import route

pytestmark = pytest.mark.usefixtures("elsewhere")

SOUND = [
    f'[mqtt]\naddresses = ["mqtts://emqx"]\nusername = "u"\n{OAUTH.format("mqtt.token")}',
    f'[mqtt]\nusername = "u"\n[mqtt.token]\nvalue = "{SECRET}"',
    BEARER + OAUTH.format("kafka.sasl.token"),
    BEARER + 'extensions = { logicalCluster = "lkc-1" }\n' + KAFKA_TOKEN,
    SCRAM,
    f'[kafka]\nsecurity = "SASL_PLAINTEXT"\n[kafka.sasl]\nmechanism = "PLAIN"\nusername = "u"\npassword = "{SECRET}"',
]


@pytest.mark.parametrize("text", SOUND)
def test_it_is_sound(text: str, tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(text)
    assert load(environ={}).warnings == ()


def test_a_start_needs_the_files_that_it_shows(tmp_path: Path) -> None:
    """Without them the first connection would fail; told before anything starts, all at once."""
    token = OAUTH.format("kafka.sasl.token") + '[kafka.sasl.token.oauth.tls]\nca_file = "id-ca.pem"\n'
    mqtt = '[mqtt]\naddresses = ["mqtts://emqx"]\nusername = "u"\n[mqtt.token]\nfile = "token"\n'
    (tmp_path / "gateway.toml").write_text(BEARER + token + mqtt + route())
    with pytest.raises(ConfigError) as caught:
        require_runnable(load(environ={}))
    said = str(caught.value)
    assert "mqtt.token.file (gateway.toml" in said
    assert "kafka.sasl.token.oauth.tls.ca_file (gateway.toml" in said
    (tmp_path / "token").write_text("t")
    (tmp_path / "id-ca.pem").write_text("c")
    require_runnable(load(environ={}))
