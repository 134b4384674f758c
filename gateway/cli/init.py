"""``gateway init``: a first settings file."""

import argparse
import json
import tempfile
from pathlib import Path

from config.errors import ConfigError, ExitStatus
from config.loading.load import load
from gateway.cli.arguments import UsageError
from gateway.cli.config import check_run
from gateway.cli.parser import Commands
from gateway.data_dir import durable

_EPILOG = """\
examples:
  gateway init
  gateway init --mqtt mqtts://emqx.example.com:8883 --username gateway \\
      --password-file /run/secrets/mqtt-password --kafka kafka-1.example.com:9092
"""
_TEXT = """\
# The least that a gateway needs. `gateway config reference` explains every setting.
instance = {instance}             # client ids and the status topic derive from it: each gateway has its own
data_dir = {data_dir}                # the spool and the identity: on a disk, one for each gateway

[mqtt]
addresses = {addresses}
{login}
[kafka]
bootstrap_servers = {servers}
topics.create = true             # make missing topics at the start; false: `gateway topics apply` makes them

[[routes]]                       # in order, the first match wins
name = "telemetry"
filters = [{filter}]
topic = {topic}
{device}"""
_DEVICE = """\
device = "${{topic[{level}]}}"           # a level of the topic, counted from 0; key keeps a device's records in order
key = "${{device}}"
"""


def add_parser(commands: Commands) -> None:
    parser = commands.verb("init", _run, epilog=_EPILOG, json="", config="")
    parser.add_argument(
        "file", nargs="?", type=Path, default=Path("gateway.toml"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument(
        "--mqtt",
        action="append",
        metavar="ADDRESS",
        help="of EMQX; may be given several times (default: mqtt://127.0.0.1:1883)",
    )
    parser.add_argument("--username", metavar="NAME", help="the gateway's user there")
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="file with its password")
    parser.add_argument(
        "--kafka",
        action="append",
        metavar="HOST:PORT",
        help="of a Kafka broker; may be given several times (default: 127.0.0.1:9092)",
    )
    parser.add_argument("--instance", default="gateway", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--data-dir", default="data", metavar="DIR", help="default: %(default)s, beside where it runs")
    parser.add_argument(
        "--filter", default="devices/+/telemetry", metavar="FILTER", help="MQTT topics to bridge (default: %(default)s)"
    )
    parser.add_argument("--topic", default="telemetry", metavar="TOPIC", help="Kafka topic (default: %(default)s)")


def _run(arguments: argparse.Namespace) -> int:
    """Write a settings file with which `gateway run` starts: the brokers, one route, and topics that are made at the
    start. Connects to nothing, and overwrites nothing."""
    if arguments.password_file is not None and arguments.username is None:
        raise UsageError("--password-file needs --username.")
    text = _text(arguments)
    problems = _problems(text)
    if problems:
        raise UsageError(f"With these arguments no gateway would start: {' '.join(problems)}")
    try:
        durable.create(arguments.file, text)
    except FileExistsError:
        raise ConfigError(f"{arguments.file} is there already, and is left as it is: name another file.") from None
    except OSError as error:
        raise ConfigError(f"{arguments.file} cannot be written: {error.strerror}.") from error
    option = "" if arguments.file == Path("gateway.toml") else f" --config {arguments.file}"
    print(f"{arguments.file} is written. Next:")
    print(f"  gateway doctor{option}      are the brokers there, may we use them?")
    print(f"  gateway run{option}")
    return ExitStatus.OK


def _text(arguments: argparse.Namespace) -> str:
    if arguments.username is None:
        login = '# username = "gateway"\n# password_file = "/run/secrets/mqtt-password"\n'
    else:
        login = f"username = {_quoted(arguments.username)}\n"
        if arguments.password_file is not None:
            login += f"password_file = {_quoted(str(arguments.password_file))}\n"
    levels = arguments.filter.split("/")
    return _TEXT.format(
        instance=_quoted(arguments.instance),
        data_dir=_quoted(arguments.data_dir),
        addresses=_quoted(arguments.mqtt or ["mqtt://127.0.0.1:1883"]),
        login=login,
        servers=_quoted(arguments.kafka or ["127.0.0.1:9092"]),
        filter=_quoted(arguments.filter),
        topic=_quoted(arguments.topic),
        device=_DEVICE.format(level=levels.index("+")) if "+" in levels else "",
    )


def _problems(text: str) -> list[str]:
    """Why a gateway would not start with these settings. The password's file may be missing."""
    with tempfile.TemporaryDirectory(prefix="gateway-init-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text("stands-in-for-the-password")
        file = Path(folder) / "gateway.toml"
        lines = [
            f"password_file = {_quoted(str(secret))}" if line.startswith("password_file") else line
            for line in text.splitlines()
        ]
        file.write_text("\n".join(lines))
        try:
            problems, _ = check_run(load(file, environ={}))
        except ConfigError as error:
            problems = list(error.problems)
        return [one.replace(f"{file}:", "line ").replace(str(file), "the file") for one in problems]


def _quoted(value: str | list[str]) -> str:
    """A TOML value. TOML's strings and lists are those of JSON."""
    return json.dumps(value)
