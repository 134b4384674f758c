"""The ``gateway`` command: one parser, each subcommand in its own module and imported when it is asked for."""

import argparse
import importlib
import importlib.util
import signal
import sys
from typing import Any

from config.errors import ExitStatus, GatewayError
from gateway.cli.parser import Parser

# The module of each command. It has the command's name, with _ after one that Python has taken.
_COMMANDS = (
    "init", "service.run", "service.reload", "service.restart", "service.retire",
    "doctor", "records.tail", "records.explain", "routes", "config",
    "kafka.topics", "kafka.groups", "kafka.leaders", "kafka.cluster",
    "device_commands.command", "records.verify", "dead_letters.dlq", "records.spool", "service.identity",
    "service.acknowledge", "trial", "local.simulate", "import_", "records.compare",
    "auth", "stream", "local.dev", "local.demo",
)  # fmt: skip
_EPILOG = (
    "To begin: gateway init writes settings; gateway doctor finds problems; gateway explain TOPIC "
    "shows the way of a message. gateway COMMAND --help has each command's options and examples.\n\n"
    "exit status: 0 success, 1 failure, 2 wrong arguments, 3 messages missing, 4 what was asked for does not exist, "
    "5 only a part was done, 6 a verification could not check everything, 7 a command to a device did not succeed, "
    "69 a broker or topic is missing or the disk is full, 75 stopped before everything was acknowledged (it will be "
    "redelivered), 77 refused by a broker, 78 bad settings"
)


def command_of(module: str) -> str:
    """The command of a module in ``_COMMANDS``."""
    return module.rpartition(".")[2].rstrip("_")


class _Version(argparse.Action):
    """Imports importlib.metadata only for ``--version``: that takes longer than a command."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: Any, **_also: Any) -> None:
        from importlib.metadata import version

        from gateway.base.build import build

        print(f"gateway {version('mqtt-kafka-gateway')} ({build()})")
        parser.exit()


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status. ``arguments`` without the program's name, sys.argv's if not given."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = Parser(
        prog="gateway",
        description="Moves MQTT messages from EMQX into Apache Kafka without losing an acknowledged one.",
        epilog=_EPILOG,
    )
    parser.set_defaults(words=words[1:])  # for a command that becomes another process
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_commands()
    # A start after a crash should be fast, so it imports its own command alone.
    for name in [name for name in _COMMANDS if command_of(name) in words[:1]] or _COMMANDS:
        if importlib.util.find_spec(f"gateway.cli.{name}") is None:
            continue
        importlib.import_module(f"gateway.cli.{name}").add_parser(commands)
    chosen = parser.parse_args(words)
    try:
        return int(chosen.run(chosen))
    except GatewayError as error:
        from gateway.cli.table import mention

        mention(str(error))
        return int(error.exit_status)
    except BrokenPipeError:
        return int(ExitStatus.OK)  # the reader closed the pipe
    except KeyboardInterrupt:
        # The process ends by the signal, so that a shell's loop ends too, and without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise


if __name__ == "__main__":
    sys.exit(main())
