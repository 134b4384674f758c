"""``gateway explain``: the way of a message, or of a command to a device, step by step."""

import argparse
import base64
import binascii
from typing import Any, Final

from bridge.message import Properties
from config.errors import ConfigError, ExitStatus, GatewayError
from config.loading.load import load
from config.settings import Settings
from gateway.admin.kafka import KafkaAdmin
from gateway.cli.arguments import UsageError, load_noted, positive, read_input
from gateway.cli.device_commands.command import the_one
from gateway.cli.parser import Commands, choice, flag
from gateway.cli.records import explain_text
from gateway.cli.records.explain_text import command_text
from gateway.cli.table import as_data, print_json, tell
from gateway.tools.explain import Explanation, Message, explain
from gateway.tools.explain_command import explain_command
from streaming.runtime.reach import require_kafka

_LISTENS_S: Final = 1.0
_PATIENCE_S: Final = 3.0  # for a Kafka that does not answer; only the partition needs it
_EPILOG: Final = """\
examples:
  gateway explain devices/pump-7/telemetry
  gateway explain devices/pump-7/telemetry '{"temperature": 21.5}' --properties content_type=application/json
  gateway explain devices/pump-7/alarm @alarm.bin --qos 2 --properties site=north --partitions 12
  gateway explain --command pump-7 '{"on": true}' --properties subject=switch response-required=true
  echo AAEC/w== | gateway explain devices/x/raw - --encoding base64 --json

PROPERTY is NAME=VALUE: a user property, or one of content_type, response_topic, correlation_data, message_expiry
(seconds), payload_format (0 or 1). Write user.NAME=VALUE for a user property that is called like one of these. With
--command it is a header of the command's record.

exit status: 0 a record is written or a command sent, 1 a dead letter, the message is dropped or taken by no route, its
topic is missing, or the command has expired, 2 wrong arguments, 78 bad settings
"""
_OWN: Final = ("content_type", "response_topic", "correlation_data", "message_expiry", "payload_format")


def add_parser(commands: Commands) -> None:
    parser = commands.verb("explain", _run, epilog=_EPILOG)
    parser.add_argument("topic", metavar="TOPIC", help="the MQTT topic it is published to; with --command the device")
    parser.add_argument(
        "payload",
        metavar="PAYLOAD",
        nargs="?",
        default="",
        help="text, @FILE, or - for standard input (default: empty)",
    )
    choice(parser, "--encoding", ("text", "hex", "base64"), "how PAYLOAD is written")
    parser.add_argument(
        "--properties", nargs="+", action="extend", default=[], metavar="PROPERTY", help="MQTT 5 properties"
    )
    flag(parser, "--command", "explain a command to the device TOPIC")
    parser.add_argument("--commands", metavar="NAME", help="name of its [[commands]], if there are several")
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=1, help="QoS it is published with (default: 1)")
    flag(parser, "--retain", "published as retained")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--partitions", type=positive, metavar="N", help="as if every Kafka topic had N; Kafka is not asked"
    )
    flag(where, "--offline", "do not ask Kafka; the partition is then unknown")


def _run(arguments: argparse.Namespace) -> int:
    """Shows the way of an MQTT message by the settings: its subscription, its route and why earlier routes do not take
    it, each interceptor's result, and the record: Kafka topic, key, partition, headers; or the dead letter, with its
    reason. The message goes through the gateway's own code. Nothing is published or written, and no MQTT broker is
    asked. Kafka is asked for the number of partitions, unless --partitions or --offline is given.

    With --command: the way of a command from Kafka to a device: MQTT topic and properties, expiry, what is awaited, and
    which route brings it.
    """
    _check_text(arguments.topic)
    if arguments.command or arguments.commands is not None:
        return _explain_command(arguments)

    message = Message(
        arguments.topic, _payload(arguments), _properties(arguments.properties), arguments.qos, arguments.retain
    )
    _check_topic(arguments.topic)
    loaded = load(arguments.config)
    settings = loaded.settings
    if not settings.routes:
        raise ConfigError(
            loaded.missing_file
            or "The settings have no routes, so the gateway would read no message. Add a [[routes]] table."
        )
    partitions = _Partitions(arguments, settings)
    told = explain(settings, message, partitions)
    told.notes += [*partitions.notes, *filter(None, [loaded.profile])]
    if arguments.json:
        print_json(_document(told))
    else:
        tell(explain_text.text(told, settings))
    good = bool(told.written) and not any(one.dead_letter for one in told.written)
    return ExitStatus.OK if good and not partitions.missing else ExitStatus.FAILED


