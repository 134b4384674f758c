"""The process that is measured: the gateway or a baseline, started from a command line and seen only from outside."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from tests.asking import get
from tests.bench.account import cpu_of, own_peak_rss_mib, peak_rss_mib, pss_mib, tree
from tests.bench.processes import BenchError, free_port, spawn, wait_until
from tests.toml_text import to_toml

if TYPE_CHECKING:
    from tests.bench.measurement import Figure

_ROOT: Final = Path(__file__).parents[2]
_STOP_S: Final = 30.0  # above the gateway's own shutdown deadline of 25 s
_READY_S: Final = 30.0
_REST_S: Final = 0.2
_CALM_S: Final = 3
_CALM_SHARE: Final = 0.5

TomlValue = str | int | float | bool | list[str] | list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a subject runs: the broker it reads, the topic it writes, a directory that outlives a restart."""

    mqtt_port: int
    kafka: str
    topic: str
    dead_letters: str
    ledger: str
    directory: Path


class Launcher(Protocol):
    """Starts one kind of subject."""

    def start(self, place: Place) -> Subject:
        """The process, just started; the caller stops it."""


class Subject:
    """A running process: its pid, its log, its HTTP port if it has one."""

    def __init__(self, command: list[str], log: Path, http_port: int | None, subscribed: bytes = b"subscribed") -> None:
        self.log = log
        self._subscribed = subscribed
        self._http_port = http_port
        self._process = spawn(command, log, _ROOT)
        self.pid: Final = self._process.pid

    def wait_ready(self, every_s: float = 0.02) -> None:
        """Blocks until /readyz says 200 (a subject without HTTP: until it has logged that it is subscribed)."""
        wait_until(self._is_ready, f"ready; its log ends {self._log_end()}", _READY_S, every_s)

    def wait_idle(self) -> None:
        """Blocks until the process is at rest: less than a tenth of a core over a fifth of a second."""
        last = cpu_of(self.pid).total_ns
        deadline = time.monotonic() + _READY_S
        while True:
            time.sleep(_REST_S)
            now = cpu_of(self.pid).total_ns
            if now - last < _REST_S * 1e9 / 10:
                return
            if time.monotonic() > deadline:
                raise BenchError(f"the process is not at rest {_READY_S:g} s after it was ready, with nothing to do")
            last = now

    def wait_calm(self) -> None:
        """Blocks until the process has done nothing but its steady work for some seconds."""
        rates = [1.0]
        deadline = time.monotonic() + _READY_S
        while len(rates) < _CALM_S or max(rates[-_CALM_S:]) > _CALM_SHARE:
            last = cpu_of(self.pid).total_ns
            time.sleep(1)
            rates.append((cpu_of(self.pid).total_ns - last) / 1e9)
            if time.monotonic() > deadline:
                return

    def metrics(self) -> dict[str, float]:
        """The sum of each metric's samples on /metrics. Empty for a subject without HTTP."""
        if self._http_port is None:
            return {}
        status, body = self._get("/metrics")
        if status != 200:
            raise BenchError(f"/metrics answered {status}: {body[:200]}")
        return parse_metrics(body)

    def status(self) -> dict[str, Any]:
        """The object at /status."""
        found: dict[str, Any] = json.loads(self._get("/status")[1])
        return found

    def peak_rss_mib(self) -> float:
        """The most memory it has had so far; of several workers, the one that has had most."""
        self.check_alive()
        return max(peak_rss_mib(pid) for pid in tree(self.pid)[1:] or [self.pid])

    def memory(self) -> dict[Figure, float]:
        """That, the largest worker's share of memory now, and both of the supervisor if there is one."""
        self.check_alive()
        supervised = tree(self.pid)[1:]
        found: dict[Figure, float] = {
            "rss_mib": self.peak_rss_mib(), "pss_mib": max(map(pss_mib, supervised or [self.pid])),
        }  # fmt: skip
        if supervised:
            found |= {"supervisor_mib": own_peak_rss_mib(self.pid), "supervisor_pss_mib": pss_mib(self.pid)}
        return found

    def check_alive(self) -> None:
        """Raises BenchError with the end of its log when the process has ended by itself."""
        if (status := self._process.poll()) is not None:
            raise BenchError(f"the process ended by itself with status {status}; its log ends {self._log_end()}")

    def stop(self) -> None:
        """SIGTERM and its end. Raises BenchError when it does not end in time, or in any way but a clean one."""
        self.check_alive()
        self._process.terminate()
        try:
            status = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BenchError(
                f"the process did not end within {_STOP_S:g} s of SIGTERM; its log ends {self._log_end()}"
            ) from None
        if status not in (0, -signal.SIGTERM):  # a clean stop may end by the signal itself, as shells expect
            raise BenchError(f"the process ended with status {status} after SIGTERM; its log ends {self._log_end()}")

    def kill(self) -> None:
        """Ends it at once, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        self.check_alive()
        if self._http_port is None:
            return self._subscribed in self.log.read_bytes()
        try:
            status, _body = self._get("/readyz")
        except OSError:
            return False
        return status == 200

    def _get(self, path: str) -> tuple[int, str]:
        assert self._http_port is not None
        return get(self._http_port, path)

    def _log_end(self) -> str:
        return repr(self.log.read_text(errors="replace")[-1500:])


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text format to the sum of each name's samples."""
    totals: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            labelled, _space, value = line.rpartition(" ")
            name = labelled.partition("{")[0]
            totals[name] = totals.get(name, 0.0) + float(value)
    return totals


