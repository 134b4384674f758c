"""`gateway auth init`: what the service and EMQX need before they can run, made once."""

import os
import shlex
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from auth import passwords
from auth.errors import ImportFormatError, StoreError
from auth.model import AccessRequest, Subject
from auth.rules.rules import decide
from auth.store.first_start import GATEWAY_USER, FirstStart
from auth.store.records import User
from auth.store.session import Session
from auth.store.store import Store, database_path
from config.errors import ConfigError
from config.loading.load import load
from config.settings import Settings
from gateway.cli.main import main
from gateway.tools.trial.plan import TrialPlan
from tests.command_line import Cli
from tests.kinds import there
from tests.unit.access_parts import opened_store

TOML = """\
instance = "plant-7"
[[routes]]
name = "telemetry"
filters = ["devices/+/telemetry", "devices/+/status"]
topic = "telemetry"
"""


def settings(folder: Path, more: str = "") -> Settings:
    file = folder / "gateway.toml"
    file.write_text(f"data_dir = {str(folder)!r}\n{TOML}{more}")
    return load(file, environ={}).settings


def first_start(ours: Settings, *arguments: Any, **options: Any) -> list[str]:
    return FirstStart(ours, ours.data_dir / "secrets").run(*arguments, **options)


def user(store: Store, name: str) -> User:
    return there(store.find_user("username", name))


def knows(store: Store, name: str, password: str) -> bool:
    return passwords.matches(passwords.parse(user(store, name).password), password, store.device_keys())


def may(store: Store, name: str, action: str, topic: str) -> bool:
    subject = Subject(username=name, clientid="c")
    request = AccessRequest(subject, action, topic)  # type: ignore[arg-type]
    return decide(store.rules_for(subject), request).allowed


def test_the_first_start_makes_everything_and_the_next_nothing(tmp_path: Path) -> None:
    ours = settings(tmp_path)
    secrets = tmp_path / "secrets"
    said = FirstStart(ours, secrets).run()
    assert len(said) == 12
    made = {path.relative_to(secrets).as_posix(): path.read_text() for path in secrets.rglob("*") if path.is_file()}
    assert set(made) == {
        "service/shared_secret", "emqx/authorization.conf", "emqx/dashboard.conf", "emqx/api_keys",
        "gateway/mqtt_password", "gateway/emqx_api_secret", "operator/http_token", "devices/devices.csv",
    }  # fmt: skip
    secret = made["service/shared_secret"]
    assert len(secret) >= 32
    assert made["emqx/authorization.conf"] == f'authorization = "Bearer {secret}"\n'
    assert made["emqx/api_keys"] == f"gateway:{made['gateway/emqx_api_secret']}\n"
    heading, device = made["devices/devices.csv"].splitlines()
    assert heading == "user_id,secret"
    with opened_store(database_path(ours)) as store:
        assert knows(store, "gateway", made["gateway/mqtt_password"])
        assert knows(store, *device.split(","))
    for text in said:
        assert not any(value in text for value in (secret, made["gateway/mqtt_password"], device.split(",")[1]))
    assert FirstStart(ours, secrets).run() == []
    again = {path.relative_to(secrets).as_posix(): path.read_text() for path in secrets.rglob("*") if path.is_file()}
    assert again == made


def test_grafana_gets_a_password_where_there_is_a_folder_for_it(tmp_path: Path) -> None:
    ours, place = settings(tmp_path), tmp_path / "secrets" / "grafana"
    place.mkdir(parents=True)
    assert any("Grafana" in sentence for sentence in first_start(ours))
    password = place / "admin_password"
    text = password.read_text()
    assert len(text) >= 24
    assert text == text.strip(), "Grafana takes the file as it is"
    assert stat.S_IMODE(password.stat().st_mode) == 0o640
    assert first_start(ours) == []
    assert password.read_text() == text


