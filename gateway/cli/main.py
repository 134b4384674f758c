"""The ``gateway`` command: one parser, each subcommand in its own module and imported when it is asked for."""

from __future__ import annotations

__all__ = ["main"]

import argparse
import importlib
import importlib.util
import signal
import sys
from typing import Any

from config.errors import ExitStatus, GatewayError
from gateway.cli.parser import Parser

_COMMANDS = (  # each in the module of its name, with _ after one that Python has taken
    "init", "run", "reload", "restart", "retire",
    "doctor", "tail", "explain", "routes", "config",
    "topics", "groups", "leaders", "cluster",
    "verify", "dlq", "spool", "identity", "acknowledge",
    "trial", "simulate", "import_", "compare",
    "auth", "stream", "dev", "demo",
)  # fmt: skip
_EPILOG = (
    "To begin: gateway init writes settings; gateway doctor says what is wrong; gateway explain TOPIC "
    "says where a message goes. gateway COMMAND --help has each command's options and examples.\n\n"
    "exit status: 0 success, 1 failure, 2 wrong arguments, 3 messages missing, 4 nothing is there that was asked for, "
    "5 only a part was done, 6 a verification could not judge everything, 69 a broker or topic is not there or the "
    "disk is full, 75 stopped before everything was acknowledged (it will be redelivered), 77 refused by a broker, "
    "78 bad settings"
)


class _Version(argparse.Action):
    """Looks the version up when it is asked for: importlib.metadata takes longer to import than a command."""

    def __call__(self, parser: argparse.ArgumentParser, *_unused: Any, **_also: Any) -> None:
        from importlib.metadata import version

        print(f"gateway {version('mqtt-kafka-gateway')}")
        parser.exit()


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status. ``arguments`` without the program's name, sys.argv's if not given."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = Parser(
        prog="gateway",
        description="Moves MQTT messages from EMQX into Apache Kafka without losing an acknowledged one.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # A start after a crash is waited for: it imports no other command than its own.
    for name in [name for name in _COMMANDS if name.rstrip("_") in words[:1]] or _COMMANDS:
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
        return int(ExitStatus.OK)  # whoever read our output has seen enough
    except KeyboardInterrupt:
        # By the signal, so that a loop of a shell around us ends too; a Ctrl-C does not deserve a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise


if __name__ == "__main__":
    sys.exit(main())