@contextmanager
def running(subject: Subject) -> Iterator[Subject]:
    """Kills the subject at the end of the block, if nobody has stopped it."""
    try:
        yield subject
    finally:
        subject.kill()


@dataclass(frozen=True, slots=True)
class Gateway:
    """`gateway run` with its defaults, except for what is given: whole tables are merged key by key."""

    mqtt: Mapping[str, TomlValue] = field(default_factory=dict)
    kafka: Mapping[str, TomlValue] = field(default_factory=dict)
    route: Mapping[str, TomlValue] = field(default_factory=dict)
    flow: Mapping[str, TomlValue] = field(default_factory=dict)
    routes: int = 1  # the others before it match nothing
    workers: int = 0  # none but the process itself, which most rows are about
    metrics: bool = True  # False: ``tests.bench.without_metrics``, which users have no setting for

    def start(self, place: Place) -> Subject:
        """The gateway, bridging `devices/#` to the topic, its data directory in the place."""
        others = [
            {"name": f"other-{number}", "filters": [f"sites/+/{number}/#"], "topic": place.topic}
            for number in range(1, self.routes)
        ]
        tables = {
            "instance": "bench",
            "workers": self.workers,
            "mqtt": self.mqtt,
            "kafka": self.kafka,
            "flow": self.flow,
            "routes": [*others, {"name": "telemetry", "filters": ["devices/#"], "topic": place.topic, **self.route}],
        }
        command = [str(Path(sys.executable).with_name("gateway"))]
        if not self.metrics:
            command = [sys.executable, "-m", "tests.bench.without_metrics"]
        return _run(command, place, tables)


def _run(command: list[str], place: Place, tables: dict[str, Any]) -> Subject:
    """`gateway run` at the place, its data directory there, with these settings beside the addresses and topics."""
    place.directory.mkdir(parents=True, exist_ok=True)
    http_port = free_port()
    settings = {
        **tables,
        "data_dir": str(place.directory / "data"),
        "mqtt": {"addresses": [f"mqtt://127.0.0.1:{place.mqtt_port}"], **tables.get("mqtt", {})},
        "kafka": {"bootstrap_servers": [place.kafka], **tables.get("kafka", {})},
        "dead_letter": {"topic": place.dead_letters},
        "ledger": {"topic": place.ledger},
        "http": {"port": http_port},
    }
    file = place.directory / "gateway.toml"
    file.write_text(to_toml(settings))
    return Subject([*command, "run", "--config", str(file)], place.directory / "gateway.log", http_port)


class AuthService:
    """`gateway auth serve` on one core, with a path that answers a constant."""

    def start(self, settings: Path, log: Path, operator_port: int) -> Subject:
        """The service with these settings, whose ``auth.operator_port`` is that one."""
        command = [sys.executable, "-m", "tests.bench.auth_subject", "--config", str(settings)]
        return Subject(command, log, operator_port)


