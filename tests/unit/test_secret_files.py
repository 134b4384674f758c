"""Secrets follow their files: what is shown next is what the file says by then."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pydantic import SecretStr
from structlog.testing import capture_logs

from bridge.fresh_secret import fresh
from config.loading.load import load
from config.loading.transfer import from_json, to_json
from config.values.secret_files import FileSecret


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()


def _loaded(tmp_path: Path, kind: str) -> tuple[SecretStr, Path]:
    """mqtt.password out of a file, and the file."""
    environ = {"GATEWAY_MQTT__USERNAME": "gateway"}
    if kind == "secrets directory":
        folder = tmp_path / "secrets"
        folder.mkdir()
        file = folder / "mqtt__password"
        environ["GATEWAY_SECRETS_DIR"] = str(folder)
    else:
        file = tmp_path / "password"
        environ["GATEWAY_MQTT__PASSWORD_FILE"] = file.name  # relative to the working directory
    file.write_text("hunter-1\n")
    password = load(environ=environ).settings.mqtt.password
    assert password is not None
    return password, file


@pytest.mark.parametrize("kind", ["setting", "secrets directory"])
def test_a_secret_from_a_file_follows_it(tmp_path: Path, kind: str) -> None:
    password, file = _loaded(tmp_path, kind)
    assert fresh(password, "mqtt.password") == "hunter-1"
    file.write_text("two\n")
    assert password.get_secret_value() == "hunter-1", "it changed without being asked"
    with capture_logs() as lines:
        assert fresh(password, "mqtt.password") == "two"
        assert fresh(password, "mqtt.password") == "two"
    assert [line["event"] for line in lines] == ["secret_file_changed"]
    assert lines[0]["setting"] == "mqtt.password"
    assert password.get_secret_value() == "two"


@pytest.mark.parametrize("damage", ["absent", "empty", "binary", "large"])
def test_a_file_that_cannot_be_read_leaves_the_last_secret_good(tmp_path: Path, damage: str) -> None:
    password, file = _loaded(tmp_path, "setting")
    if damage == "absent":
        file.unlink()
    else:
        file.write_bytes({"empty": b"", "binary": b"\xff\xfe", "large": b"x" * 65537}[damage])
    with capture_logs() as lines:
        assert fresh(password, "mqtt.password") == "hunter-1"
    assert [line["event"] for line in lines] == ["secret_file_not_read"]
    assert "hunter-1" not in str(lines)
    assert str(file) not in str(lines), "the path may be the secret itself"
    file.write_text("three")
    assert fresh(password, "mqtt.password") == "three"


def test_a_worker_follows_the_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's path travels with the settings, so that it does not matter where the worker runs."""
    password, file = _loaded(tmp_path, "setting")
    environ = {"GATEWAY_MQTT__USERNAME": "gateway", "GATEWAY_MQTT__PASSWORD_FILE": file.name}
    text = to_json(load(environ=environ).settings)
    monkeypatch.chdir("/")
    arrived = from_json(text).mqtt.password
    assert arrived == password
    assert arrived is not None
    file.write_text("two")
    assert fresh(arrived, "mqtt.password") == "two"
    file.unlink()
    late = from_json(text).mqtt.password
    assert late is not None
    assert fresh(late, "mqtt.password") == "hunter-1", "as it was sent, for the file is gone"


def test_a_secret_that_stands_in_the_settings_stays(tmp_path: Path) -> None:
    del tmp_path
    password = load(environ={"GATEWAY_MQTT__USERNAME": "u", "GATEWAY_MQTT__PASSWORD": "inline"}).settings.mqtt.password
    assert password is not None
    assert not isinstance(password, FileSecret)
    assert fresh(password, "mqtt.password") == "inline"


def test_it_tells_nothing(tmp_path: Path) -> None:
    secret = FileSecret("hunter2", tmp_path / "file")
    assert "hunter2" not in f"{secret!r} {secret} {[secret]}"
    assert pickle.loads(pickle.dumps(secret)) == secret
