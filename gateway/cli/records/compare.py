"""``gateway compare``: compares two Kafka topics, the old bridge's and the gateway's."""

import argparse
import asyncio
import dataclasses
import tempfile
import time
from pathlib import Path

from bridge.kafka.reader import TopicReader
from config.settings import Settings
from gateway.cli.arguments import UsageError, load_noted, moment, require_span, run_quietly, utf8
from gateway.cli.parser import Commands
from gateway.cli.table import print_json, progress
from gateway.components.outward import kafka_login
from gateway.tools.migration.compare import Comparison, Side, Span, Table
from gateway.tools.migration.identity import Identity, Reader, parse_identity

_SLACK_MS = 60_000  # the longest time between the stamps of two bridges for one message
_GRACE_MS = 10_000  # the other bridge may still write younger messages
_DELAYED = """\
The left has the times of writing (LogAppendTime). What its bridge delayed may be on the right with a time before
--since: compare from an earlier --since, of a time without a delay."""
_EPILOG = """\
examples:
  gateway compare --left emqx.telemetry --right telemetry --since 1h
  gateway compare --left emqx.telemetry --left-field payload --right telemetry --by json:device,seq
  gateway compare --left telemetry --left-bootstrap old-kafka:9092 --right telemetry

--by identifies a message: value (the payload; equal readings count as one), key+value, message_id (the header that the
gateway's routes write; needs a template of the device's own), or json:FIELD,FIELD of the payload. EMQX writes an
envelope unless its template is ${payload}; --left-field payload names the field of the payload in it.
To see an example such as telemetry/3:1042: gateway tail --topic telemetry --from 3:1042 -n 1

exit status: 0 the right has everything, 3 messages are missing on the right, 6 not everything could be judged (too
recent, without the identity of --by, or fewer equal ones where --by names values), 69 Kafka or a topic is missing,
77 Kafka refuses the login or rights
"""


def add_parser(commands: Commands) -> None:
    parser = commands.verb("compare", _run, epilog=_EPILOG)
    parser.add_argument("--left", required=True, type=utf8, metavar="TOPIC", help="the present topic")
    parser.add_argument("--right", required=True, type=utf8, metavar="TOPIC", help="its replacement")
    parser.add_argument(
        "--by", type=_identity, default="value", metavar="WHAT", help="what identifies a message (default: value)"
    )
    parser.add_argument("--since", type=moment, metavar="WHEN", help="records of then and later: 1h, or a time (UTC)")
    parser.add_argument("--until", type=moment, metavar="WHEN", help="and before then")
    for side in ("left", "right"):
        group = parser.add_argument_group(f"the {side} side, where it differs")
        group.add_argument(f"--{side}-bootstrap", metavar="HOST:PORT[,…]", help="another Kafka")
        group.add_argument(
            f"--{side}-config", type=Path, metavar="FILE", help="settings for that Kafka, with its login"
        )
        group.add_argument(f"--{side}-field", metavar="FIELD", help="JSON field of the value that holds the payload")


def _identity(text: str) -> Identity:
    try:
        return parse_identity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(arguments: argparse.Namespace) -> int:
    """Compares two topics that should have the same messages: --left is the present one (the old bridge's), --right its
    replacement. Reports messages that are on one side only, differ or are there twice, and whether each device's
    messages have the same order. Only reads, without a consumer group. Payloads are compared by digests and not shown.

    Both topics are read once, into a temporary file: 150 bytes for each record, 20,000,000 records a side at most. It
    needs some 150 MiB of memory.
    """
    sides: dict[Side, tuple[str, Settings, Reader]] = {}
    try:
        sides["left"] = arguments.left, _settings(arguments, "left"), Reader(arguments.by, arguments.left_field)
        sides["right"] = arguments.right, _settings(arguments, "right"), Reader(arguments.by, arguments.right_field)
    except ValueError as error:
        raise UsageError(f"--left-field, --right-field: {error}") from None
    require_span(arguments.since, arguments.until)
    return run_quietly(_compare(arguments, sides), sides["left"][1].log)


def _settings(arguments: argparse.Namespace, side: Side) -> Settings:
    bootstrap = getattr(arguments, f"{side}_bootstrap")
    overrides = {} if bootstrap is None else {"kafka.bootstrap_servers": [one.strip() for one in bootstrap.split(",")]}
    return load_noted(getattr(arguments, f"{side}_config") or arguments.config, overrides=overrides).settings


