"""``gateway command``: sends commands to devices through Kafka, and shows what became of them."""

import argparse
import shutil
from collections.abc import Sequence
from typing import Final

from bridge.commands.model import Status
from bridge.commands.reading import BadCommandError
from bridge.commands.status_reading import StatusView
from bridge.dead_letters.reading import Place
from config.errors import ConfigError, ExitStatus
from config.settings import Settings
from config.tables.commands import CommandSettings
from gateway.cli.arguments import (
    NotFoundError,
    UsageError,
    a_second_or_more,
    moment,
    positive,
    read_input,
    with_settings,
)
from gateway.cli.device_commands import text
from gateway.cli.device_commands.statuses import StatusTopics, Wanted
from gateway.cli.parser import Commands, flag, repeated
from gateway.cli.table import bytes_data, print_json, tell
from gateway.components.outward import kafka_login
from gateway.tools.send_command import Draft, Sending

_SEND_EPILOG: Final = """\
examples:
  gateway command send pump-7 '{"on": true}' --subject switch --wait
  gateway command send pump-7 --payload-file firmware.bin --expires 1h --no-answer

exit status: 0 it is written; with --wait it was sent, delivered or succeeded, as asked. 7 it failed, was rejected or
refused, timed out, expired, or is undeliverable; 5 no terminal status came in time; 2 it could never be a command
"""


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "command",
        "Commands to devices ([[commands]] in the settings): records of Kafka topics, which a running gateway "
        "publishes over MQTT. Only send writes; no command uses a consumer group.",
    )
    does = "write a command to Kafka; --wait shows its statuses"
    send = parsers.verb("send", with_settings(_send), does, _SEND_EPILOG)
    send.add_argument("device", metavar="DEVICE", help="its name, which becomes the record's key")
    send.add_argument("payload", metavar="PAYLOAD", nargs="?", help="text (default: empty)")
    send.add_argument("--payload-file", metavar="FILE", help="the payload from a file, - for standard input")
    send.add_argument("--subject", metavar="NAME", help="name of the command, ${subject} in mqtt_topic")
    send.add_argument("--id", metavar="ID", help="its id (default: the record's place)")
    send.add_argument(
        "--expires", type=a_second_or_more, metavar="LENGTH", help="not sent after: 30s, 1h (default: settings)"
    )
    send.add_argument(
        "--answer",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether an answer is awaited (default: settings)",
    )
    send.add_argument("--content-type", metavar="TYPE", help="content type of the payload")
    flag(send, "--wait", "show each status until the terminal one")
    _add_name(send, "name of its [[commands]]; needed if the settings have several")

    listing = parsers.verb("list", with_settings(_list), "list commands with their last status, the newest last")
    repeated(listing, "--device", "NAME", "of a device; may be repeated")
    repeated(listing, "--status", "STATUS", f"with this last status: {', '.join(Status)}", choices=list(Status))
    flag(listing, "--open", "only those that are not finished")
    listing.add_argument("--since", type=moment, metavar="WHEN", help="with a status since then: a time (UTC), or 2h")
    newest = "the N newest, at most 100,000 (default: %(default)s)"
    listing.add_argument("--limit", type=positive, default=50, metavar="N", help=newest)
    _add_name(listing)

    show = parsers.verb("show", with_settings(_show), "show one command: its record, statuses and answers")
    show.add_argument("id", metavar="ID", help="its id, or its place: TOPIC/PARTITION:OFFSET")
    _add_name(show)


def _add_name(parser: argparse.ArgumentParser, what: str = "only those of this [[commands]]") -> None:
    parser.add_argument("--commands", metavar="NAME", help=what)


def chosen(settings: Settings, name: str | None) -> Sequence[CommandSettings]:
    """The ``[[commands]]`` of that name, all without one. Raises ConfigError and UsageError."""
    if not settings.commands:
        raise ConfigError("The settings have no [[commands]]: this gateway sends no commands to devices.")
    if name is None:
        return settings.commands
    found = [one for one in settings.commands if one.name == name]
    if not found:
        names = ", ".join(one.name for one in settings.commands)
        raise UsageError(f"--commands {name}: the settings have no such [[commands]]; there are: {names}.")
    return found


def the_one(settings: Settings, name: str | None) -> CommandSettings:
    """The ``[[commands]]`` that a command is for. Raises ConfigError and UsageError."""
    found = chosen(settings, name)
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise UsageError(f"The settings have several [[commands]] ({names}): choose one with --commands NAME.")
    return found[0]


# --- send ----------------------------------------------------------------------------------------------------------


