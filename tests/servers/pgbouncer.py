"""A real PgBouncer in front of a PostgreSQL: each transaction may get another server connection, in turn."""

import re
from pathlib import Path
from typing import ClassVar

from tests.programs import find
from tests.servers.loopback import LoopbackServer
from tests.servers.postgresql import PASSWORD, Postgresql


class Pgbouncer(LoopbackServer):
    """Debian 12's (1.18) knows nothing of prepared statements: one is there or not as the next server has it."""

    package: ClassVar[str] = "pgbouncer"
    account: ClassVar[str | None] = "postgres"
    ready: ClassVar[re.Pattern[bytes]] = re.compile(rb"process up")

    def __init__(self, behind: Postgresql) -> None:
        self._behind = behind
        super().__init__()

    def _prepare(self) -> None:
        self._binary = find("pgbouncer", self.package)
        (self.directory / "users").write_text(f'"gateway" "{PASSWORD}"\n')
        (self.directory / "pgbouncer.ini").write_text(
            f"[databases]\nmqtt = host=127.0.0.1 port={self._behind.port} user=gateway password={PASSWORD} "
            "min_pool_size=3\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {self.directory}/users\n"
            "pool_mode = transaction\ndefault_pool_size = 3\nserver_round_robin = 1\n"
        )
        self.hand_over()

    def _command(self) -> list[str | Path]:
        return [self._binary, self.directory / "pgbouncer.ini"]
