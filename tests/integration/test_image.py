"""The image, built for real and without a network, and the gateway in it bridging messages between real brokers.

There is no container engine where the tests run, so: a Debian of this machine's own packages stands in for the base
image, buildah builds the Dockerfile on it from a folder of wheels, and the result is run as compose would run it, by
what an engine uses underneath: a mount namespace with a read-only root, a user without rights, the image's environment
and command.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import paho.mqtt.client as mqtt
import pytest

from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from tests.brokers.client import hang_up
from tests.chaos.harness import FULL
from tests.programs import missing
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = [
    "Dockerfile",
    ".dockerignore",
    "requirements",
    "deploy",
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
    "LICENSE",
    "docs",
]
PACKAGES = ["config", "bridge", "auth", "streaming", "gateway"]
BASE = ["python3", "python3-venv", "python3-dev", "gcc"]
SLIMMED = ("/usr/share/doc/", "/usr/share/info/", "/usr/share/locale/", "/usr/share/man/")
MESSAGES = 500
DEVICES = 20

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path | None = None) -> str:
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(map(str, command))}:\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"
    return ran.stdout


def installed(package: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(asked, capture_output=True, check=False).stdout == b"installed"


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    """A folder for gigabytes, gone at the end whatever happens."""
    if shutil.which("dpkg-query") is None:
        missing("the image test needs Debian, to make a small one of")
    absent = [package for package in ("buildah", *BASE) if not installed(package)]
    if absent:
        missing(f"the image test needs {', '.join(absent)} (Debian: apt-get install {' '.join(absent)})")
    if os.geteuid() != 0:
        missing("the image test needs root: it mounts the image and changes into it")
    folder = Path(tempfile.mkdtemp(prefix="gateway-image-"))
    yield folder
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in reversed([point for point in mounted if point.startswith(f"{folder}/")]):
        run("umount", point)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def buildah(work: Path) -> Buildah:
    return Buildah(work)


def mounts_overlays(work: Path) -> bool:
    folders = {name: work / "overlay" / name for name in ("lower", "upper", "work", "merged")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    options = f"lowerdir={folders['lower']},upperdir={folders['upper']},workdir={folders['work']}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(folders["merged"])]
    return subprocess.run(["unshare", "--mount", *mount], capture_output=True, check=False).returncode == 0


class Buildah:
    """buildah with storage of its own, so that nothing is left on the machine and nothing of it is used."""

    def __init__(self, work: Path) -> None:
        # Where layers cannot be mounted on each other (inside a container, often), each is a whole copy of its files.
        self.layered = mounts_overlays(work)
        driver = "overlay" if self.layered else "vfs"
        self.options = ["--root", str(work / "storage"), "--runroot", str(work / "run"), "--storage-driver", driver]

    def __call__(self, *arguments: str | Path, offline: bool = False) -> str:
        prefix = ["unshare", "--net"] if offline else []
        return run(*prefix, "buildah", *self.options, *arguments).strip()


@dataclass(frozen=True)
class Base:
    image: str
    python: str  # its version, as 3.11


@pytest.fixture(scope="module")
def base(work: Path, buildah: Buildah) -> Base:
    """A Debian with Python as a base image: what ``python:slim`` is. With a compiler: the build has no network to fetch
    one."""
    container = buildah("from", "scratch")
    tree = Path(buildah("mount", container))
    copy_debian(tree)
    python = (tree / "usr/bin/python3").readlink().name.removeprefix("python")
    buildah("commit", "--quiet", "--rm", container, "localhost/base")
    return Base("localhost/base", python)


def copy_debian(tree: Path) -> None:
    """Copies the files of the packages that every Debian has, and of ``BASE``, with all that these depend on. Fetched
    and unpacked anew (debootstrap), they took 62 CPU seconds."""
    shown = run("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Priority} ${Package}\n")
    known = [line.split() for line in shown.splitlines()]
    there = {package: priority for status, priority, package in known if status == "installed"}
    required = [package for package, priority in there.items() if priority == "required"]
    left = [f"--no-{kind}" for kind in ("recommends", "suggests", "enhances", "conflicts", "breaks", "replaces")]
    depended = run("apt-cache", "depends", "--recurse", "--installed", *left, *required, *BASE)
    packages = [line for line in depended.splitlines() if line in there]  # the others may be alternatives
    files = set()
    for line in run("dpkg-query", "--listfiles", *packages).splitlines():
        # Packages may say /lib/x where that is /usr/lib/x. A slim machine leaves files out, as we do.
        folder, _, name = line.rpartition("/")
        file = Path(os.path.realpath(f"{folder}/"), name)
        if line.startswith("/") and os.path.lexists(file) and not line.startswith(SLIMMED):
            files.add(file)
    for file in sorted(files):
        copy = tree / file.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.is_symlink():
            copy.symlink_to(file.readlink())
        elif file.is_dir():
            copy.mkdir(exist_ok=True)
            copy.chmod(file.stat().st_mode)
        else:
            shutil.copy(file, copy)
    for name in ("passwd", "group"):
        shutil.copy(tree / f"usr/share/base-passwd/{name}.master", tree / "etc" / name)


@pytest.fixture(scope="module")
def context(work: Path, base: Base) -> Path:
    """What is sent to a build, with every package in it: there is no network to fall back on."""
    context = work / "context"
    context.mkdir()
    for name in [*CONTEXT, *PACKAGES]:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, context / name)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    download += ["--only-binary", ":all:", "--python-version", base.python, "--implementation", "cp"]
    for platform in ("manylinux_2_28", "manylinux_2_17", "manylinux2014"):
        download += ["--platform", f"{platform}_{os.uname().machine}"]
    for lock in ("build.txt", "compile.txt", "auth.txt"):  # the last holds all of core.txt
        download += ["--requirement", str(context / "requirements" / lock)]
    run(*download, "--dest", context / "deploy" / "wheelhouse")
    return context


def build(target: str, context: Path, base: Base, buildah: Buildah) -> str:
    arguments = ["--build-arg", f"BASE={base.image}", "--build-arg", "PIP_NO_INDEX=1"]
    options = ["--isolation", "chroot", "--format", "docker", "--pull-never", "--target", target]
    if buildah.layered and FULL:
        options.append("--layers")  # the second image begins with what the first was made from
    tag = f"localhost/{target}"
    buildah("build", *options, *arguments, "--tag", tag, str(context), offline=True)
    return tag


@pytest.fixture(scope="module")
def image(context: Path, base: Base, buildah: Buildah) -> str:
    """The gateway's image, from the checkout's own Dockerfile."""
    return build("gateway", context, base, buildah)


@pytest.fixture(scope="module")
def container(image: str, buildah: Buildah) -> str:
    return buildah("from", "--pull-never", image)


@pytest.fixture(scope="module")
def tree(container: str, buildah: Buildah) -> Path:
    """The image's files."""
    return Path(buildah("mount", container))