def _draft(arguments: argparse.Namespace) -> Draft:
    if arguments.payload is not None and arguments.payload_file is not None:
        raise UsageError("Give PAYLOAD or --payload-file, but only one of them.")
    if arguments.payload_file is None:
        payload = (arguments.payload or "").encode(errors="surrogateescape")  # the bytes of the shell
    else:
        try:
            payload = read_input(arguments.payload_file)
        except ValueError as error:
            raise UsageError(f"--payload-file {arguments.payload_file}: it cannot be read: {error}") from None
    return Draft(
        device=arguments.device,
        payload=payload,
        subject=arguments.subject,
        id=arguments.id,
        expires_s=arguments.expires,
        is_answer_asked=arguments.answer,
        content_type=arguments.content_type,
    )


async def _send(arguments: argparse.Namespace, settings: Settings) -> int:
    """Writes a command for a device to the first Kafka topic of its [[commands]], and says where it is. With --wait:
    shows each status until the terminal one. A gateway must run for that."""
    commands, draft = the_one(settings, arguments.commands), _draft(arguments)
    async with kafka_login(settings.kafka) as login:
        try:
            sending = Sending(settings, commands, draft, login)
        except BadCommandError as error:
            raise UsageError(f"Nothing was written, for it would be a dead letter ({error.reason}): {error}") from None
        if arguments.wait:
            return await _follow(arguments, sending, draft)
        place = await sending.write()
    if arguments.json:
        print_json({"command": str(place), "id": draft.id or str(place)})
    else:
        print(f"Written to {place}.")
    return ExitStatus.OK


async def _follow(arguments: argparse.Namespace, sending: Sending, draft: Draft) -> ExitStatus:
    place: Place | None = None
    statuses: list[StatusView] = []
    async for one in sending.written_and_followed():
        if isinstance(one, StatusView):
            statuses.append(one)
            if not arguments.json:
                tell(text.line(one))
        else:
            place = one
            if not arguments.json:
                print(f"Written to {place}.", flush=True)
    outcome = statuses[-1] if statuses and statuses[-1].is_terminal else None
    if arguments.json:
        print_json(
            {
                "command": str(place),
                "id": draft.id or str(place),
                "outcome": None if outcome is None else str(outcome.status),
                "statuses": [text.as_data(one) for one in statuses],
            }
        )
    elif outcome is None:
        why = "Does a gateway with these settings run?" if not statuses else "It is not finished yet."
        tell(f"No terminal status came within {sending.patience_s:.0f} s. {why}")
    if outcome is None:
        return ExitStatus.INCOMPLETE
    return ExitStatus.OK if outcome.status in text.GOOD else ExitStatus.UNFULFILLED


# --- list and show -------------------------------------------------------------------------------------------------


async def _list(arguments: argparse.Namespace, settings: Settings) -> int:
    """List the commands that the status topics know, with the last status of each, the newest last. A command that no
    worker has taken yet has no status."""
    commands = chosen(settings, arguments.commands)
    wanted = Wanted(tuple(arguments.device), tuple(arguments.status), arguments.open)
    async with kafka_login(settings.kafka) as login:
        found, has_all = await StatusTopics(settings, commands, login).last(wanted, arguments.since)
    shown = found[-arguments.limit :]
    if arguments.json:
        matching = len(found) if has_all else None
        print_json({"matching": matching, "commands": [text.as_data(status) for status in shown]})
        return ExitStatus.OK
    for line in text.table(shown, shutil.get_terminal_size((80, 24)).columns):
        print(line)
    older = f", the {len(shown)} newest shown" if len(shown) < len(found) else ""
    print(f"{'' if has_all else 'More than '}{len(found)} commands match{older}.")
    return ExitStatus.OK


async def _show(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show a command in full: its record, every status that Kafka still has, and the answers of its device. Ends with
    status 4 when there is none."""
    commands = chosen(settings, arguments.commands)
    async with kafka_login(settings.kafka) as login:
        found = await StatusTopics(settings, commands, login).find(arguments.id)
    if not found:
        topics = ", ".join(sorted({one.status_topic for one in commands}))
        raise NotFoundError(
            f"There is no command {arguments.id!r}: {topics} has no status with this id or place. Its statuses may "
            "have expired, or no worker has taken it yet (then give its place)."
        )
    if arguments.json:
        print_json(
            {
                "commands": [
                    {
                        "record": None if one.record is None else str(one.record.place),
                        "key": None if one.record is None else bytes_data(one.record.key),
                        "payload": None if one.record is None else bytes_data(one.record.value),
                        "headers": []
                        if one.record is None
                        else [[name, bytes_data(value)] for name, value in one.record.headers],
                        "statuses": [text.as_data(status) for status in one.statuses],
                        "answers": [
                            {
                                "record": str(answer.place),
                                "at": text.when(answer.timestamp_ms),
                                "device": answer.device,
                                "status": answer.code or None,
                                "payload": bytes_data(answer.payload),
                            }
                            for answer in one.answers
                        ],
                    }
                    for one in found
                ]
            }
        )
        return ExitStatus.OK
    for number, one in enumerate(found):
        if number:
            print()
        for line in text.describe(one.statuses, one.record, one.request, one.answers):
            print(line)
    return ExitStatus.OK
