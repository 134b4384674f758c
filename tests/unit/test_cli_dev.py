"""``gateway dev`` without brokers: which ports it asks for, and how it finds those of other projects."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.local import dev
from gateway.cli.main import main
from gateway.local.embedded import dev as brokers
from gateway.local.embedded.dev import DevBrokers, project_name
from gateway.local.runtime.cache import cache_directory
from gateway.local.runtime.errors import EmbeddedError, StartError

FIELDS = {"kafka": "127.0.0.1:9092", "mqtt": "mqtt://127.0.0.1:1883", "websocket": "w", "pid": 7, "logs": "/l"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GATEWAY_CACHE", str(tmp_path / "cache"))
    project = tmp_path / "shop"
    project.mkdir()
    monkeypatch.chdir(project)
    return tmp_path / "cache"


@contextmanager
def server_of_another_project(folder: Path) -> Iterator[list[str]]:
    """Its state in ``folder``, and its answers; yields what it was asked."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, connection.makefile("rwb") as stream:
                    asked.append(json.loads(stream.readline())["command"])
                    stream.write(json.dumps({"brokers": {**FIELDS, "failed": [], "project": "/shop"}}).encode() + b"\n")

        folder.mkdir(parents=True)
        state = {"pid": 7, "port": server.getsockname()[1], "secret": "s"}
        (folder / "state.json").write_text(json.dumps(state))
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def test_brokers_of_other_projects_are_named_and_can_be_stopped(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "_ANSWER_SECONDS", 60.0)
    with server_of_another_project(cache / "dev-x") as asked:
        assert main(["dev", "status"]) == 1
        assert capsys.readouterr().out.splitlines() == [
            "not running (gateway dev up starts the brokers)",
            "also running: brokers of /shop (--name x)",
        ]
        assert main(["dev", "down"]) == 0
        assert "stop" not in asked, "it belongs to nobody's project"
        assert main(["dev", "down", "--name", "x"]) == 0
    assert asked[-1] == "stop"
    assert not (cache / "dev-x" / "state.json").exists()


def test_a_silent_program_at_the_port_of_a_server_that_was_killed_is_not_taken_for_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the machine: `up` and `down` failed for ever, and named a process to kill."""
    monkeypatch.setattr(brokers, "_ANSWER_SECONDS", 0.05)
    gone = subprocess.Popen(["true"])
    gone.wait()
    (cache / "dev-x").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        state = {"pid": gone.pid, "port": silent.getsockname()[1], "secret": "s"}
        (cache / "dev-x" / "state.json").write_text(json.dumps(state))
        assert brokers.find("x") is None
        (cache / "dev-x" / "state.json").write_text(json.dumps({**state, "pid": os.getpid()}))
        with pytest.raises(EmbeddedError, match="did not answer"):
            brokers.find("x")


def test_a_look_leaves_no_folder_for_each_project(cache: Path) -> None:
    assert main(["dev", "status"]) == 1
    assert main(["dev", "down"]) == 0
    assert list(cache.glob("dev*")) == []


def test_the_server_uses_this_cache_also_if_its_path_is_relative(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in another folder, where it would download everything once more, with nobody to see that."""
    monkeypatch.setenv("GATEWAY_CACHE", "../cache")
    (cache / "dev-x").mkdir(parents=True)
    given: dict[str, Any] = {}

    def start(*_: object, **options: Any) -> None:
        given.update(options)
        raise StartError("seen")

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(StartError):
        brokers._start("x", {}, cache / "dev-x" / "server.log")
    monkeypatch.setenv("GATEWAY_CACHE", given["env"]["GATEWAY_CACHE"])
    monkeypatch.chdir(given["cwd"])
    assert cache_directory().samefile(cache)


def test_a_folder_has_one_name_however_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "shop")
    assert project_name(tmp_path / "link") == project_name(tmp_path / "x" / ".." / "shop")
    assert project_name(tmp_path / "shop").startswith("shop-")
    (tmp_path / "other" / "shop").mkdir(parents=True)
    assert project_name(tmp_path / "other" / "shop") != project_name(tmp_path / "shop")
    for name in ("-x y/", "数据", "n" * 200):
        assert main(["dev", "status", "--name", project_name(tmp_path / name)]) == 1, "a name as --name takes it"


def test_a_default_port_gives_way_and_one_asked_for_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    def up(name: str, **named: Any) -> tuple[DevBrokers, bool]:
        asked.update(named, name=name)
        return DevBrokers("127.0.0.1:15001", "mqtt://127.0.0.1:15002", "w", 7, "/l", name=name), True

    monkeypatch.setattr(brokers, "up", up)
    monkeypatch.setattr("gateway.cli.local.dev.require", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(dev, "_KAFKA_PORT", port)
        assert main(["dev", "up", "--mqtt-port", str(port)]) == 0
    assert (asked["kafka_port"], asked["mqtt_port"]) == (None, port)
    said = capsys.readouterr()
    assert "gateway init --mqtt mqtt://127.0.0.1:15002 --kafka 127.0.0.1:15001" in said.out
    assert said.err == (
        f"gateway: port {port} is in use, so Kafka has a free one: settings without its address reach the other.\n"
    )
    assert main(["dev", "up", "--kafka-port", "0", "--mqtt-port", "0"]) == 0
    assert (asked["kafka_port"], asked["mqtt_port"]) == (None, None)
    assert capsys.readouterr().err == ""
