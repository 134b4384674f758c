"""Free loopback ports that stay free until their server binds them, and again while that server is being restarted.

Binding port 0, closing it and handing the number on is a race twice over: another process may be given the same number,
and, since such numbers come from the kernel's range for outgoing connections, a client that keeps reconnecting to a
broker that is down can be given the broker's own port as its source and connect to itself; the broker then cannot
return. So ports are taken from below that range, and each is marked by a locked file that other users of this module
see.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from gateway.local.runtime.errors import PortTakenError

_LOWEST = 15_000
_ENOUGH = 2_000  # a range with fewer ports than this is not worth confining ourselves to


def is_free(port: int) -> bool:
    """Whether a server could bind ``port`` now; connections in TIME_WAIT do not count, as they do not for servers."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class PortReservation:
    """Ports that no other reservation on this machine (and user) holds, until :meth:`release` or the process's end."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self._files: list[int] = []

    def take(self, port: int) -> bool:
        """Reserve ``port``; False when another reservation or a listening server has it."""
        directory = Path(tempfile.gettempdir()) / f"gateway-ports-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
        file = os.open(directory / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        if not is_free(port):
            os.close(file)
            return False
        self.ports.append(port)
        self._files.append(file)
        return True

    def absorb(self, other: PortReservation) -> None:
        """Take over another reservation's ports, which end with this one then."""
        self.ports += other.ports
        self._files += other._files
        other.ports, other._files = [], []

    def release(self) -> None:
        """Give all ports back. Safe to call twice."""
        for file in self._files:
            with contextlib.suppress(OSError):
                os.close(file)
        self._files.clear()
        self.ports.clear()


def reserve_ports(count: int) -> PortReservation:
    """Reserve ``count`` free loopback ports (in ``.ports``). Raises PortTakenError when the machine has none left."""
    reservation = PortReservation()
    candidates = _candidates()
    for port in random.Random().sample(candidates, len(candidates)):  # noqa: S311 - spreads the choice, guards nothing
        if len(reservation.ports) == count:
            break
        reservation.take(port)
    if len(reservation.ports) < count:
        reservation.release()
        raise PortTakenError(f"No {count} free ports are left on 127.0.0.1 in {candidates[0]}-{candidates[-1]}.")
    return reservation


def _candidates() -> range:
    """What to choose from: below the kernel's range for outgoing connections, else above it, else any high port."""
    first, last = 49_152, 65_535  # what IANA and macOS say
    with contextlib.suppress(OSError, ValueError):
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if first - _LOWEST >= _ENOUGH:
        return range(_LOWEST, first)
    if 65_536 - (last + 1) >= _ENOUGH:
        return range(last + 1, 65_536)
    return range(_LOWEST, 65_536)
