"""Loading: which source wins, where each value came from, and every mistake told at once."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from config.errors import ConfigError, ExitStatus
from config.loading.load import load, require_runnable
from config.removed import REMOVED
from config.schema import Path as SettingPath
from config.schema import dotted, environment_name, find
from config.settings import Settings
from config.values.grammar import BYTES_GRAMMAR, DURATION_GRAMMAR
from tests.credential_cases import BEARER, OAUTH

pytestmark = pytest.mark.usefixtures("elsewhere")

ROUTE = '[[routes]]\nname = "all"\nfilters = ["devices/#"]\ntopic = "telemetry"\n'


def written(text: str, name: str = "gateway.toml") -> Path:
    path = Path(name)
    path.write_text(dedent(text))
    return path


def problems(
    text: str | None = None, *, environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> list[str]:
    """What a load of these sources complains of."""
    with pytest.raises(ConfigError) as caught:
        load(written(text) if text is not None else None, environ=environ or {}, overrides=overrides)
    assert caught.value.exit_status is ExitStatus.CONFIG
    return list(caught.value.problems)


def test_without_any_source_there_are_the_defaults() -> None:
    loaded = load(environ={})
    assert loaded.settings == Settings()
    assert loaded.warnings == ()
    assert loaded.file is None
    assert str(loaded.origin("mqtt.sessions")) == "default"


def test_settings_made_directly_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_INSTANCE", "surprise")
    assert Settings().instance == "gateway"
    assert load().settings.instance == "surprise"


# --- precedence ---
def test_each_source_wins_over_the_weaker_ones(tmp_path: Path) -> None:
    """Every source sets its own setting and all stronger ones', so each value shows who won."""
    names = ["session_expiry", "keepalive", "connect_timeout", "stable_after", "reconnect_max"]
    written("[mqtt]\n" + "\n".join(f"{name} = 101" for name in names[1:]))
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name in names[2:]:
        (secrets / f"mqtt__{name}").write_text("102\n")
    environ = {f"GATEWAY_MQTT__{name.upper()}": "103" for name in names[3:]} | {"GATEWAY_SECRETS_DIR": str(secrets)}
    loaded = load(environ=environ, overrides={"mqtt.reconnect_max": 104})
    mqtt = loaded.settings.mqtt
    assert [getattr(mqtt, name).total_seconds() for name in names] == [3600, 101, 102, 103, 104]
    assert [str(loaded.origin(f"mqtt.{name}")) for name in names] == [
        "default", "gateway.toml:2", str(secrets / "mqtt__connect_timeout"), "GATEWAY_MQTT__STABLE_AFTER",
        "command line",
    ]  # fmt: skip
    assert [loaded.origin(f"mqtt.{name}").source for name in names] == [
        "default", "file", "secrets directory", "environment", "override",
    ]  # fmt: skip


def test_the_file_is_the_one_given_then_the_one_in_the_environment_then_the_one_that_is_there() -> None:
    here, named, given = (written(f'instance = "{name}"', f"{name}.toml") for name in ("gateway", "named", "given"))
    environ = {"GATEWAY_CONFIG": str(named)}
    assert load(given, environ=environ).settings.instance == "given"
    assert load(environ=environ).settings.instance == "named"
    assert load(environ={}).settings.instance == "gateway"
    here.unlink()
    assert load(environ={}).file is None


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_file_that_was_named_must_be_there(how: str) -> None:
    with pytest.raises(ConfigError, match=r"^absent\.toml: cannot be read: No such file"):
        load(Path("absent.toml") if how == "argument" else None, environ={"GATEWAY_CONFIG": "absent.toml"})