def _explain_command(arguments: argparse.Namespace) -> int:
    settings = load_noted(arguments.config).settings
    commands = the_one(settings, arguments.commands)
    headers = []
    for text in arguments.properties:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--properties {text}: write NAME=VALUE, such as {commands.subject_header}=switch.")
        headers.append((name, value.encode(errors="surrogateescape")))
    partitions = _Partitions(arguments, settings)
    told = explain_command(settings, commands, arguments.topic, _payload(arguments), headers, partitions)
    told.notes += partitions.notes
    if arguments.json:
        document = {name: as_data(getattr(told, name)) for name in told.__slots__}
        print_json(document)
    else:
        tell(command_text(told, commands))
    return ExitStatus.OK if told.sent is not None else ExitStatus.FAILED


def _check_text(text: str) -> None:
    """Raises UsageError for bytes of the shell that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} is no UTF-8 text, which topics and properties are.") from None


def _check_topic(topic: str) -> None:
    """Raises UsageError for a topic that MQTT does not allow."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise UsageError(
            f"{topic!r} is no topic of a message, which has at least one character, and no '+', '#' or NUL. "
            "Give the topic that a device publishes to, not a filter."
        )


def _payload(arguments: argparse.Namespace) -> bytes:
    text: str = arguments.payload
    try:
        if text == "-" or text.startswith("@"):
            data = read_input(text.removeprefix("@"))
        else:
            data = text.encode(errors="surrogateescape")  # the bytes of the shell
    except ValueError as error:
        raise UsageError(f"The payload cannot be read from {text.removeprefix('@')}: {error}") from None
    try:
        match arguments.encoding:
            case "hex":
                return binascii.unhexlify(b"".join(data.split()))
            case "base64":
                return base64.b64decode(b"".join(data.split()), validate=True)
            case _:
                return data
    except ValueError as error:
        raise UsageError(f"The payload is no {arguments.encoding}: {error}.") from None


def _properties(texts: list[str]) -> Properties:
    user: list[tuple[str, str]] = []
    own: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--properties {text}: write NAME=VALUE, such as site=north or content_type=text/plain.")
        if name == "correlation_data":
            own[name] = value.encode(errors="surrogateescape")  # the bytes of the shell
            continue
        _check_text(text)
        if name not in _OWN:
            user.append((name.removeprefix("user."), value))
        elif name in ("message_expiry", "payload_format"):
            most = 1 if name == "payload_format" else 0xFFFF_FFFF  # MQTT 5.0, 3.3.2.3.3: four bytes
            if not (value.isdecimal() and len(value) <= 10 and int(value) <= most):
                raise UsageError(f"--properties {text}: {name} is a number from 0 to {most}.")
            own[name] = int(value)
        else:
            own[name] = value
    return Properties(user=tuple(user), **own)


class _Partitions:
    """The number of partitions of a topic, by Kafka unless ``arguments`` say it; None if unknown. ``notes`` say why,
    each once. ``missing``: Kafka lacks a topic, and no gateway makes it."""

    def __init__(self, arguments: argparse.Namespace, settings: Settings) -> None:
        self.notes: list[str] = []
        self.missing = False
        self._told: int | None = arguments.partitions
        self._silent = arguments.offline or arguments.partitions is not None
        self._settings = settings

    def __call__(self, topic: str) -> int | None:
        if self._silent:
            return self._told
        try:
            require_kafka(self._settings.kafka.bootstrap_servers, _LISTENS_S)  # the client would try for much longer
            with KafkaAdmin(self._settings, timeout_s=_PATIENCE_S) as admin:
                found = {one.name: len(one.partitions) for one in admin.topics([topic])}
        except GatewayError as error:
            self._silent = True
            self.notes.append(f"The partition is unknown (--partitions N says how many): {error}")
            return None
        if not found.get(topic):
            why = "--partitions N says how many."
            if not self._settings.kafka.topics.create:
                self.missing = True
                why = (
                    "kafka.topics.create is off: messages wait until somebody makes it, and those of a template become "
                    "dead letters (invalid_topic)."
                )
            self.notes.append(f"The partition is unknown: Kafka shows us no topic {topic!r}. {why}")
        return found.get(topic) or None


def _document(told: Explanation) -> dict[str, Any]:
    document = {name: as_data(getattr(told, name)) for name in told.__slots__ if name != "message"}
    for one in document["written"]:
        one["headers"] = [{"name": name, "value": value} for name, value in one["headers"]]
    return document | {"topic": told.message.topic}
