"""``gateway acknowledge``: somebody has seen that the broker lost sessions, so the problem ends."""

from __future__ import annotations

__all__ = ["add_parser"]

import time
from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus, GatewayError
from gateway.cli.arguments import add_config, load_noted
from gateway.cli.table import tell

if TYPE_CHECKING:
    import argparse


def add_parser(commands: Any) -> None:
    """Add ``gateway acknowledge`` to the command's parser."""
    parser = commands.add_parser(
        "acknowledge",
        help="say that lost sessions have been seen: the problem session-lost ends",
        description=(
            "Shows the MQTT sessions that the broker had lost, of all workers that live in data_dir, and notes there "
            "that somebody has seen it: the problem session-lost and its alert end at the next look. What was lost "
            "stays lost, and in the ledger topic: gateway verify goes on saying so. What is lost after this is a "
            "problem again. Without it the problem ends after 24 h."
        ),
        epilog="exit status: 0 acknowledged, 4 there was nothing to acknowledge",
    )
    add_config(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from gateway.data_dir.lost_sessions import acknowledge, read_losses

    settings = load_noted(arguments.config).settings
    now_ms = time.time_ns() // 1_000_000
    try:
        losses = read_losses(settings.data_dir, now_ms)
        if losses:
            acknowledge(settings.data_dir, losses)
    except OSError as error:
        raise GatewayError(
            f"data_dir {settings.data_dir.absolute()} cannot be used ({error.strerror}). Run this as the gateway's "
            "user, on its machine or in its container."
        ) from error
    if not losses:
        tell(f"No session is known to be lost in data_dir {settings.data_dir.absolute()}.")
        return ExitStatus.NOT_FOUND
    for loss in losses:
        tell(f"Lost: session {loss.describe()}.{f' {loss.emqx}' if loss.emqx else ''}")
    print(f"Acknowledged: {len(losses)}.")
    return ExitStatus.OK
