"""The ``gateway`` command: one parser, each subcommand in its own module and imported when it is chosen."""

import argparse
import signal
import sys
from typing import Any

from config.errors import GatewayError
from gateway.cli.parser import Parser

_COMMANDS = {  # the module of each command below gateway.cli, and what it does
    "init": "write a settings file to begin with",
    "service.run": "bridge messages until stopped",
    "service.reload": "have the running gateway take changed settings, without disconnecting",
    "service.restart": "replace the workers one after the other",
    "service.retire": "stop the gateway for good: its sessions end at the broker",
    "doctor": "find problems: settings, MQTT, Kafka, this machine",
    "records.tail": "show records in Kafka as they arrive, payloads included",
    "records.explain": "show the way of a message: route, interceptors, topic, key, partition, headers",
    "routes": "list the routes; find those that are never reached, overlap or break order",
    "config": "check, show or explain the settings",
    "kafka.topics": "list, describe, plan, make, grow or delete Kafka topics",
    "kafka.groups": "consumer groups: members, offsets, lag",
    "kafka.leaders": "show which broker leads what, or elect the preferred leaders",
    "kafka.cluster": "Kafka's brokers, controller, quorum, running reassignments",
    "device_commands.command": "send commands to devices, and show what became of them",
    "records.verify": "compare the ledger topic with Kafka's records",
    "dead_letters.dlq": "list, show and replay dead letters",
    "records.spool": "show, export or import batches that wait on disk for Kafka",
    "service.identity": "show or change the owner of the data directory",
    "service.acknowledge": "end the problem session-lost",
    "trial": "send marked messages through your own brokers and account for each",
    "local.simulate": "simulate many devices, with faults on request",
    "import_": "turn EMQX's Kafka actions or a Telegraf configuration into settings",
    "records.compare": "compare two Kafka topics: the old bridge's and ours",
    "auth": "the service that EMQX asks who may do what",
    "stream": "run a Spark job",
    "local.dev": "run the embedded brokers in the background",
    "local.demo": "run the whole path on this machine and account for every message",
}
_EPILOG = (
    "To begin: gateway init writes settings; gateway doctor finds problems; gateway explain TOPIC "
    "shows the way of a message. gateway COMMAND --help has each command's options and examples.\n\n"
    "exit status: 0 success, 1 failure, 2 wrong arguments, 3 messages missing, 4 what was asked for does not exist, "
    "5 only a part was done, 6 a verification could not check everything, 7 a command to a device did not succeed, "
    "69 a broker or topic is missing or the disk is full, 75 stopped before everything was acknowledged (it will be "
    "redelivered), 77 refused by a broker, 78 bad settings"
)


class _Version(argparse.Action):
    """Imports importlib.metadata only for ``--version``: that takes longer than a command."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: Any, **_also: Any) -> None:
        from importlib.metadata import version

        from gateway.base.process.build import build

        print(f"gateway {version('mqtt-kafka-gateway')} ({build()})")
        parser.exit()


def make_parser() -> Parser:
    parser = Parser(
        prog="gateway",
        description="Moves MQTT messages from EMQX into Apache Kafka without losing an acknowledged one.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_commands()
    for module, text in _COMMANDS.items():
        commands.later(f"gateway.cli.{module}", text)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status. ``arguments`` without the program's name, sys.argv's if not given."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = make_parser()
    parser.set_defaults(words=words[1:])  # for a command that becomes another process
    chosen = parser.parse_args(words)
    try:
        return int(chosen.run(chosen))
    except GatewayError as error:
        from gateway.cli.table import mention

        mention(str(error))
        return int(error.exit_status)
    except (BrokenPipeError, KeyboardInterrupt) as error:
        # The process ends by the signal: without a traceback, a shell's loop ends too, and nobody takes what was
        # interrupted, such as a replay, for done.
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGPIPE
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        raise


if __name__ == "__main__":
    sys.exit(main())
