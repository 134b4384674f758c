"""``gateway tail``: shows records of Kafka as they arrive."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from bridge.dead_letters.reading import Assembler, DeadLetter, LoggedRecord
from bridge.dead_letters.replay_marks import Marks
from bridge.errors import BridgeError
from bridge.intercept.expression import Expression
from bridge.kafka.reader import Partition, TopicReader
from bridge.message import MessageView
from bridge.record import Record
from bridge.routing.filters import matches
from config.error_words import words
from config.errors import ExitStatus
from config.numbers import many
from config.settings import Settings
from gateway.cli.arguments import UsageError, load_noted, moment, positive, run_quietly, topic_filters, utf8
from gateway.cli.dead_letters.selection import parse_place
from gateway.cli.parser import Commands, flag, repeated
from gateway.cli.records.tail_text import LinePrinter, as_json_line
from gateway.cli.table import columns, mention, tell
from gateway.components.outward import kafka_login

_ELECTION_S = 3.0
_EPILOG = """\
examples:
  gateway tail                                     all routes of ./gateway.toml
  gateway tail --route telemetry --device plant-3/pump-7
  gateway tail --topic telemetry --since 10m --where 'json.temperature > 80' --no-follow
  gateway tail --dead-letters --json | jq .dead_letter.reason

--where takes the expressions of the filter interceptor (docs/interceptors.md): json, topic, properties, key, headers,
size. Records without such a field are not shown; their number is reported at the end.
"""


def add_parser(commands: Commands) -> None:
    json = "one JSON object per line: everything in the record"
    parser = commands.verb("tail", _run, epilog=_EPILOG, json=json)
    which = parser.add_argument_group("which topics (all routes' where none is named)")
    repeated(which, "--topic", "T", "a Kafka topic; may be repeated", type=utf8)
    repeated(which, "--route", "R", "the Kafka topic of a route")
    flag(which, "--dead-letters", "the dead-letter topics, with the reasons")
    start = parser.add_argument_group(
        "from where (what arrives from now on, unless told)"
    ).add_mutually_exclusive_group()
    start.add_argument("--since", type=moment, metavar="WHEN", help="records of then and later: 10m, or a time (UTC)")
    start.add_argument(
        "--from",
        dest="start",
        metavar="PLACE",
        help="'beginning', or [TOPIC/]PARTITION:OFFSET for that partition alone",
    )
    flag(parser, "--no-follow", "end where the topics end now")
    filters = parser.add_argument_group("filters", "All given filters must hold; of a repeated one, any value.")
    repeated(filters, "--key", "TEXT", "the record's key")
    repeated(filters, "--device", "NAME", "header gateway.device; the key where there is none")
    repeated(filters, "--mqtt-topic", "FILTER", "MQTT filter, with + and #")
    repeated(filters, "--header", "K=V", "a header and value", type=_header)
    filters.add_argument("--where", metavar="EXPR", help="an expression over the message; see below")
    parser.add_argument("-n", "--limit", type=positive, metavar="N", help="end after N records that were shown")


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return utf8(name), value.encode(errors="surrogateescape")  # the bytes of the shell


def _run(arguments: argparse.Namespace) -> int:
    """Shows records of Kafka topics while they arrive, until Ctrl-C: time, partition and offset, MQTT topic, device (or
    key), size, how long the record took from the gateway's receipt to here, and the payload.

    PAYLOADS ARE SHOWN. Payloads and topics are printed in a form that a terminal does not obey. Only reads: it uses no
    consumer group and commits nothing.
    """
    settings = load_noted(arguments.config).settings
    topics = _topics(arguments, settings)
    wanted = _filter(arguments)
    try:
        return run_quietly(_tail(arguments, settings, topics, wanted), settings.log)
    except KeyboardInterrupt:
        return ExitStatus.OK  # Ctrl-C ends a tail
    finally:
        if wanted.unnamed:
            mention(f"{many(wanted.unnamed, 'record')} without a header mqtt.topic: --mqtt-topic shows none of them.")
        if wanted.unjudged:
            tell(
                f"gateway: --where could not judge {wanted.unjudged} records. The first one: {wanted.why}",
                to=sys.stderr,
            )


def _topics(arguments: argparse.Namespace, settings: Settings) -> tuple[str, ...]:
    if arguments.dead_letters:
        if arguments.topic or arguments.route:
            raise UsageError("--dead-letters names the topics itself: give it without --topic and --route.")
        return settings.dead_letter_topics
    routes = {route.name: route for route in settings.routes}
    for name in arguments.route:
        if name not in routes:
            known = ", ".join(routes) or "none"
            raise UsageError(f"--route {name}: the settings have no such route; there are: {known}.")
    chosen = [routes[name] for name in arguments.route]
    if not arguments.topic and not arguments.route:
        chosen = list(settings.routes)
        if not chosen:
            raise UsageError(
                "The settings have no routes: name the Kafka topic with --topic, or the file with --config."
            )
    made = [route.name for route in chosen if "${" in route.topic]
    if made and (arguments.route or len(made) == len(chosen)):
        raise UsageError(
            f"Route {made[0]} forms its Kafka topics from messages ({routes[made[0]].topic}): name them with --topic."
        )
    if made:
        mention(f"the topics of {', '.join(made)} are not shown: name them with --topic")
    return tuple(dict.fromkeys([*arguments.topic, *(route.topic for route in chosen if "${" not in route.topic)]))


def _filter(arguments: argparse.Namespace) -> TailFilter:
    try:
        where = None if arguments.where is None else Expression(arguments.where)
    except ValueError as error:
        raise UsageError(f"--where: {error}") from None
    return TailFilter(
        keys=tuple(key.encode(errors="surrogateescape") for key in arguments.key),
        devices=tuple(arguments.device),
        mqtt_filters=topic_filters("--mqtt-topic", arguments.mqtt_topic),
        headers=tuple(arguments.header),
        where=where,
    )


async def _tail(arguments: argparse.Namespace, settings: Settings, topics: tuple[str, ...], wanted: TailFilter) -> int:
    printer = LinePrinter(columns(), topics=len(topics) > 1)
    shown = 0
    async with (
        kafka_login(settings.kafka) as login,
        TopicReader(settings.kafka, f"{settings.instance}-tail", topics, login) as reader,
    ):
        ends = await reader.ends()
        starts = await _starts(arguments, reader, ends, topics)
        letters = _Letters(dead_letters=arguments.dead_letters)

        def show(letter: DeadLetter | None) -> bool:
            """Show a record, if it is one; whether it was the last one."""
            nonlocal shown
            if letter is None or not wanted.takes(letter):
                return False
            at = (letter.place.topic, letter.place.partition)
            # Earlier records have no latency.
            fresh = letter.place.offset >= ends.get(at, 0)
            latency_ms = max(0, time.time_ns() // 1_000_000 - letter.timestamp_ms) if fresh else None
            text = as_json_line(letter, latency_ms) if arguments.json else printer.line(letter, latency_ms)
            print(text, flush=True)
            shown += 1
            return bool(shown == arguments.limit)

        if arguments.no_follow:
            async for record in reader.read(starts, {at: ends[at] for at in starts}):
                if show(letters.take(record)):
                    break
            else:
                for letter in letters.rest():
                    if show(letter):
                        break
            if not shown:
                mention("no present record is shown; --from beginning reads all")
            return ExitStatus.OK
        silence = _Silence()
        async for records in reader.follow(starts):
            for record in records:
                if show(letters.take(record)):
                    return ExitStatus.OK
            silence.look(reader.unread())
    return ExitStatus.OK


async def _starts(
    arguments: argparse.Namespace, reader: TopicReader, ends: dict[Partition, int], topics: tuple[str, ...]
) -> dict[Partition, int]:
    if arguments.since is not None:
        return await reader.offsets_at(arguments.since)
    if arguments.start is None:
        return ends
    beginnings = await reader.beginnings()
    if arguments.start == "beginning":
        return beginnings
    try:
        place = parse_place(arguments.start, topics[0] if len(topics) == 1 else "")
    except ValueError:
        raise UsageError(f"--from {arguments.start}: write 'beginning', or [TOPIC/]PARTITION:OFFSET.") from None
    at = (place.topic, place.partition)
    if at not in ends:
        raise UsageError(f"--from {arguments.start}: there is no such partition in {', '.join(topics)}.")
    if not beginnings[at] <= place.offset <= ends[at]:
        raise UsageError(
            f"--from {arguments.start}: {place.topic}/{place.partition} has the offsets from {beginnings[at]} "
            f"to {ends[at] - 1}."
        )
    return {at: place.offset}


def as_letter(record: LoggedRecord) -> DeadLetter:
    """An ordinary record as a dead letter, which has the same headers."""
    place, timestamp_ms, key, value, headers, _ = record
    return DeadLetter((place,), 1, timestamp_ms, key, value, len(value or b""), tuple(headers), {})


def as_record(letter: DeadLetter) -> Record:
    """A record for an expression of the ``filter`` interceptor, as far as its headers give the message."""
    message = MessageView(
        letter.mqtt_topic or "", letter.flags, letter.properties(), letter.value or b"", letter.timestamp_ms
    )
    return Record(message, letter.place.topic, letter.key, letter.value, letter.headers, letter.timestamp_ms)


@dataclass(slots=True)
class TailFilter:
    """Filters of records: all must hold; of several values of one, any. ``unjudged`` counts records that ``where``
    could not judge; ``why`` is the reason for the first. ``unnamed`` counts those that ``mqtt_filters`` could not."""

    keys: tuple[bytes, ...] = ()
    devices: tuple[str, ...] = ()
    mqtt_filters: tuple[str, ...] = ()
    headers: tuple[tuple[str, bytes], ...] = ()
    where: Expression | None = None
    unjudged: int = field(default=0, init=False)
    why: str = field(default="", init=False)
    unnamed: int = field(default=0, init=False)

    def takes(self, letter: DeadLetter) -> bool:
        if self.keys and letter.key not in self.keys:
            return False
        if self.devices and _device(letter) not in self.devices:
            return False
        if self.mqtt_filters:
            topic = letter.mqtt_topic
            self.unnamed += topic is None
            if topic is None or not any(matches(text, topic) for text in self.mqtt_filters):
                return False
        if self.headers and not all(pair in letter.headers for pair in self.headers):
            return False
        return self.where is None or self._holds(letter)

    def _holds(self, letter: DeadLetter) -> bool:
        """Whether ``--where`` is true of a record; False, and counted, if it cannot be judged."""
        assert self.where is not None
        try:
            return bool(self.where.evaluate(as_record(letter)))
        except (BridgeError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            self.unjudged += 1
            self.why = self.why or words(error)
            return False


def _device(letter: DeadLetter) -> str | None:
    """The device by its header; without the header the key, which often is the device."""
    if letter.device is not None:
        return letter.device
    return None if letter.key is None else letter.key.decode(errors="replace")


class _Silence:
    """Says once why nothing may be shown, and when that ends."""

    def __init__(self) -> None:
        self._why = self._said = ""
        self._since_s = 0.0

    def look(self, why: str) -> None:
        """``why`` is the present reason, empty for none. An election is over before it is reported."""
        now_s = time.monotonic()
        if why != self._why:
            self._why, self._since_s = why, now_s
        if why != self._said and (not why or now_s - self._since_s >= _ELECTION_S):
            self._said = why
            mention(why or "everything can be read again")


class _Letters:
    """Records one by one. Dead letters are joined from their parts; marks of replays are left out."""

    def __init__(self, *, dead_letters: bool) -> None:
        self._assembler = Assembler() if dead_letters else None
        self._marks = Marks()

    def take(self, record: LoggedRecord) -> DeadLetter | None:
        if self._assembler is None:
            return as_letter(record)
        return None if self._marks.take(record) else self._assembler.take(record)

    def rest(self) -> Iterable[DeadLetter]:
        """At the end: dead letters without all parts."""
        return () if self._assembler is None else self._assembler.rest()
