"""``gateway restart``: replaces the running workers one after the other."""

import argparse
import signal
import time

from config.errors import ExitStatus, GatewayError
from gateway.base.reload_plan import Wish
from gateway.cli.arguments import load_noted
from gateway.cli.parser import Commands, flag
from gateway.cli.table import tell
from gateway.supervisor.running import find_running


def add_parser(commands: Commands) -> None:
    parser = commands.verb("restart", _run, json="")
    text = "let the gateway read its settings again first; `gateway reload` changes most of them without a restart"
    flag(parser, "--reload", text)


def _run(arguments: argparse.Namespace) -> int:
    """Replace the workers that run with these settings on this machine, one after the other. Each new one is ready
    before the old one stops, so its MQTT sessions are disconnected for a fraction of a second. The gateway keeps its
    settings and takes the code of an upgraded package."""
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
