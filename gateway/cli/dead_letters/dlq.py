"""``gateway dlq``: shows dead letters, and replays them through the present routes."""

import argparse
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence

from bridge.dead_letters.reading import DeadLetter, Place
from config.errors import ExitStatus
from config.settings import Settings
from gateway.cli.arguments import (
    NotFoundError,
    UsageError,
    moment,
    positive,
    require_span,
    topic_filters,
    with_settings,
)
from gateway.cli.dead_letters import text as dlq_text
from gateway.cli.dead_letters.path import commands_of
from gateway.cli.dead_letters.reader import DeadLetterReader
from gateway.cli.dead_letters.replay import Outcome, ReplayRun
from gateway.cli.dead_letters.selection import Filter, Selection, find, look_through, parse_place
from gateway.cli.parser import Commands, flag, repeated
from gateway.cli.table import columns, print_json, tell
from gateway.components.outward import kafka_login


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "dlq",
        "Show the dead letters of the routes in the settings, and replay them. Only a replay writes; no command uses a "
        "consumer group.",
    )
    listing = parsers.verb("list", with_settings(_list), "list dead letters, the newest last")
    _add_filters(listing)
    listing.add_argument("--limit", type=positive, default=100, metavar="N", help="the N newest (default: %(default)s)")

    show = parsers.verb("show", with_settings(_show), "show one dead letter in full")
    show.add_argument("place", metavar="[TOPIC/]PARTITION:OFFSET", help="as dlq list shows it")
    flag(show, "--payload", "write the payload's bytes and nothing else")

    replay = parsers.verb("replay", with_settings(_replay), "send dead letters through the routes again")
    replay.add_argument("places", nargs="*", metavar="[TOPIC/]PARTITION:OFFSET", help="these alone; or give a filter")
    _add_filters(replay)
    replay.add_argument("--limit", type=positive, metavar="N", help="the N oldest not replayed yet (default: all)")
    flag(replay, "--all", "everything there is, without a filter")
    flag(replay, "--dry-run", "only say what each would become")
    flag(replay, "--again", "also those that were replayed before, or begun: they may be there twice")


def _add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("filters", "All that are given must hold; a repeated one takes either value.")
    repeated(group, "--reason", "WORD", "dlq.reason, such as too_large")
    repeated(group, "--route", "NAME", "of a route, or of [[commands]]")
    repeated(group, "--topic", "FILTER", "MQTT topic filter, with + and #")
    repeated(group, "--device", "NAME", "header gateway.device")
    group.add_argument("--since", type=moment, metavar="WHEN", help="received then or later: a time (UTC), or 2h ago")
    group.add_argument("--until", type=moment, metavar="WHEN", help="received before then")


def _filter(arguments: argparse.Namespace) -> Filter:
    require_span(arguments.since, arguments.until)
    return Filter(
        reasons=tuple(arguments.reason),
        routes=tuple(arguments.route),
        mqtt_filters=topic_filters("--topic", arguments.topic),
        devices=tuple(arguments.device),
        since_ms=arguments.since,
        until_ms=arguments.until,
    )


@contextlib.asynccontextmanager
async def _reader(settings: Settings) -> AsyncIterator[DeadLetterReader]:
    async with (
        kafka_login(settings.kafka) as login,
        DeadLetterReader(settings.kafka, f"{settings.instance}-dlq", settings.dead_letter_topics, login) as reader,
    ):
        yield reader


def _place(text: str, settings: Settings) -> Place:
    try:
        return parse_place(text, settings.dead_letter.topic)
    except ValueError as error:
        raise UsageError(f"{error}.") from None


async def _list(arguments: argparse.Namespace, settings: Settings) -> int:
    """List dead letters, the newest last, and say how long they are kept."""
    wanted = _filter(arguments)
    async with _reader(settings) as reader:
        selection = await look_through(reader, wanted.takes, newest=arguments.limit)
        facts = reader.facts
    shown = selection.letters
    if arguments.json:
        document = {
            "topics": [{"name": f.name, "partitions": f.partitions, "retention_ms": f.retention_ms} for f in facts],
            "total": selection.total,
            "matching": selection.matching,
            "dead_letters": [dlq_text.as_json(letter, selection.marks) for letter in shown],
        }
        print_json(document)
        return ExitStatus.OK
    width = columns()
    if shown:
        for line in dlq_text.table(shown, selection.marks, settings.dead_letter.topic, width):
            print(line)
    older = f", the {len(shown)} newest shown" if len(shown) < selection.matching else ""
    print(f"{selection.matching} of {selection.total} dead letters match{older}.")
    for line in dlq_text.retention(facts):
        tell(line)
    return ExitStatus.OK


