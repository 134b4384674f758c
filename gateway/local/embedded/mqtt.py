"""A real MQTT broker, HiveMQ Community Edition, on this machine: for the demo, development and tests."""

from __future__ import annotations

__all__ = ["MqttBroker"]

import json
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self
from xml.sax.saxutils import escape

from gateway.local.embedded.certificates import Certificates, make_certificates
from gateway.local.runtime.errors import EmbeddedError, PortTakenError
from gateway.local.runtime.jars import resolve
from gateway.local.runtime.java import ensure_java, jvm_environment
from gateway.local.runtime.ports import PortReservation, reserve_ports
from gateway.local.runtime.process import GuardedProcess, wait_for_line
from gateway.local.runtime.progress import ProgressCallback, print_progress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from gateway.local.embedded.access import AccessEndpoint

_SCRIPT = Path(__file__).with_name("_hivemq.py")
_READY = re.compile(rb"^ready$", re.MULTILINE)
_START_SECONDS = 60.0  # 2 s when idle
_STOP_SECONDS = 10.0
_PORT_ATTEMPTS = 3
_DEAF = re.compile(rb"Could not start .*listener.*", re.IGNORECASE)

ClientCertificates = Literal["NONE", "OPTIONAL", "REQUIRED"]


class MqttBroker:
    """HiveMQ CE, in memory, bound to 127.0.0.1, MQTT 3.1.1 and 5 on the same ports; not started yet.

    ``users`` (name → password) are the only ones let in; None lets everybody in. With ``access`` that service is asked
    instead who may connect, and who may publish and subscribe where; nobody may when it does not answer, and who
    publishes what he may not is disconnected. ``tls`` adds a TLS and a secure WebSocket listener with a certificate
    from a CA made here. ``max_inflight`` is the most unacknowledged messages it sends a client (it would send 50 at
    most), ``queue`` the messages kept for an absent one. ``port`` fixes the plain port.

    A process of its own, which dies with this one; stopping or killing it loses sessions and messages. The ports stay
    the same when it is started again. The methods block; any one thread at a time may call them.
    """

    def __init__(
        self,
        users: Mapping[str, str] | None = None,
        *,
        access: AccessEndpoint | None = None,
        tls: bool = False,
        client_certificates: ClientCertificates = "NONE",
        max_inflight: int = 1000,
        queue: int = 1_000_000,
        max_packet_bytes: int = 268_435_460,
        port: int | None = None,
        heap_mib: int = 512,
        progress: ProgressCallback = print_progress,
    ) -> None:
        self.certificates: Certificates | None = None
        self._users = None if users is None else dict(users)
        self._access = access
        self._tls = tls
        self._client_certificates = client_certificates
        self._max_inflight = max_inflight
        self._queue = queue
        self._max_packet_bytes = max_packet_bytes
        self._port = port
        self._heap_mib = heap_mib
        self._progress = progress
        self._directory: Path | None = None
        self._reservation: PortReservation | None = None
        self._ports: dict[str, int] = {}
        self._process: GuardedProcess | None = None

    def __repr__(self) -> str:
        return f"<MqttBroker port={self._ports.get('tcp')} alive={self.alive}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """MQTT over TCP."""
        return self._listener("tcp")

    @property
    def websocket_port(self) -> int:
        """MQTT over WebSocket, path ``/mqtt``."""
        return self._listener("websocket")

    @property
    def tls_port(self) -> int:
        """MQTT over TLS."""
        return self._listener("tls")

    @property
    def wss_port(self) -> int:
        """MQTT over secure WebSocket, path ``/mqtt``."""
        return self._listener("wss")

    @property
    def log_file(self) -> Path:
        """What the broker has to say; removed with it."""
        assert self._directory is not None
        return self._directory / "mqtt.log"

    @property
    def ca_file(self) -> Path:
        """The PEM file a client verifies the TLS listeners with."""
        if self.certificates is None:
            raise EmbeddedError("This MQTT broker has no CA file: it was made without tls=True, or is not started.")
        return self.certificates.ca_file

    @property
    def pid(self) -> int:
        """The process id, for measuring it."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether its process exists (a frozen one does)."""
        return self._process is not None and self._process.returncode is None

    def start(self) -> None:
        """Start it, or start it again after :meth:`kill`; returns when it listens (2 s). Does nothing while it runs.

        Raises StartError, PortTakenError, DownloadError or JavaError; nothing is left running then.
        """
        if self.alive:
            return
        first = self._reservation is None
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._launch()
            except PortTakenError:
                self.stop()
                if self._port is not None or not first or attempt == _PORT_ATTEMPTS:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return

    def stop(self) -> None:
        """Stop it in an orderly way (a frozen one is continued), give its ports back and remove its files."""
        if self._process is not None:
            self._process.terminate(_STOP_SECONDS)
            self._process = None
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
        self._ports = {}
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
            self.certificates = None

    def kill(self) -> None:
        """SIGKILL: connections are reset, sessions are lost. :meth:`start` starts it at the same ports."""
        self._running().kill()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as behind a dead network."""
        self._running().signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._running().signal(signal.SIGCONT)

    def _running(self) -> GuardedProcess:
        if self._process is None:
            raise EmbeddedError("The MQTT broker has not been started.")
        return self._process

    def _listener(self, name: str) -> int:
        if name not in self._ports:
            reason = "it is not started" if not self._ports else "it was made without tls=True"
            raise EmbeddedError(f"This MQTT broker has no {name} port: {reason}.")
        return self._ports[name]

    def _launch(self) -> None:
        jars = resolve("hivemq", self._progress)
        java = ensure_java(self._progress)
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gateway-mqtt-"))
        if self._tls and self.certificates is None:
            self.certificates = make_certificates(self._directory / "certificates")
        if self._reservation is None:
            self._reserve()
        configuration, data = self._directory / "conf", self._directory / "data"
        configuration.mkdir(exist_ok=True)
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        (configuration / "config.xml").write_text(self._config_xml())
        (configuration / "logback.xml").write_text(_LOGBACK)
        description = {
            "jvm_library": str(java.jvm_library),
            "classpath": [str(jar) for jar in jars],
            "heap_mib": self._heap_mib,
            "configuration": str(configuration),
            "data": str(data),
            "max_inflight": self._max_inflight,
            "users": self._users,
            "access": None if self._access is None else asdict(self._access),
        }
        path = self._directory / "description.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(description))
        log = self.log_file
        argv = [sys.executable, "-P", str(_SCRIPT), str(path)]  # -P: our modules are not to hide the standard library
        self._process = GuardedProcess(argv, log=log, env=jvm_environment(), remove=[self._directory])
        wait_for_line(self._process, _READY, time.monotonic() + _START_SECONDS, "The MQTT broker")
        # It calls itself started with listeners missing, and only logs which.
        if deaf := _DEAF.search(log.read_bytes(), self._process.log_offset):
            raise PortTakenError(f"A port of the MQTT broker is taken: {deaf[0].decode(errors='replace')}")

    def _reserve(self) -> None:
        names = ["tcp", "websocket", *(["tls", "wss"] if self._tls else [])]
        self._reservation = PortReservation()
        if self._port is not None and not self._reservation.take(self._port):
            raise PortTakenError(
                f"Port {self._port} on 127.0.0.1 is in use: the MQTT broker cannot listen there. Choose another."
            )
        self._reservation.absorb(reserve_ports(len(names) - len(self._reservation.ports)))
        self._ports = dict(zip(names, self._reservation.ports, strict=True))

    def _config_xml(self) -> str:
        listeners = [
            f"<tcp-listener>{_bound(self.port)}</tcp-listener>",
            f"<websocket-listener>{_bound(self.websocket_port)}{_WEBSOCKET}</websocket-listener>",
        ]
        if self.certificates is not None:
            tls = _tls(self.certificates, self._client_certificates)
            listeners += [
                f"<tls-tcp-listener>{_bound(self.tls_port)}{tls}</tls-tcp-listener>",
                f"<tls-websocket-listener>{_bound(self.wss_port)}{_WEBSOCKET}{tls}</tls-websocket-listener>",
            ]
        return f"""<?xml version="1.0"?>
