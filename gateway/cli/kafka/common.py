"""Shared by the commands for Kafka: options, the connection, the question before a change."""

import argparse
import contextlib
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from config.settings import Settings
from gateway.admin.audit import AuditLog
from gateway.admin.errors import AdminMissingError
from gateway.admin.kafka import KafkaAdmin
from gateway.admin.model import Topic, Unanswered
from gateway.cli.arguments import UsageError, agreed, load_noted, quiet
from gateway.cli.parser import flag
from gateway.cli.table import mention

CONFIG: Final = "the gateway's settings; [admin] says who asks Kafka"  # help of --config


def add_change_options(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--yes", "do not ask; needed where there is no terminal")
    flag(parser, "--dry-run", "only say what would be done")


@contextlib.contextmanager
def connected(arguments: argparse.Namespace) -> Iterator[tuple[Settings, KafkaAdmin]]:
    settings = load_noted(arguments.config).settings
    with quiet(settings.log), KafkaAdmin(settings) as admin:
        yield settings, admin


def require_topics(names: Collection[str], topics: Iterable[Topic], outcome: str = "") -> None:
    """Raises AdminMissingError for the names without a topic."""
    missing = sorted(set(names) - {topic.name for topic in topics})
    if missing:
        why = "not there, or no right to see it."
        raise AdminMissingError(f"Kafka shows us no topic {', '.join(missing)}: {why}{outcome}")


def audit_log(settings: Settings, admin: KafkaAdmin, command: str) -> AuditLog:
    return AuditLog.of(settings, command, admin.cluster().id)


def answered_yes(arguments: Any, question: str) -> bool:
    """Whether the user agrees, by ``--yes`` or on the terminal. Raises UsageError where there is neither."""
    if arguments.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} There is no terminal to answer: give --yes to agree, or --dry-run to look.")
    return agreed(question)


def mention_unanswered(unanswered: Iterable[Unanswered]) -> None:
    """Name the brokers that did not answer, on stderr."""
    for one in unanswered:
        mention(f"{one.why} The output lacks its part.")
