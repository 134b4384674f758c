"""The running gateway of a data directory, for commands on the same machine: find it, ask it, wait for it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from config.errors import ExitStatus, GatewayError
from gateway.base.reports import Operation, Outcome, ask, is_busy, read_outcome
from gateway.data_dir.directory import holder
from gateway.supervisor.place import NAME, find_supervisor

if TYPE_CHECKING:
    import signal

    from config.settings import Settings
    from gateway.base.reload_plan import Wish

_POLL_S: Final = 0.05
_SILENT_S: Final = 30.0  # a gateway reports at once that an operation has begun


class NotRunningError(GatewayError):
    """No gateway runs with these settings here."""

    exit_status = ExitStatus.NOT_FOUND


@dataclass(frozen=True, slots=True)
class Running:
    """A process that takes commands: a supervisor, or a worker without one. ``who`` is its name in the directory."""

    directory: Path
    who: str
    pid: int

    @property
    def supervises(self) -> bool:
        """Whether it has workers below it."""
        return self.who == NAME

    def command(self, number: signal.Signals, operation: Operation, wish: Wish | None = None) -> Outcome:
        """Send the signal, with a wish if it takes one, and wait for the outcome; blocks for as long as that takes.

        Raises GatewayError if the process ends or reports nothing, or another command's request is pending."""
        before = read_outcome(self.directory, self.who, self.pid, operation)
        try:
            if wish is not None:
                ask(self.directory, self.who, wish)
            os.kill(self.pid, number)
        except PermissionError as error:
            raise GatewayError(
                f"The gateway (process {self.pid}) is another user's, and {self.directory.absolute()} with it: run "
                "this as that user, or as root."
            ) from error
        except ProcessLookupError:
            raise self._ended() from None
        except OSError as error:
            raise GatewayError(f"{self.directory.absolute()} takes no request: {error.strerror}.") from error
        until_s = time.monotonic() + _SILENT_S
        while True:
            request = 0 if wish is None else wish.number
            outcome = read_outcome(self.directory, self.who, self.pid, operation, request)
            ours = outcome.count > before.count if wish is None else outcome.request == wish.number
            if ours and outcome.ok is not None:
                return outcome
            if not self._lives():
                raise self._ended()
            # A folder that became read-only keeps the report of an operation under way for ever.
            if is_busy(self.directory, self.who, self.pid) and os.access(self.directory, os.W_OK):
                until_s = time.monotonic() + _SILENT_S
            elif time.monotonic() > until_s:
                raise GatewayError(
                    f"The gateway (process {self.pid}) has the signal, and reports nothing in "
                    f"{self.directory.absolute()}. Check whether that disk is full or read-only; its log says what "
                    "became of it."
                )
            time.sleep(_POLL_S)  # another process's file: there is nothing to wait on

    def _ended(self) -> GatewayError:
        return GatewayError(f"The gateway (process {self.pid}) has ended meanwhile; its log says why.")

    def _lives(self) -> bool:
        if self.supervises:
            return find_supervisor(self.directory) == self.pid
        return holder(self.directory, int(self.who.removeprefix("worker-").removesuffix(".reload"))) == self.pid


def find_running(settings: Settings) -> Running:
    """The process that takes commands for these settings. Raises NotRunningError."""
    directory = settings.data_dir
    pid = find_supervisor(directory)
    if pid is not None:
        return Running(directory, NAME, pid)
    pid = holder(directory, settings.worker)
    if pid is not None:
        return Running(directory, f"worker-{settings.worker}.reload", pid)
    raise NotRunningError(
        f"No gateway of instance {settings.instance!r} runs with data_dir {directory.absolute()}. Check --config and "
        "the working directory."
    )