def test_tables_merge_key_by_key_while_lists_and_maps_are_replaced() -> None:
    written(
        """
        [mqtt]
        addresses = ["mqtt://a", "mqtt://b"]
        sessions = 2
        websocket_headers = { One = "1" }
        [kafka.topics]
        partitions = 3
        """
    )
    loaded = load(
        environ={
            "GATEWAY_MQTT__ADDRESSES": "ws://c",
            "GATEWAY_MQTT__WEBSOCKET_HEADERS": '{"Two": "2"}',
            "GATEWAY_KAFKA__TOPICS": '{"create": true}',
        }
    )
    assert loaded.settings.mqtt.addresses == ("ws://c",)
    assert loaded.settings.mqtt.websocket_headers == {"Two": "2"}
    assert loaded.settings.mqtt.sessions == 2
    assert (loaded.settings.kafka.topics.partitions, loaded.settings.kafka.topics.create) == (3, True)


def test_routes_of_the_environment_replace_those_of_the_file_and_their_origins() -> None:
    written(ROUTE)
    route = {"name": "other", "filters": ["a/#"], "topic": "t"}
    loaded = load(environ={"GATEWAY_ROUTES": json.dumps([route])})
    assert [one.name for one in loaded.settings.routes] == ["other"]
    assert str(loaded.origin(("routes", 0, "name"))) == "GATEWAY_ROUTES"
    assert str(loaded.origin(("routes", 0, "key"))) == "default"
    assert not [origin for origin in loaded.provenance.values() if origin.source == "file"]


def test_a_stronger_source_may_take_a_table_away() -> None:
    written('[mqtt.proxy]\nhost = "proxy"\nport = 3128\n')
    loaded = load(environ={"GATEWAY_MQTT__PROXY": "null"})
    assert loaded.settings.mqtt.proxy is None
    assert str(loaded.origin("mqtt.proxy")) == "GATEWAY_MQTT__PROXY"


# --- the environment ---
@pytest.mark.parametrize(("name", "text", "path", "value"), [
    ("GATEWAY_INSTANCE", "plant-1", "instance", "plant-1"),
    ("GATEWAY_MQTT__PERSISTENT", "false", "mqtt.persistent", False),
    ("GATEWAY_MQTT__RECONNECT_JITTER", "0.5", "mqtt.reconnect_jitter", 0.5),
    ("GATEWAY_MQTT__KEEPALIVE", "1m30s", "mqtt.keepalive", timedelta(seconds=90)),
    ("GATEWAY_FLOW__MEMORY_BYTES", "64MiB", "flow.memory_bytes", 64 << 20),
    ("GATEWAY_MQTT__TLS__MINIMUM_VERSION", "1.2", "mqtt.tls.minimum_version", "1.2"),
    ("GATEWAY_STREAM__TOPICS", "a, b,", "stream.topics", ("a", "b")),
    ("GATEWAY_STREAM__TOPICS", '["a","b"]', "stream.topics", ("a", "b")),
    ("GATEWAY_STREAM__MAX_OFFSETS_PER_TRIGGER", "7", "stream.max_offsets_per_trigger", 7),
    ("GATEWAY_STREAM__CHECKPOINT", "/x", "stream.checkpoint", Path("/x")),
])  # fmt: skip
def test_a_variable_gives_any_kind_of_value(name: str, text: str, path: str, value: object) -> None:
    mqtts = {"GATEWAY_MQTT__ADDRESSES": "mqtts://localhost"} if "TLS" in name else {}
    loaded = load(environ={name: text, **mqtts})
    found: Any = loaded.settings
    for step in path.split("."):
        found = getattr(found, step)
    assert found == value
    assert str(loaded.origin(path)) == name


def test_a_single_name_wins_over_its_table_given_as_json() -> None:
    environ = {"GATEWAY_HTTP__PORT": "1", "GATEWAY_HTTP": '{"port": 2, "host": "::1"}'}
    http = load(environ=environ).settings.http
    assert (http.host, http.port) == ("::1", 1)


@pytest.mark.parametrize("environ", [
    {"GATEWAY_INSTANCE": "", "GATEWAY_CONFIG": "", "GATEWAY_SECRETS_DIR": ""},
    {"PATH": "/bin", "GATEWAYS": "3", "API_GATEWAY_MQTT": "x"},
], ids=["set to nothing", "of others"])  # fmt: skip
def test_variables_that_give_nothing_are_left_alone(environ: dict[str, str]) -> None:
    assert load(environ=environ).settings == Settings()


