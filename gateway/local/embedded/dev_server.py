"""The process that owns the background brokers. ``dev.py`` runs it: ``python -m gateway.local.embedded.dev_server
JSON``."""

import hmac
import json
import os
import secrets
import signal
import socketserver
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from config.errors import GatewayError
from gateway.local.embedded.access_process import AccessProcess
from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from gateway.local.runtime.errors import PortTakenError
from gateway.local.runtime.progress import quiet
from gateway.local.runtime.server import Server


def main(description: dict[str, Any]) -> int:
    """Run the brokers until told to stop, by the control port or a signal. Prints one line when they run or cannot."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: stopping.set())
    data = description["data"]
    kafka = KafkaCluster(
        description["nodes"], Path(data) if data else None, port=description["kafka_port"], progress=quiet
    )
    state_file = Path(description["state"])
    access = AccessProcess(Path(description["auth"])) if description["auth"] else None
    try:
        if access is not None:
            access.prepare()
    except GatewayError as error:
        _say({"error": str(error)})
        return 1
    service = None if access is None else access.service
    mqtt = MqttBroker(access=service, port=description["mqtt_port"], progress=quiet)
    # In the order of their end: producers into Kafka read their messages from the MQTT broker.
    servers: list[Server] = [mqtt, kafka] if access is None else [mqtt, access, kafka]
    try:
        if not _start(servers, stopping):
            return 1
        server = _ControlServer(kafka, mqtt, access, stopping, description["project"])
        threading.Thread(target=server.serve_forever, name="control", daemon=True).start()
        _write_private(state_file, {"pid": os.getpid(), "port": server.server_address[1], "secret": server.secret})
        _say({"brokers": server.brokers()})
        stopping.wait()
    finally:
        state_file.unlink(missing_ok=True)
        for one in servers:
            one.stop()
    return 0


def _start(servers: list[Server], stopping: threading.Event) -> bool:
    """Start all at the same time; False when one does not come up, with the reason said, or on a signal."""
    with ThreadPoolExecutor(len(servers)) as threads:
        results = [threads.submit(server.start) for server in servers]
    errors = [error for result in results if (error := result.exception()) is not None]
    for error in errors:
        if not isinstance(error, GatewayError):
            raise error
    if errors:
        is_taken = any(isinstance(error, PortTakenError) for error in errors)
        _say({"error": "\n".join(map(str, errors)), "port_taken": is_taken})
    return not errors and not stopping.is_set()


class _ControlServer(socketserver.ThreadingTCPServer):
    """Answers ``status`` and ``stop`` to who knows the secret in the state file."""

    daemon_threads = True

    def __init__(
        self,
        kafka: KafkaCluster,
        mqtt: MqttBroker,
        access: AccessProcess | None,
        stopping: threading.Event,
        project: str,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.secret = secrets.token_urlsafe(24)
        self.stopping = stopping
        self._kafka, self._mqtt, self._access = kafka, mqtt, access
        self._addresses = {
            "kafka": kafka.bootstrap,
            "mqtt": f"mqtt://127.0.0.1:{mqtt.port}",
            "websocket": f"ws://127.0.0.1:{mqtt.websocket_port}/mqtt",
            "pid": os.getpid(),
            "logs": str(kafka.log_file(1).parent),
            "access": "" if access is None else str(access.config),
            "secrets": "" if access is None else str(access.gateway_password_file.parent.parent),
            "project": project,
        }

    def brokers(self) -> dict[str, Any]:
        """The fields of ``dev.DevBrokers``."""
        failed = [f"Kafka node {n}" for n in range(1, self._kafka.nodes + 1) if not self._kafka.alive(n)]
        failed += [] if self._mqtt.alive else ["MQTT broker"]
        if self._access is not None and self._access.returncode is not None:
            failed.append("Access service")
        return {**self._addresses, "failed": failed}


class _Handler(socketserver.StreamRequestHandler):
    server: _ControlServer
    timeout = 10.0  # for a client that connects and says nothing

    def handle(self) -> None:
        try:
            request = json.loads(self.rfile.readline(4096))
            secret, command = str(request["secret"]), request["command"]
        except (ValueError, KeyError, TypeError, OSError):
            return
        if not hmac.compare_digest(secret, self.server.secret):
            return
        self.wfile.write(json.dumps({"brokers": self.server.brokers()}).encode() + b"\n")
        if command == "stop":
            self.server.stopping.set()
            threading.Event().wait()  # this process's end closes the connection, which tells that all are gone


def _write_private(path: Path, state: dict[str, Any]) -> None:
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps(state))
    draft.replace(path)


def _say(line: dict[str, Any]) -> None:
    """To who started us, who reads one line and closes the pipe."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    os.dup2(2, 1)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