@pytest.fixture(scope="module")
def configuration(image: str, buildah: Buildah) -> dict[str, Any]:
    """What the image says about how to run it."""
    inspected = json.loads(buildah("inspect", "--type", "image", image))
    config: dict[str, Any] = inspected["Docker"]["config"]
    return config


def test_the_image_runs_as_a_user_without_rights(tree: Path, configuration: dict[str, Any]) -> None:
    assert configuration["User"] == "10001:10001"
    [entry] = [line for line in (tree / "etc/passwd").read_text().splitlines() if line.startswith("gateway:")]
    assert entry.endswith(":/var/lib/gateway:/usr/sbin/nologin")
    volume = (tree / "var/lib/gateway").stat()
    assert (volume.st_uid, volume.st_gid, volume.st_mode & 0o777) == (10001, 10001, 0o750)
    owned = [path for path in (tree / "opt/gateway").rglob("*") if path.lstat().st_uid == 10001]
    assert not owned, f"the gateway could change its own code: {owned[:3]}"


def test_the_image_says_how_to_run_it(configuration: dict[str, Any]) -> None:
    assert configuration["Entrypoint"] == ["gateway"]
    assert configuration["Cmd"] == ["run"]
    assert configuration["StopSignal"] == "SIGTERM"
    assert configuration["Healthcheck"]["Test"][0] == "CMD"
    assert list(configuration["Volumes"]) == ["/var/lib/gateway"]


def test_the_image_carries_the_gateway_and_nothing_to_build_with(tree: Path) -> None:
    size = sum(path.lstat().st_size for path in (tree / "opt/gateway").rglob("*") if not path.is_symlink())
    assert size <= 60_000_000, f"{size / 1e6:.1f} MB"
    packages = next((tree / "opt/gateway/lib").glob("python*/site-packages"))
    assert (packages / "gateway").is_dir()
    heavy = {"pip", "setuptools", "hatchling", "pyspark", "jpype", "rich"} & {path.name for path in packages.iterdir()}
    assert not heavy
    assert not (tree / "opt/build").exists()
    assert not (tree / "build").exists()


