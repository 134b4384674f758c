"""A real server on 127.0.0.1, in a temporary directory, as a user of its own where it refuses root."""

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import psutil

from gateway.local.runtime.ports import PortReservation, reserve_ports
from gateway.local.runtime.process import GuardedProcess, wait_for_line
from tests.servers.authority import Authority, Issued
from tests.waiting import wait_until

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


class LoopbackServer(ABC):
    """Started by ``start``; its ports and data stay the same when it is started again after ``kill`` or ``halt``.

    Every server speaks TLS too, with a certificate for localhost and 127.0.0.1 from ``authority``.
    """

    package: ClassVar[str]  # Debian's name
    account: ClassVar[str | None] = None  # the user it runs as when we are root
    ports: ClassVar[int] = 1
    ready: ClassVar[re.Pattern[bytes]]
    orderly: ClassVar[signal.Signals] = signal.SIGTERM  # the signal that stops it in order, without waiting for clients

    def __init__(self) -> None:
        self._account = self.account if os.geteuid() == 0 else None
        self.directory = Path(tempfile.mkdtemp(prefix=f"gateway-{self.package}-"))
        self.authority = Authority(self.directory / "authority")
        self.certificate: Issued = self.authority.issue("server")
        self._ports = PortReservation()
        self._process: GuardedProcess | None = None
        self._frozen: list[psutil.Process] = []
        try:
            self._ports.absorb(reserve_ports(self.ports))
            self._prepare()
        except BaseException:
            self.stop()
            raise

    @property
    def port(self) -> int:
        return self._ports.ports[0]

    @property
    def pid(self) -> int:
        return self._running().pid

    @abstractmethod
    def _prepare(self) -> None:
        """Make its data and configuration, once."""

    @abstractmethod
    def _command(self) -> list[str | Path]:
        """What starts it, in the foreground."""

    def create(self) -> None:  # noqa: B027 - most need nothing
        """What it holds for everybody, once, after the first start."""

    def start(self) -> None:
        """Start it, or again; returns when it is ready to answer."""
        if self._process is not None and self._process.returncode is None:
            return
        self._process = GuardedProcess(
            [*self.as_account(), *self._command()], log=self.directory / "server.log", remove=[self.directory]
        )
        deadline = time.monotonic() + _START_SECONDS
        try:
            wait_for_line(self._process, self.ready, deadline, self.package)
            # slapd says that it starts, and then listens.
            wait_until(
                lambda: all(map(_listens, self._ports.ports)), lambda: f"it listens: {self.log()}", _START_SECONDS
            )
        except BaseException:
            self._process.kill()
            raise

    def heal(self) -> None:
        """Whatever a test has done to it: thaw it, start it."""
        self.thaw()
        self.start()

    def halt(self) -> None:
        """Stop it in an orderly way, keeping data and ports."""
        self._running().signal(self.orderly)
        self._running().wait(_STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL to it and what it has started."""
        family = self._family()
        self._running().kill()
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, timeout=_STOP_SECONDS)

    def freeze(self) -> None:
        """SIGSTOP to it and what it has started (PostgreSQL's processes have groups of their own). The kernel goes
        on accepting connections for it."""
        self._frozen = self._family()
        for one in self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.suspend()
        self._running().signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT to what was frozen."""
        for one in self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()
        if self._frozen and self._process is not None:
            self._process.signal(signal.SIGCONT)
        self._frozen = []

    def stop(self) -> None:
        """End it and remove its files."""
        self.thaw()
        if self._process is not None:
            self.kill()  # its data goes too
            self._process = None
        self._ports.release()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """All it has logged."""
        return (self.directory / "server.log").read_text(errors="replace")

    def as_account(self) -> list[str]:
        """What a command begins with that is to run as the server's user. The signal at the parent's death has to be
        asked for again: a change of user forgets it."""
        if self._account is None:
            return []
        account = self._account
        return ["setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups", "--pdeathsig", "KILL", "--"]

    def hand_over(self) -> None:
        """Give the directory and all in it to the server's user."""
        if self._account is None:
            return
        entry = pwd.getpwnam(self._account)
        for path in (self.directory, *self.directory.rglob("*")):
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def _running(self) -> GuardedProcess:
        assert self._process is not None, f"{self.package} was not started"
        return self._process

    def _family(self) -> list[psutil.Process]:
        """The server and all its descendants."""
        try:
            one = psutil.Process(self.pid)
            return [one, *one.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
