"""``gateway restart``: replace the running workers one after the other, without a pause in what they do."""

from __future__ import annotations

__all__ = ["add_parser"]

import signal
import time
from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus, GatewayError
from gateway.cli.arguments import add_config, load_noted
from gateway.cli.table import tell

if TYPE_CHECKING:
    import argparse


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
    add_config(parser)
    parser.add_argument(
        "--reload",
        action="store_true",
        help="let the gateway read its settings again first; `gateway reload` changes most of them without a restart",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from gateway.base.reload_plan import Wish
    from gateway.supervisor.running import find_running

    settings = load_noted(arguments.config).settings
    running = find_running(settings)
    if not running.supervises:
        raise GatewayError(
            f"Worker {settings.worker} of instance {settings.instance!r} runs without a supervisor (workers = 0): stop "
            "it with SIGTERM, and let whatever runs it start it again."
        )
    if arguments.reload:
        outcome = running.command(signal.SIGHUP, "roll", Wish(time.time_ns(), rolling=True))
    else:
        outcome = running.command(signal.SIGUSR2, "restart")
    if not outcome.ok:
        raise GatewayError(outcome.sentence)
    tell(outcome.sentence)
    return ExitStatus.OK
