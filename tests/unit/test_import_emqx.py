"""``gateway import emqx``: answers of EMQX 5.8's REST API become settings that load, with a report of the rest."""

import errno
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from config.errors import ExitStatus
from gateway.cli.main import main
from gateway.tools.migration.emqx import import_emqx, read_emqx
from gateway.tools.migration.findings import Imported, ImportError_
from gateway.tools.migration.toml_text import as_toml_text, check_text
from tests.command_line import Cli

CONNECTOR = {
    "type": "kafka_producer", "name": "main", "enable": True, "status": "connected",
    "bootstrap_hosts": "kafka-1:9093, kafka-2:9093,kafka-3",
    "authentication": {"mechanism": "scram_sha_512", "username": "emqx", "password": "******"},
    "ssl": {
        "enable": True, "verify": "verify_none", "cacertfile": "data/certs/connectors/kafka_producer:main/cacert",
        "server_name_indication": "auto",
    },
    "connect_timeout": "5s", "socket_opts": {"nodelay": True, "sndbuf": "1024KB"},
}  # fmt: skip
ACTION = {
    "type": "kafka_producer", "name": "telemetry", "enable": True, "connector": "main",
    "node_status": [{"node": "emqx@10.0.0.1", "status": "connected"}],
    "parameters": {
        "topic": "telemetry",
        "message": {"key": "${.clientid}", "value": "${.payload}", "timestamp": "${.timestamp}"},
        "compression": "snappy", "partition_strategy": "key_dispatch", "required_acks": "leader_only",
        "kafka_headers": "${.pub_props}",
        "kafka_ext_headers": [
            {"kafka_ext_header_key": key, "kafka_ext_header_value": value}
            for key, value in (("source", "${topic}"), ("who", "${username}"), ("mqtt.topic", "${topic}"))
        ],
        "max_inflight": 10, "buffer": {"mode": "hybrid", "per_partition_limit": "2GB", "segment_bytes": "100MB"},
        "query_mode": "async",
    },
    "resource_opts": {"health_check_interval": "15s"},
}  # fmt: skip
RULE = {
    "id": "telemetry to kafka",
    "enable": True,
    "sql": 'SELECT * FROM "devices/+/telemetry" WHERE payload.temperature > 20',
    "actions": ["kafka_producer:telemetry"],
    "created_at": "2026-03-02T10:11:12.000+00:00",
}


def imported(*documents: Any, mqtt: str | None = None, device: str | None = None) -> tuple[Imported, dict[str, Any]]:
    """The import, and its settings as they load."""
    found = import_emqx(read_emqx(list(documents)), mqtt=mqtt, device=device)
    text = as_toml_text(found, "made by a test")
    check_text(text)
    return found, tomllib.loads(text)


def findings(found: Imported, word: str) -> list[str]:
    """What severities the findings about something have, in order."""
    return [one.severity for one in found.findings if word in one.what]


