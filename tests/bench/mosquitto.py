"""A real mosquitto on a free loopback port, and what it has carried, read from outside.

mosquitto moves MQTT bytes with read(2) and write(2), which the kernel counts in /proc/<pid>/io. So the moment the
first queued message leaves it, and the moment the last acknowledgement arrives, can be seen without a proxy in the
path and without asking the gateway.
"""

import getpass
import shutil
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.bench.processes import BenchError, free_port, spawn, stop, wait_until

_BINARY: Final = "/usr/sbin/mosquitto"  # Debian's place, seldom in a user's PATH

# Unlimited queue and window: the row is about the gateway, not about what the broker holds back. No delay of small
# packets, as EMQX has it.
_CONFIG: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
max_queued_messages 0
max_inflight_messages 0
set_tcp_nodelay true
log_type error
user {user}
"""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes mosquitto has read and written so far."""

    read: int
    written: int


class Mosquitto:
    """A broker for one row; a context manager. Raises BenchError when mosquitto is missing or does not listen within
    10 s.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self.port = 0
        self.pid = 0

    def __enter__(self) -> Self:
        binary = shutil.which("mosquitto") or _BINARY
        if not Path(binary).exists():
            raise BenchError(
                "mosquitto is not installed; rows with a real broker need it (Debian: apt-get install mosquitto)"
            )
        self._directory.mkdir(parents=True)
        self.port = free_port()
        config = self._directory / "mosquitto.conf"
        config.write_text(_CONFIG.format(port=self.port, user=getpass.getuser()))
        log = self._directory / "mosquitto.log"
        process = spawn([binary, "-c", str(config)], log, self._directory)
        self._stack.callback(stop, process, 5.0)
        self.pid = process.pid
        wait_until(lambda: process.poll() is not None or self._listens(), "mosquitto listening", 10)
        if process.poll() is not None:
            self._stack.close()
            raise BenchError(f"mosquitto ended at once: {log.read_text()[-500:]}")
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def traffic(self) -> Traffic:
        """What has passed through it so far."""
        fields = dict(line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text().splitlines())
        return Traffic(int(fields["rchar"]), int(fields["wchar"]))

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
