"""A real Apache Kafka, of one node or several, on this machine: for the demo, development and tests."""

import contextlib
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gateway.local.embedded.kafka_config import Listeners, node_properties, properties_text
from gateway.local.embedded.kafka_storage import format_storage, kafka_uuid
from gateway.local.runtime.cache import cache_directory
from gateway.local.runtime.errors import EmbeddedError, PortTakenError, StartError
from gateway.local.runtime.jars import resolve
from gateway.local.runtime.java import Java, ensure_java, jvm_environment
from gateway.local.runtime.process import GuardedProcess, wait_for_line
from gateway.local.runtime.progress import ProgressCallback, print_progress
from gateway.local.runtime.server import Server
from streaming.runtime.class_data import ClassData

_STARTED = re.compile(rb"Kafka Server started")
_TAKEN = "Address already in use"
_START_SECONDS = 90.0  # 1.5-3 s when idle; a machine whose every core is busy takes many times that
_STOP_SECONDS = 20.0


class KafkaCluster(Server):
    """Kafka 4.3 in KRaft mode, each node broker and controller, bound to 127.0.0.1; not started yet.

    ``nodes`` are numbered from 1. ``directory`` keeps data and logs (a cluster may be started again on its directory,
    with the same nodes); without one a temporary directory is used and removed. ``settings`` are server properties that
    win over ours. ``port`` fixes the first node's plain listener.

    Nodes are separate processes and die with this one. The methods block; any one thread at a time may call them.
    """

    what = "Kafka"

    # A subclass may add listeners with a login or TLS. The tests have one.
    extra_listeners: Sequence[str] = ()
    extra_jvm_flags: Sequence[str] = ()
    format_options: Sequence[str] = ()
    """Of ``kafka-storage format``, such as users."""

    def extra_properties(self, directory: Path) -> Mapping[str, str]:  # noqa: ARG002 - for a subclass
        """The properties of these listeners. Their files may be in the cluster's ``directory``."""
        return {}

    def __init__(
        self,
        nodes: int = 1,
        directory: Path | None = None,  # keeps the data; None: a temporary one
        *,
        settings: Mapping[str, str] | None = None,  # of each node, by Kafka's names
        port: int | None = None,  # None: any free one
        heap_mib: int = 384,
        progress: ProgressCallback = print_progress,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster has at least one node, not {nodes}")
        self.nodes = nodes
        self._settings = dict(settings or {})
        self._port = port
        self._heap_mib = heap_mib
        self._progress = progress
        self._kept = directory
        self._listeners: list[Listeners] = []
        self._processes: dict[int, GuardedProcess] = {}
        self._java: Java | None = None
        self._jars: list[Path] = []
        self._class_data: ClassData | None = None

    def __repr__(self) -> str:
        return f"<KafkaCluster nodes={self.nodes} running={[n for n in self._numbers if self.alive(n)]}>"

    # ── where it is ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def bootstrap(self) -> str:
        """``host:port,…`` of the plain listeners. It does not change until :meth:`stop`, restarts of nodes included."""
        return self.addresses("PLAINTEXT")

    def addresses(self, listener: str) -> str:
        """``host:port,…`` of the listeners of this name."""
        if not self._listeners:
            raise EmbeddedError("The Kafka cluster has no addresses yet: start it first.")
        if listener not in self._listeners[0].ports:
            raise EmbeddedError(f"This Kafka cluster has no {listener} listener.")
        return ",".join(f"127.0.0.1:{node.ports[listener]}" for node in self._listeners)

    def address(self, node: int) -> str:
        """``host:port`` of one node's plain listener."""
        self._checked(node)
        return self.bootstrap.split(",")[node - 1]

    def log_file(self, node: int = 1) -> Path:
        """What the node wrote to standard output and error, over all its starts."""
        return self._directory / f"node-{self._checked(node)}.log"

    def pid(self, node: int = 1) -> int:
        """The process id of the node's JVM, for measuring it."""
        return self._process(node).pid

    # ── the whole cluster ──────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start every node and return when all have joined: 1.5-3 s for one. Does nothing when started.

        The first start on a machine fetches the jars first. Raises StartError, PortTakenError, DownloadError or
        JavaError; nothing is left running then.
        """
        if self._processes:
            return
        self._jars = resolve("kafka", self._progress)
        self._java = ensure_java(self._progress)
        self._class_data = ClassData(cache_directory() / "kafka", self._java.home, self._jars)
        self._start_at_free_ports(self._start_once, again=self._port is None)

    def stop(self) -> None:
        """Stop every node, give the ports back, remove what is temporary.

        In an orderly way (0.5 s, three nodes 6 s) where the data are kept or class data are recorded, else at once.
        """
        orderly = self._kept is not None or (self._class_data is not None and self._class_data.recording)
        for process in self._processes.values():
            if orderly:
                process.signal(signal.SIGTERM)
                process.signal(signal.SIGCONT)
            else:
                process.signal(signal.SIGKILL)
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes.values():
            with contextlib.suppress(TimeoutError):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
        self._processes.clear()
        if self._class_data is not None:
            self._class_data.end()
        self._listeners = []
        super().stop()

    # ── one node ───────────────────────────────────────────────────────────────────────────────────────────────────

    def alive(self, node: int = 1) -> bool:
        """Whether the node's process exists (a frozen one does)."""
        process = self._processes.get(self._checked(node))
        return process is not None and process.returncode is None

    def kill(self, node: int = 1) -> None:
        """SIGKILL: its clients' connections are reset; what it had not flushed is in the page cache."""
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

    def restart(self, *nodes: int) -> None:
        """Start nodes again (the first one unless told) at their old ports with their data; returns when they have
        joined. Those that run are stopped first.

        Several start beside each other, as they must when no majority of the controllers is left. Raises StartError
        when one does not come up.
        """
        nodes = nodes or (1,)
        for node in nodes:
            if self.alive(node):
                self.stop_node(node)
        for node in nodes:
            self._launch(node)
        self._await(nodes)

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _directory(self) -> Path:
        found = self._kept or self._temporary
        if found is None:
            raise EmbeddedError("The Kafka cluster has no files yet: start it first.")
        return found

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

    def _logged(self, text: str) -> bool:
        return any(
            self.log_file(node).exists() and text in self.log_file(node).read_text(errors="replace")
            for node in self._numbers
        )

    def _start_once(self) -> None:
        names = ["PLAINTEXT", *self.extra_listeners, "CONTROLLER"]
        # May wait for others: a folder made before would outlive a kill in that time.
        ports = iter(self._reserve(len(names) * self.nodes, self._port))
        self._listeners = [Listeners({name: next(ports) for name in names}) for _ in self._numbers]
        if self._kept is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="gateway-kafka-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        for node in self._numbers:
            self.log_file(node).unlink(missing_ok=True)
        for node in self._numbers:
            self._configure(node)
        for node in self._numbers:
            self._launch(node)
        try:
            self._await(self._numbers)
        except StartError as error:
            if self._logged(_TAKEN):
                raise PortTakenError(f"A port of the Kafka broker is taken. {error}") from error
            raise

    def _configure(self, node: int) -> None:
        data = self._directory / f"node-{node}"
        settings = {**self.extra_properties(self._directory), **self._settings}
        properties = node_properties(node, self._listeners, data, settings)
        path = self._properties_file(node)
        path.touch(mode=0o600)  # it may hold passwords
        path.write_text(properties_text(properties))
        if not (data / "meta.properties").exists():
            format_storage(data, node, self._cluster_id(), self.format_options)

    def _properties_file(self, node: int) -> Path:
        return self._directory / f"node-{node}.properties"

    def _cluster_id(self) -> str:
        """One id per directory, made on first use."""
        path = self._directory / "cluster.id"
        if not path.exists():
            path.write_text(kafka_uuid())
        return path.read_text()

    def _launch(self, node: int) -> None:
        assert self._java is not None
        command = [str(self._java.executable), *self._jvm_flags(), "-cp", os.pathsep.join(map(str, self._jars))]
        command += ["kafka.Kafka", str(self._properties_file(node))]
        remove = [] if self._temporary is None else [self._temporary]
        self._processes[node] = GuardedProcess(command, log=self.log_file(node), env=jvm_environment(), remove=remove)

    def _await(self, nodes: Iterable[int]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        for node in nodes:
            wait_for_line(self._process(node), _STARTED, deadline, f"Kafka node {node}")

    def _jvm_flags(self) -> list[str]:
        assert self._class_data is not None
        flags = ["-Xms64m", f"-Xmx{self._heap_mib}m", *_JVM_FLAGS, *self.extra_jvm_flags]
        return flags + self._class_data.flags()  # 1.3 s to its start instead of 2.8, and 1.5 CPU seconds of 2.6


_LOGGER = "-Dorg.slf4j.simpleLogger"
_JVM_FLAGS = (
    # SerialGC and the first compiler alone: measured on two shared cores, 1.5 CPU seconds a million records once warm,
    # against 3.3 with both compilers and 3.0 with G1, and 5.0 against 6.4 and 7.5 in the first seconds.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    f"{_LOGGER}.defaultLogLevel=warn",
    f"{_LOGGER}.log.kafka.server.KafkaRaftServer=info",  # says when the node has joined
    f"{_LOGGER}.showDateTime=true",
    f"{_LOGGER}.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
)
