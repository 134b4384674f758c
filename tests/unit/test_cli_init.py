"""`gateway init` writes settings that can be used, and overwrites nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from config.errors import ExitStatus
from config.loading.load import load
from gateway.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_is_written_can_be_used_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == ExitStatus.OK
    assert "gateway run\n" in capsys.readouterr().out
    settings = load(tmp_path / "gateway.toml", environ={}).settings
    assert settings.kafka.topics.create, "else a first start ends with 69"
    assert settings.routes[0].key == "${device}"
    assert main(["config", "check"]) == ExitStatus.OK
    assert capsys.readouterr().out == "OK: settings from gateway.toml can be used\n"


def test_what_is_asked_for_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "word").write_text("secret")
    brokers = ["--mqtt", "mqtt://a", "--mqtt", "mqtts://b:8884", "--kafka", "k1:9092", "--kafka", "k2:9092"]
    login = ["--username", 'o"dd', "--password-file", "word"]
    route = ["--filter", "plant/+/+/state", "--topic", "state", "--instance", "plant-7", "--data-dir", "/srv/gw"]
    assert main(["init", "mine.toml", *brokers, *login, *route]) == ExitStatus.OK
    assert "gateway run --config mine.toml" in capsys.readouterr().out
    settings = load(tmp_path / "mine.toml", environ={}).settings
    assert settings.mqtt.addresses == ("mqtt://a", "mqtts://b:8884")
    assert settings.kafka.bootstrap_servers == ("k1:9092", "k2:9092")
    assert (settings.mqtt.username, settings.instance, str(settings.data_dir)) == ('o"dd', "plant-7", "/srv/gw")
    (made,) = settings.routes
    assert (made.filters, made.topic, made.device) == (("plant/+/+/state",), "state", "${topic[1]}")


def test_a_filter_without_a_level_for_the_device_has_none(tmp_path: Path) -> None:
    assert main(["init", "--filter", "alarms"]) == ExitStatus.OK
    (made,) = load(tmp_path / "gateway.toml", environ={}).settings.routes
    assert made.device is None


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gateway.toml").write_text("mine")
    assert main(["init"]) == ExitStatus.CONFIG
    assert "gateway.toml is there already, and is left as it is" in capsys.readouterr().err
    assert (tmp_path / "gateway.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mqtt", "emqx:1883"], "an address starts with its scheme"),
        (["--filter", "a/#/b"], "filters"),
        (["--topic", "no spaces"], "topic"),
        (["--password-file", "x"], "--password-file needs --username"),
    ],
)
def test_what_could_not_start_is_not_written(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *arguments]) == ExitStatus.USAGE
    assert says in capsys.readouterr().err
    assert not (tmp_path / "gateway.toml").exists()
