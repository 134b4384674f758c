"""`gateway init` writes settings that can be used, and overwrites nothing."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from config.errors import ExitStatus
from config.loading.load import load
from tests.command_line import Cli

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_what_is_written_can_be_used_as_it_is(tmp_path: Path, cli: Cli) -> None:
    assert "gateway run\n" in cli("init").out
    settings = load(tmp_path / "gateway.toml", environ={}).settings
    assert settings.kafka.topics.create, "else a first start ends with 69"
    assert settings.routes[0].key == "${device}"
    assert cli("config", "check").out == "OK: settings from gateway.toml can be used\n"


def test_what_is_asked_for_is_written(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "word").write_text("secret")
    brokers = ["--mqtt", "mqtt://a", "--mqtt", "mqtts://b:8884", "--kafka", "k1:9092", "--kafka", "k2:9092"]
    login = ["--username", 'o"dd', "--password-file", "word"]
    route = ["--filter", "plant/+/+/state", "--topic", "state", "--instance", "plant-7", "--data-dir", "/srv/gw"]
    assert "gateway run --config mine.toml" in cli("init", "mine.toml", *brokers, *login, *route).out
    settings = load(tmp_path / "mine.toml", environ={}).settings
    assert settings.mqtt.addresses == ("mqtt://a", "mqtts://b:8884")
    assert settings.kafka.bootstrap_servers == ("k1:9092", "k2:9092")
    assert (settings.mqtt.username, settings.instance, str(settings.data_dir)) == ('o"dd', "plant-7", "/srv/gw")
    (made,) = settings.routes
    assert (made.filters, made.topic, made.device) == (("plant/+/+/state",), "state", "${topic[1]}")


def test_a_filter_without_a_level_for_the_device_has_none(cli: Cli, tmp_path: Path) -> None:
    cli("init", "--filter", "alarms")
    (made,) = load(tmp_path / "gateway.toml", environ={}).settings.routes
    assert made.device is None


def test_nothing_is_overwritten(tmp_path: Path, cli: Cli) -> None:
    mine = [tmp_path / "gateway.toml", tmp_path / "other.toml.draft"]
    for file in mine:
        file.write_text("mine")
    assert "gateway.toml is there already, and is left as it is" in cli("init", status=ExitStatus.CONFIG).err
    cli("init", "other.toml")
    assert [file.read_text() for file in mine] == ["mine", "mine"]


def test_what_cannot_be_written_whole_is_not_there(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a settings file was in the way of the next attempt."""
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        assert "cannot be written: No space left" in cli("init", status=ExitStatus.CONFIG).err
    assert not (tmp_path / "gateway.toml").exists()
    cli("init")


@pytest.mark.parametrize(("arguments", "says"), [
    (["--mqtt", "emqx:1883"], "an address starts with its scheme"), (["--filter", "a/#/b"], "filters"),
    (["--topic", "no spaces"], "topic"), (["--password-file", "x"], "--password-file needs --username"),
])  # fmt: skip
def test_what_could_not_start_is_not_written(arguments: list[str], says: str, tmp_path: Path, cli: Cli) -> None:
    assert says in cli("init", *arguments, status=ExitStatus.USAGE).err
    assert not (tmp_path / "gateway.toml").exists()