def test_the_command_answers(tree: Path, configuration: dict[str, Any]) -> None:
    """Not by `buildah run`, which may lose what a command has printed and say that all went well."""
    inside = ("chroot", f"--userspec={configuration['User']}", tree, "env", "-i", *configuration["Env"])
    told = run(*inside, *configuration["Entrypoint"], "--version").strip()
    assert told.startswith("gateway ")
    assert told.endswith(" (compiled)")


# Runs the rest of its arguments in the tree, as compose runs the service: nothing writable but /tmp and the volume, the
# settings mounted, no capability. Everything is mounted in a namespace of its own and ends with the process.
AS_COMPOSE_RUNS_IT = r"""
set -eu
tree=$1 data=$2 settings=$3
shift 3
mkdir -p "$tree/etc/gateway"
touch "$tree/etc/gateway/gateway.toml"
mount --bind "$tree" "$tree"
mount --bind "$settings" "$tree/etc/gateway/gateway.toml"
mount --bind "$data" "$tree/var/lib/gateway"
mount -t proc proc "$tree/proc"
mount --rbind /dev "$tree/dev"
mount -t tmpfs -o size=16m,mode=1777 tmpfs "$tree/tmp"
mount -o remount,bind,ro "$tree"
exec chroot "$tree" /usr/bin/setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all "$@"
"""


@dataclass
class Service:
    """The gateway of the image, running."""

    process: subprocess.Popen[bytes]
    tree: Path
    log: Path
    environment: list[str]
    health: list[str]

    def said(self) -> str:
        return self.log.read_text()[-6000:]

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command beside the gateway, in its file system and as its user."""
        enter = ["nsenter", "--target", str(self.process.pid), "--mount", "--root", "--wd"]
        enter += ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "env", "-i", *self.environment]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=False)

    def wait_until(self, what: str, condition: Callable[[], bool], seconds: float = 60) -> None:
        def reached() -> bool:
            assert self.process.poll() is None, f"the gateway ended with {self.process.returncode}:\n{self.said()}"
            return condition()

        wait_until(reached, lambda: f"{what}:\n{self.said()}", seconds, 0.1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[KafkaCluster, MqttBroker]]:
    with KafkaCluster() as kafka, MqttBroker() as broker:
        yield kafka, broker


@pytest.fixture
def service(
    tree: Path,
    configuration: dict[str, Any],
    brokers: tuple[KafkaCluster, MqttBroker],
    tmp_path: Path,
    free_ports: Callable[[int], list[int]],
) -> Iterator[Service]:
    """The gateway with the settings that compose mounts; only addresses differ, and the copies one broker can keep."""
    kafka, broker = brokers
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 10001, 10001)
    variables = {
        **dict(text.split("=", 1) for text in configuration["Env"]),
        "GATEWAY_MQTT__ADDRESSES": json.dumps([f"mqtt://127.0.0.1:{broker.port}"]),
        "GATEWAY_KAFKA__BOOTSTRAP_SERVERS": json.dumps(kafka.bootstrap.split(",")),
        "GATEWAY_KAFKA__TOPICS__REPLICATION": "1",
        "GATEWAY_KAFKA__TOPICS__DECLARE": "[]",
        "GATEWAY_HTTP__HOST": "127.0.0.1",
        "GATEWAY_HTTP__PORT": str(*free_ports(1)),
    }
    environment = [f"{name}={value}" for name, value in variables.items()]
    log = tmp_path / "gateway.log"
    command = [*configuration["Entrypoint"], *configuration["Cmd"]]
    start = ["unshare", "--mount", "sh", "-c", AS_COMPOSE_RUNS_IT, "sh", tree, data, ROOT / "deploy" / "gateway.toml"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*start, "env", "-i", f"--chdir={configuration['WorkingDir']}", *environment, *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    yield Service(process, tree, log, environment, configuration["Healthcheck"]["Test"][1:])
    process.kill()
    process.wait()


def publish(port: int) -> dict[str, int]:
    """Publishes telemetry as devices do, QoS 1, and returns once every message is acknowledged: messages by device."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "image-test", protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent: dict[str, int] = {}
    pending = []
    for number in range(MESSAGES):
        device = f"device-{number % DEVICES}"
        sequence = sent.get(device, 0)
        payload = json.dumps({"device": device, "type": "probe", "seq": sequence, "ts": 0})
        pending.append(client.publish(f"devices/{device}/telemetry", payload, qos=1))
        sent[device] = sequence + 1
    for message in pending:
        message.wait_for_publish(timeout=30)
        assert message.is_published(), "the MQTT broker acknowledged nothing for 30 s"
    hang_up(client)
    return sent


