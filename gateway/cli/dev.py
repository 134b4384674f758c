"""``gateway dev``: a real Kafka and a real MQTT broker on this machine, kept running for development."""

from __future__ import annotations

__all__ = ["add_parser"]

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from config.errors import ExitStatus
from gateway.cli.arguments import add_json

if TYPE_CHECKING:
    from gateway.embedded.dev import DevBrokers

_KAFKA_PORT, _MQTT_PORT = 9092, 1883  # the settings' defaults: a gateway finds them without any settings


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command. Each of its parsers sets ``run``: a function from the arguments to an exit status."""
    parser = subparsers.add_parser(
        "dev",
        help="run the embedded brokers in the background",
        description="Runs a real Kafka and a real MQTT broker on this machine, without Docker or root. "
        "They are bound to 127.0.0.1 and downloaded once.",
    )
    commands = parser.add_subparsers(dest="dev_command", required=True, metavar="COMMAND")

    up = commands.add_parser(
        "up",
        help="start the brokers, or say where they run",
        description="Start both brokers in the background and print their addresses. "
        "When they run already, the addresses are printed and nothing is changed.",
    )
    up.add_argument(
        "--kafka-port",
        type=_port,
        default=_KAFKA_PORT,
        metavar="PORT",
        help="Kafka's port, 0 for any free one (default: %(default)s)",
    )
    up.add_argument(
        "--mqtt-port",
        type=_port,
        default=_MQTT_PORT,
        metavar="PORT",
        help="the MQTT broker's port, 0 for any free one (default: %(default)s)",
    )
    up.add_argument("--nodes", type=int, default=1, choices=range(1, 6), metavar="N", help="Kafka nodes (default: 1)")
    up.add_argument(
        "--data", type=Path, metavar="DIR", help="keep Kafka's data here (default: it ends with the brokers)"
    )
    up.add_argument(
        "--auth",
        action="store_true",
        help="let the MQTT broker ask an access service (gateway auth serve) who may do what",
    )
    up.set_defaults(run=_up)

    down = commands.add_parser("down", help="stop the brokers", description="Stop the brokers that 'up' started.")
    down.set_defaults(run=_down)

    status = commands.add_parser(
        "status",
        help="say where the brokers run",
        description="Print the addresses of the brokers that 'up' started. "
        "Exit status 1 when they do not run, or one of them has ended.",
    )
    status.set_defaults(run=_status)

    for command in (up, status):
        add_json(command)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{port} is no port: 0 to 65535")
    return port


def _up(arguments: argparse.Namespace) -> int:
    from gateway.embedded.dev import up  # not at the top: other commands should not pay for it
    from gateway.embedded.errors import PortTakenError

    try:
        brokers, started = up(
            kafka_port=arguments.kafka_port or None,
            mqtt_port=arguments.mqtt_port or None,
            nodes=arguments.nodes,
            data=arguments.data,
            auth=arguments.auth,
        )
    except PortTakenError as error:
        raise PortTakenError(f"{error}\n(gateway dev up --kafka-port 0 --mqtt-port 0 takes any free ones.)") from error
    _show(brokers, as_json=arguments.json, heading="started" if started else "running already")
    return ExitStatus.FAILED if brokers.failed else ExitStatus.OK


def _down(arguments: argparse.Namespace) -> int:
    from gateway.embedded.dev import down

    del arguments
    print("stopped" if down() else "not running")
    return ExitStatus.OK


def _status(arguments: argparse.Namespace) -> int:
    from gateway.embedded.dev import find

    brokers = find()
    if brokers is None:
        print("null" if arguments.json else "not running (gateway dev up starts the brokers)")
        return ExitStatus.FAILED
    _show(brokers, as_json=arguments.json, heading="running")
    return ExitStatus.FAILED if brokers.failed else ExitStatus.OK


def _show(brokers: DevBrokers, *, as_json: bool, heading: str) -> None:
    from auth.first_start import GATEWAY_USER
    from gateway.embedded.dev import to_json

    if as_json:
        print(to_json(brokers))
        return
    print(f"{heading} (process {brokers.pid}; gateway dev down stops them)")
    for label, value in (
        ("Kafka", brokers.kafka),
        ("MQTT", brokers.mqtt),
        ("WebSocket", brokers.websocket),
        ("Kafka logs", brokers.logs),
    ):
        print(f"  {label:<11} {value}")
    if brokers.access:
        print(f"  {'Access':<11} gateway auth … --config {brokers.access}")
        print(f"  {'Secrets':<11} {brokers.secrets} (the gateway's user is {GATEWAY_USER})")
    for broker in brokers.failed:
        print(f"  {broker} has ended by itself: see the logs, then gateway dev down and up")
