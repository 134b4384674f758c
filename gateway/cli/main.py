"""The ``gateway`` command: one parser, each subcommand in its own module and imported when it is chosen."""

import argparse
import contextlib
import errno
import io
import os
import signal
import sys
from typing import Any, Final, TextIO

from config.errors import ExitStatus, GatewayError
from gateway.cli.parser import Parser, loading

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


_UNUSABLE: Final = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


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
    _prepare_streams()
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        finally:  # python's own flush at the end would print a complaint, and end with a status of its own
            _flush_errors()
            sys.stdout.flush()
    except (BrokenPipeError, KeyboardInterrupt) as error:
        # The process ends by the signal: without a traceback, a shell's loop ends too, and nobody takes what was
        # interrupted, such as a replay, for done.
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGPIPE
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        raise
    except OSError as error:
        if error.errno in _NO_ROOM and error.filename is None:
            return _without_output(error)
        raise


def _prepare_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed: otherwise a file opened later gets its
    number, and what a child process prints. A character that the output cannot encode is written as an escape."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is the stream's own
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "w" if number else "r", closefd=False))  # noqa: SIM115 - to the end
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout is sys.__stdout__:
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(words: list[str]) -> int:
    parser = make_parser()
    parser.set_defaults(words=words[1:])  # for a command that becomes another process
    with loading():
        chosen = parser.parse_args(words)
    try:
        return int(chosen.run(chosen))
    except GatewayError as error:
        _mention(str(error))
        return int(error.exit_status)
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None and error.strerror == os.strerror(errno.ENOENT):
            _mention("The current folder is not there any more. Change to another one.")  # of os.getcwd
        elif error.errno in _UNUSABLE and error.filename is not None:
            _mention(f"{error.filename}: {error.strerror}. Is the path right, and may this user use it?")
        else:
            raise
        return ExitStatus.FAILED


def _mention(text: str) -> None:
    from gateway.cli.table import mention

    with contextlib.suppress(OSError):  # the status says it too
        mention(text)


def _flush_errors() -> None:
    try:
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)


def _without_output(error: OSError) -> int:
    """Report that standard output takes nothing more; returns the exit status."""
    _mention(f"The output cannot be written: {error.strerror}.")
    _flush_errors()
    _drop(sys.stdout)
    return ExitStatus.UNAVAILABLE


def _drop(stream: TextIO) -> None:
    """Lead a stream to /dev/null, with what is still in its buffer."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
