"""What servers on this machine have in common: the ``with`` block, other ports where one is taken, signals."""

from __future__ import annotations

import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gateway.local.runtime.errors import EmbeddedError, PortTakenError
from gateway.local.runtime.ports import PortReservation, reserve_ports

if TYPE_CHECKING:
    from gateway.local.runtime.process import GuardedProcess


class Server(ABC):
    """Runs inside a ``with`` block. ``what`` is its name in messages."""

    what: str
    _reservation: PortReservation | None = None
    _temporary: Path | None = None  # a folder that goes with the server

    @abstractmethod
    def start(self) -> None: ...

    def stop(self) -> None:
        """Give the ports back and remove what is temporary."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_at_free_ports(self, launch: Callable[[], None], *, again: bool) -> None:
        """Call ``launch``; with ``again`` twice more, while it raises PortTakenError. A failure stops the server."""
        for left in (2, 1, 0) if again else (0,):
            try:
                launch()
            except PortTakenError:
                self.stop()
                if not left:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return

    def _reserve(self, count: int, first: int | None) -> list[int]:
        """``count`` ports, of which ``first`` is one if given. Raises PortTakenError where it is taken."""
        self._reservation = reservation = PortReservation()
        if first is not None and not reservation.take(first):
            raise PortTakenError(
                f"Port {first} on 127.0.0.1 is in use: {self.what} cannot listen there. Choose another."
            )
        reservation.absorb(reserve_ports(count - len(reservation.ports)))
        return reservation.ports


class ServerProcess(Server):
    """A server that is one process; ``_process`` is None before its first start and after :meth:`stop`."""

    _process: GuardedProcess | None = None
    stop_s = 10.0  # for an orderly end

    def stop(self) -> None:
        """Stop it in an orderly way (a frozen one is continued)."""
        if self._process is not None:
            self._process.terminate(self.stop_s)
            self._process = None
        super().stop()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether its process exists (a frozen one does)."""
        return self._process is not None and self._process.returncode is None

    def kill(self) -> None:
        """SIGKILL: connections are reset. :meth:`start` starts it at the same ports."""
        self._running().kill()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as behind a dead network."""
        self._running().signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._running().signal(signal.SIGCONT)

    def _running(self) -> GuardedProcess:
        if self._process is None:
            raise EmbeddedError(f"{self.what[0].upper()}{self.what[1:]} has not been started.")
        return self._process
