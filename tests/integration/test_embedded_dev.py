"""``gateway dev`` as people type it: brokers that stay when the command has ended, and go when they are told to."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaProducer

from gateway.local.embedded.dev import project_name
from gateway.local.runtime.cache import cache_directory
from tests.brokers.client import Client, RefusedError
from tests.brokers.topics import create_topic
from tests.command_line import GATEWAY, own_environment, run_gateway

DEADLINE = 120.0


class Dev:
    """``gateway dev`` in a project's folder, with a cache of its own, whose downloads are the real cache's."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.temporary, self.project = folder / "cache", folder / "tmp", folder / "a project"
        for one in (self.cache, self.temporary, self.project):
            one.mkdir()
        for name in ("jars", "java", "kafka", "hivemq"):
            if (cache_directory() / name).exists():
                (self.cache / name).symlink_to(cache_directory() / name)
        self.environment = own_environment(GATEWAY_CACHE=str(self.cache), TMPDIR=str(self.temporary))

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_gateway("dev", *arguments, cwd=self.project, timeout_s=DEADLINE, **self.environment)

    def state(self) -> Path:
        """The file by which its commands find the brokers."""
        return self.cache / f"dev-{project_name(self.project)}" / "state.json"

    def up(self, *arguments: str) -> dict[str, Any]:
        answer = self("up", "--json", "--kafka-port", "0", "--mqtt-port", "0", *arguments)
        assert answer.returncode == 0, answer.stderr
        brokers: dict[str, Any] = json.loads(answer.stdout)
        return brokers


@pytest.fixture
def dev(tmp_path: Path, kafka: object, mqtt_broker: object) -> Iterator[Dev]:
    """The shared brokers are asked for so that everything is downloaded."""
    made = Dev(tmp_path)
    yield made
    made("down")


def tree(pid: int) -> list[psutil.Process]:
    server = psutil.Process(pid)
    return [server, *server.children(recursive=True)]


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # ended, and not yet collected by the machine's init
    except psutil.NoSuchProcess:
        return False


def all_gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=DEADLINE)[1]


def assert_ends_everything(number: int, server: int, dev: Dev) -> None:
    """A signal to the server stops the brokers, too, and leaves no file of theirs."""
    processes = tree(server)
    os.kill(server, number)
    assert all_gone(processes)
    assert not list(dev.temporary.glob("gateway-[km]*")), "files were left"
    assert dev("status").returncode == 1


def test_each_project_has_its_own(dev: Dev) -> None:
    """Two folders of one user: each finds and ends its own brokers, and says which others run."""
    first, second = dev.project, dev.project.with_name("second")
    second.mkdir()
    one = dev.up()
    try:
        dev.project = second
        elsewhere = dev("status")
        assert elsewhere.returncode == 1
        other = f"also running: brokers of {first} (--name {one['name']})"
        assert elsewhere.stdout.splitlines() == ["not running (gateway dev up starts the brokers)", other]
        assert dev("down").stdout == f"not running\n{other}\n"
        two = dev.up("--name", "two")
        assert one["pid"] != two["pid"]
        assert one["kafka"] != two["kafka"]
        assert dev.up("--name", "two") == two, "it runs already"
        assert "gateway dev down --name two stops them" in dev("status", "--name", "two").stdout
        processes = tree(two["pid"])
        assert dev("down", "--name", "two").stdout == "stopped\n"
        assert all_gone(processes)
        dev.project = first
        assert json.loads(dev("status", "--json").stdout) == one
        assert_ends_everything(signal.SIGTERM, one["pid"], dev)
    finally:
        dev("down", "--name", "two")
    assert "is no name" in dev("up", "--name", "../x").stderr


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_up_status_down(dev: Dev, unique: str) -> None:
    assert dev("status").returncode == 1
    brokers = dev.up()
    await create_topic(brokers["kafka"], unique)
    producer = AIOKafkaProducer(bootstrap_servers=brokers["kafka"])
    await producer.start()
    await producer.send_and_wait(unique, b"x")
    await producer.stop()
    for address, websocket in ((brokers["mqtt"], False), (brokers["websocket"], True)):
        port = int(address.removesuffix("/mqtt").rpartition(":")[2])
        with Client(port, websocket=websocket) as client:
            client.publish(unique, b"x")

    again = dev("up")
    assert again.returncode == 0
    assert "running already" in again.stdout
    assert brokers["kafka"] in again.stdout
    status = dev("status", "--json")
    assert (status.returncode, json.loads(status.stdout)) == (0, brokers)

    processes = tree(brokers["pid"])
    assert len(processes) >= 5, "server, and a guard and a broker twice"
    down = dev("down")
    assert (down.returncode, down.stdout) == (0, "stopped\n")
    assert not [process for process in processes if runs(process)], "down returned before all had ended"
    assert not list(dev.temporary.glob("gateway-[km]*")), "files were left"
    status = dev("status", "--json")
    assert (status.returncode, status.stdout) == (1, "null\n")
    assert dev("down").stdout == "not running\n"


