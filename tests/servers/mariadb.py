"""A real MariaDB: TCP with and without TLS."""

import re
import subprocess
from pathlib import Path
from typing import ClassVar

import pymysql

from tests.programs import find
from tests.servers.loopback import LoopbackServer

PASSWORD = "my-Sécret-7732"


class Mariadb(LoopbackServer):
    """Database ``mqtt``; user ``gateway`` with ``PASSWORD`` may read what is granted to it, ``tlsonly`` with TLS."""

    package: ClassVar[str] = "mariadb-server"
    account: ClassVar[str | None] = "mysql"
    ready: ClassVar[re.Pattern[bytes]] = re.compile(rb"ready for connections")

    def _prepare(self) -> None:
        self._binary = find("mariadbd", self.package)
        installer = find("mariadb-install-db", self.package)
        self.hand_over()
        command = [
            *self.as_account(), installer, "--no-defaults", f"--datadir={self.directory / 'data'}",
            "--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-flush-log-at-trx-commit=2",
            "--innodb-log-file-size=4M", "--innodb-buffer-pool-size=8M",
        ]  # fmt: skip
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=120)
        assert ran.returncode == 0, f"mariadb-install-db: {ran.stdout}{ran.stderr}"
        self.hand_over()

    def _command(self) -> list[str | Path]:
        return [
            self._binary, "--no-defaults", f"--datadir={self.directory / 'data'}", f"--port={self.port}",
            "--bind-address=127.0.0.1", f"--socket={self.directory / 'mariadb.sock'}",
            f"--pid-file={self.directory / 'mariadb.pid'}", f"--ssl-cert={self.certificate.certificate}",
            f"--ssl-key={self.certificate.key}", f"--ssl-ca={self.authority.ca_file}",
            "--innodb-flush-log-at-trx-commit=2", "--innodb-log-file-size=4M", "--innodb-buffer-pool-size=8M",
            "--performance-schema=OFF", "--skip-log-bin", "--character-set-server=utf8mb4",
        ]  # fmt: skip

    def create(self) -> None:
        """The database and its users; once, after the first start."""
        self.sql("CREATE DATABASE mqtt")
        self.sql(f"CREATE USER gateway@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
        self.sql(f"CREATE USER gateway@localhost IDENTIFIED BY '{PASSWORD}'")
        for host in ("'127.0.0.1'", "localhost"):
            self.sql(f"CREATE USER tlsonly@{host} IDENTIFIED BY '{PASSWORD}' REQUIRE SSL")

    def sql(self, text: str, arguments: tuple[object, ...] = ()) -> tuple[tuple[object, ...], ...]:
        """The rows of one statement, run as root."""
        connection = pymysql.connect(
            unix_socket=str(self.directory / "mariadb.sock"), user="root", autocommit=True, charset="utf8mb4"
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(text, arguments or None)
            return tuple(cursor.fetchall())
