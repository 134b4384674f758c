"""A real mosquitto: the load-bearing second opinion beside the embedded broker.

Two defects of Debian's 2.0.11 to know when a test looks odd: a killed member of a shared subscription with a clean
session loses its unacknowledged messages, and the receive maximum grows with each acknowledgement.
"""

import base64
import hashlib
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from gateway.local.runtime.ports import PortReservation, reserve_ports
from gateway.local.runtime.process import GuardedProcess, wait_for_line
from gateway.local.runtime.server import ServerProcess
from tests.brokers.certificates import Certificates, make_certificates
from tests.programs import find
from tests.waiting import wait_until

_READY = re.compile(rb"mosquitto version \S+ running")
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0  # with persistence it writes its database first


class Mosquitto(ServerProcess):
    """mosquitto on 127.0.0.1: TCP and WebSocket, with ``tls`` also TLS and secure WebSocket; not started yet.

    Sessions outlive their connections and queue without limit; with ``persistence`` they outlive an orderly stop too.
    ``users`` (name → password) are the only ones let in; ``acl`` is the text of an ACL file, ``config`` further lines
    of the configuration. Ports stay the same when it is started again.
    """

    what = "mosquitto"

    def __init__(
        self,
        *,
        users: Mapping[str, str] | None = None,
        acl: str | None = None,
        tls: bool = False,
        require_certificate: bool = False,
        max_inflight: int = 1000,
        persistence: bool = False,
        config: str = "",
    ) -> None:
        self._binary = find("mosquitto", "mosquitto")
        self._users = users
        self._acl = acl
        self._tls = tls
        self._require_certificate = require_certificate
        self._max_inflight = max_inflight
        self._persistence = persistence
        self._config = config
        self._certificates: Certificates | None = None
        self._directory: Path | None = None
        self._ports = PortReservation()

    @property
    def port(self) -> int:
        return self._ports.ports[0]

    @property
    def websocket_port(self) -> int:
        return self._ports.ports[1]

    @property
    def tls_port(self) -> int:
        return self._ports.ports[2]

    @property
    def wss_port(self) -> int:
        return self._ports.ports[3]

    @property
    def certificates(self) -> Certificates:
        assert self._certificates is not None, "made without tls=True, or not started"
        return self._certificates

    @property
    def ca_file(self) -> Path:
        return self.certificates.ca_file

    def start(self) -> None:
        """Start it, or start it again after :meth:`kill` or :meth:`shut_down`; returns when it listens."""
        if self.alive:
            return
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="gateway-mosquitto-"))
            self._ports.absorb(reserve_ports(4 if self._tls else 2))
            if self._tls:
                self._certificates = make_certificates(self._directory / "certificates")
            (self._directory / "mosquitto.conf").write_text(self._text())
        self._process = GuardedProcess(
            [self._binary, "-c", self._directory / "mosquitto.conf"],
            log=self._directory / "mosquitto.log",
            remove=[self._directory],
        )
        try:
            wait_for_line(self._process, _READY, time.monotonic() + _START_SECONDS, "mosquitto")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it and remove its files."""
        if self._process is not None:
            self._process.terminate(_STOP_SECONDS)
            self._process = None
        self._ports.release()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = self._certificates = None

    def shut_down(self) -> None:
        """Stop it in an orderly way, keeping its files and ports for :meth:`start`."""
        self._running().terminate(_STOP_SECONDS)

    def save(self) -> None:
        """Write sessions and messages to its file now, where :meth:`kill` and :meth:`start` find them; needs
        ``persistence``. Returns when the file is written."""
        assert self._directory is not None
        assert self._persistence, "made without persistence"
        file = self._directory / "mosquitto.db"
        before = file.stat().st_mtime_ns if file.exists() else 0
        self._running().signal(signal.SIGUSR1)
        # It is renamed into place when it is whole.
        wait_until(lambda: file.exists() and file.stat().st_mtime_ns != before, "mosquitto writes its file")

    def change_users(self, users: Mapping[str, str]) -> None:
        """Other users from now on, where there were some; whose password is no longer right is disconnected."""
        assert self._users, "made without users"
        self._users = users
        self._write_users()
        self._running().signal(signal.SIGHUP)

    def log(self) -> str:
        """All it has logged."""
        assert self._directory is not None
        return (self._directory / "mosquitto.log").read_text(errors="replace")

    def _text(self) -> str:
        assert self._directory is not None
        lines = [
            "per_listener_settings false",
            "log_dest stderr",
            "log_type all",
            "connection_messages true",
            "max_queued_messages 0",
            "max_queued_bytes 0",
            f"max_inflight_messages {self._max_inflight}",
            "set_tcp_nodelay true",
            f"allow_anonymous {'false' if self._users else 'true'}",
        ]
        if os.geteuid() == 0:
            lines.append("user root")  # it would become a user that may not read our temporary directory
        if self._persistence:
            lines += ["persistence true", f"persistence_location {self._directory}/"]
        if self._users:
            lines.append(f"password_file {self._write_users()}")
        if self._acl is not None:
            acl = self._directory / "acl"
            acl.write_text(self._acl)
            lines.append(f"acl_file {acl}")
        lines += [self._config]
        lines += [f"listener {self.port} 127.0.0.1"]
        # Without the domain, websockets of 2.0.11 listen on every address, whatever the line before says.
        websocket = ["socket_domain ipv4", "protocol websockets"]
        lines += [f"listener {self.websocket_port} 127.0.0.1", *websocket]
        if self._tls:
            tls = [
                f"cafile {self.certificates.ca_file}",
                f"certfile {self.certificates.server_certificate}",
                f"keyfile {self.certificates.server_key}",
                f"require_certificate {str(self._require_certificate).lower()}",
            ]
            lines += [f"listener {self.tls_port} 127.0.0.1", *tls]
            lines += [f"listener {self.wss_port} 127.0.0.1", *websocket, *tls]
        return "\n".join(lines) + "\n"

    def _write_users(self) -> Path:
        assert self._directory is not None
        assert self._users is not None
        file = self._directory / "passwords"
        file.write_text("".join(f"{_password_line(*user)}\n" for user in self._users.items()))
        return file


def _password_line(name: str, password: str) -> str:
    """A line of a mosquitto 2 password file: PBKDF2 with SHA-512."""
    salt, iterations = os.urandom(12), 101
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)
    return f"{name}:$7${iterations}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