async def _show(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show a dead letter with all headers and its payload, parts put together. Ends with status 4 when there is none
    (any more), and with --payload when it is not whole."""
    place = _place(arguments.place, settings)
    async with _reader(settings) as reader:
        selection = await look_through(reader, lambda letter: place in letter.places)
        (light,) = _named(selection, [place])
        whole = (await reader.fetch([light])).get(light.place)
    letter = whole or light
    if arguments.payload:
        if whole is None:
            why = "it has just expired" if light.complete else f"{len(light.places)} of {light.parts} parts are there"
            raise NotFoundError(f"There is no whole payload at {place}: {why}.")
        sys.stdout.buffer.write(letter.value or b"")
    elif arguments.json:
        headers = [[name, None if value is None else value.hex()] for name, value in letter.headers]
        document = dlq_text.as_json(letter, selection.marks)
        value = None if letter.value is None else letter.value.hex()
        print_json({**document, "headers_hex": headers, "payload_hex": value})
    else:
        for line in dlq_text.describe(letter, selection.marks, is_command=commands_of(letter, settings) is not None):
            print(line)
    return ExitStatus.OK


def _named(selection: Selection, places: Sequence[Place]) -> list[DeadLetter]:
    """The dead letters at these places. Raises NotFoundError for one that is not there."""
    letters = []
    for place in places:
        letter = find(selection.letters, place)
        if letter is None:
            end = selection.ends.get((place.topic, place.partition))
            if end is None:
                why = "these settings have no such dead-letter topic, or it no such partition"
            elif place.offset >= end:
                why = f"the partition ends at offset {end}"
            else:
                why = "it has expired, or the record is another one, such as the mark of a replay"
            raise NotFoundError(f"There is no dead letter at {place}: {why}.")
        letters.append(letter)
    return letters


async def _replay(arguments: argparse.Namespace, settings: Settings) -> int:
    """Send the messages of dead letters, oldest first, through the routes and interceptors of the present settings, and
    mark each once Kafka has it. A command goes back to its Kafka topic. A marked one is not replayed again. Ends with
    status 4 when nothing matches, 5 when some could not be replayed."""
    wanted = _filter(arguments)
    if arguments.places and (wanted != Filter() or arguments.all):
        raise UsageError("Give places, or filters, or --all, but only one of them.")
    if not arguments.places and wanted == Filter() and not arguments.all:
        raise UsageError("Say which dead letters to replay: give places, a filter, or --all.")
    places = [_place(text, settings) for text in arguments.places]
    async with _reader(settings) as reader:
        named = set(places)
        selection = await look_through(
            reader, (lambda letter: not named.isdisjoint(letter.places)) if named else wanted.takes
        )
        letters = _named(selection, places) if places else selection.letters
        letters = list({letter.place: letter for letter in letters}.values())
        if arguments.limit is not None:
            fresh = [letter for letter in letters if arguments.again or selection.marks.of(*letter.place) is None]
            letters = (fresh or letters)[: arguments.limit]
        if not letters:
            raise NotFoundError(f"None of the {selection.total} dead letters matches: nothing was replayed.")
        counts = dict.fromkeys(Outcome, 0)
        run = ReplayRun(settings, reader, selection, again=arguments.again)
        results = run.preview(letters) if arguments.dry_run else run.replay(letters)
        async for result in results:
            counts[result.outcome] += 1
            if arguments.json:
                print_json(result.as_json(), indent=None)
            else:
                print(result.line(settings.dead_letter.topic), flush=True)
    total = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    print(f"{len(letters)} dead letters: {total}.", file=sys.stderr if arguments.json else sys.stdout)
    good = counts[Outcome.REPLAYED] + counts[Outcome.WOULD_BE]
    return ExitStatus.OK if good == len(letters) else ExitStatus.INCOMPLETE
