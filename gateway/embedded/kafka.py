"""A real Apache Kafka, of one node or several, on this machine: for the demo, development and tests."""

from __future__ import annotations

__all__ = ["KafkaCluster", "format_storage"]

import base64
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gateway.embedded.cache import cache_directory, locked
from gateway.embedded.certificates import Certificates, make_certificates
from gateway.embedded.errors import EmbeddedError, PortTakenError, StartError
from gateway.embedded.jars import bundle_digest, resolve
from gateway.embedded.java import ensure_java
from gateway.embedded.kafka_config import Listeners, node_properties, properties_text
from gateway.embedded.ports import PortReservation, reserve_ports
from gateway.embedded.process import GuardedProcess, wait_for_line
from gateway.embedded.progress import ProgressCallback, print_progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_STARTED = re.compile(rb"Kafka Server started")
_START_SECONDS = 90.0  # 3 s when idle; a machine whose every core is busy takes many times that
_STOP_SECONDS = 20.0
_PORT_ATTEMPTS = 3


class KafkaCluster:
    """Kafka 4.3 in KRaft mode, each node broker and controller, bound to 127.0.0.1; not started yet.

    ``nodes`` are numbered from 1. ``directory`` keeps data and logs (a cluster's own directory may be started again);
    without one a temporary directory is used and removed. ``sasl`` adds a listener for PLAIN and SCRAM with ``users``
    (name → password), ``tls`` one with a certificate from a CA made here; with both there is also one for SASL over TLS.
    ``settings`` are server properties that win over ours. ``port`` fixes the first node's plain listener.

    Nodes are separate processes and die with this one. The methods block; any one thread at a time may call them.
    """

    def __init__(
        self,
        nodes: int = 1,
        directory: Path | None = None,
        *,
        sasl: bool = False,
        tls: bool = False,
        settings: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        port: int | None = None,
        heap_mib: int = 384,
        progress: ProgressCallback = print_progress,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster has at least one node, not {nodes}")
        self.nodes = nodes
        self.users = dict(users or {"gateway": "gateway-secret"})
        self.certificates: Certificates | None = None
        self._sasl, self._tls = sasl, tls
        self._settings = dict(settings or {})
        self._port = port
        self._heap_mib = heap_mib
        self._progress = progress
        self._given_directory = directory
        self._directory: Path | None = None
        self._ports: PortReservation | None = None
        self._listeners: list[Listeners] = []
        self._processes: dict[int, GuardedProcess] = {}
        self._command: list[str] = []

    def __repr__(self) -> str:
        return f"<KafkaCluster nodes={self.nodes} running={sorted(n for n in self._processes if self.alive(n))}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ── addresses ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def bootstrap(self) -> str:
        """``host:port,…`` of the plain listeners. It does not change while the cluster exists, restarts included."""
        return self._addresses("PLAINTEXT")

    @property
    def sasl_bootstrap(self) -> str:
        """``host:port,…`` of the SASL_PLAINTEXT listeners."""
        return self._addresses("SASL_PLAINTEXT")

    @property
    def tls_bootstrap(self) -> str:
        """``host:port,…`` of the SSL listeners; ``certificates.ca_file`` verifies them."""
        return self._addresses("SSL")

    @property
    def sasl_tls_bootstrap(self) -> str:
        """``host:port,…`` of the SASL_SSL listeners."""
        return self._addresses("SASL_SSL")

    def address(self, node: int) -> str:
        """``host:port`` of one node's plain listener."""
        return f"127.0.0.1:{self._listeners[self._checked(node) - 1].ports['PLAINTEXT']}"

    def _addresses(self, listener: str) -> str:
        if not self._listeners:
            raise EmbeddedError("The Kafka cluster has no addresses yet: start it first.")
        if listener not in self._listeners[0].ports:
            raise EmbeddedError(
                f"This Kafka cluster has no {listener} listener: it was made without sasl=True or tls=True."
            )
        return ",".join(f"127.0.0.1:{node.ports[listener]}" for node in self._listeners)

    # ── the whole cluster ──────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start every node and return when all are unfenced: 2-4 s for one, jars in the cache. Does nothing when started.

        Raises StartError, PortTakenError, DownloadError or JavaError; nothing is left running then.
        """
        if self._processes:
            return
        jars = resolve("kafka", self._progress)
        java = ensure_java(self._progress)
        self._directory = self._given_directory or Path(tempfile.mkdtemp(prefix="gateway-kafka-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._tls:
            self.certificates = make_certificates(self._directory / "certificates")
        self._command = [
            str(java.executable),
            *_jvm_flags(self._heap_mib),
            "-cp",
            os.pathsep.join(map(str, jars)),
            "kafka.Kafka",
        ]
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._start_once()
            except StartError as error:
                logs = "\n".join(
                    self._log(n).read_text(errors="replace") for n in self._numbers if self._log(n).exists()
                )
                self.stop(keep_directory=attempt < _PORT_ATTEMPTS and "Address already in use" in logs)
                if "Address already in use" not in logs:
                    raise
                if self._port is not None or attempt == _PORT_ATTEMPTS:
                    raise PortTakenError(f"A port of the Kafka broker was taken while it started. {error}") from error
            except BaseException:
                self.stop()
                raise
            else:
                return

    def stop(self, *, keep_directory: bool = False) -> None:
        """Stop every node in an orderly way (frozen ones are continued), give the ports back, remove a temporary directory."""
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes.values():
            with contextlib.suppress(TimeoutError):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
        self._processes.clear()
        if self._ports is not None:
            self._ports.release()
            self._ports = None
        if self._directory is not None and self._given_directory is None and not keep_directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    # ── one node ───────────────────────────────────────────────────────────────────────────────────────────────────

    def alive(self, node: int) -> bool:
        """Whether the node's process exists (a frozen one does)."""
        process = self._processes.get(self._checked(node))
        return process is not None and process.returncode is None

    def kill(self, node: int = 1) -> None:
        """SIGKILL: what was not flushed is in the page cache, the clients' connections are reset."""
        self._process(node).kill()

    def stop_node(self, node: int = 1) -> None:
        """Stop one node in an orderly way: it hands its leaderships over first. :meth:`restart` brings it back."""
        self._process(node).terminate(_STOP_SECONDS)

    def freeze(self, node: int = 1) -> None:
        """SIGSTOP: connections stay open and nothing answers, as behind a dead network."""
        self._process(node).signal(signal.SIGSTOP)

    def thaw(self, node: int = 1) -> None:
        """SIGCONT."""
        self._process(node).signal(signal.SIGCONT)

    def restart(self, node: int = 1) -> None:
        """Start the node again at its old ports with its data, stopping it in an orderly way if it runs; returns when it is up."""
        if self.alive(node):
            self.stop_node(node)
        self._launch(node)
        self._await(node, time.monotonic() + _START_SECONDS)

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _numbers(self) -> range:
        return range(1, self.nodes + 1)

    def _checked(self, node: int) -> int:
        if node not in self._numbers:
            raise ValueError(f"there is no node {node}: this cluster's are 1 to {self.nodes}")
        return node

    def _process(self, node: int) -> GuardedProcess:
        process = self._processes.get(self._checked(node))
        if process is None:
            raise EmbeddedError(f"Kafka node {node} has not been started.")
        return process

    def _home(self) -> Path:
        assert self._directory is not None
        return self._directory

    def _log(self, node: int) -> Path:
        return self._home() / f"node-{node}.log"

    def _start_once(self) -> None:
        names = ["PLAINTEXT", *(["SASL_PLAINTEXT"] if self._sasl else []), *(["SSL"] if self._tls else [])]
        names += [*(["SASL_SSL"] if self._sasl and self._tls else []), "CONTROLLER"]
        self._ports = PortReservation()
        if self._port is not None and not self._ports.take(self._port):
            raise PortTakenError(
                f"Port {self._port} on 127.0.0.1 is in use, so Kafka cannot listen there. Choose another port."
            )
        others = reserve_ports(len(names) * self.nodes - len(self._ports.ports))
        self._ports.absorb(others)
        ports = iter(self._ports.ports)
        self._listeners = [Listeners({name: next(ports) for name in names}) for _ in self._numbers]
        for node in self._numbers:
            self._configure(node)
        for node in self._numbers:
            self._launch(node)
        deadline = time.monotonic() + _START_SECONDS
        for node in self._numbers:
            self._await(node, deadline)

    def _configure(self, node: int) -> None:
        data = self._home() / f"node-{node}"
        properties = node_properties(node, self._listeners, data, self.users, self.certificates, self._settings)
        path = self._home() / f"node-{node}.properties"
        path.touch(mode=0o600)
        path.write_text(properties_text(properties))
        if not (data / "meta.properties").exists():
            format_storage(data, node, self._cluster_id(), self.users if self._sasl else {})

    def _cluster_id(self) -> str:
        """One id per directory, made on first use."""
        path = self._home() / "cluster.id"
        if not path.exists():
            path.write_text(_kafka_uuid())
        return path.read_text()

    def _launch(self, node: int) -> None:
        temporary = [self._home()] if self._given_directory is None else []
        self._processes[node] = GuardedProcess(
            [*self._command, str(self._home() / f"node-{node}.properties")],
            log=self._log(node),
            env=_environment(),
            remove=temporary,
        )

    def _await(self, node: int, deadline: float) -> None:
        wait_for_line(self._processes[node], _STARTED, deadline, f"Kafka node {node}")


def format_storage(data: Path, node: int, cluster_id: str, scram_users: Mapping[str, str]) -> None:
    """Make ``data`` a Kafka log directory, as ``kafka-storage format`` does.

    What that tool writes besides the node's identity (``bootstrap.checkpoint``: the feature levels) is the same for every
    cluster, so it is made once and kept in the cache: a start is a second shorter. SCRAM users are part of it, so with
    them the tool runs.
    """
    data.mkdir(parents=True, exist_ok=True)
    if scram_users:
        checkpoint = data.parent / "bootstrap.checkpoint"
        if not checkpoint.exists():
            _run_format(checkpoint, scram_users)
    else:
        cache = cache_directory() / "kafka"
        cache.mkdir(exist_ok=True)
        checkpoint = cache / f"bootstrap-{bundle_digest('kafka')}.checkpoint"
        with locked(cache / "bootstrap.lock"):
            if not checkpoint.exists():
                _run_format(checkpoint, {})
    shutil.copyfile(checkpoint, data / "bootstrap.checkpoint")
    identity = {"version": "1", "cluster.id": cluster_id, "node.id": str(node), "directory.id": _kafka_uuid()}
    (data / "meta.properties").write_text(properties_text(identity))


def _run_format(checkpoint: Path, scram_users: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="gateway-format-") as scratch_name:
        scratch = Path(scratch_name)  # made with mode 0700: the passwords below are in a file nobody else reads
        listeners = [Listeners({"PLAINTEXT": 1, "CONTROLLER": 2})]  # the tool checks them; nothing listens
        properties = node_properties(1, listeners, scratch / "data", {}, None, {})
        (scratch / "server.properties").write_text(properties_text(properties))
        arguments = [
            "-Xmx128m",
            *_FAST_START,
            "-cp",
            os.pathsep.join(map(str, resolve("kafka"))),
            "kafka.tools.StorageTool",
        ]
        arguments += ["format", "--cluster-id", _kafka_uuid(), "--config", str(scratch / "server.properties")]
        for name, password in scram_users.items():
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                arguments += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
        (scratch / "arguments").write_text("\n".join(_argument(argument) for argument in arguments))
        answer = subprocess.run(
            [ensure_java().executable, f"@{scratch / 'arguments'}"],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
        )
        made = scratch / "data" / "bootstrap.checkpoint"
        if answer.returncode != 0 or not made.exists():
            raise StartError(
                f"Kafka's storage could not be formatted: {(answer.stdout + answer.stderr).strip()[-800:]}"
            )
        draft = checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}")
        shutil.copyfile(made, draft)
        draft.replace(checkpoint)


# SerialGC and the first compiler alone: on one or two shared cores the threads of the others cost more than they give.
_FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def _jvm_flags(heap_mib: int) -> list[str]:
    level = "-Dorg.slf4j.simpleLogger."
    return [
        "-Xms64m",
        f"-Xmx{heap_mib}m",
        *_FAST_START,
        "-Djava.awt.headless=true",
        f"{level}defaultLogLevel=warn",
        f"{level}log.kafka.server.KafkaRaftServer=info",  # says when the node is up
        f"{level}showDateTime=true",
        f"{level}dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    ]


def _environment() -> dict[str, str]:
    """Ours without what would change the JVM or Kafka behind our back."""
    dropped = ("KAFKA_", "CLASSPATH", "JDK_JAVA_OPTIONS", "JAVA_OPTS")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def _kafka_uuid() -> str:
    """A random UUID as Kafka writes them; one never starts with a hyphen, which its tools would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def _argument(text: str) -> str:
    """One line of a Java argument file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
