"""``gateway doctor``: problems between MQTT, this machine and Kafka, with their repair."""

import argparse
import sys
from pathlib import Path
from typing import Final

from config.errors import ConfigError, ExitStatus
from config.loading.load import Loaded, load
from config.prose import width_of
from gateway.cli.arguments import between, login, run_quietly
from gateway.cli.parser import Commands, flag, repeated
from gateway.cli.table import print_json, progress, say, severity
from gateway.tools.doctor.examine import Options, examine
from gateway.tools.doctor.model import GROUPS, Findings, Report, Severity, exit_status
from gateway.tools.doctor.mqtt_facts import Device
from gateway.tools.doctor.text import report_text

_PIPE_WIDTH: Final = 120
_SCHEMA: Final = 1  # of --json; raised when a field changes its meaning or goes
_EPILOG: Final = """\
examples:
  gateway doctor --config gateway.toml
  gateway doctor --only kafka --json
  gateway doctor --device-user sensor-1 --device-password-file sensor-1.password

exit status: 0 no failure; of all failures the first of: 78 bad settings, 77 a server refuses the gateway or admits a
client that it must refuse, 69 a server cannot be reached or a partition has no leader, 1 anything else. With --strict a
warning ends with 1. docs/doctor.md has every check and its rights.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.verb("doctor", _run, epilog=_EPILOG)
    text = f"look at this group alone (repeat for several): {', '.join(GROUPS)}"
    repeated(parser, "--only", "GROUP", text, choices=tuple(GROUPS))
    parser.add_argument(
        "--timeout",
        type=between(0.1, 6.0),
        default=5.0,
        metavar="SECONDS",
        help="longest wait for each answer (default: 5, at most 6); a slower server counts as frozen",
    )
    flag(parser, "--strict", "a warning fails too: status 1")
    text = "also look whether this consumer group's coordinator answers (repeat for several)"
    repeated(parser, "--group", "NAME", text)
    parser.add_argument(
        "--device-user", metavar="NAME", help="a device's MQTT user, to see whether it may SUBSCRIBE to #"
    )
    parser.add_argument("--device-password-file", type=Path, metavar="FILE", help="file with that user's password")


def _run(arguments: argparse.Namespace) -> int:
    """Checks the settings, this machine, each MQTT address and each Kafka broker. For each problem it reports the
    measured value and the repair. It takes half a minute at most, also when nothing answers. It changes nothing: its
    MQTT clients have their own client ids and clean sessions, and unsubscribe at once; Kafka's leaders get a batch that
    they must refuse. With a running gateway it lists that one's problems first.
    """
    given = login(arguments.device_user, arguments.device_password_file, "--device-user and --device-password-file")
    device = None if given is None else Device(*given)
    try:
        loaded = load(arguments.config)
    except ConfigError as error:
        report = _unusable(error)
    else:
        report = _examine(arguments, loaded, device)
    if arguments.json:
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


def _examine(arguments: argparse.Namespace, loaded: Loaded, device: Device | None) -> Report:
    options = Options(frozenset(arguments.only), arguments.timeout, device, tuple(dict.fromkeys(arguments.group)))
    progress("looking, for half a minute at most …")
    try:
        return run_quietly(examine(loaded, options), loaded.settings.log)
    finally:
        progress("")


def _unusable(error: ConfigError) -> Report:
    """The report for settings that do not load: no other group is checked."""
    config = Findings("config")
    for problem in error.problems:
        config.of("settings").fail(problem, "Correct it; gateway config check looks again.", status=ExitStatus.CONFIG)
    checks = list(config)
    for group in list(GROUPS)[1:]:
        rest = Findings(group)
        rest.of("all").skip("Not tried: the settings cannot be used (settings).")
        checks += rest
    return Report(tuple(checks), 0.0)


def _print(report: Report) -> None:
    def mark(one: Severity) -> str:
        return one.value if one is Severity.SKIPPED else severity(one.value)  # type: ignore[arg-type]  # one of the others

    say(report_text(report, width_of(sys.stdout, _PIPE_WIDTH), mark))
