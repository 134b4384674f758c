"""``gateway doctor``: what is wrong between MQTT, this machine and Kafka, and what to do about it."""

from __future__ import annotations

__all__ = ["add_parser"]

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from config.errors import ConfigError, ExitStatus
from gateway.cli.arguments import UsageError, add_config, add_json, between, run_quietly
from gateway.tools.doctor.model import GROUPS

if TYPE_CHECKING:
    import argparse

    from config.loading.load import Loaded
    from gateway.tools.doctor.examine import Options
    from gateway.tools.doctor.model import Report, Severity
    from gateway.tools.doctor.mqtt_facts import Device

_PIPE_WIDTH: Final = 120
_SCHEMA: Final = 1  # of --json; raised when a field changes its meaning or goes


def add_parser(commands: Any) -> None:
    """Add ``gateway doctor`` to the command's parser."""
    parser = commands.add_parser(
        "doctor",
        help="find what is wrong: settings, MQTT, Kafka, this machine",
        description=(
            "Checks the settings, this machine, each MQTT address and each Kafka broker by itself, and says for all "
            "that is wrong what was measured and what to do. It takes half a minute at most, also when nothing "
            "answers. It changes nothing: its MQTT clients have names of their own, a clean session, and take their "
            "subscriptions back at once; Kafka's leaders are asked with a batch that they must refuse. It works beside "
            "a running gateway, whose own problems it lists first, and without one."
        ),
        epilog=(
            "examples:\n  gateway doctor --config gateway.toml\n  gateway doctor --only kafka --json\n"
            "  gateway doctor --device-user sensor-1 --device-password-file sensor-1.password\n\n"
            "exit status: 0 nothing is wrong, or warnings alone; of what FAILs the first of: 78 bad settings, 77 "
            "something refuses us or lets in who must not be, 69 something cannot be reached or has no leader, "
            "1 anything else. With --strict a warning ends with 1. docs/doctor.md has every check and the rights it "
            "needs."
        ),
    )
    add_config(parser)
    add_json(parser)
    parser.add_argument(
        "--only",
        action="append",
        choices=tuple(GROUPS),
        default=[],
        metavar="GROUP",
        help=f"look at this group alone (repeat for several): {', '.join(GROUPS)}",
    )
    parser.add_argument(
        "--timeout",
        type=between(0.1, 6),
        default=5.0,
        metavar="SECONDS",
        help="longest wait for each answer (default: 5, at most 6); what takes longer counts as frozen",
    )
    parser.add_argument("--strict", action="store_true", help="a warning fails too: status 1")
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME",
        help="also look whether this consumer group's coordinator answers (repeat for several)",
    )
    parser.add_argument(
        "--device-user", metavar="NAME", help="a device's MQTT user, to see whether it may SUBSCRIBE to #"
    )
    parser.add_argument("--device-password-file", type=Path, metavar="FILE", help="file with that user's password")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from config.loading.load import load
    from gateway.tools.doctor.model import exit_status

    device = _device(arguments)
    try:
        loaded = load(arguments.config)
    except ConfigError as error:
        report = _unusable(error)
    else:
        report = _examine(loaded, _options(arguments, device))
    if arguments.json:
        from gateway.cli.table import print_json

        print_json(
            {
                "schema": _SCHEMA,
                "status": int(exit_status(report.checks, strict=arguments.strict)),
                "seconds": round(report.seconds, 3),
                "counts": report.counts,
                "checks": [check.as_dict() for check in report.checks],
            }
        )
    else:
        _print(report)
    return exit_status(report.checks, strict=arguments.strict)


def _options(arguments: argparse.Namespace, device: Device | None) -> Options:
    from gateway.tools.doctor.examine import Options

    return Options(frozenset(arguments.only), arguments.timeout, device, tuple(dict.fromkeys(arguments.group)))


def _device(arguments: argparse.Namespace) -> Device | None:
    """Raises UsageError."""
    name, file = arguments.device_user, arguments.device_password_file
    if name is None and file is None:
        return None
    if name is None or file is None:
        raise UsageError("--device-user and --device-password-file go together.")
    from config.values.secret_files import read_secret
    from gateway.tools.doctor.mqtt_facts import Device

    try:
        return Device(name, read_secret(file))
    except ValueError as error:
        raise UsageError(f"--device-password-file {file}: {error}") from error


def _examine(loaded: Loaded, options: Options) -> Report:
    from gateway.tools.doctor.examine import examine

    hint = sys.stderr.isatty()
    if hint:
        print("looking, for half a minute at most …", end="", file=sys.stderr, flush=True)
    found: list[Report] = []

    async def work() -> int:
        found.append(await examine(loaded, options))
        return ExitStatus.OK

    try:
        run_quietly(work(), loaded.settings.log)
    finally:
        if hint:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return found[0]


def _unusable(error: ConfigError) -> Report:
    """Settings that do not load: every other group's ground is gone."""
    from gateway.tools.doctor.model import Findings, Report

    config = Findings("config")
    for problem in error.problems:
        config.fail("settings", problem, "Correct it; gateway config check looks again.", status=ExitStatus.CONFIG)
    checks = list(config)
    for group in list(GROUPS)[1:]:
        rest = Findings(group)
        rest.skip("all", "Not tried: the settings cannot be used (settings).")
        checks += rest
    return Report(tuple(checks), 0.0)


def _print(report: Report) -> None:
    from config.prose import width_of
    from gateway.cli.table import say, severity
    from gateway.tools.doctor.model import Severity
    from gateway.tools.doctor.text import report_text

    def mark(one: Severity) -> str:
        return one.value if one is Severity.SKIPPED else severity(one.value)  # type: ignore[arg-type]  # one of the others

    say(report_text(report, width_of(sys.stdout, _PIPE_WIDTH), mark))