def test_what_kubernetes_makes_of_a_service_named_gateway_is_left_alone() -> None:
    links = {
        "GATEWAY_SERVICE_HOST": "10.0.0.1", "GATEWAY_SERVICE_PORT": "9464", "GATEWAY_SERVICE_PORT_METRICS": "9464",
        "GATEWAY_PORT": "tcp://10.0.0.1:9464", "GATEWAY_PORT_9464_TCP": "tcp://10.0.0.1:9464",
        "GATEWAY_PORT_9464_TCP_PROTO": "tcp", "GATEWAY_PORT_9464_TCP_PORT": "9464",
        "GATEWAY_PORT_9464_TCP_ADDR": "10.0.0.1", "GATEWAY_METRICS_PORT": "tcp://10.0.0.1:9464",
    }  # fmt: skip
    assert load(environ=links).settings == Settings()
    assert problems(environ={"GATEWAY_HTTP_PORT": "9464"}) == [
        "GATEWAY_HTTP_PORT: is no setting; did you mean GATEWAY_HTTP__PORT?"
    ]


@pytest.mark.parametrize(("name", "hint"), [
    ("GATEWAY_MQTT__SESIONS", "did you mean GATEWAY_MQTT__SESSIONS?"),
    ("GATEWAY_MQTT_SESSIONS", "did you mean GATEWAY_MQTT__SESSIONS?"),
    ("gateway_mqtt__sessions", "did you mean GATEWAY_MQTT__SESSIONS?"),
    ("GATEWAY_MQTT__PASWORD_FILE", "did you mean GATEWAY_MQTT__PASSWORD_FILE?"),
    ("GATEWAY_CONFG", "did you mean GATEWAY_CONFIG?"),
    ("GATEWAY_ROUTES__0__TOPIC", "give all of routes at once, as JSON in GATEWAY_ROUTES"),
    ("GATEWAY_MQTT__ADDRESSES__0", "give all of mqtt.addresses at once, as JSON in GATEWAY_MQTT__ADDRESSES"),
    ("GATEWAY_XYZZY_PLUGH_QUUX", "`gateway config reference` lists all names"),
])  # fmt: skip
def test_a_misspelt_variable_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    assert problems(environ={name: "hunter2"}) == [f"{name}: is no setting; {hint}"]


@pytest.mark.parametrize("path", REMOVED, ids=dotted)
def test_a_setting_of_earlier_versions_is_refused_with_what_takes_its_place(path: SettingPath) -> None:
    name = environment_name(path)
    assert problems(environ={name: "1"}) == [f"{name}: {REMOVED[path]}"]
    table, key = path[:-1], path[-1]
    assert find(Settings, path) is None
    assert all(find(Settings, tuple(named.split("."))) for named in re.findall(r"stream\.[a-z_.]+[a-z]", REMOVED[path]))
    (problem,) = problems(f"[{dotted(table)}]\n{key} = 1\n")
    assert problem.endswith(REMOVED[path])


@pytest.mark.parametrize(("text", "sentence"), [
    ("{", "must be JSON, an array: Expecting property name enclosed in double quotes at line 1, column 2"),
    ("[{]", "must be JSON, an array: Expecting property name enclosed in double quotes at line 1, column 3"),
    ('{"name": "a"}', "must be a list, in brackets; in TOML each of its tables begins with [[routes]]"),
    ('"x"', "must be a list, in brackets"),
    ("[" * 100_000, "must be JSON, nested less deeply"),
])  # fmt: skip
def test_broken_json_is_told_by_its_place(text: str, sentence: str) -> None:
    assert problems(environ={"GATEWAY_ROUTES": text}) == [f"routes (GATEWAY_ROUTES): {sentence}"]


