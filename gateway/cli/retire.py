"""``gateway retire``: stop a running worker for good, so that its MQTT sessions keep no share of the messages."""

from __future__ import annotations

__all__ = ["add_parser"]

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus, GatewayError

if TYPE_CHECKING:
    import argparse

POLL_S = 0.05


def add_parser(commands: Any) -> None:
    """Add ``gateway retire`` to the command's parser."""
    parser = commands.add_parser(
        "retire",
        help="stop a worker for good: its sessions end at the broker",
        description=(
            "Stop the worker that runs with these settings on this machine, for good: it unsubscribes, drains, and "
            "ends its MQTT sessions, so that a shared subscription sends it nothing more. To stop it and come back, "
            "send SIGTERM: the sessions then wait for it."
        ),
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings of the worker (default: $GATEWAY_CONFIG, then ./gateway.toml)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from config.load import load
    from gateway.identity import holder

    settings = load(arguments.config).settings
    pid = holder(settings.data_dir, settings.worker)
    if pid is None:
        raise GatewayError(
            f"No worker {settings.worker} of instance {settings.instance!r} runs with data_dir "
            f"{settings.data_dir.absolute()}. Check --config and the working directory."
        )
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + settings.shutdown_timeout.total_seconds() + 5
    while holder(settings.data_dir, settings.worker) == pid:
        if time.monotonic() > deadline:
            print(f"Process {pid} did not stop within shutdown_timeout; its log says what it waits for.")
            return ExitStatus.UNDRAINED
        time.sleep(POLL_S)  # another process's lock: there is nothing to wait on but its absence
    print(f"Worker {settings.worker} of instance {settings.instance} has retired (process {pid}).")
    return ExitStatus.OK