def test_two_installations_have_nothing_in_common(tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        FirstStart(settings(tmp_path / name), tmp_path / name / "secrets").run()
        texts.append({path.read_text() for path in (tmp_path / name / "secrets").rglob("*") if path.is_file()})
    assert not texts[0] & texts[1]


def test_secrets_can_be_read_by_whom_they_are_for(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        FirstStart(settings(tmp_path), tmp_path / "secrets").run()
    finally:
        os.umask(before)
    for path in (tmp_path / "secrets").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        group = bool({path.parent.name, path.name} & {"emqx", "operator"})
        wanted = (0o750 if group else 0o700) if path.is_dir() else (0o640 if group else 0o600)
        assert mode == wanted, f"{path} has mode {mode:o}"


@pytest.mark.parametrize("before", [None, 0o755])
def test_nobody_else_looks_into_the_folder_of_the_database(tmp_path: Path, before: int | None) -> None:
    """The secrets are made first, and ``mkdir(parents=True)`` had made data/auth with mode 0755."""
    ours = settings(tmp_path)
    inside = database_path(ours).parent
    if before is not None:
        inside.mkdir(parents=True)
        inside.chmod(before)
    umask = os.umask(0o022)
    try:
        said = FirstStart(ours, inside / "secrets").run()
    finally:
        os.umask(umask)
    for folder in (inside, inside / "secrets"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert any("closed" in one for one in said) == (before is not None)


RIGHTS: dict[str, tuple[str, list[str], list[str]]] = {
    "routes": ("",
        ["gateway subscribe devices/+/telemetry", "gateway subscribe $share/gateway/devices/+/status",
         "gateway publish gateways/plant-7/status", "device-1 publish devices/device-1/telemetry",
         "device-1 subscribe devices/device-1/commands"],
        ["gateway publish devices/device-1/telemetry", "gateway subscribe #", " publish devices//telemetry",
         "device-1 publish devices/device-2/telemetry", "device-1 subscribe devices/device-2/telemetry",
         "device-1 publish devices/device-1x", "device-1 subscribe devices/device-1x", "device-1 publish #",
         "device-1 subscribe #", "device-1 publish gateways/plant-7/status",
         "device-1 subscribe gateways/plant-7/status", "+ subscribe devices/+/telemetry"]),
    "the canary's topic": (
        '[canary]\nenabled = true\n[[routes]]\nname = "canary"\nfilters = ["canary/plant-7"]\ntopic = "canaries"',
        ["gateway publish canary/plant-7"], ["gateway publish canary/another"]),
    "commands below their prefix, and a device's own answers": (
        '[[commands]]\nname = "switches"\ntopics = ["commands"]\nstatus_topic = "command-status"',
        ["gateway publish devices/device-1/req/switch", "gateway publish devices/device-1/req",
         "device-1 subscribe devices/device-1/req/switch", "device-1 subscribe devices/device-1/req",
         "device-1 publish devices/device-1/res", "device-1 publish devices/device-1/res/token/200"],
        ["gateway publish devices/device-1/res", "gateway publish devices/device-1/telemetry",
         "gateway publish plants/1/req/switch",
         "device-2 publish devices/device-1/res", "device-2 publish devices/device-1/res/token/200"]),
    "event messages, which the gateway alone may see": (
        '[[routes]]\nname = "presence"\nfilters = ["$SYS/brokers/+/clients/#"]\ntopic = "devices.presence"',
        ["gateway subscribe $share/gateway/$SYS/brokers/+/clients/#"],
        ["gateway subscribe $SYS/#", "device-1 subscribe $SYS/brokers/+/clients/#"]),
}  # fmt: skip


@pytest.mark.parametrize(("more", "rights", "others"), RIGHTS.values(), ids=RIGHTS)
def test_what_the_first_users_may(tmp_path: Path, more: str, rights: list[str], others: list[str]) -> None:
    ours = settings(tmp_path, more)
    first_start(ours)
    with opened_store(database_path(ours)) as store:
        assert [one for one in (*rights, *others) if may(store, *one.split(" "))] == rights


def test_a_route_added_later_is_given_to_the_gateway(tmp_path: Path) -> None:
    FirstStart(settings(tmp_path), tmp_path / "secrets").run()
    more = '[[routes]]\nname = "alarms"\nfilters = ["alarms/#"]\ntopic = "alarms"\n'
    ours = settings(tmp_path, more)
    assert first_start(ours) == ["added 1 rule for gateway: its routes, and what it publishes"]
    with opened_store(database_path(ours)) as store:
        assert may(store, "gateway", "subscribe", "alarms/#")


def test_devices_are_made_by_name_and_left_alone(tmp_path: Path) -> None:
    ours = settings(tmp_path)
    assert first_start(ours, ["d1", "d2", "d1"])[-1].startswith("added d1, d2: ")
    file = tmp_path / "secrets" / "devices" / "devices.csv"
    before = file.read_text()
    first_start(ours, ["d2", "d3"])
    assert file.read_text().startswith(before)
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    assert [name for name, _ in rows] == ["d1", "d2", "d3"]
    with opened_store(database_path(ours)) as store:
        assert all(knows(store, *row) for row in rows)
    with pytest.raises(StoreError, match="comma"):
        first_start(ours, ["a,b"])


def test_devices_of_a_transaction_that_failed_get_other_secrets_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_session: Session) -> None:
        raise sqlite3.OperationalError("disk is full")

    ours = settings(tmp_path)
    first_start(ours, ["d1"])
    with monkeypatch.context() as patched:
        patched.setattr(Session, "finish", full)
        with pytest.raises(StoreError):
            first_start(ours, ["d2"])
    first_start(ours, ["d2"])
    rows = [line.split(",") for line in (tmp_path / "secrets" / "devices" / "devices.csv").read_text().splitlines()[1:]]
    assert [name for name, _ in rows] == ["d1", "d2"]
    with opened_store(database_path(ours)) as store:
        assert all(knows(store, *row) for row in rows)


def test_a_new_database_takes_over_a_file_of_users(tmp_path: Path) -> None:
    ours = settings(tmp_path)
    file = tmp_path / "users.csv"
    file.write_text('user_id,password,is_superuser\nalice,"a, b",true\nd9,secret,false\n')
    assert first_start(ours, users_file=file)[-1].startswith("added 2 users from ")
    assert not (tmp_path / "secrets" / "devices").exists(), "no sample beside them"
    with opened_store(database_path(ours)) as store:
        assert knows(store, "alice", "a, b")
        assert user(store, "alice").is_superuser
        assert not user(store, "d9").is_superuser
        assert user(store, "d9").password.startswith("$argon2id$")
    file.write_text("user_id,password\neve,x\n")
    assert first_start(ours, users_file=file) == []


@pytest.mark.parametrize("text", ["name,password\na,b\n", "user_id,password\na\n", "user_id,password\na,b\na,c\n"])
def test_a_bad_file_of_users_leaves_nothing_behind(tmp_path: Path, text: str) -> None:
    ours = settings(tmp_path)
    file = tmp_path / "users.csv"
    file.write_text(text)
    with pytest.raises((ImportFormatError, StoreError)):
        first_start(ours, users_file=file)
    with opened_store(database_path(ours)) as store:
        assert store.count_users() == 0
    file.unlink()
    assert first_start(ours, users_file=file)[-1].startswith("added device-1")


def test_a_lost_password_file_is_made_anew_with_its_password(tmp_path: Path) -> None:
    ours = settings(tmp_path)
    first_start(ours)
    file = tmp_path / "secrets" / "gateway" / "mqtt_password"
    old = file.read_text()
    file.unlink()
    with pytest.raises(StoreError):
        first_start(ours, ["a,b"])
    first_start(ours)
    with opened_store(database_path(ours)) as store:
        assert knows(store, "gateway", file.read_text())
        assert not knows(store, "gateway", old)


def test_secrets_that_are_given_are_taken(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("0123456789abcdef0123\n")
    more = f'[auth]\nshared_secret_file = "{tmp_path}/given"\n'
    mqtt = '[mqtt]\nusername = "bridge"\npassword = "thought-up"\naddresses = ["mqtts://broker"]\n'
    ours = settings(tmp_path, mqtt + more)
    first_start(ours)
    assert "0123456789abcdef0123" in (tmp_path / "secrets" / "emqx" / "authorization.conf").read_text()
    with opened_store(database_path(ours)) as store:
        assert knows(store, "bridge", "thought-up")
        assert user(store, "bridge").password.startswith("$argon2id$"), "a person's password is hashed slowly"
        assert store.find_user("username", "gateway") is None
    (tmp_path / "given").write_text("another-secret-of-the-service")
    with pytest.raises(ConfigError, match="is another one than"):
        FirstStart(settings(tmp_path, mqtt + more), tmp_path / "secrets").run()


def test_a_password_in_a_file_that_was_there_is_hashed_slowly(tmp_path: Path) -> None:
    ours = settings(tmp_path)
    file = tmp_path / "secrets" / "gateway" / "mqtt_password"
    file.parent.mkdir(parents=True)
    file.write_text("thought-up")
    first_start(ours)
    with opened_store(database_path(ours)) as store:
        assert knows(store, "gateway", "thought-up")
        assert user(store, "gateway").password.startswith("$argon2id$"), "it would pass every lock-out"


def test_the_header_follows_the_secret(tmp_path: Path) -> None:
    ours = settings(tmp_path)
    first_start(ours)
    (tmp_path / "secrets" / "service" / "shared_secret").write_text('chosen"by\\the-operator')
    assert first_start(ours) == ["wrote emqx/authorization.conf anew: it held another secret"]
    assert (tmp_path / "secrets" / "emqx" / "authorization.conf").read_text() == (
        'authorization = "Bearer chosen\\"by\\\\the-operator"\n'
    )
    (tmp_path / "secrets" / "gateway" / "emqx_api_secret").write_text("rotated")
    assert first_start(ours) == ["wrote emqx/api_keys anew: it held another secret"]
    assert (tmp_path / "secrets" / "emqx" / "api_keys").read_text() == "gateway:rotated\n"


def test_an_empty_secret_is_refused(tmp_path: Path) -> None:
    ours = settings(tmp_path)
    first_start(ours)
    (tmp_path / "secrets" / "service" / "shared_secret").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        first_start(ours)


def test_the_command_says_what_it_made(tmp_path: Path, cli: Cli) -> None:
    settings(tmp_path)
    arguments = ["auth", "init", "--config", str(tmp_path / "gateway.toml"), "--device", "d1"]
    assert "added the user gateway" in cli(*arguments).out
    assert (tmp_path / "auth" / "secrets" / "devices" / "devices.csv").exists()
    assert cli(*arguments).out == "Everything exists already: nothing was made.\n"


def test_settings_may_name_the_secrets_before_they_are_made(tmp_path: Path, cli: Cli) -> None:
    secrets = tmp_path / "auth" / "secrets"
    mqtt = f'[mqtt]\nusername = "gateway"\npassword_file = "{secrets}/gateway/mqtt_password"\n'
    auth = f'[auth]\nhost = "0.0.0.0"\nshared_secret_file = "{secrets}/service/shared_secret"\n'
    auth += '[emqx]\nurl = "http://127.0.0.1:18083"\napi_key = "gw-1"\n'
    auth += f'api_secret_file = "{secrets}/gateway/emqx_api_secret"\n'
    file = tmp_path / "gateway.toml"
    file.write_text(f"data_dir = {str(tmp_path)!r}\n{TOML}{mqtt}{auth}")
    assert main(["auth", "init", "--config", str(file)]) == 0
    ours = load(file, environ={}).settings
    assert ours.auth.shared_secret.get_secret_value() == (secrets / "service" / "shared_secret").read_text()
    assert (secrets / "emqx" / "api_keys").read_text() == f"gw-1:{ours.emqx.api_secret.get_secret_value()}\n"
    assert main(["auth", "init", "--config", str(file)]) == 0
    # One that is somewhere else is not made by this: that is said, and not taken for done.
    file.write_text(f"data_dir = {str(tmp_path)!r}\n{TOML}{mqtt.replace('mqtt_password', 'elsewhere')}{auth}")
    assert "mqtt.password_file" in cli("auth", "init", "--config", str(file), status=78).err


def test_the_file_that_deploy_describes_is_one_that_is_taken_over(tmp_path: Path) -> None:
    described = (Path(__file__).parents[2] / "deploy" / "secrets" / "README.md").read_text()
    lines = [line.strip() for line in described.splitlines() if line.startswith("    ")]
    file = tmp_path / "users.csv"
    file.write_text("\n".join(lines) + "\n")
    ours = settings(tmp_path)
    first_start(ours, users_file=file)
    with opened_store(database_path(ours)) as store:
        name, password, _ = lines[1].split(",")
        assert knows(store, name, password)


@pytest.mark.parametrize("publisher", [None, ("device-1", "secret")])
def test_the_rule_that_a_refused_trial_names_is_what_it_lacks(tmp_path: Path, publisher: Any) -> None:
    ours = settings(tmp_path)
    first_start(ours)
    plan = TrialPlan("0123abcd", publisher=publisher)
    user = GATEWAY_USER if publisher is None else publisher[0]
    subscription, topic = f"$share/{plan.instance}/gateway-trial/0123abcd/0/+", "gateway-trial/0123abcd/0/d00"
    with opened_store(database_path(ours)) as before:
        assert not may(before, GATEWAY_USER, "subscribe", subscription)
        assert not may(before, user, "publish", topic)
    for name, action in ((GATEWAY_USER, "subscribe"), (user, "publish")):
        _, _, command = plan.missing_right(name, action).partition("gateway auth acl ")  # type: ignore[arg-type]
        command, _, _ = command.partition(". In EMQX")
        if publisher is not None or action == "subscribe":
            assert main(["auth", "acl", *shlex.split(command), "--config", str(tmp_path / "gateway.toml")]) == 0
    with opened_store(database_path(ours)) as after:
        assert may(after, GATEWAY_USER, "subscribe", subscription)
        assert may(after, user, "publish", topic)
        assert publisher is None or not may(after, GATEWAY_USER, "publish", topic), "no more than is needed"
