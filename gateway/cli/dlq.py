"""``gateway dlq``: look at dead letters, and replay them through the routes of today."""

from __future__ import annotations

__all__ = ["add_parser"]

import argparse
import contextlib
import shutil
import sys
from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus, GatewayError
from gateway.cli.arguments import add_config, add_json, load_noted, moment
from gateway.cli.table import print_json, tell

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from bridge.dead_letters.reading import DeadLetter, Place
    from config.settings import Settings
    from gateway.cli.dead_letters.reader import DeadLetterReader
    from gateway.cli.dead_letters.selection import Filter, Selection

LIST_LIMIT = 100


class NotFoundError(GatewayError):
    """A dead letter that was asked for is not there."""

    exit_status = ExitStatus.NOT_FOUND


def add_parser(commands: Any) -> None:
    """Add ``gateway dlq`` and its commands."""
    parser = commands.add_parser(
        "dlq",
        help="list, show and replay dead letters",
        description="Look at the dead letters of the routes in the settings, and replay them. Nothing but a replay "
        "writes; no consumer group is left behind.",
    )
    parsers = parser.add_subparsers(dest="dlq_command", required=True, metavar="COMMAND")

    listing = parsers.add_parser(
        "list",
        help="list dead letters, the newest last",
        description="List dead letters, the newest last, and say how long they are kept.",
    )
    _add_filters(listing)
    listing.add_argument(
        "--limit", type=_positive, default=LIST_LIMIT, metavar="N", help="the N newest (default: %(default)s)"
    )
    listing.set_defaults(run=_list)

    show = parsers.add_parser(
        "show",
        help="show one dead letter in full",
        description=f"Show a dead letter with all headers and its payload, parts put together. Ends with status "
        f"{int(ExitStatus.NOT_FOUND)} when it is not there (any more).",
    )
    show.add_argument("place", metavar="[TOPIC/]PARTITION:OFFSET", help="as dlq list shows it")
    show.add_argument("--payload", action="store_true", help="write the payload's bytes and nothing else")
    show.set_defaults(run=_show)

    replay = parsers.add_parser(
        "replay",
        help="send dead letters through the routes once more",
        description="Send the messages of dead letters, oldest first, through the routes and interceptors of the "
        "settings as they are now, and mark each once Kafka has it. What is marked is not replayed again. Ends with "
        f"status {int(ExitStatus.NOT_FOUND)} when nothing matches, {int(ExitStatus.INCOMPLETE)} when some could not be "
        "replayed.",
    )
    replay.add_argument("places", nargs="*", metavar="[TOPIC/]PARTITION:OFFSET", help="these alone; or give a filter")
    _add_filters(replay)
    replay.add_argument("--limit", type=_positive, metavar="N", help="the N oldest (default: all)")
    replay.add_argument("--all", action="store_true", help="everything there is, without a filter")
    replay.add_argument("--dry-run", action="store_true", help="only say what each would become")
    replay.add_argument(
        "--again", action="store_true", help="also those that were replayed before, or begun: they may be there twice"
    )
    replay.set_defaults(run=_replay)

    for command in (listing, show, replay):
        add_json(command)
        add_config(command)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("filters", "All that are given must hold; a repeated one takes either value.")
    group.add_argument("--reason", action="append", default=[], metavar="WORD", help="dlq.reason, such as too_large")
    group.add_argument("--route", action="append", default=[], metavar="NAME")
    group.add_argument("--topic", action="append", default=[], metavar="FILTER", help="MQTT topic filter, with + and #")
    group.add_argument("--device", action="append", default=[], metavar="NAME", help="header gateway.device")
    group.add_argument("--since", type=moment, metavar="WHEN", help="received then or later: a time (UTC), or 2h ago")
    group.add_argument("--until", type=moment, metavar="WHEN", help="received before then")


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _filter(arguments: argparse.Namespace) -> Filter:
    from bridge.routing.filters import FilterError, validate_filter
    from gateway.cli.dead_letters.selection import Filter

    try:
        for text in arguments.topic:
            validate_filter(text)
    except FilterError as error:
        raise UsageError(f"--topic: {error}") from None
    return Filter(
        reasons=tuple(arguments.reason),
        routes=tuple(arguments.route),
        mqtt_filters=tuple(arguments.topic),
        devices=tuple(arguments.device),
        since_ms=arguments.since,
        until_ms=arguments.until,
    )


def _settings(arguments: argparse.Namespace) -> Settings:
    return load_noted(arguments.config).settings


