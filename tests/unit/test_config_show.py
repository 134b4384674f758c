"""What `gateway config` prints, and what it ends with."""

import asyncio
import json
import os
import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from config.errors import ExitStatus
from config.loading.load import load
from config.loading.reference import reference
from config.loading.show import as_data, as_text
from config.tables.service import FLOW_PROFILES, FlowSettings
from gateway.data_dir.identity import Ending, Identity
from tests.command_line import Cli

RICH = """
instance = "plant-1"
[mqtt]
addresses = ["mqtts://a", "mqtts://b:1"]
password_file = "pw"
username = "u"
keepalive = "1m30s"
[mqtt.tls]
ca_file = "ca \\"x\\".pem"
[mqtt.websocket_headers]
"X.\\u004fdd" = "token"
[kafka.topics]
create = true
[[kafka.topics.declare]]
name = "t"
retention = "7d"
[[kafka.topics.declare]]
name = "u"
[[routes]]
name = "one"
filters = ["a/+/b", "c/#"]
topic = "t"
headers = { "my key" = "${topic[1]}", other = "x\\ty" }
[[routes]]
name = "two"
filters = ["d"]
topic = "u"
metadata_headers = []
"""
ROUTE = '[[routes]]\nname = "all"\nfilters = ["devices/#"]\ntopic = "telemetry"\n'


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large_disk(monkeypatch, gib=1 << 20)
    monkeypatch.chdir(tmp_path)
    write("hunter2", tmp_path, "pw")


def large_disk(monkeypatch: pytest.MonkeyPatch, gib: int) -> None:
    """The disk of data_dir, whatever machine this is."""
    disk = SimpleNamespace(f_blocks=gib << 18, f_frsize=4096)
    monkeypatch.setattr("gateway.cli.config.os.statvfs", lambda _path: disk)