def test_two_at_once_start_one_data_can_be_kept_and_a_broker_that_ended_is_told(dev: Dev, tmp_path: Path) -> None:
    kept = ("--data", str(tmp_path / "kept"))
    command = [*GATEWAY, "dev", "up", "--json", "--kafka-port", "0", "--mqtt-port", "0"]
    both = [
        subprocess.Popen([*command, *kept], stdout=subprocess.PIPE, text=True, env=dev.environment, cwd=dev.project)
        for _ in range(2)
    ]
    answers = [json.loads(process.communicate(timeout=DEADLINE)[0]) for process in both]
    assert answers[0] == answers[1]
    identity = (tmp_path / "kept" / "cluster.id").read_text()
    dev("down")
    brokers = dev.up(*kept)
    assert brokers["logs"] == str(tmp_path / "kept")
    assert (tmp_path / "kept" / "cluster.id").read_text() == identity

    broker = next(p for p in tree(brokers["pid"]) if any(part.endswith("_hivemq.py") for part in p.cmdline()))
    broker.kill()
    deadline = time.monotonic() + DEADLINE
    while (answer := dev("status")).returncode == 0:
        assert time.monotonic() < deadline
    assert "MQTT broker has ended by itself" in answer.stdout
    assert_ends_everything(signal.SIGHUP, brokers["pid"], dev)


def test_a_taken_port_is_told_and_nothing_is_left(dev: Dev) -> None:
    with taken_port() as port:
        answer = dev("up", "--kafka-port", "0", "--mqtt-port", str(port))
    assert answer.returncode == 69
    assert f"Port {port} on 127.0.0.1 is in use: the MQTT broker cannot listen there" in answer.stderr
    assert dev("status").returncode == 1
    assert not list(dev.temporary.glob("gateway-[km]*")), "files were left"
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(dev.cache) in " ".join(p.info["cmdline"] or [])]


def test_only_who_knows_the_secret_is_answered_and_a_killed_server_takes_the_brokers_along(dev: Dev) -> None:
    """Its state file is left, and another program may get its port and its process id: neither is told to stop."""
    brokers = dev.up()
    assert dev.state().stat().st_mode & 0o777 == 0o600
    state = json.loads(dev.state().read_text())
    for request in (
        b'{"secret": "wrong", "command": "stop"}\n',
        b"GET / HTTP/1.0\r\n\r\n",
        b"[]\n",
        b"\n",
        b"x" * 9000,
    ):
        with socket.create_connection(("127.0.0.1", state["port"]), DEADLINE) as connection:
            connection.sendall(request)
            with suppress(ConnectionResetError):
                assert connection.recv(100) == b""
    assert dev("status").returncode == 0

    processes = tree(brokers["pid"])
    os.kill(brokers["pid"], signal.SIGKILL)
    assert all_gone(processes)
    assert dev("status").returncode == 1
    with socket.create_server(("127.0.0.1", 0)) as other:
        state |= {"port": other.getsockname()[1], "pid": os.getpid()}
        dev.state().write_text(json.dumps(state))
        other.settimeout(DEADLINE)
        command = [*GATEWAY, "dev", "down"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dev.environment, cwd=dev.project) as down:
            connection, _ = other.accept()
            connection.close()
            assert down.communicate(timeout=DEADLINE)[0] == "not running\n"


@pytest.mark.parametrize(
    "arguments", [["up", "--kafka-port", "65536"], ["up", "--mqtt-port", "x"], ["up", "--nodes", "0"], []]
)
def test_wrong_arguments(tmp_path: Path, arguments: list[str]) -> None:
    assert Dev(tmp_path)(*arguments).returncode == 2


def test_with_auth_the_broker_asks_an_access_service_that_keeps_its_users(dev: Dev) -> None:
    for _ in range(2):
        brokers = dev.up("--auth")
        port = int(brokers["mqtt"].rpartition(":")[2])
        with pytest.raises(RefusedError):
            Client(port)
        secrets = Path(brokers["secrets"])
        _, device = (secrets / "devices" / "devices.csv").read_text().splitlines()
        name, secret = device.split(",")
        with Client(port, user=("gateway", (secrets / "gateway" / "mqtt_password").read_text())) as gateway:
            gateway.subscribe("$share/g/#", 1)
            with Client(port, user=(name, secret)) as client:
                client.publish(f"devices/{name}/x", b"x", 1)
                with pytest.raises(RefusedError):
                    client.subscribe("#")
            assert gateway.receive().payload == b"x"
        assert Path(brokers["access"]).exists()
        assert f"--config {brokers['access']}" in dev("status").stdout
        processes = tree(brokers["pid"])
        assert dev("down").returncode == 0
        assert all_gone(processes)
