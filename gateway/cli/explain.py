"""``gateway explain``: what would become of a message, step by step."""

from __future__ import annotations

__all__ = ["add_parser"]

import base64
import binascii
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from config.errors import ConfigError, ExitStatus, GatewayError
from gateway.cli.arguments import UsageError, add_config, add_json, positive
from gateway.cli.table import tell

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from bridge.message import Properties
    from config.settings import Settings
    from gateway.tools.explain import Explanation

_LISTENS_S: Final = 1.0
_PATIENCE_S: Final = 3.0  # for a Kafka that does not answer: the rest can be told without it
_DESCRIPTION: Final = """\
Tells, from the settings alone, what would become of an MQTT message: which subscription brings it, which route takes it
and why those before it do not, what each interceptor makes of it, and the record as it would be written: Kafka topic,
key, partition, headers; or the dead letter, with its reason. The message takes the way of a real one, through the same
code; nothing is published or written, and no MQTT broker is asked. Kafka is asked for the number of partitions, unless
--partitions or --offline is given.
"""
_EPILOG: Final = """\
examples:
  gateway explain devices/pump-7/telemetry
  gateway explain devices/pump-7/telemetry '{"temperature": 21.5}' --properties content_type=application/json
  gateway explain devices/pump-7/alarm @alarm.bin --qos 2 --properties site=north --partitions 12
  echo AAEC/w== | gateway explain devices/x/raw - --encoding base64 --json

PROPERTY is NAME=VALUE: a user property, or one of content_type, response_topic, correlation_data, message_expiry
(seconds), payload_format (0 or 1). Write user.NAME=VALUE for a user property that is called like one of these.

exit status: 0 a record is written, 1 a dead letter, or the message is dropped or taken by no route, 2 wrong arguments,
78 bad settings
"""
_OWN: Final = ("content_type", "response_topic", "correlation_data", "message_expiry", "payload_format")


def add_parser(commands: Any) -> None:
    """Add ``gateway explain`` to the command's parser."""
    parser = commands.add_parser(
        "explain",
        help="tell what would become of a message: route, interceptors, topic, key, partition, headers",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("topic", metavar="TOPIC", help="the MQTT topic it is published to")
    parser.add_argument(
        "payload",
        metavar="PAYLOAD",
        nargs="?",
        default="",
        help="text, @FILE, or - for standard input (default: empty)",
    )
    parser.add_argument(
        "--encoding", choices=("text", "hex", "base64"), default="text", help="how PAYLOAD is written (default: text)"
    )
    parser.add_argument(
        "--properties", nargs="+", action="extend", default=[], metavar="PROPERTY", help="MQTT 5 properties"
    )
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=1, help="QoS it is published with (default: 1)")
    parser.add_argument("--retain", action="store_true", help="published as retained")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--partitions", type=positive, metavar="N", help="as if every Kafka topic had N; Kafka is not asked"
    )
    where.add_argument("--offline", action="store_true", help="do not ask Kafka; the partition is then unknown")
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from config.loading.load import load
    from gateway.tools.explain import Message, explain

    message = Message(
        arguments.topic, _payload(arguments), _properties(arguments.properties), arguments.qos, arguments.retain
    )
    _check_topic(arguments.topic)
    loaded = load(arguments.config)
    settings = loaded.settings
    if not settings.routes:
        raise ConfigError(
            loaded.missing_file
            or "The settings have no routes: every message would be left where it is. Add a [[routes]] table."
        )
    asked: list[str] = []
    told = explain(settings, message, _partitions(arguments, settings, asked))
    told.notes += asked
    if arguments.json:
        from gateway.cli.table import print_json

        print_json(_document(told))
    else:
        from gateway.cli.explain_text import text

        tell(text(told, settings))
    good = bool(told.written) and not any(one.dead_letter for one in told.written)
    return ExitStatus.OK if good else ExitStatus.FAILED


def _check_topic(topic: str) -> None:
    """Raises UsageError for what nobody can publish to."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise UsageError(
            f"{topic!r} is no topic that a message can have: it is at least one character, without '+', '#' and NUL. "
            "Give the topic that a device publishes to, not a filter."
        )


def _payload(arguments: argparse.Namespace) -> bytes:
    text: str = arguments.payload
    try:
        if text == "-":
            data = sys.stdin.buffer.read()
        elif text.startswith("@"):
            data = Path(text[1:]).read_bytes()
        else:
            data = text.encode(errors="surrogateescape")  # as the shell gave it, whatever it is
    except OSError as error:
        raise UsageError(f"The payload cannot be read from {text[1:]}: {error.strerror}.") from None
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
    from bridge.message import Properties

    user: list[tuple[str, str]] = []
    own: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--properties {text}: write NAME=VALUE, such as site=north or content_type=text/plain.")
        if name not in _OWN:
            user.append((name.removeprefix("user."), value))
        elif name == "correlation_data":
            own[name] = value.encode()
        elif name in ("message_expiry", "payload_format"):
            if not value.isdecimal() or (name == "payload_format" and value not in ("0", "1")):
                raise UsageError(f"--properties {text}: {name} is a number{', 0 or 1' * (name == 'payload_format')}.")
            own[name] = int(value)
        else:
            own[name] = value
    return Properties(user=tuple(user), **own)


def _partitions(arguments: argparse.Namespace, settings: Settings, notes: list[str]) -> Callable[[str], int | None]:
    """How many partitions a topic has; why that is unknown goes into ``notes``, once."""
    if arguments.partitions is not None:
        return lambda _topic: int(arguments.partitions)
    if arguments.offline:
        return lambda _topic: None
    silent = False

    def count(topic: str) -> int | None:
        nonlocal silent
        if silent:
            return None
        from gateway.admin.kafka import KafkaAdmin

        if not _listens(settings):
            silent = True
            addresses = ", ".join(settings.kafka.bootstrap_servers)
            notes.append(f"The partition is unknown: nothing listens at {addresses}. --partitions N says how many.")
            return None
        try:
            with KafkaAdmin(settings, timeout_s=_PATIENCE_S) as admin:
                found = {one.name: len(one.partitions) for one in admin.topics([topic])}
        except GatewayError as error:
            silent = True
            notes.append(f"The partition is unknown (--partitions N says how many): {error}")
            return None
        if not found.get(topic):
            notes.append(f"The partition is unknown: Kafka has no topic {topic!r} yet. --partitions N says how many.")
        return found.get(topic) or None

    return count


def _listens(settings: Settings) -> bool:
    """Whether any of Kafka's addresses takes a connection: the client would try for much longer."""
    import socket

    for address in settings.kafka.bootstrap_servers:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_LISTENS_S).close()
        except OSError:
            continue
        return True
    return False


def _document(told: Explanation) -> dict[str, Any]:
    """For machines: bytes as text where they are UTF-8, else as base64 beside a name that says so."""
    from gateway.cli.table import as_data

    document = as_data(
        {
            "before": told.before, "deliveries": told.deliveries, "routes": told.routes, "route": told.route,
            "message_id_kind": told.message_id_kind, "steps": told.steps, "filtered": told.filtered,
            "stopped": told.stopped, "notes": told.notes,
        }
    )  # fmt: skip
    document |= {"topic": told.message.topic, "device": _text(told.device), "message_id": _text(told.message_id)}
    document["written"] = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "partitions": one.partitions,
            "key": _text(one.key),
            "value": _text(one.value),
            "headers": [{"name": name, "value": _text(value)} for name, value in one.headers],
            "timestamp_ms": one.timestamp_ms,
            "dead_letter": one.dead_letter,
        }
        for one in told.written
    ]
    return dict(document)


def _text(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
