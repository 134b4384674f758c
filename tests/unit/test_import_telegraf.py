"""``gateway import telegraf``: the way from MQTT to Kafka, and what Telegraf does to payloads on it, which is said."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from config.errors import ExitStatus
from gateway.tools.migration.findings import Imported, ImportError_
from gateway.tools.migration.telegraf import import_telegraf
from gateway.tools.migration.toml_text import as_toml_text, check_text
from tests.command_line import Cli

FILE = """
[global_tags]
  site = "north"
[agent]
  metric_batch_size = 1000
  flush_interval = "10s"
[[inputs.cpu]]
[[inputs.mqtt_consumer]]
  servers = ["ssl://mqtt.example.com:8883"]
  topics = ["plants/+/machines/+/state", "plants/+/alarms"]
  qos = 1
  persistent_session = true
  client_id = "telegraf-1"
  max_undelivered_messages = 200
  username = "telegraf"
  password = "secret-of-mqtt"
  tls_ca = "/etc/telegraf/ca.pem"
  connection_timeout = "30s"
  keepalive = 45
  data_format = "json_v2"
  name_override = "x"
  [[inputs.mqtt_consumer.topic_parsing]]
    topic = "plants/+/machines/+/state"
    tags = "_/plant/_/machine/_"
    measurement = "_/_/measurement/_/_"
[[processors.rename]]
[[outputs.kafka]]
  brokers = ["kafka-1:9093"]
  topic = "machines"
  routing_tag = "machine"
  compression_codec = 4
  required_acks = 1
  enable_tls = true
  tls_ca = "/etc/telegraf/kafka-ca.pem"
  sasl_username = "telegraf"
  sasl_password = "secret-of-kafka"
  sasl_mechanism = "SCRAM-SHA-512"
  data_format = "json"
