"""``gateway retire``: stops a running gateway for good and ends its MQTT sessions."""

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Callable

from config.errors import ExitStatus, GatewayError
from config.loading.load import Loaded, require_runnable
from config.settings import Settings
from gateway.base import logs
from gateway.base.reports import read_outcome
from gateway.cli.arguments import load_noted
from gateway.cli.parser import Commands
from gateway.cli.table import tell
from gateway.data_dir.directory import holder, slots
from gateway.supervisor.place import NAME, find_supervisor
from gateway.supervisor.running import NotRunningError
from gateway.worker.run import run_worker

POLL_S = 0.05
_GRACE_S = 5.0


def add_parser(commands: Commands) -> None:
    commands.verb("retire", _run, json="")


def _run(arguments: argparse.Namespace) -> int:
    """Stop all workers that run with these settings on this machine, for good: they unsubscribe, drain, and end their
    MQTT sessions, so that a shared subscription sends them nothing more. For a stop with a later start send SIGTERM:
    the sessions then wait. When no worker runs, this command itself takes their slots in data_dir one after the other,
    drains and ends the sessions, and releases the slots."""
    loaded = load_noted(arguments.config)
    settings = loaded.settings
    supervisor = find_supervisor(settings.data_dir)
    if supervisor is not None:
        return _retire_supervised(settings, supervisor)
    pid = holder(settings.data_dir, settings.worker)
    if pid is None and (left := slots(settings.data_dir)):
        return _retire_slots(loaded, left)
    if pid is None:
        raise NotRunningError(
            f"No gateway of instance {settings.instance!r} runs with data_dir {settings.data_dir.absolute()}, and none "
            "has left sessions there. Check --config and the working directory."
        )
    if not _stop_for_good(settings, pid, lambda: holder(settings.data_dir, settings.worker) == pid):
        return ExitStatus.UNDRAINED
    if settings.worker in slots(settings.data_dir):
        tell(
            f"Worker {settings.worker} of instance {settings.instance} has stopped (process {pid}), but not all was "
            "drained, or one of its MQTT sessions has not ended; its log says which. gateway retire goes on with it."
        )
        return ExitStatus.UNDRAINED
    tell(f"Worker {settings.worker} of instance {settings.instance} has retired (process {pid}).")
    if left := {slot for slot in slots(settings.data_dir) if holder(settings.data_dir, slot) is None}:
        tell(
            f"Something is left of worker {', '.join(map(str, sorted(left)))}, which does not run: in its spool, or an "
            "MQTT session. gateway retire again drains and ends it."
        )
        return ExitStatus.UNDRAINED
    return ExitStatus.OK


def _stop_for_good(settings: Settings, process: int, runs: Callable[[], bool]) -> bool:
    """Have a worker or supervisor retire. Returns whether it ended in time; ``runs`` says if it still does."""
    try:
        os.kill(process, signal.SIGUSR1)
    except PermissionError as error:
        raise GatewayError(f"Process {process} is another user's: run this as that user, or as root.") from error
    deadline = time.monotonic() + settings.shutdown_timeout.total_seconds() + _GRACE_S
    while runs():
        if time.monotonic() > deadline:
            tell(f"Process {process} did not stop within shutdown_timeout; its log says what it waits for.")
            return False
        time.sleep(POLL_S)  # its lock cannot be waited for
    return True


def _retire_supervised(settings: Settings, supervisor: int) -> int:
    if not _stop_for_good(settings, supervisor, lambda: find_supervisor(settings.data_dir) == supervisor):
        return ExitStatus.UNDRAINED
    outcome = read_outcome(settings.data_dir, NAME, supervisor, "stop")
    if not outcome.ok:
        tell(f"Instance {settings.instance} has stopped, but not all was drained: {outcome.sentence}".rstrip())
        return ExitStatus.UNDRAINED
    if left := slots(settings.data_dir):
        tell(
            f"Instance {settings.instance} has stopped (process {supervisor}), but something is left of worker "
            f"{', '.join(map(str, sorted(left)))}: in its spool, or an MQTT session; the log says what. gateway retire "
            "goes on with it."
        )
        return ExitStatus.UNDRAINED
    tell(f"Instance {settings.instance} has retired (process {supervisor}): no session of its workers remains.")
    return ExitStatus.OK


def _retire_slots(loaded: Loaded, left: set[int]) -> int:
    """Drain and end the sessions of slots without a worker, in this process."""
    require_runnable(loaded)
    for slot in sorted(left):
        # Any free port: nothing scrapes it, and another process may have the usual one.
        http = loaded.settings.http.model_copy(update={"port": 0})
        settings = loaded.settings.model_copy(update={"http": http, "worker": slot})
        logs.configure(settings.log, context={"instance": settings.instance, "worker": slot})
        report, signals = asyncio.run(run_worker(settings, retiring=True))
        if not report.clean:
            return ExitStatus.UNDRAINED
        signals.reraise()
        if slot in slots(settings.data_dir):
            tell(
                f"Worker {slot} of instance {settings.instance} is drained, but an MQTT session of it has not ended: "
                "another client uses it. The log says which."
            )
            return ExitStatus.UNDRAINED
        tell(f"Worker {slot} of instance {settings.instance} has retired; it did not run.")
    return ExitStatus.OK
