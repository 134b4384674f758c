"""``gateway restart``: replace the running workers one after the other, without a pause in what they do."""

from __future__ import annotations

__all__ = ["add_parser"]

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from config.errors import ExitStatus, GatewayError

if TYPE_CHECKING:
    import argparse

POLL_S = 0.05


def add_parser(commands: Any) -> None:
    """Add ``gateway restart`` to the command's parser."""
    parser = commands.add_parser(
        "restart",
        help="replace the workers one after the other",
        description=(
            "Replace the workers that run with these settings on this machine, one after the other: each new one is "
            "warm before the old one lets go, so that its MQTT sessions are away for a fraction of a second. The "
            "settings stay those that the gateway has; new code of an upgraded package is taken."
        ),
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings of the gateway (default: $GATEWAY_CONFIG, then ./gateway.toml)",
    )
    parser.add_argument(
        "--reload", action="store_true", help="let the gateway read its settings again first, as SIGHUP does"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from config.load import load
    from gateway.supervisor.place import find_supervisor, read_outcome

    settings = load(arguments.config).settings
    directory = settings.data_dir
    operation: Literal["restart", "reload"] = "reload" if arguments.reload else "restart"
    pid = find_supervisor(directory)
    if pid is None:
        raise GatewayError(
            f"No supervisor of instance {settings.instance!r} runs with data_dir {directory.absolute()}. Check "
            "--config and the working directory. A worker without one (workers = 0) is stopped with SIGTERM and "
            "started again by whatever runs it."
        )
    before = read_outcome(directory, pid, operation).count
    os.kill(pid, signal.SIGHUP if arguments.reload else signal.SIGUSR2)
    while True:
        outcome = read_outcome(directory, pid, operation)
        if outcome.count > before and outcome.ok is not None:
            break
        if find_supervisor(directory) != pid:
            raise GatewayError(f"The supervisor (process {pid}) has ended meanwhile; its log says why.")
        time.sleep(POLL_S)  # another process's file: there is nothing to wait on
    if not outcome.ok:
        raise GatewayError(outcome.sentence)
    print(outcome.sentence)
    return ExitStatus.OK
