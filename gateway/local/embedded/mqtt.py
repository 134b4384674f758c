"""A real MQTT broker, HiveMQ Community Edition, on this machine: for the demo, development and tests."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.local.runtime.cache import cache_directory
from gateway.local.runtime.errors import EmbeddedError, PortTakenError
from gateway.local.runtime.jars import resolve
from gateway.local.runtime.java import ensure_java, jvm_environment
from gateway.local.runtime.process import GuardedProcess, wait_for_line
from gateway.local.runtime.progress import ProgressCallback, print_progress
from gateway.local.runtime.server import ServerProcess
from streaming.runtime.class_data import ClassData

if TYPE_CHECKING:
    from gateway.local.embedded.access import AccessEndpoint

_SCRIPT = Path(__file__).with_name("_hivemq.py")
_READY = re.compile(rb"^ready$", re.MULTILINE)
_START_SECONDS = 60.0  # 2 s when idle
_DEAF = re.compile(rb"Could not start .*listener.*", re.IGNORECASE)


class MqttBroker(ServerProcess):
    """HiveMQ CE, in memory, bound to 127.0.0.1, MQTT 3.1.1 and 5 on the same ports; not started yet.

    It lets everybody in. With ``access`` that service is asked who may connect, and who may publish and subscribe
    where; nobody may when it does not answer, and who publishes what he may not is disconnected. ``max_inflight`` is
    the most unacknowledged messages it sends a client (it would send 50 at most). ``port`` fixes the plain port.

    A process of its own, which dies with this one; stopping or killing it loses sessions and messages. The ports stay
    the same when it is started again. The methods block; any one thread at a time may call them.
    """

    what = "the MQTT broker"
    stop_s = 20.0  # at once, but for the one that writes the class data

    # A subclass may add listeners with TLS. The tests have one.
    extra_listeners: Sequence[str] = ()

    def extra_listeners_xml(self, directory: Path) -> str:  # noqa: ARG002 - for a subclass
        """``extra_listeners`` as XML of the configuration. Their files may be in the broker's ``directory``."""
        return ""

    def __init__(
        self,
        *,
        access: AccessEndpoint | None = None,  # None: everybody may do everything
        max_inflight: int = 1000,
        port: int | None = None,  # None: any free one
        heap_mib: int = 512,
        progress: ProgressCallback = print_progress,
    ) -> None:
        self._access = access
        self._max_inflight = max_inflight
        self._port = port
        self._heap_mib = heap_mib
        self._progress = progress
        self._ports: dict[str, int] = {}
        self._class_data: ClassData | None = None

    def __repr__(self) -> str:
        return f"<MqttBroker port={self._ports.get('tcp')} alive={self.alive}>"

    @property
    def port(self) -> int:
        """MQTT over TCP."""
        return self.listener("tcp")

    @property
    def websocket_port(self) -> int:
        """MQTT over WebSocket, path ``/mqtt``."""
        return self.listener("websocket")

    @property
    def log_file(self) -> Path:
        """What the broker has to say; removed with it."""
        assert self._temporary is not None
        return self._temporary / "mqtt.log"

    def start(self) -> None:
        """Start it, or start it again after :meth:`kill`; returns when it listens (2 s). Does nothing while it runs.

        Raises StartError, PortTakenError, DownloadError or JavaError; nothing is left running then.
        """
        if self.alive:
            return
        self._start_at_free_ports(self._launch, again=self._port is None and self._reservation is None)

    def stop(self) -> None:
        super().stop()
        if self._class_data is not None:
            self._class_data.end()
        self._ports = {}

    def listener(self, name: str) -> int:
        if name not in self._ports:
            raise EmbeddedError(f"This MQTT broker has no {name} port: it is not started.")
        return self._ports[name]

    def _launch(self) -> None:
        jars = resolve("hivemq", self._progress)
        java = ensure_java(self._progress)
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="gateway-mqtt-"))
        directory = self._temporary
        if self._reservation is None:
            names = ["tcp", "websocket", *self.extra_listeners]
            self._ports = dict(zip(names, self._reserve(len(names), self._port), strict=True))
        configuration, data = directory / "conf", directory / "data"
        configuration.mkdir(exist_ok=True)
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        (configuration / "config.xml").write_text(self._config_xml(directory))
        (configuration / "logback.xml").write_text(_LOGBACK)
        if self._class_data is None:
            self._class_data = ClassData(cache_directory() / "hivemq", java.home, jars)
        description = {
            "jvm_flags": self._class_data.flags(),
            "jvm_library": str(java.jvm_library),
            "classpath": [str(jar) for jar in jars],
            "heap_mib": self._heap_mib,
            "configuration": str(configuration),
            "data": str(data),
            "max_inflight": self._max_inflight,
            "access": None if self._access is None else asdict(self._access),
        }
        path = directory / "description.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(description))
        log = self.log_file
        argv = [sys.executable, "-P", str(_SCRIPT), str(path)]  # -P: our modules are not to hide the standard library
        self._process = GuardedProcess(argv, log=log, env=jvm_environment(), remove=[directory])
        wait_for_line(self._process, _READY, time.monotonic() + _START_SECONDS, "The MQTT broker")
        # It calls itself started with listeners missing, and only logs which.
        if deaf := _DEAF.search(log.read_bytes(), self._process.log_offset):
            raise PortTakenError(f"A port of the MQTT broker is taken: {deaf[0].decode(errors='replace')}")

    def _config_xml(self, directory: Path) -> str:
        return f"""<?xml version="1.0"?>
<hivemq>
  <listeners>
    <tcp-listener>{bound(self.port)}</tcp-listener>
    <websocket-listener>{bound(self.websocket_port)}{WEBSOCKET}</websocket-listener>
    {self.extra_listeners_xml(directory)}
  </listeners>
  <mqtt>
    <queued-messages><max-queue-size>1000000</max-queue-size><strategy>discard</strategy></queued-messages>
    <packets><max-packet-size>268435460</max-packet-size></packets>
    <receive-maximum><server-receive-maximum>1000</server-receive-maximum></receive-maximum>
  </mqtt>
  <anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics>
  <persistence><mode>in-memory</mode></persistence>
</hivemq>
"""


WEBSOCKET = "<path>/mqtt</path><subprotocols><subprotocol>mqtt</subprotocol></subprotocols>"
_LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="out"/></root>
</configuration>
"""


def bound(port: int) -> str:
    return f"<port>{port}</port><bind-address>127.0.0.1</bind-address>"
