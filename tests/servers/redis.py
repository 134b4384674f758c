"""A real Redis: with and without TLS, one password, one user with fewer rights."""

import re
from pathlib import Path
from typing import ClassVar

import redis

from tests.programs import find
from tests.servers.loopback import LoopbackServer

PASSWORD = "re-Secret-7733"


class Redis(LoopbackServer):
    """User ``default`` has ``PASSWORD`` and may do everything; ``reader`` has it too and may HMGET ``mqtt_user:*``."""

    package: ClassVar[str] = "redis-server"
    account: ClassVar[str | None] = "redis"
    ports: ClassVar[int] = 2
    ready: ClassVar[re.Pattern[bytes]] = re.compile(rb"Ready to accept connections")

    @property
    def tls_port(self) -> int:
        return self._ports.ports[1]

    def _prepare(self) -> None:
        self._binary = find("redis-server", self.package)
        (self.directory / "redis.conf").write_text(
            f"bind 127.0.0.1\nport {self.port}\ntls-port {self.tls_port}\ndir {self.directory}\n"
            f"tls-cert-file {self.certificate.certificate}\ntls-key-file {self.certificate.key}\n"
            f"tls-ca-cert-file {self.authority.ca_file}\ntls-auth-clients no\n"
            'save ""\nappendonly yes\nappendfsync no\ndaemonize no\n'
            f"requirepass {PASSWORD}\n"
            f"user reader on >{PASSWORD} ~mqtt_user:* +hmget +select\n"
        )
        self.hand_over()

    def _command(self) -> list[str | Path]:
        return [self._binary, self.directory / "redis.conf"]

    def admin(self) -> redis.Redis:
        """A blocking client of the default user; close it."""
        return redis.Redis(host="127.0.0.1", port=self.port, password=PASSWORD, protocol=2)
