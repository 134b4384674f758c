"""What the administrating commands share: their options, the connection, asking before a change."""

from __future__ import annotations

__all__ = [
    "add_options",
    "answered_yes",
    "audit_log",
    "connected",
    "duration",
    "mention",
    "mention_unanswered",
    "plural",
]

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus, GatewayError
from gateway.cli.arguments import add_json, load_noted
from gateway.cli.table import mention

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from config.settings import Settings
    from gateway.admin.audit import AuditLog
    from gateway.admin.kafka import KafkaAdmin
    from gateway.admin.model import Unanswered


class NotConfirmedError(GatewayError):
    """A change that nobody has agreed to."""

    exit_status = ExitStatus.USAGE


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what every command has: ``--json``, ``--config``."""
    add_json(parser)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the gateway's settings (default: $GATEWAY_CONFIG, then ./gateway.toml); [admin] says who asks Kafka",
    )


@contextlib.contextmanager
def connected(arguments: argparse.Namespace) -> Iterator[tuple[Settings, KafkaAdmin]]:
    """The settings and a connection made from them. Our own log lines (a certificate that has changed) stay out of the
    output unless they are errors."""
    from gateway.admin.kafka import KafkaAdmin
    from gateway.base import logs

    settings = load_noted(arguments.config).settings
    undo = logs.configure(settings.log.model_copy(update={"level": "error"}))
    try:
        with KafkaAdmin(settings) as admin:
            yield settings, admin
    finally:
        undo()


def audit_log(settings: Settings, admin: KafkaAdmin, command: str) -> AuditLog:
    from gateway.admin.audit import AuditLog

    return AuditLog.of(settings, command, admin.cluster().id)


def answered_yes(arguments: Any, question: str) -> bool:
    """Whether somebody has agreed: by ``--yes``, or now on the terminal. Raises NotConfirmedError where there is
    neither."""
    if arguments.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NotConfirmedError(f"{question} Nobody is there to answer: give --yes to agree, or --dry-run to look.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def mention_unanswered(unanswered: Iterable[Unanswered]) -> None:
    """Say who did not answer: what is shown lacks their part."""
    for one in unanswered:
        mention(f"{one.why} What is shown lacks its part.")


def duration(text: str) -> float:
    """An argument such as ``30s`` or ``2min``, in seconds."""
    from config.values.grammar import parse_duration

    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
