"""``gateway dev``: a real Kafka and a real MQTT broker on this machine, for development."""

import argparse
import re
import shlex
from pathlib import Path

from auth.store.first_start import GATEWAY_USER
from config.errors import ExitStatus
from config.extras import require
from gateway.cli.arguments import between
from gateway.cli.parser import Commands, flag
from gateway.cli.table import mention, tell
from gateway.local.embedded import dev as embedded
from gateway.local.embedded.dev import DevBrokers, find, others, project_name, to_json

_KAFKA_PORT, _MQTT_PORT = 9092, 1883  # the settings' defaults: a gateway finds them without any settings


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "dev",
        "Runs a real Kafka and a real MQTT broker on this machine, without Docker or root. They are bound to 127.0.0.1 "
        "and downloaded once. Each project, which is the current folder, has brokers of its own; --name takes those of "
        "another.",
        config="",
    )
    up = parsers.verb("up", _up, "start the brokers, or print their addresses")
    for option, whose, port in (("kafka", "Kafka", _KAFKA_PORT), ("mqtt", "the MQTT broker", _MQTT_PORT)):
        text = f"{whose}'s port, 0 for any free one (default: {port}, or a free one when that is taken)"
        up.add_argument(f"--{option}-port", type=between(0, 65_535), metavar="PORT", help=text)
    up.add_argument("--nodes", type=int, default=1, choices=range(1, 6), metavar="N", help="Kafka nodes (default: 1)")
    up.add_argument(
        "--data", type=Path, metavar="DIR", help="keep Kafka's data here (default: it ends with the brokers)"
    )
    flag(up, "--auth", "let the MQTT broker ask an access service (gateway auth serve)")
    down = parsers.verb("down", _down, "stop the brokers", json="")
    status = parsers.verb("status", _status, "print the addresses of the brokers")
    for command in (up, down, status):
        command.add_argument(
            "--name", type=_name, metavar="NAME", help="the brokers of this name (default: those of the current folder)"
        )


def _name(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no name: 1 to 40 letters, digits, _ and -")
    return text


def _up(arguments: argparse.Namespace) -> int:
    """Start both brokers in the background and print their addresses. When they run already, the addresses are printed
    and nothing is changed. They take Kafka's port 9092 and MQTT's port 1883, or free ones where these are taken."""
    needed = {"jpype": "JPype1"} | ({"argon2": "argon2-cffi"} if arguments.auth else {})
    require("gateway dev", needed, "embedded,auth" if arguments.auth else "embedded")
    brokers, started = embedded.up(
        _brokers_name(arguments),
        kafka_port=_or_free(arguments.kafka_port, _KAFKA_PORT),
        mqtt_port=_or_free(arguments.mqtt_port, _MQTT_PORT),
        nodes=arguments.nodes,
        data=arguments.data,
        auth=arguments.auth,
    )
    _show(brokers, arguments, heading="started" if started else "running already")
    for server, asked, port, address in (
        ("Kafka", arguments.kafka_port, _KAFKA_PORT, brokers.kafka.partition(",")[0]),
        ("the MQTT broker", arguments.mqtt_port, _MQTT_PORT, brokers.mqtt),
    ):
        if started and asked is None and not address.endswith(f":{port}"):
            mention(f"port {port} is in use, so {server} has a free one: settings without its address reach the other.")
    return ExitStatus.FAILED if brokers.failed else ExitStatus.OK


def _brokers_name(arguments: argparse.Namespace) -> str:
    name: str | None = arguments.name
    return project_name(Path.cwd()) if name is None else name


def _or_free(port: int | None, default: int) -> int | None:
    """The port to use, None for any free one. The default port is used only if it is free."""
    from gateway.local.runtime.ports import PortReservation

    if port is not None:
        return port or None
    trial = PortReservation()
    try:
        return default if trial.take(default) else None
    finally:
        trial.release()


def _down(arguments: argparse.Namespace) -> int:
    """Stop the brokers that 'up' started."""
    name = _brokers_name(arguments)
    if embedded.down(name):
        print("stopped")
    else:
        print("not running")
        _show_others(name)
    return ExitStatus.OK


def _status(arguments: argparse.Namespace) -> int:
    """Print the addresses of the brokers that 'up' started, and the brokers of other projects. Exit status 1 when they
    do not run, or one of them has ended."""
    name = _brokers_name(arguments)
    brokers = find(name)
    if brokers is None:
        print("null" if arguments.json else f"not running (gateway dev up{_option(arguments)} starts the brokers)")
    else:
        _show(brokers, arguments, heading="running")
    if not arguments.json:
        _show_others(name)
    return ExitStatus.FAILED if brokers is None or brokers.failed else ExitStatus.OK


def _show_others(name: str) -> None:
    for one in others(name):
        tell(f"also running: brokers of {one.project} (--name {one.name})")


def _option(arguments: argparse.Namespace) -> str:
    """The option ``--name`` for a command in a sentence."""
    return "" if arguments.name is None else f" --name {arguments.name}"


def _init_command(brokers: DevBrokers) -> str:
    """The command that writes settings for these brokers."""
    command = ["gateway init"]
    if brokers.mqtt != f"mqtt://127.0.0.1:{_MQTT_PORT}":
        command.append(f"--mqtt {brokers.mqtt}")
    if brokers.kafka != f"127.0.0.1:{_KAFKA_PORT}":
        command += [f"--kafka {server}" for server in brokers.kafka.split(",")]
    if brokers.secrets:
        password = shlex.quote(f"{brokers.secrets}/gateway/mqtt_password")
        command.append(f"--username {GATEWAY_USER} --password-file {password}")
    return " ".join(command)


def _show(brokers: DevBrokers, arguments: argparse.Namespace, *, heading: str) -> None:
    if arguments.json:
        print(to_json(brokers))
        return
    print(f"{heading} (process {brokers.pid}; gateway dev down{_option(arguments)} stops them)")
    for label, value in (
        ("Kafka", brokers.kafka),
        ("MQTT", brokers.mqtt),
        ("WebSocket", brokers.websocket),
        ("Kafka logs", brokers.logs),
        ("Settings", f"{_init_command(brokers)}   # writes them"),
    ):
        print(f"  {label:<11} {value}")
    if brokers.access:
        print(f"  {'Access':<11} gateway auth … --config {brokers.access}")
        print(f"  {'Secrets':<11} {brokers.secrets} (the gateway's user is {GATEWAY_USER})")
    for broker in brokers.failed:
        tell(f"{broker} has ended by itself: see the logs, then gateway dev down{_option(arguments)} and up")
