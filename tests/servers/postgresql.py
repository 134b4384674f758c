"""A real PostgreSQL: TCP with and without TLS, SCRAM passwords."""

import re
import signal
import subprocess
from pathlib import Path
from typing import ClassVar

from tests.programs import find
from tests.servers.loopback import LoopbackServer

PASSWORD = "pg-Secret-7731"


class Postgresql(LoopbackServer):
    """Database ``mqtt``; user ``gateway`` with ``PASSWORD`` may read what is granted to it."""

    package: ClassVar[str] = "postgresql"
    account: ClassVar[str | None] = "postgres"
    orderly: ClassVar[signal.Signals] = signal.SIGINT
    ready: ClassVar[re.Pattern[bytes]] = re.compile(rb"database system is ready to accept connections")

    def _prepare(self) -> None:
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        self._bin = Path(find("postgres", self.package, also=":".join(map(str, folders)))).resolve().parent
        self.hand_over()
        data = self.directory / "data"
        self._run(
            ["initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"]
        )
        (data / "postgresql.auto.conf").write_text(
            f"port = {self.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n"
            "fsync = off\nshared_buffers = 16MB\nmax_connections = 40\npassword_encryption = 'scram-sha-256'\n"
            f"ssl = on\nssl_cert_file = '{self.certificate.certificate}'\nssl_key_file = '{self.certificate.key}'\n"
            "log_min_messages = warning\n"
        )
        (data / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 trust\n"
            "hostssl all tlsonly 127.0.0.1/32 scram-sha-256\n"
            "hostnossl all tlsonly 127.0.0.1/32 reject\n"
            "host all all 127.0.0.1/32 scram-sha-256\n"
        )
        self.certificate.key.chmod(0o600)
        self.hand_over()

    def _command(self) -> list[str | Path]:
        return [self._bin / "postgres", "-D", self.directory / "data"]

    def create(self) -> None:
        """The database and its user; once, after the first start."""
        self.sql("CREATE DATABASE mqtt", database="postgres")
        for role in ("gateway", "tlsonly"):
            self.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")

    def sql(self, text: str, *, database: str = "mqtt") -> str:
        """Run statements as the server's owner; the output, unaligned."""
        return self._run(
            [
                "psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-d", database,
                "-v", "ON_ERROR_STOP=1", "-XqAt", "-f", "-",
            ],
            text,
        )  # fmt: skip

    def _run(self, command: list[str | Path], text: str = "") -> str:
        program = [*self.as_account(), self._bin / str(command[0]), *command[1:]]
        ran = subprocess.run(program, input=text, capture_output=True, text=True, check=False, cwd="/", timeout=120)
        assert ran.returncode == 0, f"{command[0]}: {ran.stdout}{ran.stderr}"
        return ran.stdout.strip()