"""
SHORT = """
[[inputs.mqtt_consumer]]
  servers = ["tcp://m:1883"]
  topics = ["a/+/b"]
{input}
[[outputs.kafka]]
  brokers = ["k:9092"]
  topic = "t"
{output}
"""


def imported(text: str) -> tuple[Imported, dict[str, Any]]:
    found = import_telegraf(text)
    written = as_toml_text(found, "made by a test")
    check_text(written)
    return found, tomllib.loads(written)


def short(input_: str = "", output: str = "") -> tuple[Imported, dict[str, Any]]:
    return imported(SHORT.format(input=input_, output=output))


def severities(found: Imported, word: str) -> list[str]:
    return [one.severity for one in found.findings if word in one.what]


def test_a_whole_file() -> None:
    found, settings = imported(FILE)
    assert settings["mqtt"] == {
        "addresses": ["mqtts://mqtt.example.com:8883"], "username": "telegraf",
        "password_file": "/run/secrets/mqtt-password", "connect_timeout": "30s", "keepalive": "45s",
        "receive_maximum": 200, "tls": {"ca_file": "/etc/telegraf/ca.pem"},
    }  # fmt: skip
    assert settings["kafka"]["security"] == "SASL_SSL"
    assert settings["kafka"]["compression"] == "zstd"
    assert settings["kafka"]["sasl"]["username"] == "telegraf"
    state, alarms = settings["routes"]
    assert state == {
        "name": "telegraf", "filters": ["plants/+/machines/+/state"], "topic": "machines", "qos": 1,
        "key": "${topic[3]}", "headers": {"plant": "${topic[1]}", "machine": "${topic[3]}"},
    }  # fmt: skip
    assert alarms["key"] == "${topic}", "its topics have no machine"
    for word in (
        "measurement =", "name_override", "json_v2 → json", "processors.rename", "global_tags",
        "routing_tag = machine, for plants/+/alarms",
    ):  # fmt: skip
        assert severities(found, word) == ["lost"], word
    for word in ("max_undelivered_messages", "required_acks = 1", "agent: flush_interval", "producer_timestamp"):
        assert severities(found, word) == ["differs"], word
    assert severities(found, "client_id telegraf-1") == ["check"]
    assert severities(found, "inputs.cpu") == ["note"]


def test_no_secret_comes_out(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "telegraf.conf").write_text(FILE)
    out, report = cli("import", "telegraf", str(tmp_path / "telegraf.conf"), status=ExitStatus.INCOMPLETE)
    assert "secret-of" not in out + report
    assert tomllib.loads(out)["kafka"]["sasl"]["password_file"] == "/run/secrets/kafka-password"


def test_weaker_delivery_is_not_taken_over() -> None:
    found, settings = short("  qos = 0\n  persistent_session = false")
    assert settings["routes"][0]["qos"] == 1
    assert "persistent" not in settings["mqtt"]
    assert severities(found, "qos = 0") == ["differs"]
    assert severities(found, "persistent_session") == ["differs"]


@pytest.mark.parametrize(("output", "key"), [
    ("", ""),
    ('  routing_key = "random"', ""),
    ('  routing_key = "a$b"', "a${$}b"),
    ('  routing_tag = "topic"', "${topic}"),
    ('  routing_tag = "host"', "${topic}"),
    ('  routing_tag = "topic"\n  partitioner = "round_robin"', ""),
])  # fmt: skip
def test_keys(output: str, key: str) -> None:
    assert short(output=output)[1]["routes"][0]["key"] == key


PARSED = '  [[inputs.mqtt_consumer.topic_parsing]]\n    topic = "a/+/b"\n    tags = "_/site/_"'


@pytest.mark.parametrize(("output", "topic", "said"), [
    ('  topic_tag = "site"', "${topic[1]}", ["check"]),
    ('  topic_tag = "unit"', "t", ["lost"]),
    (
        '  [outputs.kafka.topic_suffix]\n    method = "tags"\n    keys = ["site"]\n    separator = "_"',
        "t_${topic[1]}",
        ["check"],
    ),
    ('  [outputs.kafka.topic_suffix]\n    method = "measurement"\n    separator = "_"', "t", ["lost"]),
])  # fmt: skip
def test_topics(output: str, topic: str, said: list[str]) -> None:
    found, settings = short(PARSED, output)
    assert settings["routes"][0]["topic"] == topic
    assert severities(found, "outputs.kafka: topic_") == said


def test_variables_stand_as_they_are_and_are_told_of() -> None:
    """As environment variables usually give a user, and the first level of a topic."""
    text = SHORT.format(input='  username = "${NAME}"\n  password = "${SECRET}"', output="")
    found, settings = imported(text.replace('["a/+/b"]', '["${SITE}/+/b", "$share/g/a/+"]'))
    assert settings["mqtt"]["username"] == "gateway"
    assert settings["routes"][0]["filters"] == ["${SITE}/+/b", "a/+"]
    assert severities(found, "mqtt_consumer: topics ${SITE}/+/b") == ["check"]
    assert severities(found, "mqtt_consumer: username ${NAME}") == ["check"]
    assert not any("SECRET" in one.what for one in found.findings)


def test_tags_of_some_topics_only_are_no_headers_of_all() -> None:
    found, settings = imported(SHORT.format(input=PARSED, output="").replace('"a/+/b"]', '"a/#"]'))
    assert "headers" not in settings["routes"][0]
    assert severities(found, "topic_parsing of a/+/b") == ["lost"]


def test_a_wide_route_comes_behind_the_narrow_one() -> None:
    found, settings = imported(SHORT.format(input=PARSED, output="").replace('"a/+/b"]', '"a/#", "a/+/b"]'))
    assert [route["filters"] for route in settings["routes"]] == [["a/+/b"], ["a/#"]]
    assert severities(found, "routes telegraf-2 and telegraf") == ["differs"]


def test_a_share_group_is_taken_over_and_two_are_too_many() -> None:
    text = SHORT.format(input="", output="").replace('["a/+/b"]', '["$share/g/a/+", "$share/h/b/+", "$share/g/+/#/x"]')
    found, settings = imported(text)
    assert settings["mqtt"]["share_group"] == "g"
    assert settings["routes"][0]["filters"] == ["a/+", "b/+"]
    assert severities(found, "$share/h/b/+") == ["lost", "check"]
    assert severities(found, "$share/g/+/#/x") == ["lost"]


@pytest.mark.parametrize(("output", "security", "word", "said"), [
    ('  sasl_username = "${USER}"\n  sasl_password = "x"', "SASL_PLAINTEXT", "sasl_username", ["check"]),
    ('  sasl_mechanism = "GSSAPI"', "PLAINTEXT", "sasl_mechanism", ["lost"]),
    (
        '  sasl_mechanism = "OAUTHBEARER"\n  sasl_access_token = "x"',
        "SASL_PLAINTEXT",
        "sasl_access_token",
        ["check"],
    ),
    ('  tls_ca = "/ca"\n  insecure_skip_verify = true', "SSL", "insecure_skip_verify", ["differs"]),
    ("  socks5_enabled = true", "PLAINTEXT", "socks5_enabled", ["lost"]),
    ("  something_new = 1", "PLAINTEXT", "something_new", ["lost"]),
    ('  version = "2.6.0"', "PLAINTEXT", "version", ["note"]),
])  # fmt: skip
def test_kafka_settings(output: str, security: str, word: str, said: list[str]) -> None:
    found, settings = short(output=output)
    assert settings["kafka"]["security"] == security
    assert severities(found, f"outputs.kafka: {word}") == said


def test_a_login_of_another_input_is_not_left_out_silently() -> None:
    login = '  username = "{}"\n  password = "p"\n'
    found, settings = short(login.format("alice") + SHORT.split("{input}", maxsplit=1)[0] + login.format("bob"))
    assert settings["mqtt"]["username"] == "alice"
    assert severities(found, "mqtt_consumer for a/+/b: username") == ["lost"]


def test_further_outputs_and_brokers_are_for_other_gateways() -> None:
    more = '[[outputs.kafka]]\n  brokers = ["x:9092"]\n  topic = "u"\n'
    more += '[[inputs.mqtt_consumer]]\n  servers = ["tcp://n:1883"]\n  topics = ["z"]'
    found, settings = imported(SHORT.format(input="", output="") + more)
    assert settings["kafka"]["bootstrap_servers"] == ["k:9092"]
    assert [route["filters"] for route in settings["routes"]] == [["a/+/b"]]
    assert severities(found, "outputs.kafka, 2 of them") == ["lost"]
    assert severities(found, "servers tcp://n:1883") == ["lost"]


@pytest.mark.parametrize("text", ["", "[[outputs.kafka]]\ntopic = 'x'", "x = ", "[inputs]\nmqtt_consumer = 1"])
def test_no_way_from_mqtt_to_kafka(text: str) -> None:
    with pytest.raises(ImportError_):
        import_telegraf(text)


def test_a_password_within_an_address_is_not_told(tmp_path: Path, cli: Cli) -> None:
    """Telegraf's MQTT client takes tcp://user:password@host; so do those inputs that are not taken over."""
    file = tmp_path / "telegraf.conf"
    file.write_text(
        '[[inputs.mqtt_consumer]]\nservers = ["tcp://u:kanarie@a:1883"]\ntopics = ["d/+"]\n'
        '[[inputs.mqtt_consumer]]\nservers = ["tcp://u:kanarie@b:1883", "u:kanarie@c"]\ntopics = ["e/+"]\n'
        '[[outputs.kafka]]\nbrokers = ["k:9092"]\ntopic = "t"\nsasl_username = "u"\nsasl_password = "kanarie"\n'
    )
    for more in ([], ["--json"]):
        said = "".join(cli("import", "telegraf", str(file), *more, status=ExitStatus.INCOMPLETE))
        assert "mqtt://a:1883" in said
        assert "kanarie" not in said


@pytest.mark.parametrize(
    "text", ["servers = 5", *(f'servers = ["a"]\n{more}' for more in ('qos = "kanarie"', "qos = inf", "topics = 5"))]
)
def test_a_field_of_another_kind_is_a_sentence(text: str, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "telegraf.conf"
    file.write_text(f'[[inputs.mqtt_consumer]]\n{text}\n[[outputs.kafka]]\nbrokers = ["k:9092"]\n')
    said = "".join(cli("import", "telegraf", str(file), status=ExitStatus.CONFIG))
    assert said.startswith("gateway: The source's fields are not as Telegraf documents them")
    assert "kanarie" not in said


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path, cli: Cli) -> None:
    missing = tmp_path / "telegraf.conf"
    said = cli("import", "telegraf", str(missing), status=ExitStatus.CONFIG).err
    assert f"{missing} cannot be read: No such file or directory." in said
    missing.write_bytes(b"\xff\xfe")
    assert "no text in UTF-8" in cli("import", "telegraf", str(missing), status=ExitStatus.CONFIG).err