def _run_quietly(command: Coroutine[Any, Any, int], settings: Settings) -> int:
    """Run a command whose output is for people or a pipe: logs go to stderr, and only what is an error."""
    import asyncio

    from gateway.base import logs

    undo = logs.configure(settings.log.model_copy(update={"level": "error"}))
    try:
        return asyncio.run(command)
    finally:
        undo()


@contextlib.asynccontextmanager
async def _reader(settings: Settings) -> AsyncIterator[DeadLetterReader]:
    from gateway.cli.dead_letters.reader import DeadLetterReader
    from gateway.components.outward import kafka_login

    async with (
        kafka_login(settings.kafka) as login,
        DeadLetterReader(settings.kafka, f"{settings.instance}-dlq", settings.dead_letter_topics, login) as reader,
    ):
        yield reader


def _place(text: str, settings: Settings) -> Place:
    from gateway.cli.dead_letters.selection import parse_place

    try:
        return parse_place(text, settings.dead_letter.topic)
    except ValueError as error:
        raise UsageError(f"{error}.") from None


class UsageError(GatewayError):
    """Arguments that do not go together, or name nothing."""

    exit_status = ExitStatus.USAGE


def _list(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    return _run_quietly(_list_all(arguments, settings, _filter(arguments)), settings)


async def _list_all(arguments: argparse.Namespace, settings: Settings, wanted: Filter) -> int:
    from gateway.cli.dead_letters import text as dlq_text
    from gateway.cli.dead_letters.selection import look_through

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
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if shown:
        for line in dlq_text.table(shown, selection.marks, settings.dead_letter.topic, width):
            print(line)
    older = f", the {len(shown)} newest shown" if len(shown) < selection.matching else ""
    print(f"{selection.matching} of {selection.total} dead letters match{older}.")
    for line in dlq_text.retention(facts):
        tell(line)
    return ExitStatus.OK


def _show(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    return _run_quietly(_show_one(arguments, settings, _place(arguments.place, settings)), settings)


async def _show_one(arguments: argparse.Namespace, settings: Settings, place: Place) -> int:
    from gateway.cli.dead_letters import text as dlq_text
    from gateway.cli.dead_letters.selection import look_through

    async with _reader(settings) as reader:
        selection = await look_through(reader, lambda letter: place in letter.places)
        (light,) = _named(selection, [place])
        letter = (await reader.fetch([light])).get(light.place, light)
    if arguments.payload:
        sys.stdout.buffer.write(letter.value or b"")
    elif arguments.json:
        headers = [[name, None if value is None else value.hex()] for name, value in letter.headers]
        document = dlq_text.as_json(letter, selection.marks)
        value = None if letter.value is None else letter.value.hex()
        print_json({**document, "headers_hex": headers, "payload_hex": value})
    else:
        for line in dlq_text.describe(letter, selection.marks):
            print(line)
    return ExitStatus.OK


def _named(selection: Selection, places: Sequence[Place]) -> list[DeadLetter]:
    """The dead letters at these places. Raises NotFoundError for one that is not there."""
    from gateway.cli.dead_letters.selection import find

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
                why = "it has expired, or the record there is none (the mark of a replay, perhaps)"
            raise NotFoundError(f"There is no dead letter at {place}: {why}.")
        letters.append(letter)
    return letters


def _replay(arguments: argparse.Namespace) -> int:
    from gateway.cli.dead_letters.selection import Filter

    settings, wanted = _settings(arguments), _filter(arguments)
    if arguments.places and (wanted != Filter() or arguments.all):
        raise UsageError("Give places, or filters, or --all, not two of them: which of them should decide?")
    if not arguments.places and wanted == Filter() and not arguments.all:
        raise UsageError("Nothing says which dead letters to replay: give places, a filter, or --all.")
    places = [_place(text, settings) for text in arguments.places]
    return _run_quietly(_replay_all(arguments, settings, wanted, places), settings)


async def _replay_all(
    arguments: argparse.Namespace, settings: Settings, wanted: Filter, places: Sequence[Place]
) -> int:
    from gateway.cli.dead_letters.replay import Outcome, ReplayRun
    from gateway.cli.dead_letters.selection import look_through

    async with _reader(settings) as reader:
        named = set(places)
        selection = await look_through(
            reader, (lambda letter: not named.isdisjoint(letter.places)) if named else wanted.takes
        )
        letters = _named(selection, places) if places else selection.letters
        letters = list({letter.place: letter for letter in letters}.values())[: arguments.limit]
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
