"""``gateway verify``: does Kafka have everything that it acknowledged to this gateway?"""

from __future__ import annotations

__all__ = ["add_parser"]

import argparse
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from config.errors import ConfigError
from gateway.cli.arguments import add_config, add_json, load_noted, run_quietly
from gateway.cli.table import mention, tell

if TYPE_CHECKING:
    from config.settings import Settings
    from gateway.tools.verify.before import Before
    from gateway.tools.verify.check import Span, Verdict


def add_parser(commands: Any) -> None:
    """Add ``gateway verify`` to the command's parser."""
    parser = commands.add_parser(
        "verify",
        help="compare the ledger topic with what Kafka has",
        description=(
            "Reads the ledger topic (ledger.topic) and every topic it names, and compares, record by record, what "
            "Kafka acknowledged to this gateway with what it has. Reads only, in no consumer group. It takes as long "
            "as reading the topics does: give a span for large ones. With emqx.url it also says what EMQX dropped for "
            "the gateway's sessions before the gateway got it: since the sessions began, whatever the span."
        ),
        epilog=(
            "exit status: 0 everything is there, 3 something is missing or the account does not balance, 6 nothing is "
            "missing but not everything could be judged (no account in the span, an incomplete one, a partition "
            "without a leader, an MQTT session that the broker lost with what it held); what EMQX dropped before the "
            "gateway changes none of it"
        ),
    )
    add_config(parser)
    parser.add_argument(
        "--since",
        type=_moment,
        metavar="TIME",
        help="intervals that end after this time, such as 2026-01-31T12:00Z (UTC unless it says otherwise)",
    )
    parser.add_argument("--until", type=_moment, metavar="TIME", help="and not after this one")
    parser.add_argument("--last", type=_length, metavar="LENGTH", help="the same as --since so long ago: 1h, 7d")
    add_json(parser)
    parser.set_defaults(run=_run)


def _moment(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time as in 2026-01-31T12:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _length(text: str) -> int:
    from config.values.grammar import parse_duration

    try:
        return round(parse_duration(text).total_seconds() * 1000)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(arguments: argparse.Namespace) -> int:
    import logging

    from gateway.tools.verify.check import Span
    from gateway.tools.verify.report import as_json, as_text

    settings = load_noted(arguments.config).settings
    if not settings.ledger.topic:
        raise ConfigError('ledger.topic is "": this gateway writes no account, so there is nothing to compare with.')
    now_ms = time.time_ns() // 1_000_000
    since_ms = arguments.since
    if arguments.last is not None:
        since_ms = max(since_ms or 0, now_ms - arguments.last)

    async def work() -> int:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it warns of is in our errors and in the table
        verdict, before = await _verify(settings, Span(since_ms, arguments.until), now_ms)
        if arguments.json:
            print(as_json(verdict, before), end="")
        else:
            tell(as_text(verdict, before))
        return verdict.exit_status

    return run_quietly(work(), settings.log)


async def _verify(settings: Settings, span: Span, now_ms: int) -> tuple[Verdict, Before]:
    from gateway.components.outward import kafka_login
    from gateway.tools.verify.before import look_before, workers_of
    from gateway.tools.verify.check import verify
    from gateway.tools.verify.reader import KafkaReader

    async with (
        kafka_login(settings.kafka) as login,
        KafkaReader(settings.kafka, settings.instance, login) as reader,
    ):
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