# --- secrets ---
@pytest.mark.parametrize("source", ["toml", "environment", "json"])
def test_a_secret_may_come_from_a_file(source: str, tmp_path: Path) -> None:
    secret = tmp_path / "pw"
    secret.write_text(" pass word \r\n")
    environ = {"GATEWAY_MQTT__USERNAME": "u"}
    if source == "toml":
        written(f'[mqtt]\npassword_file = "{secret}"')
    elif source == "environment":
        environ |= {"GATEWAY_MQTT__PASSWORD_FILE": str(secret)}
    else:
        environ |= {"GATEWAY_MQTT": json.dumps({"password_file": str(secret)})}
    loaded = load(environ=environ)
    assert loaded.settings.mqtt.password.get_secret_value() == " pass word "  # the line end alone is the editor's
    place = {"toml": "gateway.toml:2", "environment": "GATEWAY_MQTT__PASSWORD_FILE", "json": "GATEWAY_MQTT"}[source]
    assert str(loaded.origin("mqtt.password")) == f"secret file {secret}, named by {place}"


def test_a_secrets_directory_holds_a_file_for_each(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "mqtt__username").write_text("u")
    (tmp_path / "mqtt__password").write_text("one")
    (tmp_path / "KAFKA__SASL__PASSWORD").write_text("two\n")
    (tmp_path / "kafka__sasl__username").write_text("gateway\n")
    (tmp_path / "database_url").write_text("somebody else's")
    (tmp_path / "worker").write_text("somebody else's")
    environ = {"GATEWAY_SECRETS_DIR": str(tmp_path), "GATEWAY_KAFKA__SECURITY": "SASL_SSL"}
    settings = load(environ=environ).settings
    assert settings.mqtt.password.get_secret_value() == "one"
    assert settings.kafka.sasl.password.get_secret_value() == "two"
    assert settings.kafka.sasl.username == "gateway"


def test_a_near_miss_in_the_secrets_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mqtt_password").write_text("hunter2")
    assert problems(environ={"GATEWAY_SECRETS_DIR": str(tmp_path)}) == [
        f'{tmp_path / "mqtt_password"}: is no setting; did you mean "mqtt__password"?'
    ]


def test_what_cannot_be_read_in_the_secrets_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "mqtt__password").symlink_to("/no/such/file")
    (tmp_path / "kafka__sasl__password").mkdir()
    assert problems(environ={"GATEWAY_SECRETS_DIR": str(tmp_path)}) == [
        f"kafka.sasl.password ({tmp_path}/kafka__sasl__password): the secret's file cannot be read: Is a directory",
        f"mqtt.password ({tmp_path}/mqtt__password): the secret's file cannot be read: No such file or directory",
    ]


def test_a_secrets_directory_that_was_named_must_be_there() -> None:
    (problem,) = problems(environ={"GATEWAY_SECRETS_DIR": "/no/such/folder"})
    assert problem == "GATEWAY_SECRETS_DIR: the folder /no/such/folder cannot be read: No such file or directory"


@pytest.mark.parametrize(("content", "reason"), [
    (None, "No such file or directory"), (b"", "is empty"), (b"\n", "is empty"), (b"\xff\xfe", "is not UTF-8 text"),
    (b"x" * 65_537, "larger than 64 KiB"),
])  # fmt: skip
def test_an_unusable_secret_file_is_told_without_its_name(content: bytes | None, reason: str, tmp_path: Path) -> None:
    """The name may be the password itself, written to the wrong setting."""
    secret = tmp_path / "hunter2"
    if content is not None:
        secret.write_bytes(content)
    (problem,) = problems(f'[mqtt]\npassword_file = "{secret}"')
    assert problem.startswith("mqtt.password_file (gateway.toml:2): the secret's file ")
    assert reason in problem
    assert "hunter2" not in problem


def test_a_secret_is_not_given_twice_by_one_source() -> None:
    assert problems('[mqtt]\npassword = "hunter2"\npassword_file = "/x"') == [
        "mqtt.password_file (gateway.toml:3): stands beside mqtt.password; give one of the two"
    ]
    Path("gateway.toml").unlink()
    both = {"GATEWAY_MQTT__PASSWORD": "hunter2", "GATEWAY_MQTT__PASSWORD_FILE": "/x"}
    assert problems(environ=both) == [
        "mqtt.password_file (GATEWAY_MQTT__PASSWORD_FILE): stands beside mqtt.password; give one of the two"
    ]


