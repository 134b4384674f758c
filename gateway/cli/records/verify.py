"""``gateway verify``: compares Kafka's records with those that Kafka acknowledged to this gateway, and commands with
their statuses."""

import argparse
import logging
import sys
import time

from config.errors import ConfigError
from config.settings import Settings
from gateway.cli.arguments import duration, load_noted, moment, require_span, run_quietly
from gateway.cli.device_commands.command import chosen
from gateway.cli.parser import Commands
from gateway.cli.records import commands_text, verify_text
from gateway.cli.table import mention, print_json, tell
from gateway.components.commanding import group_name
from gateway.components.outward import kafka_login
from gateway.tools.verify.before import Before, look_before, workers_of
from gateway.tools.verify.check import Span, Verdict, verify
from gateway.tools.verify.command_check import exit_status, verify_commands
from gateway.tools.verify.command_log import KafkaCommandLog
from gateway.tools.verify.reader import KafkaReader

_EPILOG = """\
exit status: 0 everything is there, 3 records are missing or the ledger does not balance, or a command has no terminal
status or two, 6 nothing is missing but not everything could be judged (no ledger in the span, an incomplete one, a
worker that is silent, a partition without a leader, an MQTT session that the broker lost, statuses that are deleted).
EMQX's drops do not change it
"""


def add_parser(commands: Commands) -> None:
    parser = commands.verb("verify", _run, epilog=_EPILOG)
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="intervals that end after this time, such as 2026-01-31T12:00Z (UTC unless it says otherwise)",
    )
    parser.add_argument("--until", type=moment, metavar="TIME", help="and not after this one")
    parser.add_argument("--last", type=duration, metavar="LENGTH", help="the same as --since so long ago: 1h, 7d")
    parser.add_argument(
        "--commands",
        nargs="?",
        const="",
        metavar="NAME",
        help="the commands of [[commands]] instead, or of one of them; times are those of their records",
    )


def _run(arguments: argparse.Namespace) -> int:
    """Reads the ledger topic (ledger.topic) and every topic it names. Compares, record by record, what Kafka
    acknowledged to this gateway with what Kafka has. Only reads, without a consumer group. It takes the time of reading
    the topics: give a span for large ones. With emqx.url it also reports the messages that EMQX dropped for the
    gateway's sessions, since their begin.

    With --commands it compares the topics of commands with their status topic instead: each command that the consumer
    group's commit calls finished has one terminal status. It counts those that wait, are sent, or are not read yet.
    """
    settings = load_noted(arguments.config).settings
    if arguments.commands is not None:
        return run_quietly(_verify_commands(arguments, settings), settings.log)
    if not settings.ledger.topic:
        raise ConfigError('ledger.topic is "": this gateway writes no ledger, so there is nothing to compare with.')
    now_ms = time.time_ns() // 1_000_000
    span = _span(arguments, now_ms)

    async def work() -> int:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # its warnings are in our errors and in the table
        verdict, before = await _verify(settings, span, now_ms)
        if arguments.json:
            print_json(verify_text.as_document(verdict, before), indent=None)
        else:
            tell(verify_text.as_text(verdict, before))
        return verdict.exit_status

    return run_quietly(work(), settings.log)


def _span(arguments: argparse.Namespace, now_ms: int) -> Span:
    since_ms = arguments.since
    if arguments.last is not None:
        since_ms = max(since_ms or 0, now_ms - round(arguments.last * 1000))
    require_span(since_ms, arguments.until)
    return Span(since_ms, arguments.until)


async def _verify_commands(arguments: argparse.Namespace, settings: Settings) -> int:
    span = _span(arguments, time.time_ns() // 1_000_000)
    progress = mention if sys.stderr.isatty() else lambda _text: None
    verdicts = []
    async with kafka_login(settings.kafka) as login:
        for one in chosen(settings, arguments.commands or None):
            async with KafkaCommandLog(settings, one, login) as log:
                verdicts.append(await verify_commands(log, one, group_name(settings, one), span, progress))
    if arguments.json:
        print_json(commands_text.as_document(verdicts), indent=None)
    else:
        tell(commands_text.as_text(verdicts))
    return exit_status(verdicts)


async def _verify(settings: Settings, span: Span, now_ms: int) -> tuple[Verdict, Before]:
    async with kafka_login(settings.kafka) as login, KafkaReader(settings.kafka, settings.instance, login) as reader:
        verdict = await verify(
            reader,
            gateway=settings.instance,
            ledger_topic=settings.ledger.topic,
            span=span,
            interval_ms=round(settings.ledger.interval.total_seconds() * 1000),
            now_ms=now_ms,
            progress=mention if sys.stderr.isatty() else lambda _text: None,
        )
    return verdict, await look_before(settings, workers_of(settings, (life.worker for life in verdict.lives)))