async def _compare(arguments: argparse.Namespace, sides: dict[Side, tuple[str, Settings, Reader]]) -> int:
    started_ms = time.time_ns() // 1_000_000
    span = Span(
        since_ms=-(1 << 62) if arguments.since is None else arguments.since,
        until_ms=1 << 62 if arguments.until is None else arguments.until,
        recent_ms=started_ms - _GRACE_MS,
    )
    with tempfile.TemporaryDirectory(prefix="gateway-compare-") as folder, Table(Path(folder)) as table:
        # The left side first: its messages have the time of reading to reach the right side.
        stamped: dict[Side, bool] = {}
        for side, (topic, settings, reader) in sides.items():
            stamped[side] = await _read(table, side, topic, settings, reader, (arguments.since, arguments.until))
        progress("matching")
        topics, is_named = (arguments.left, arguments.right), arguments.by.is_of_a_message
        comparison = await asyncio.to_thread(table.compare, span, topics, is_named=is_named)
        progress("")
    if arguments.json:
        print_json({"left": arguments.left, "right": arguments.right, **dataclasses.asdict(comparison)})
    else:
        print(_text(comparison, arguments.left, arguments.right))
        if comparison.only_left and arguments.since is not None and stamped["left"]:
            print(_DELAYED)
    return comparison.exit_status


async def _read(
    table: Table, side: Side, topic: str, settings: Settings, reading: Reader, bounds: tuple[int | None, int | None]
) -> bool:
    """Read the side's topic into the table; whether the broker stamped a record. ``bounds``: --since and --until."""
    stamped = False
    since_ms, until_ms = bounds
    async with (
        kafka_login(settings.kafka) as login,
        TopicReader(settings.kafka, f"{settings.instance}-compare", (topic,), login) as reader,
    ):
        ends = await reader.ends()
        starts = await (reader.beginnings() if since_ms is None else reader.offsets_at(since_ms - _SLACK_MS))
        total = sum(max(0, end - starts.get(at, 0)) for at, end in ends.items())
        async for record in reader.read(starts, ends):
            late = until_ms is not None and record.timestamp_ms >= until_ms + _SLACK_MS
            if late and not record.stamped_by_broker:  # what a spool delayed has the time of its writing then
                continue  # not the end: what a spool delayed lies behind younger records
            stamped = stamped or record.stamped_by_broker
            table.add(side, record.place.partition, record.place.offset, record.timestamp_ms, reading.read(record))
            if table.records[side] % 50_000 == 0:
                progress(f"{side}: {table.records[side]:,} of {total:,} records of {topic}")
    table.flush(side)
    return stamped


def _text(found: Comparison, left: str, right: str) -> str:
    from gateway.cli.table import table

    rows = [
        ("records read", found.left_records, found.right_records),
        ("different messages", found.left_different, found.right_different),
        ("in both", found.matched, found.matched),
        ("only here", found.only_left, found.only_right),
        ("too recent to judge", found.recent, "-"),
        ("copies beyond the first", found.left_duplicates, found.right_duplicates),
        ("without the identity of --by", found.left_unnamed, found.right_unnamed),
    ]
    grouped = [(label, *(f"{n:,}" if isinstance(n, int) else n for n in numbers)) for label, *numbers in rows]
    lines = [table(("", f"left: {left}", f"right: {right}"), grouped).rstrip("\n"), ""]
    lines.append(
        f"Of those in both, {found.differing_values:,} differ in their value, {found.differing_keys:,} in their key, "
        f"{found.differing_headers:,} in their headers (each bridge writes its own)."
    )
    lines.append(
        f"Order: {found.devices:,} devices (header gateway.device of the right side, else its key), "
        f"{found.devices_out_of_order:,} of them in another order; {found.behind:,} messages are behind a later one."
    )
    if found.uncomparable:
        lines.append(
            f"{found.uncomparable:,} messages have no comparable order: a side has their device in several partitions."
        )
    if found.fewer_copies:
        else_ = "" if found.is_named else ", or equal readings that --by cannot tell apart"
        lines.append(f"The right has {found.fewer_copies:,} copies fewer: repetitions on the left{else_}.")
    for label, examples in (
        ("only left", found.only_left_examples),
        ("only right", found.only_right_examples),
        ("differing", found.differing_examples),
        ("out of order", found.order_examples),
    ):
        if examples:
            lines.append(f"  {label}, for example: {', '.join(examples)}")
    return "\n".join([*lines, _verdict(found)])


def _verdict(found: Comparison) -> str:
    if found.only_left:
        return f"MISSING: {found.only_left:,} messages of the left are not on the right."
    if not found.left_different:
        return "Nothing to judge: the left has no message in this span that --by identifies."
    if found.left_unnamed or found.recent:
        return "Missing: 0 of the messages that could be judged; some could not."
    if found.fewer_copies and not found.is_named:
        return "Missing: 0 of the different messages. Of fewer copies --by cannot tell whether they are missing."
    return "Missing: 0. The right has every message of the left."