def test_a_secret_file_that_a_stronger_source_makes_moot_is_not_read() -> None:
    written('[mqtt]\nusername = "u"\npassword_file = "/no/such/file"')
    password = load(environ={"GATEWAY_MQTT__PASSWORD": "right"}).settings.mqtt.password
    assert password.get_secret_value() == "right"


# --- mistakes ---
def test_what_mqtt_and_a_listener_cannot_carry_is_refused() -> None:
    text = f"""\
        [mqtt]
        username = "u\\u0000"
        password = "{"p" * 16_001}"
        client_id = "${{session}}\\u0000"
        websocket_headers = {{ "X Y" = "z" }}
        proxy = {{ host = "http://p", port = 3128 }}
        [http]
        host = "0.0.0.0:9464"
        [auth]
        host = "[::1]"
        operator_host = "a/b"
        [stream.metrics]
        host = "a:1"
        """
    said = problems(text)
    assert [one.partition(" ")[0] for one in said] == [
        "mqtt.username", "mqtt.password", "mqtt.client_id", "mqtt.proxy.host", "mqtt.websocket_headers", "http.host",
        "stream.metrics.host", "auth.host", "auth.operator_host",
    ]  # fmt: skip
    assert not any("ppp" in one for one in said)


def test_all_mistakes_are_told_at_once_each_with_its_place() -> None:
    text = """\
        instance = "plant 1"
        [mqtt]
        addresses = ["mqtt://a", "gopher://b"]
        sesions = 8
        sessions = 0
        keepalive = "30x"
        persistent = "maybe"
        proxy = { host = "x", port = 99999 }
        reconnect_jitter = nan
        [flow]
        memory_bytes = "1KB"
        [kafka]
        compression = "brotli"
        request_timeout = 0.01
        delivery_timeout = "2s"
        retry_backoff = "2s"
        [[routes]]
        name = "t"
        filters = ["a/#", "b/#/c"]
        qos = 3
        [routes.headers]
        one = 1
        [[kafka.topics.declare]]
        name = "d"
        retention = "1us"
        """
    assert problems(text, environ={"GATEWAY_HTTP__PORT": "http", "GATEWAY_LOG__LEVEL": "loud"}) == [
        'mqtt.sesions (gateway.toml:4): is no setting; did you mean "mqtt.sessions"?',
        'instance = "plant 1" (gateway.toml:1): must match ^[A-Za-z0-9._-]{1,64}$',
        'mqtt.addresses[1] = "gopher://b" (gateway.toml:3): the scheme is one of mqtt, mqtts, ws and wss',
        'mqtt.persistent = "maybe" (gateway.toml:7): must be true or false',
        f'mqtt.keepalive = "30x" (gateway.toml:6): {DURATION_GRAMMAR}',
        "mqtt.sessions = 0 (gateway.toml:5): must be at least 1",
        "mqtt.reconnect_jitter = nan (gateway.toml:9): must be a finite number",
        "mqtt.proxy.port = 99999 (gateway.toml:8): must be at most 65535",
        "kafka.compression = \"brotli\" (gateway.toml:13): must be one of 'none', 'gzip', 'snappy', 'lz4', 'zstd'",
        "kafka.request_timeout = 0.01 (gateway.toml:14): must be at least 100ms",
        'kafka.topics.declare[0].retention = "1us" (gateway.toml:25): must be at least 1ms',
        f'flow.memory_bytes = "1KB" (gateway.toml:11): {BYTES_GRAMMAR}',
        'routes[0].filters[1] = "b/#/c" (gateway.toml:19): "#" stands alone in the last level, as in "devices/#"',
        "routes[0].topic (gateway.toml:17): is required here and not given",
        "routes[0].qos = 3 (gateway.toml:20): must be one of 0, 1, 2",
        "routes[0].headers.one (gateway.toml:22): must be a text in quotes",
        'http.port = "http" (GATEWAY_HTTP__PORT): must be a whole number',
        "log.level = \"loud\" (GATEWAY_LOG__LEVEL): must be one of 'debug', 'info', 'warning', 'error'",
        (
            "kafka.retry_backoff = 2s (gateway.toml:16) is not shorter than kafka.delivery_timeout = 2s "
            "(gateway.toml:15): a batch would expire before its first retry; lower the first or raise the second."
        ),
    ]


