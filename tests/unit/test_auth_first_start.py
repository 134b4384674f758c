"""`gateway auth init`: what the service and EMQX need before they can run, made once."""

import os
import shlex
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
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
from config.tables.commands import CommandSettings
from gateway.cli.main import main
from gateway.tools.trial.plan import TrialPlan
from tests.command_line import Cli
from tests.unit.access_parts import opened_store

TOML = """\
instance = "plant-7"
[[routes]]
name = "telemetry"
filters = ["devices/+/telemetry", "devices/+/status"]
topic = "telemetry"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gateway-first-start-") as made:
        yield Path(made)


def settings(folder: Path, more: str = "", before: str = "") -> Settings:
    file = folder / "gateway.toml"
    file.write_text(f"data_dir = {str(folder)!r}\n{before}{TOML}{more}")
    return load(file, environ={}).settings


def first_start(ours: Settings, *arguments: Any, **options: Any) -> list[str]:
    return FirstStart(ours, ours.data_dir / "secrets").run(*arguments, **options)


def user(store: Store, name: str) -> User:
    found = store.find_user("username", name)
    assert found is not None, f"there is no user {name}"
    return found


def knows(store: Store, name: str, password: str) -> bool:
    return passwords.matches(passwords.parse(user(store, name).password), password, store.device_keys())


def may(store: Store, name: str, action: str, topic: str) -> bool:
    subject = Subject(username=name, clientid="c")
    request = AccessRequest(subject, action, topic)  # type: ignore[arg-type]
    return decide(store.rules_for(subject), request).allowed


def test_the_first_start_makes_everything_and_the_next_nothing(folder: Path) -> None:
    ours = settings(folder)
    secrets = folder / "secrets"
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


def test_grafana_gets_a_password_where_there_is_a_folder_for_it(folder: Path) -> None:
    ours, place = settings(folder), folder / "secrets" / "grafana"
    place.mkdir(parents=True)
    assert any("Grafana" in sentence for sentence in first_start(ours))
    password = place / "admin_password"
    text = password.read_text()
    assert len(text) >= 24
    assert text == text.strip(), "Grafana takes the file as it is"
    assert stat.S_IMODE(password.stat().st_mode) == 0o640
    assert first_start(ours) == []
    assert password.read_text() == text


def test_two_installations_have_nothing_in_common(folder: Path) -> None:
    texts = []
    for name in ("a", "b"):
        (folder / name).mkdir()
        FirstStart(settings(folder / name), folder / name / "secrets").run()
        texts.append({path.read_text() for path in (folder / name / "secrets").rglob("*") if path.is_file()})
    assert not texts[0] & texts[1]


def test_secrets_can_be_read_by_whom_they_are_for(folder: Path) -> None:
    before = os.umask(0)
    try:
        FirstStart(settings(folder), folder / "secrets").run()
    finally:
        os.umask(before)
    for path in (folder / "secrets").rglob("*"):
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


def test_what_the_first_users_may(folder: Path) -> None:
    ours = settings(folder)
    first_start(ours)
    with opened_store(database_path(ours)) as store:
        assert may(store, "gateway", "subscribe", "devices/+/telemetry")
        assert may(store, "gateway", "subscribe", "$share/gateway/devices/+/status")
        assert may(store, "gateway", "publish", "gateways/plant-7/status")
        assert not may(store, "gateway", "publish", "devices/device-1/telemetry")
        assert not may(store, "gateway", "subscribe", "#")
        assert may(store, "device-1", "publish", "devices/device-1/telemetry")
        assert may(store, "device-1", "subscribe", "devices/device-1/commands")
        for topic in ("devices/device-2/telemetry", "devices/device-1x", "#", "gateways/plant-7/status"):
            assert not may(store, "device-1", "publish", topic)
            assert not may(store, "device-1", "subscribe", topic)
        assert not may(store, "", "publish", "devices//telemetry")
        assert not may(store, "+", "subscribe", "devices/+/telemetry")


def test_a_route_added_later_is_given_to_the_gateway(folder: Path) -> None:
    FirstStart(settings(folder), folder / "secrets").run()
    more = '[[routes]]\nname = "alarms"\nfilters = ["alarms/#"]\ntopic = "alarms"\n'
    ours = settings(folder, more)
    assert first_start(ours) == ["added 1 rule for gateway: its routes, and what it publishes"]
    with opened_store(database_path(ours)) as store:
        assert may(store, "gateway", "subscribe", "alarms/#")


def test_devices_are_made_by_name_and_left_alone(folder: Path) -> None:
    ours = settings(folder)
    assert first_start(ours, ["d1", "d2", "d1"])[-1].startswith("added d1, d2: ")
    file = folder / "secrets" / "devices" / "devices.csv"
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
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_session: Session) -> None:
        raise sqlite3.OperationalError("disk is full")

    ours = settings(folder)
    first_start(ours, ["d1"])
    with monkeypatch.context() as patched:
        patched.setattr(Session, "finish", full)
        with pytest.raises(StoreError):
            first_start(ours, ["d2"])
    first_start(ours, ["d2"])
    rows = [line.split(",") for line in (folder / "secrets" / "devices" / "devices.csv").read_text().splitlines()[1:]]
    assert [name for name, _ in rows] == ["d1", "d2"]
    with opened_store(database_path(ours)) as store:
        assert all(knows(store, *row) for row in rows)


def test_a_new_database_takes_over_a_file_of_users(folder: Path) -> None:
    ours = settings(folder)
    file = folder / "users.csv"
    file.write_text('user_id,password,is_superuser\nalice,"a, b",true\nd9,secret,false\n')
    assert first_start(ours, users_file=file)[-1].startswith("added 2 users from ")
    assert not (folder / "secrets" / "devices").exists(), "no sample beside them"
    with opened_store(database_path(ours)) as store:
        assert knows(store, "alice", "a, b")
        assert user(store, "alice").is_superuser
        assert not user(store, "d9").is_superuser
        assert user(store, "d9").password.startswith("$argon2id$")
    file.write_text("user_id,password\neve,x\n")
    assert first_start(ours, users_file=file) == []


@pytest.mark.parametrize("text", ["name,password\na,b\n", "user_id,password\na\n", "user_id,password\na,b\na,c\n"])
def test_a_bad_file_of_users_leaves_nothing_behind(folder: Path, text: str) -> None:
    ours = settings(folder)
    file = folder / "users.csv"
    file.write_text(text)
    with pytest.raises((ImportFormatError, StoreError)):
        first_start(ours, users_file=file)
    with opened_store(database_path(ours)) as store:
        assert store.count_users() == 0
    file.unlink()
    assert first_start(ours, users_file=file)[-1].startswith("added device-1")


def test_a_lost_password_file_is_made_anew_with_its_password(folder: Path) -> None:
    ours = settings(folder)
    first_start(ours)
    file = folder / "secrets" / "gateway" / "mqtt_password"
    old = file.read_text()
    file.unlink()
    with pytest.raises(StoreError):
        first_start(ours, ["a,b"])
    first_start(ours)
    with opened_store(database_path(ours)) as store:
        assert knows(store, "gateway", file.read_text())
        assert not knows(store, "gateway", old)


def test_secrets_that_are_given_are_taken(folder: Path) -> None:
    (folder / "given").write_text("0123456789abcdef0123\n")
    more = f'[auth]\nshared_secret_file = "{folder}/given"\n'
    mqtt = '[mqtt]\nusername = "bridge"\npassword = "thought-up"\naddresses = ["mqtts://broker"]\n'
    ours = settings(folder, mqtt + more)
    first_start(ours)
    assert "0123456789abcdef0123" in (folder / "secrets" / "emqx" / "authorization.conf").read_text()
    with opened_store(database_path(ours)) as store:
        assert knows(store, "bridge", "thought-up")
        assert user(store, "bridge").password.startswith("$argon2id$"), "a person's password is hashed slowly"
        assert store.find_user("username", "gateway") is None
    (folder / "given").write_text("another-secret-of-the-service")
    with pytest.raises(ConfigError, match="is another one than"):
        FirstStart(settings(folder, mqtt + more), folder / "secrets").run()


def test_a_password_in_a_file_that_was_there_is_hashed_slowly(folder: Path) -> None:
    ours = settings(folder)
    file = folder / "secrets" / "gateway" / "mqtt_password"
    file.parent.mkdir(parents=True)
    file.write_text("thought-up")
    first_start(ours)
    with opened_store(database_path(ours)) as store:
        assert knows(store, "gateway", "thought-up")
        assert user(store, "gateway").password.startswith("$argon2id$"), "it would pass every lock-out"


def test_the_header_follows_the_secret(folder: Path) -> None:
    ours = settings(folder)
    first_start(ours)
    (folder / "secrets" / "service" / "shared_secret").write_text('chosen"by\\the-operator')
    assert first_start(ours) == ["wrote emqx/authorization.conf anew: it held another secret"]
    assert (folder / "secrets" / "emqx" / "authorization.conf").read_text() == (
        'authorization = "Bearer chosen\\"by\\\\the-operator"\n'
    )
    (folder / "secrets" / "gateway" / "emqx_api_secret").write_text("rotated")
    assert first_start(ours) == ["wrote emqx/api_keys anew: it held another secret"]
    assert (folder / "secrets" / "emqx" / "api_keys").read_text() == "gateway:rotated\n"


def test_the_canarys_topic_may_be_published_to(folder: Path) -> None:
    ours = settings(folder)
    ours = ours.model_copy(update={"canary": ours.canary.model_copy(update={"enabled": True})})
    first_start(ours)
    with opened_store(database_path(ours)) as store:
        assert may(store, "gateway", "publish", f"canary/{ours.instance}")
        assert not may(store, "gateway", "publish", "canary/another")


def test_commands_may_be_published_below_their_prefix_only(folder: Path) -> None:
    ours = settings(folder)
    commands = CommandSettings(name="switches", topics=("commands",), status_topic="command-status")
    FirstStart(ours.model_copy(update={"commands": (commands,)}), folder / "secrets").run()
    with opened_store(database_path(ours)) as store:
        for topic in ("devices/device-1/req/switch", "devices/device-1/req"):
            assert may(store, "gateway", "publish", topic)
            assert may(store, "device-1", "subscribe", topic)
        for topic in ("devices/device-1/res", "devices/device-1/telemetry", "plants/1/req/switch"):
            assert not may(store, "gateway", "publish", topic)
        for topic in ("devices/device-1/res", "devices/device-1/res/token/200"):
            assert may(store, "device-1", "publish", topic), "its answers"
            assert not may(store, "device-2", "publish", topic)


def test_an_empty_secret_is_refused(folder: Path) -> None:
    ours = settings(folder)
    first_start(ours)
    (folder / "secrets" / "service" / "shared_secret").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        first_start(ours)


def test_the_command_says_what_it_made(folder: Path, cli: Cli) -> None:
    settings(folder)
    arguments = ["auth", "init", "--config", str(folder / "gateway.toml"), "--device", "d1"]
    assert "added the user gateway" in cli(*arguments).out
    assert (folder / "auth" / "secrets" / "devices" / "devices.csv").exists()
    assert cli(*arguments).out == "Everything exists already: nothing was made.\n"


def test_settings_may_name_the_secrets_before_they_are_made(folder: Path, cli: Cli) -> None:
    secrets = folder / "auth" / "secrets"
    mqtt = f'[mqtt]\nusername = "gateway"\npassword_file = "{secrets}/gateway/mqtt_password"\n'
    auth = f'[auth]\nhost = "0.0.0.0"\nshared_secret_file = "{secrets}/service/shared_secret"\n'
    auth += '[emqx]\nurl = "http://127.0.0.1:18083"\napi_key = "gw-1"\n'
    auth += f'api_secret_file = "{secrets}/gateway/emqx_api_secret"\n'
    file = folder / "gateway.toml"
    file.write_text(f"data_dir = {str(folder)!r}\n{TOML}{mqtt}{auth}")
    assert main(["auth", "init", "--config", str(file)]) == 0
    ours = load(file, environ={}).settings
    assert ours.auth.shared_secret.get_secret_value() == (secrets / "service" / "shared_secret").read_text()
    assert (secrets / "emqx" / "api_keys").read_text() == f"gw-1:{ours.emqx.api_secret.get_secret_value()}\n"
    assert main(["auth", "init", "--config", str(file)]) == 0
    # One that is somewhere else is not made by this: that is said, and not taken for done.
    file.write_text(f"data_dir = {str(folder)!r}\n{TOML}{mqtt.replace('mqtt_password', 'elsewhere')}{auth}")
    assert "mqtt.password_file" in cli("auth", "init", "--config", str(file), status=78).err


def test_the_file_that_deploy_describes_is_one_that_is_taken_over(folder: Path) -> None:
    described = (Path(__file__).parents[2] / "deploy" / "secrets" / "README.md").read_text()
    lines = [line.strip() for line in described.splitlines() if line.startswith("    ")]
    file = folder / "users.csv"
    file.write_text("\n".join(lines) + "\n")
    ours = settings(folder)
    first_start(ours, users_file=file)
    with opened_store(database_path(ours)) as store:
        name, password, _ = lines[1].split(",")
        assert knows(store, name, password)


def test_a_route_of_event_messages_gives_the_gateway_alone_the_right_to_see_them(folder: Path) -> None:
    presence = '\n[[routes]]\nname = "presence"\nfilters = ["$SYS/brokers/+/clients/#"]\ntopic = "devices.presence"\n'
    ours = settings(folder, presence)
    first_start(ours)
    with opened_store(database_path(ours)) as store:
        assert may(store, "gateway", "subscribe", "$share/gateway/$SYS/brokers/+/clients/#")
        assert not may(store, "gateway", "subscribe", "$SYS/#")
        assert not may(store, "device-1", "subscribe", "$SYS/brokers/+/clients/#")


@pytest.mark.parametrize("publisher", [None, ("device-1", "secret")])
def test_the_rule_that_a_refused_trial_names_is_what_it_lacks(folder: Path, publisher: tuple[str, str] | None) -> None:
    ours = settings(folder)
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
            assert main(["auth", "acl", *shlex.split(command), "--config", str(folder / "gateway.toml")]) == 0
    with opened_store(database_path(ours)) as after:
        assert may(after, GATEWAY_USER, "subscribe", subscription)
        assert may(after, user, "publish", topic)
        assert publisher is None or not may(after, GATEWAY_USER, "publish", topic), "no more than is needed"
