"""``gateway acknowledge``: ends the problem of lost sessions."""

import argparse
import time

from config.errors import ExitStatus, GatewayError
from gateway.cli.arguments import load_noted
from gateway.cli.parser import Commands
from gateway.cli.table import tell
from gateway.data_dir.lost_sessions import acknowledge, read_losses


def add_parser(commands: Commands) -> None:
    status = "exit status: 0 acknowledged, 4 there was nothing to acknowledge, 5 a worker's file is damaged"
    commands.verb("acknowledge", _run, epilog=status, json="")


def _run(arguments: argparse.Namespace) -> int:
    """Shows the MQTT sessions that the broker lost, of all workers of data_dir, and notes there that they are
    acknowledged: the problem session-lost and its alert end. The losses stay in the ledger topic, and gateway verify
    reports them. A later loss is a new problem. Without this command the problem ends after 24 h."""
    settings = load_noted(arguments.config).settings
    now_ms = time.time_ns() // 1_000_000
    try:
        losses, unreadable = read_losses(settings.data_dir, now_ms)
        if losses:
            acknowledge(settings.data_dir, losses)
    except OSError as error:
        raise GatewayError(
            f"data_dir {settings.data_dir.absolute()} cannot be used ({error.strerror}). Run this as the gateway's "
            "user, on its machine or in its container."
        ) from error
    for path in unreadable:
        tell(f"{path.absolute()} is damaged. Its losses are unknown until its worker writes it anew.")
    for loss in losses:
        tell(f"Lost: session {loss.describe()}.{f' {loss.emqx}' if loss.emqx else ''}")
    if losses:
        print(f"Acknowledged: {len(losses)}.")
    elif not unreadable:
        tell(f"No session is known to be lost in data_dir {settings.data_dir.absolute()}.")
        return ExitStatus.NOT_FOUND
    return ExitStatus.INCOMPLETE if unreadable else ExitStatus.OK