<hivemq>
  <listeners>
    {"".join(listeners)}
  </listeners>
  <mqtt>
    <queued-messages><max-queue-size>{self._queue}</max-queue-size><strategy>discard</strategy></queued-messages>
    <packets><max-packet-size>{self._max_packet_bytes}</max-packet-size></packets>
    <receive-maximum><server-receive-maximum>1000</server-receive-maximum></receive-maximum>
  </mqtt>
  <anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics>
  <persistence><mode>in-memory</mode></persistence>
</hivemq>
"""


_WEBSOCKET = "<path>/mqtt</path><subprotocols><subprotocol>mqtt</subprotocol></subprotocols>"
_LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="out"/></root>
</configuration>
"""


def _bound(port: int) -> str:
    return f"<port>{port}</port><bind-address>127.0.0.1</bind-address>"


def _tls(certificates: Certificates, mode: ClientCertificates) -> str:
    password = escape(certificates.password)
    key = f"<path>{escape(str(certificates.server_keystore))}</path><password>{password}</password>"
    trust = f"<path>{escape(str(certificates.truststore))}</path><password>{password}</password>"
    return (
        f"<tls><keystore>{key}<private-key-password>{password}</private-key-password></keystore>"
        f"<truststore>{trust}</truststore><client-authentication-mode>{mode}</client-authentication-mode></tls>"
    )