def test_a_list_with_something_wrong_in_it_is_not_said_to_be_empty() -> None:
    [problem] = problems('[mqtt]\naddresses = ["http://emqx"]')
    assert problem.startswith("mqtt.addresses[0] ")


@pytest.mark.parametrize(("text", "hint"), [
    ("sessions = 4", 'did you mean "mqtt.sessions"?'),
    ("[mqtt]\ncompression = 1", 'did you mean "kafka.compression"?'),
    ("[http]\nxyzzy = 1", "[http] knows host, port, token, tls, overdue_after, token_file"),
    ("[mqt]", 'did you mean "mqtt"?'),
    ("[mqtt]\npasswordfile = 1", 'did you mean "mqtt.password_file"?'),
    (ROUTE + "filter = 1", 'did you mean "routes[0].filters"?'),
    # Its consequence is not told: kafka.security wants kafka.sasl.
    ('[kafka]\nsecurity = "SASL_SSL"\n[kafka.sassl]\nusername = "u"', 'did you mean "kafka.sasl"?'),
])  # fmt: skip
def test_an_unknown_key_is_refused_with_the_nearest_one(text: str, hint: str) -> None:
    (problem,) = problems(text)
    assert problem.endswith(f"is no setting; {hint}")
    assert "(gateway.toml:" in problem


@pytest.mark.parametrize(("content", "sentence"), [
    (b"a = b\n", "is not valid TOML: Invalid value (at line 1, column 5); a text stands in quotes"),
    (b"a = 1\na = 2\n", "is not valid TOML: Cannot overwrite a value (at line 2, column 6)"),
    (b"a = 1" + b"0" * 5000, "is not valid TOML: Exceeds the limit"),
    (b"a = " + b"[" * 100_000, "is not valid TOML: "),
    (b"\xff", "is not UTF-8 text at byte 0; TOML files are"),
])  # fmt: skip
def test_a_file_that_is_no_toml_is_told_once(content: bytes, sentence: str) -> None:
    Path("gateway.toml").write_bytes(content)
    (problem,) = problems()
    assert problem.startswith(f"gateway.toml: {sentence}")


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^/dev/zero: cannot be read: it has more than 16 MiB; is it the right file"):
        load(Path("/dev/zero"), environ={})


def test_a_byte_order_mark_is_no_mistake() -> None:
    Path("gateway.toml").write_bytes(b'\xef\xbb\xbfinstance = "a"')
    assert load(environ={}).settings.instance == "a"