def changed(of: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    return {**of, "parameters": {**of["parameters"], **parameters}}


def test_a_rule_with_its_action_and_connector() -> None:
    found, settings = imported({"data": [RULE], "meta": {"count": 1}}, [ACTION], [CONNECTOR], device="${topic[1]}")
    assert settings["kafka"]["bootstrap_servers"] == ["kafka-1:9093", "kafka-2:9093", "kafka-3:9092"]
    assert settings["kafka"]["security"] == "SASL_SSL"
    assert settings["kafka"]["compression"] == "snappy"
    assert settings["kafka"]["sasl"] == {
        "mechanism": "SCRAM-SHA-512", "username": "emqx", "password_file": "/run/secrets/kafka-password",
    }  # fmt: skip
    assert settings["spool"]["max_bytes"] == 2 << 30
    (route,) = settings["routes"]
    assert route == {
        "name": "telemetry-to-kafka", "filters": ["devices/+/telemetry"], "device": "${topic[1]}", "topic": "telemetry",
        "key": "${device}", "headers": {"source": "${topic}"},
        "interceptors": [
            {"use": "filter", "expression": "has(json, 'temperature') and get(json, 'temperature') > 20",
             "on_error": "drop", "reason": "rule"}
        ],
    }  # fmt: skip
    for what in ("key_dispatch", "required_acks", "buffer.mode = hybrid", "verify_none", "kafka_headers"):
        assert findings(found, what) == ["differs"], what
    for what in ("header who", "header mqtt.topic"):
        assert findings(found, what) == ["lost"], what
    assert findings(found, "kafka.sasl.password") == ["check"]
    assert "******" in next(one.consequence for one in found.findings if one.what == "kafka.sasl.password")


def test_a_limit_of_one_partition_makes_no_spool_smaller() -> None:
    _, settings = imported([RULE, changed(ACTION, buffer={"mode": "disk"}), CONNECTOR])
    assert "spool" not in settings, "EMQX's 256 MB are of each partition"


def test_the_client_id_has_no_counterpart_unless_one_says_where_the_device_is() -> None:
    found, settings = imported([RULE, ACTION, CONNECTOR])
    assert settings["routes"][0]["key"] == "${topic}"
    assert "device" not in settings["routes"][0]
    assert findings(found, "key ${.clientid}") == ["lost"]
    assert findings(found, "mqtt.addresses") == ["check"]


def test_a_condition_that_is_not_understood_lets_everything_through_and_says_so() -> None:
    rule = {**RULE, "sql": "SELECT * FROM \"t/#\" WHERE str(payload.x) = '1'"}
    found = import_emqx(read_emqx([rule, ACTION, CONNECTOR]), mqtt=None, device=None)
    text = as_toml_text(found, "")
    check_text(text)
    assert "interceptors" not in text
    assert "# NOT FILTERED, all messages come through: WHERE str(payload.x) = '1'\n[[routes]]" in text
    (lost,) = [one for one in found.findings if "WHERE" in one.what]
    assert lost.severity == "lost"
    assert "NOT FILTERED: str(payload.x) = '1' (a function)" in lost.consequence


def test_the_envelope_and_what_is_computed_is_lost() -> None:
    rule = {**RULE, "sql": 'SELECT payload.a as a, upper(payload.b) as b FROM "t/#"'}
    found, _ = imported([rule, changed(ACTION, message={"key": "", "value": "${.}"}), CONNECTOR])
    assert findings(found, "value ${.}") == ["lost"]
    assert findings(found, "upper(payload.b) as b") == ["lost", "lost"]


@pytest.mark.parametrize(("select", "severities"), [
    ("*", []),
    ("payload as payload, payload.a as a, upper(payload.b) as b", []),
    ("payload.data as payload", ["lost"]),
    ("*, schema_encode('avro', json_decode(payload)) as payload", ["lost"]),
    ("payload.id, payload.temperature", ["lost"]),
])  # fmt: skip
def test_a_payload_that_the_rule_makes_anew_is_lost(select: str, severities: list[str]) -> None:
    """EMQX's action then writes what SELECT made of it, and the gateway what came."""
    found, _ = imported([{**RULE, "sql": f'SELECT {select} FROM "t/#"'}, ACTION, CONNECTOR])
    assert findings(found, "value ${.payload}") == severities


def test_without_a_key_there_is_none_and_a_random_strategy_is_told_of() -> None:
    _, settings = imported([RULE, changed(ACTION, message={"key": "", "value": "${payload}"}), CONNECTOR])
    assert settings["routes"][0]["key"] == ""
    keyed = changed(ACTION, message={"key": "${topic}", "value": "${payload}"}, partition_strategy="random")
    found, _ = imported([RULE, keyed, CONNECTOR])
    assert findings(found, "partition_strategy = random") == ["differs"]


def test_rules_that_share_messages_and_actions_of_other_kinds() -> None:
    rules = [
        {**RULE, "id": "all", "sql": 'SELECT * FROM "devices/#"', "actions": ["kafka_producer:telemetry", "http:sink"]},
        RULE,
        {**RULE, "id": "off", "enable": False},
        {**RULE, "id": "events", "sql": 'SELECT * FROM "$events/client_connected"'},
    ]
    found, settings = imported(rules, [ACTION, {"type": "http", "name": "sink", "parameters": {}}], [CONNECTOR])
    assert [route["name"] for route in settings["routes"]] == ["telemetry-to-kafka", "all"], "the narrow one first"
    assert findings(found, "routes telemetry-to-kafka and all") == ["lost"]
    assert findings(found, "action http:sink") == ["lost"]
    assert findings(found, "rule off") == ["note"]
    assert findings(found, "$events/client_connected") == ["lost"]
    assert "$SYS/brokers/+/clients/#" in next(one.way_out for one in found.findings if "$events" in one.what)


def test_of_two_rules_with_the_same_messages_one_is_left_out() -> None:
    found, settings = imported([RULE, {**RULE, "id": "again"}], [ACTION], [CONNECTOR])
    assert [route["name"] for route in settings["routes"]] == ["telemetry-to-kafka"]
    assert findings(found, "route again") == ["lost"]


@pytest.mark.parametrize("connector", ["kafka_producer:other", "confluent_producer:main"])
def test_another_kafka_is_for_another_gateway(connector: str) -> None:
    """Connectors of two types may have one name."""
    kind, name = connector.split(":")
    other = {**CONNECTOR, "type": kind, "name": name, "bootstrap_hosts": "elsewhere:9092"}
    action = {**ACTION, "type": kind, "name": "second", "connector": name}
    rules = [RULE, {**RULE, "id": "two", "sql": 'SELECT * FROM "x"', "actions": [f"{kind}:second"]}]
    found, settings = imported(rules, [ACTION, action], [CONNECTOR, other])
    assert [route["name"] for route in settings["routes"]] == ["telemetry-to-kafka"]
    assert settings["kafka"]["bootstrap_servers"][0] == "kafka-1:9093"
    assert findings(found, f"connector {connector}") == ["lost"]


def test_a_second_login_to_the_same_kafka_is_not_left_out_silently() -> None:
    rule = {**RULE, "actions": [*RULE["actions"], "kafka_producer:second"]}
    action = {**ACTION, "name": "second", "connector": "other"}
    other = {**CONNECTOR, "name": "other"}
    assert findings(imported(rule, ACTION, action, CONNECTOR, other)[0], "connector kafka_producer:other") == []
    other["authentication"] = {"mechanism": "plain", "username": "another", "password": "******"}
    found, settings = imported(rule, ACTION, action, CONNECTOR, other)
    assert findings(found, "connector kafka_producer:other: authentication") == ["lost"]
    assert settings["kafka"]["sasl"]["username"] == "emqx"


def test_a_connector_that_was_not_given_is_asked_for() -> None:
    found, settings = imported([RULE, ACTION])
    assert "bootstrap_servers" not in settings.get("kafka", {})
    assert findings(found, "connector kafka_producer:main") == ["check"]


@pytest.mark.parametrize(("authentication", "security"), [
    ("none", "PLAINTEXT"),
    ("msk_iam", "PLAINTEXT"),
    ({"kerberos_principal": "k", "kerberos_keytab_file": "f"}, "PLAINTEXT"),
    ({"mechanism": "plain", "username": "u", "password": "hunter2"}, "SASL_PLAINTEXT"),
    (
        {"mechanism": "oauth", "grant_type": "client_credentials", "endpoint_uri": "https://idp.example.com/token",
         "client_id": "c", "client_secret": "hunter2", "extensions": {"logicalCluster": "lkc-1"}},
        "SASL_PLAINTEXT",
    ),
])  # fmt: skip
def test_logins(authentication: Any, security: str) -> None:
    connector = {**CONNECTOR, "authentication": authentication, "ssl": {"enable": False}}
    found, settings = imported([RULE, ACTION, connector])
    assert settings["kafka"]["security"] == security
    assert "hunter2" not in json.dumps(settings)
    assert not any("hunter2" in f"{one.what}{one.consequence}{one.way_out}" for one in found.findings)
    unknown = authentication == "msk_iam" or "kerberos_principal" in authentication
    assert bool(findings(found, "authentication") == ["lost"]) is unknown


def test_a_bridge_of_5_0_is_action_and_connector_in_one() -> None:
    bridge = {
        "type": "kafka", "name": "old", "enable": True, "local_topic": "t/#", "bootstrap_hosts": "k:9092",
        "authentication": "none",
        "kafka": {
            "topic": "old", "message": {"key": "${payload.id}", "value": "${payload}"}, "buffer": {"mode": "memory"},
        },
    }  # fmt: skip
    _, settings = imported([bridge])
    assert settings["kafka"]["bootstrap_servers"] == ["k:9092"]
    assert settings["routes"] == [{"name": "old", "filters": ["t/#"], "topic": "old", "key": "${payload.id}"}]


def test_the_first_page_of_rules_is_not_all_of_them() -> None:
    """GET /api/v5/rules gives a hundred unless told otherwise."""
    first, last = (
        {"data": [{**RULE, "id": n}], "meta": {"count": 2, "page": page}} for n, page in (("a", 1), ("b", 2))
    )
    for some in ([first], [last]):
        with pytest.raises(ImportError_, match="EMQX has 2 entries, and these files 1 of them"):
            read_emqx([*some, [ACTION], [CONNECTOR]])
    assert len(read_emqx([first, last, [ACTION], [CONNECTOR]]).rules) == 2


def test_nothing_for_kafka() -> None:
    with pytest.raises(ImportError_, match="no Kafka action"):
        read_emqx([{"data": [{"type": "http", "name": "x"}]}, CONNECTOR, 1, None, "x"])


def test_the_command(tmp_path: Path, cli: Cli) -> None:
    for name, document in (("rules", [RULE]), ("actions", [ACTION]), ("connectors", [CONNECTOR])):
        (tmp_path / name).write_text(json.dumps(document))
    files = [str(tmp_path / name) for name in ("rules", "actions", "connectors")]
    out, report = cli("import", "emqx", *files, "--mqtt", "mqtts://emqx:8883", status=ExitStatus.INCOMPLETE)
    assert tomllib.loads(out)["mqtt"]["addresses"] == ["mqtts://emqx:8883"]
    assert report.startswith("LOST: action telemetry: key ${.clientid}\n")
    output = tmp_path / "gateway.toml"
    cli("import", "emqx", *files, "-o", output, status=ExitStatus.INCOMPLETE)
    assert tomllib.loads(output.read_text())["routes"]
    cli("import", "emqx", *files, "-o", output, status=ExitStatus.USAGE)
    document = json.loads(cli("import", "emqx", *files, "--json", status=ExitStatus.INCOMPLETE).out)
    assert tomllib.loads(document["settings"])["routes"]
    assert {"severity", "what", "consequence", "way_out"} == set(document["findings"][0])
    (tmp_path / "rules").write_text("{")
    cli("import", "emqx", *files, status=ExitStatus.CONFIG)
    cli("import", "emqx", tmp_path / "absent", status=ExitStatus.CONFIG)


def test_a_full_disk_leaves_what_was_to_be_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, source = tmp_path / "gateway.toml", tmp_path / "all.json"
    output.write_text("before")
    source.write_text(json.dumps([RULE, ACTION, CONNECTOR]))

    def write_half(file: Path, text: str, **_: str) -> None:
        file.write_bytes(text.encode()[: 99 if file == output else None])
        if file == output:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    command = ["import", "emqx", str(source), "-o", str(output), "--force"]
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", write_half)
        assert main(command) == ExitStatus.USAGE
    assert output.read_text() == "before"
    assert main(command) == ExitStatus.INCOMPLETE
    assert tomllib.loads(output.read_text())["routes"]


@pytest.mark.parametrize("broken", [
    {"authentication": {"mechanism": "plain"}},
    {"authentication": {"mechanism": "oauth", "endpoint_uri": "x", "client_id": 1, "extensions": "kanarie"}},
])  # fmt: skip
def test_a_connector_of_another_shape_is_a_sentence(broken: dict[str, Any], tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "all.json"
    file.write_text(json.dumps([RULE, ACTION, {**CONNECTOR, **broken}]))
    said = "".join(cli("import", "emqx", str(file), status=ExitStatus.CONFIG))
    assert said.startswith("gateway: The source")
    assert "kanarie" not in said


def test_half_a_character_of_json_is_a_sentence(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "all.json"
    file.write_text(json.dumps([RULE, changed(ACTION, topic="t\ud800"), CONNECTOR]))
    said = cli("import", "emqx", str(file), status=ExitStatus.CONFIG)
    assert r"""in 'topic = "t\ud800'.""" in said.err


def test_no_secret_of_a_connector_is_told(tmp_path: Path, cli: Cli) -> None:
    """EMQX masks them; whoever took the file from its data directory has them in clear."""
    secret = "kanarie-0x5ec7e7"
    logins: list[dict[str, Any]] = [
        {"mechanism": "plain", "username": "u", "password": secret},
        {"mechanism": "oauth", "endpoint_uri": "https://i/t", "client_id": "c", "client_secret": secret},
    ]
    key = f"-----BEGIN PRIVATE KEY-----\n{secret}\n"
    ssl = {"enable": True, "password": secret, "certfile": "/c", "keyfile": key}
    file = tmp_path / "all.json"
    for login in logins:
        file.write_text(json.dumps([RULE, ACTION, {**CONNECTOR, "authentication": login, "ssl": ssl}]))
        for more in ([], ["--json"]):
            said = "".join(cli("import", "emqx", file, *more, status=ExitStatus.INCOMPLETE))
            assert "kafka.sasl" in said
            assert secret not in said


def test_text_of_a_rule_becomes_no_setting() -> None:
    """What stands in a comment ends where its line does."""
    found, _ = imported(CONNECTOR, ACTION, RULE)
    found.comment("kafka", 'WHERE x = 1\x01\n[http]\nhost = "0.0.0.0"')
    assert "http" not in tomllib.loads(as_toml_text(found, "made by a test"))