def write(text: str, tmp_path: Path, name: str = "gateway.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_what_is_shown_loads_to_the_same_settings_but_for_secrets(tmp_path: Path) -> None:
    write(RICH, tmp_path)
    loaded = load(environ={})
    again = load(write(as_text(loaded), tmp_path, "shown.toml"), environ={})
    mqtt = loaded.settings.mqtt.model_copy(update={"password": None, "websocket_headers": {}})
    assert again.settings == loaded.settings.model_copy(update={"mqtt": mqtt})


def test_defaults_are_shown_as_a_whole_document() -> None:
    text = as_text(load(environ={}))
    assert tomllib.loads(text)["flow"]["memory_bytes"] == "32MiB"
    assert all("# default" in line for line in text.split("\n") if line and not line.startswith("["))


def test_each_value_is_shown_with_where_it_came_from(tmp_path: Path) -> None:
    write(RICH, tmp_path)
    lines = as_text(load(environ={"GATEWAY_MQTT__SESSIONS": "2"}, overrides={"log.level": "debug"})).split("\n")
    facts = {line.split("  #")[0].strip(): line.rsplit("  # ", 1)[1] for line in lines if "  # " in line}
    assert facts['instance = "plant-1"'] == "gateway.toml:2"
    assert facts["sessions = 2"] == "GATEWAY_MQTT__SESSIONS"
    assert facts['level = "debug"'] == "command line"
    assert facts["# password = ********"] == "secret file pw, named by gateway.toml:5"
    assert facts['# websocket_headers = {"X.Odd" = ********}'] == "gateway.toml:10"
    assert facts['name = "two"'] == "gateway.toml:25"
    assert facts["metadata_headers = []"] == "gateway.toml:28"
    assert facts['retention = "7d"'] == "gateway.toml:16"
    assert facts["qos = 1"] == "default"


def test_a_profile_gives_defaults_and_what_is_written_wins(tmp_path: Path, cli: Cli) -> None:
    write(f'{ROUTE}[flow]\nprofile = "economy"\nread_pacing_max = "7ms"\n', tmp_path)
    loaded = load(environ={})
    lines = as_text(loaded).splitlines()
    (linger,) = (line for line in lines if line.startswith("linger_max = "))
    assert linger.split("  # ")[0].strip() == f'linger_max = "{FLOW_PROFILES["economy"]["linger_max"]}"'
    assert linger.endswith("# gateway.toml:6, by flow.profile")
    (pacing,) = (line for line in lines if line.startswith("read_pacing_max = "))
    assert (pacing.split("  # ")[0].strip(), pacing.split("  # ")[1]) == ('read_pacing_max = "7ms"', "gateway.toml:7")
    assert cli("config", "check").out.startswith("note: flow.profile = economy: flow.linger_max = ")
    assert load(environ={"GATEWAY_FLOW__PROFILE": "balanced"}).settings.flow.linger_max == FlowSettings().linger_max


def test_each_profile_trades_more_latency_for_cpu_than_the_one_before() -> None:
    fast, middle, thrifty = (FlowSettings(profile=name) for name in ("low-latency", "balanced", "economy"))
    assert middle == FlowSettings()
    assert fast.read_pacing_max < middle.read_pacing_max < thrifty.read_pacing_max
    assert fast.linger_max < middle.linger_max < thrifty.linger_max


def test_the_same_for_programs(tmp_path: Path) -> None:
    write(RICH, tmp_path)
    data = json.loads(json.dumps(as_data(load(environ={}))))
    by_path = {one["path"]: one for one in data["settings"]}
    assert data["file"] == "gateway.toml"
    assert by_path["mqtt.keepalive"] == {
        "path": "mqtt.keepalive", "value": "1m30s", "source": "file", "place": "gateway.toml:7",
    }  # fmt: skip
    assert by_path["mqtt.password"]["value"] is None
    assert (by_path["mqtt.password"]["secret"], by_path["mqtt.password"]["given"]) == (True, True)
    assert by_path["mqtt.tls.key_password"]["given"] is False
    assert by_path["routes[1].name"]["value"] == "two"
    assert by_path["flow.memory_bytes"]["value"] == 32 << 20
    assert by_path["mqtt.proxy"]["value"] is None
    assert by_path["routes[0].headers"]["value"] == {"my key": "${topic[1]}", "other": "x\ty"}


def test_check_says_ok(tmp_path: Path, cli: Cli) -> None:
    write(ROUTE, tmp_path)
    note, last = cli("config", "check").out.splitlines()
    assert note.startswith("note: Kafka must have these topics before a start: gateway-dead-letters, gateway-ledger, ")
    assert "`gateway topics apply` makes them" in note
    assert last == "OK: settings from gateway.toml can be used"
    write("[kafka]\ntopics.create = true\n" + ROUTE, tmp_path)
    assert cli("config", "check").out == "OK: settings from gateway.toml can be used\n"


def test_check_says_when_the_spools_of_all_workers_do_not_fit_the_disk(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 GiB on a volume of 20: enough for one worker, which may come to take 16, and not for two."""
    large_disk(monkeypatch, gib=20)
    write(ROUTE + '[spool]\nmax_bytes = "8GiB"\n', tmp_path)
    for workers, warned in ((1, False), (2, True)):
        monkeypatch.setenv("GATEWAY_WORKERS", str(workers))
        said = cli("config", "check").out
        assert ("the spools of 2 workers may come to take 32.1 GiB" in said) is warned, said


def test_check_tells_warnings_and_still_says_ok(tmp_path: Path, cli: Cli) -> None:
    overlapping = ROUTE + '[[routes]]\nname = "more"\nfilters = ["+/x"]\ntopic = "t"\n'
    write("shutdown_timeout = 1\n" + overlapping, tmp_path)
    first, second, _note, last = cli("config", "check").out.splitlines()
    assert first.startswith("warning: shutdown_timeout = 1s (gateway.toml:1)")
    assert "'devices/#' and '+/x' overlap" in second
    assert last == "OK: settings from gateway.toml can be used, 2 warnings"


def test_check_tells_all_problems_and_ends_with_the_status_for_bad_settings(tmp_path: Path, cli: Cli) -> None:
    write("shutdown_timeout = 0\nsesions = 1\n", tmp_path)
    printed = cli("config", "check", status=78)
    assert printed.out == ""
    assert printed.err.startswith("2 settings cannot be used:\n  - ")


def test_check_refuses_what_a_start_would(tmp_path: Path, cli: Cli) -> None:
    """Templates are judged by the bridge, which compiles them at start; TLS files must be there."""
    bad = ROUTE.replace("all", "bad") + 'key = "${client_id}"\n'
    write('[kafka]\nsecurity = "SSL"\n[kafka.tls]\nca_file = "absent"\n' + ROUTE + bad, tmp_path)
    printed = cli("config", "check", status=ExitStatus.CONFIG).err
    assert "kafka.tls.ca_file (gateway.toml:4): the file cannot be read" in printed
    assert "routes[1] (gateway.toml:9): route 'bad', key:" in printed
    assert "MQTT does not tell" in printed


def test_check_refuses_a_data_dir_that_a_start_refuses(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes none: a folder made by another user would refuse the start."""
    write('data_dir = "new/data"\n' + ROUTE, tmp_path)
    cli("config", "check")
    assert not Path("new").exists()

    def refused() -> str:
        return cli("config", "check", status=ExitStatus.CONFIG).err

    Path("new").write_text("")
    assert "new/data cannot be used (Not a directory). It must be a folder this user may write" in refused()
    Path("new").unlink()
    Path("new/data").mkdir(parents=True)
    instance = Identity(Path("new/data"), "gateway", 0, lambda: Ending.CLEAN)
    asyncio.run(instance.start())
    cli("config", "check")  # also while it runs
    asyncio.run(instance.stop(0))
    for closed in ("new/data", "new/data/worker-0.lock"):
        with monkeypatch.context() as other_user:
            other_user.setattr(os, "access", lambda path, _mode, closed=closed: not str(path).endswith(closed))
            assert "new/data cannot be used (Permission denied)" in refused()
    shutil.copytree("new", "copy")
    for place, instance_name, said in (
        ("copy", "gateway", "is a copy of the directory of instance 'gateway'"),
        ("new", "other", "belongs to instance 'gateway', not 'other'"),
    ):
        write(f'data_dir = "{place}/data"\ninstance = "{instance_name}"\n{ROUTE}', tmp_path)
        assert said in refused()


def test_check_judges_what_is_in_tls_files(tmp_path: Path, cli: Cli) -> None:
    Path("garbage").write_text("no certificate")
    kafka = '[kafka]\nsecurity = "SSL"\n[kafka.tls]\nca_file = "garbage"\n'
    oauth = 'token_url = "https://idp/token"\nclient_id = "a"\nclient_secret = "b"\ntls.ca_file = "garbage"\n'
    mqtt = f'[mqtt]\nusername = "u"\n[mqtt.token.oauth]\n{oauth}'
    write(f'{kafka}{mqtt}[http.tls]\ncertificate_file = "garbage"\n{ROUTE}', tmp_path)
    said = cli("config", "check", status=ExitStatus.CONFIG).err
    for setting in ("kafka.tls.ca_file", "mqtt.token.oauth.tls.ca_file", "http.tls.certificate_file"):
        assert setting in said


def test_check_warns_of_tls_files_without_which_a_gateway_starts(tmp_path: Path, cli: Cli) -> None:
    emqx = '[emqx]\nurl = "https://emqx"\napi_key = "a"\napi_secret = "b"\ntls.ca_file = "absent"\n'
    write(f'{emqx}[admin]\nsecurity = "SSL"\ntls.ca_file = "absent"\n{ROUTE}', tmp_path)
    said = cli("config", "check").out
    for side in ("admin", "emqx"):
        assert f"warning: {side}.tls.ca_file absent cannot be used" in said


def test_check_names_each_unreadable_file_of_the_access_service(tmp_path: Path, cli: Cli) -> None:
    key = '[[auth.jwt.keys]]\nname = "k"\nalgorithms = ["RS256"]\npublic_key_file = "k.pem"\n'
    chain = 'chain = ["users_file", "jwt", "ldap"]\nusers_file.file = "no"\ntls.certificate_file = "none"\n'
    write(f'[auth]\n{chain}ldap.tls.ca_file = "ca"\n{key}', tmp_path)
    said = cli("config", "check", "--for", "auth", status=ExitStatus.CONFIG).err
    for setting in ("users_file.file", "tls.certificate_file", "ldap.tls.ca_file", "jwt.keys[0].public_key_file"):
        assert re.search(rf"auth\.{re.escape(setting)} \(gateway.toml:\d\): the file cannot be read: No such", said)


def test_check_judges_the_filter_that_a_directory_is_asked_with(tmp_path: Path, cli: Cli) -> None:
    write('[auth]\nchain = ["ldap"]\nldap.search_base = "o=x"\nldap.search_filter = "uid=${username}"\n', tmp_path)
    said = cli("config", "check", "--for", "auth", status=ExitStatus.CONFIG).err
    assert "auth.ldap.search_filter cannot be read: the filter lacks a '('" in said


def test_check_wants_a_route_for_a_gateway_and_topics_for_the_stream(tmp_path: Path, cli: Cli) -> None:
    write('[stream]\ntopics = ["t"]', tmp_path)
    assert "routes: none is given" in cli("config", "check", status=ExitStatus.CONFIG).err
    cli("config", "check", "--for", "stream")
    write(ROUTE.replace('topic = "telemetry"', 'topic = "anomalies"'), tmp_path)
    cli("config", "check")
    said = cli("config", "check", "--for", "stream", status=ExitStatus.CONFIG).err
    assert "stream.anomalies.topic = 'anomalies' is also a topic of routes" in said
    write('[kafka]\nsecurity = "SSL"\ntls.verify = false', tmp_path)
    said = cli("config", "check", "--for", "stream", status=ExitStatus.CONFIG).err
    assert "kafka.tls.verify is false, but Spark's Kafka client always checks" in said
    assert "stream.topics is empty" in said


def test_check_reads_the_folder_of_device_schemas(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in it would else be told minutes later, by the job."""
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "schemas.toml").write_text("[types.boiler]\nunits = 3\n")
    write(f'{ROUTE}[stream]\ntopics = ["t"]\n[stream.silver]\nschemas = "{tmp_path}/schemas"\n', tmp_path)
    assert f"{tmp_path}/schemas/schemas.toml" in cli("config", "check", "--for", "stream", status=ExitStatus.CONFIG).err
    printed = cli("config", "check").out
    assert f"warning: {tmp_path}/schemas/schemas.toml" in printed
    assert "The gateway runs with it, the job silver does not start." in printed

    def without_pint(_folder: Path) -> None:
        raise ModuleNotFoundError("No module named 'pint'", name="pint")

    monkeypatch.setattr("streaming.decoding.device_schemas.load_device_schemas", without_pint)
    assert (
        "stream.silver.schemas was not judged: the package pint is missing here"
        in cli("config", "check", "--for", "stream").out
    )


@pytest.mark.parametrize("command", ["check", "show"])
def test_the_file_may_be_named(command: str, tmp_path: Path, cli: Cli) -> None:
    path = write('instance = "elsewhere"\n' + ROUTE, tmp_path, "other.toml")
    assert "other.toml" in cli("config", command, "--config", str(path)).out


def test_show_prints_toml_or_json_and_warnings_aside(tmp_path: Path, cli: Cli) -> None:
    write("shutdown_timeout = 1\n", tmp_path)
    printed = cli("config", "show")
    assert tomllib.loads(printed.out)["shutdown_timeout"] == "1s"
    assert printed.err.startswith("warning: shutdown_timeout")
    assert len(json.loads(cli("config", "show", "--json").out)["warnings"]) == 1


def test_show_refuses_bad_settings(tmp_path: Path, cli: Cli) -> None:
    write("shutdown_timeout = 0\n", tmp_path)
    assert "shutdown_timeout" in cli("config", "show", status=ExitStatus.CONFIG).err


def test_reference_prints_the_page(cli: Cli) -> None:
    assert cli("config", "reference").out == reference()


def test_half_a_pair_of_surrogates_is_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_INTERCEPTORS", r'[{"use": "sample", "option": "\ud800"}]')
    assert 'option = "?"' in cli("config", "show").out