def consume(bootstrap: str, wanted: int) -> list[confluent_kafka.Message]:
    """The records of the telemetry topic, read by a client that is not the gateway's."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "image-test", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["devices.telemetry"])
    records: list[confluent_kafka.Message] = []
    deadline = time.monotonic() + 60
    while len(records) < wanted and time.monotonic() < deadline:
        records += [record for record in consumer.consume(wanted, timeout=1.0) if record.error() is None]
    consumer.close()
    return records


def test_the_gateway_in_the_image_bridges_messages(service: Service, brokers: tuple[KafkaCluster, MqttBroker]) -> None:
    kafka, broker = brokers
    ready = [*service.health[:-1], "/readyz"]
    service.wait_until("ready", lambda: service.inside(*ready).returncode == 0)
    alive = service.inside(*service.health)
    assert alive.returncode == 0, alive.stdout

    sent = publish(broker.port)
    got: dict[str, list[int]] = {}
    for record in consume(kafka.bootstrap, MESSAGES):
        key, value = record.key(), record.value()
        assert key is not None
        assert value is not None
        body = json.loads(value)
        assert key.decode() == body["device"]
        got.setdefault(body["device"], []).append(body["seq"])
    missing = {device: count for device, count in sent.items() if set(got.get(device, [])) != set(range(count))}
    assert not missing, f"not in Kafka: {missing}\n{service.said()}"

    written = service.inside("touch", "/opt/gateway/x")
    assert "Read-only file system" in written.stderr, "the root file system was not read-only, as compose has it"

    service.process.terminate()
    status = service.process.wait(timeout=35)
    assert status in (0, -15), f"the stop ended with {status}:\n{service.said()}"


# --- the image of the access service ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def auth_image(context: Path, base: Base, buildah: Buildah) -> str:
    return build("auth", context, base, buildah)


@pytest.mark.skipif(not FULL, reason="in the full form (CHAOS=full): another image, and minutes")
def test_the_access_service_in_its_image_makes_its_secrets_and_answers(auth_image: str, buildah: Buildah) -> None:
    config = json.loads(buildah("inspect", "--type", "image", auth_image))["Docker"]["config"]
    assert config["User"] == "10001:10001"
    assert config["Cmd"] == ["auth", "serve"]
    assert config["Healthcheck"]["Test"][-2:] == ["/healthz", "auth"]
    container = buildah("from", "--pull-never", auth_image)
    tree = Path(buildah("mount", container))
    for folder in ("service", "emqx", "gateway", "devices", "grafana"):
        found = (tree / "var/lib/gateway-auth" / folder).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (10001, 10001, 0o750)
    settings = f"{ROOT}/deploy/gateway.toml:/etc/gateway/gateway.toml:ro"

    def inside(*command: str) -> str:
        return buildah("run", "--isolation", "chroot", "--volume", settings, container, "--", *command)

    needed = "argon2, asyncpg, bcrypt, cryptography, jwt, pymysql, redis"
    inside("python3", "-c", f"import {needed}")
    init = ["gateway", "auth", "init", "--secrets", "/var/lib/gateway-auth", "--users", "/etc/gateway/none.csv"]
    assert "added device-1" in inside(*init)
    assert inside(*init) == "Everything exists already: nothing was made."
    assert (tree / "var/lib/gateway-auth/emqx/authorization.conf").stat().st_mode & 0o777 == 0o640
    assert "gateway" in inside("gateway", "auth", "user", "list")
    # Started as the image says, asked as its health check does, and stopped.
    check = " ".join(config["Healthcheck"]["Test"][1:])
    serve = (
        f"gateway auth serve & n=0; until {check}; do n=$((n+1)); [ $n -lt 100 ] || exit 9; sleep 0.2; done; kill $!"
    )
    secret = "GATEWAY_AUTH__SHARED_SECRET_FILE=/var/lib/gateway-auth/service/shared_secret"
    assert "200" in inside("env", secret, "GATEWAY_AUTH__PORT=0", "sh", "-c", serve)