@pytest.mark.parametrize(("text", "sentence"), [
    ("mqtt = 1", "mqtt (gateway.toml:1): must be a table of settings"),
    ('[mqtt]\ntls = "x"', "mqtt.tls (gateway.toml:2): must be a table of settings"),
    ("[routes]\nname = 1",
     "routes (gateway.toml:1): must be a list, in brackets; in TOML each of its tables begins with [[routes]]"),
    ("routes = [1]", "routes[0] (gateway.toml:1): must be a table of settings"),
    ('[mqtt]\naddresses = "mqtt://a"', 'mqtt.addresses = "mqtt://a" (gateway.toml:2): must be a list'),
    ("[mqtt]\naddresses = []", "mqtt.addresses (gateway.toml:2): must not be empty"),
    ("[mqtt]\nsessions = true",
        "mqtt.sessions = true (gateway.toml:2): a number is wanted, not true or false"),
    ("[mqtt]\nsessions = 1.5", "mqtt.sessions = 1.5 (gateway.toml:2): must be a whole number"),
    ("[mqtt]\nkeepalive = 1.5", "mqtt.keepalive = 1.5 (gateway.toml:2): MQTT carries this in whole seconds"),
    (f'[mqtt]\nusername = "{"ä" * 40_000}"', "mqtt.username (gateway.toml:2): is longer than 16000"),
    ("[mqtt]\npassword = 5", "mqtt.password (gateway.toml:2): must be a text in quotes"),
    ("[mqtt]\npassword_file = 5", "mqtt.password_file (gateway.toml:2): must be the path of a file"),
    ("[mqtt.proxy]", "mqtt.proxy.host (gateway.toml:1): is required here and not given"),
    ('[auth.ldap]\naddress = "ldap://h:99999"',
        'auth.ldap.address = "ldap://h:99999" (gateway.toml:2): a port is a number from 1 to 65535'),
    ('[stream.lake]\ncatalog = "main..iot"', 'stream.lake.catalog = "main..iot" (gateway.toml:2): must match ^'),
    ('[[commands]]\nname = "c"\ntopics = ["c"]\nstatus_topic = "s"\nrate = 1e-300',
        "commands[0].rate = 1e-300 (gateway.toml:5): must be at least 0.0001"),
    ("[kafka.topics]\nreplication = 0",
        "kafka.topics.replication = 0 (gateway.toml:2): replication is -1 (the broker's"),
    (ROUTE + 'allowed_topics = "("',
        'routes[0].allowed_topics = "(" (gateway.toml:5): no regular expression: missing )'),
])  # fmt: skip
def test_a_value_of_the_wrong_kind_is_told_in_our_words(text: str, sentence: str) -> None:
    assert problems(text)[0].startswith(sentence)


def test_overrides_may_be_nested_or_dotted_and_are_checked_alike() -> None:
    loaded = load(environ={}, overrides={"mqtt": {"sessions": 2}, "kafka.topics.create": True})
    assert (loaded.settings.mqtt.sessions, loaded.settings.kafka.topics.create) == (2, True)
    assert problems(overrides={"mqtt.sesions": 2}) == [
        'mqtt.sesions (command line): is no setting; did you mean "mqtt.sessions"?'
    ]


# --- what a start needs beyond this ---
def test_a_start_needs_the_files_that_it_reads_and_shows() -> None:
    """Without them the first connection would fail; told before anything starts, all at once."""
    written("a certificate", "there.pem")
    mqtt = '[mqtt]\naddresses = ["mqtts://a"]\nusername = "u"\n[mqtt.token]\nfile = "token"\n'
    tls = '[mqtt.tls]\nca_file = "there.pem"\ncertificate_file = "-----BEGIN hunter2"\n'
    token = OAUTH.format("kafka.sasl.token") + '[kafka.sasl.token.oauth.tls]\nca_file = "id-ca.pem"\n'
    loaded = load(written(mqtt + tls + BEARER + token + ROUTE), environ={})
    with pytest.raises(ConfigError) as caught:
        require_runnable(loaded)
    assert sorted(caught.value.problems) == [
        f"{setting} (gateway.toml:{line}): the file cannot be read: No such file or directory"
        for setting, line in (
            ("kafka.sasl.token.oauth.tls.ca_file", 18), ("mqtt.tls.certificate_file", 8), ("mqtt.token.file", 5),
        )
    ]  # fmt: skip
    for name in ("token", "id-ca.pem", "-----BEGIN hunter2"):
        written("t", name)
    require_runnable(loaded)


def test_loading_is_quick_in_a_fresh_process() -> None:
    """CPU time of import and load, so that a busy machine does not fail it: some 0.2 s with compiled modules."""
    code = "import time; from config.loading.load import load; load(environ={}); print(time.process_time())"
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path("cache").absolute())}
    root = Path(__file__).parents[2]
    runs = []
    for _ in range(3):  # the first one compiles
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=root, env=environ, capture_output=True, text=True, check=True
        )
        runs.append(float(done.stdout))
    assert min(runs) < 1, f"CPU seconds of import and load: {runs}"


@pytest.mark.parametrize("name", ["MQTT__PASSWORD", "MQTT__ADDRESSES"])
def test_a_variable_that_is_no_text_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"\(GATEWAY_{name}\): is not UTF-8 text"):
        load(environ={"GATEWAY_MQTT__USERNAME": "u", f"GATEWAY_{name}": "\udcff"})