@dataclass(frozen=True, slots=True)
class Baseline:
    """One of the plain bridges in tests/bench/baselines."""

    kind: Literal["paho_aiokafka", "paho_confluent"]
    persistent: bool = False
    compression: Literal["none", "zstd"] = "none"
    linger_ms: int = 20

    def start(self, place: Place) -> Subject:
        """The bridge, from `devices/#` to the topic."""
        place.directory.mkdir(parents=True, exist_ok=True)
        log = place.directory / f"{self.kind}.log"
        log.unlink(missing_ok=True)  # readiness is read from it
        command = [sys.executable, "-m", f"tests.bench.baselines.{self.kind}"]
        command += ["--mqtt-port", str(place.mqtt_port), "--mqtt-filter", "$share/bench/devices/#"]
        command += ["--kafka", place.kafka, "--topic", place.topic, "--compression", self.compression]
        command += ["--linger-ms", str(self.linger_ms)]
        return Subject([*command, "--persistent"] if self.persistent else command, log, None)


@dataclass(frozen=True, slots=True)
class Telegraf:
    """The `telegraf` of the PATH, with its batches and windows raised, and each message acknowledged after Kafka."""

    compression: Literal["none", "zstd"] = "none"
    flush_interval: str = "100ms"

    def start(self, place: Place) -> Subject:
        """Telegraf, from `devices/#` to the topic, with a session that stays."""
        if (program := shutil.which("telegraf")) is None:
            raise BenchError("there is no program telegraf on the PATH")
        place.directory.mkdir(parents=True, exist_ok=True)
        log = place.directory / "telegraf.log"
        log.unlink(missing_ok=True)  # readiness is read from it
        settings = {
            "agent": {
                "flush_interval": self.flush_interval, "metric_batch_size": 5_000, "metric_buffer_limit": 200_000,
                "omit_hostname": True,
            },
            "inputs": {"mqtt_consumer": [{
                "servers": [f"tcp://127.0.0.1:{place.mqtt_port}"], "topics": ["$share/bench/devices/#"], "qos": 1,
                "client_id": "telegraf", "persistent_session": True, "max_undelivered_messages": 20_000,
                "data_format": "value", "data_type": "string",
            }]},
            "outputs": {"kafka": [{
                "brokers": [place.kafka], "topic": place.topic, "routing_tag": "topic", "idempotent_writes": True,
                "required_acks": -1, "compression_codec": 4 if self.compression == "zstd" else 0,
                "data_format": "template", "template": '{{ .Field "value" }}',
            }]},
        }  # fmt: skip
        file = place.directory / "telegraf.conf"
        file.write_text(to_toml(settings))
        return Subject([program, "--config", str(file)], log, None, b"Connected [")


@dataclass(frozen=True, slots=True)
class CommandGateway:
    """`gateway run` with one `[[commands]]` and an idle route; ``commands`` are settings that are not the defaults."""

    commands: Mapping[str, TomlValue] = field(default_factory=dict)

    def start(self, place: Place, status_topic: str) -> Subject:
        """The gateway, from the place's topic to `devices/<n>/req/set`."""
        commands = {"name": "bench", "topics": [place.topic], "status_topic": status_topic, "settle": "0s"}
        tables = {
            "instance": f"bench-{place.topic[-6:]}",
            "workers": 0,
            "routes": [{"name": "none", "filters": ["nothing/#"], "topic": place.topic}],  # one has to be there
            "commands": [{**commands, **self.commands}],
        }
        return _run([sys.executable, "-m", "gateway.cli.main"], place, tables)


@dataclass(frozen=True, slots=True)
class CommandBridge:
    """The plain bridge from Kafka to MQTT in tests/bench/baselines. It knows no statuses."""

    def start(self, place: Place, _status_topic: str) -> Subject:
        """The bridge, from the place's topic to `devices/<n>/req/set`."""
        place.directory.mkdir(parents=True, exist_ok=True)
        log = place.directory / "aiokafka_paho.log"
        command = [sys.executable, "-m", "tests.bench.baselines.aiokafka_paho"]
        command += ["--mqtt-port", str(place.mqtt_port), "--kafka", place.kafka, "--topic", place.topic]
        return Subject(command, log, None)
