"""``gateway config``: check the settings, show them with their origins, print the reference."""

from __future__ import annotations

__all__ = ["add_parser", "check_run"]

import argparse
import os
import sys
from typing import TYPE_CHECKING

from config.errors import ConfigError, ExitStatus
from gateway.cli.arguments import add_config
from gateway.cli.table import tell

if TYPE_CHECKING:
    import argparse

    from config.loading.load import Loaded


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command. Each of its parsers sets ``run``: a function that takes the arguments and returns an exit
    status."""
    parser = subparsers.add_parser(
        "config",
        help="check, show or explain the settings",
        description="Check the settings, show them with their origins, print the reference. Connects to nothing.",
    )
    commands = parser.add_subparsers(dest="config_command", required=True, metavar="COMMAND")

    check = commands.add_parser(
        "check",
        help="check all settings and exit",
        description="Read and check all settings as a start would, without connecting to anything. "
        f"Ends with status {int(ExitStatus.CONFIG)} and every problem when something is wrong.",
    )
    check.add_argument(
        "--for", dest="purpose", choices=("run", "stream", "auth"), default="run", help="what is to be started"
    )
    check.set_defaults(run=_check)

    show = commands.add_parser(
        "show",
        help="print every setting with where it came from",
        description="Print every setting in effect with where it came from. Secrets are masked.",
    )
    show.add_argument("--json", action="store_true", help="print one JSON object instead of TOML")
    show.set_defaults(run=_show)

    for command in (check, show):
        add_config(command)

    reference = commands.add_parser(
        "reference",
        help="print the configuration reference as Markdown",
        description="Print the configuration reference, docs/configuration.md, as Markdown.",
    )
    reference.set_defaults(run=_reference)


def _load(arguments: argparse.Namespace) -> Loaded:
    from config.loading.load import load  # not at the top: other commands should not pay for pydantic

    return load(getattr(arguments, "config", None))


def _check(arguments: argparse.Namespace) -> int:
    try:
        loaded = _load(arguments)
    except ConfigError as error:
        return _refused(error)
    problems, warnings = {"run": check_run, "stream": _check_stream, "auth": _check_auth}[arguments.purpose](loaded)
    if problems:
        return _refused(ConfigError(*problems))
    warnings = [*loaded.warnings, *warnings]
    for warning in warnings:
        tell(f"warning: {warning}")
    if arguments.purpose == "run" and (topics := _topics_to_make(loaded)):
        tell(f"note: {topics}")
    where = f"from {loaded.file}" if loaded.file is not None else "of the environment, without a file,"
    count = f", {len(warnings)} warning{'s' * (len(warnings) > 1)}" if warnings else ""
    tell(f"OK: settings {where} can be used{count}")
    return ExitStatus.OK


def check_run(loaded: Loaded) -> tuple[list[str], list[str]]:
    """Problems and warnings beyond loading, for a gateway that is to run here."""
    from config.loading.load import require_runnable

    problems, warnings = _check_routes(loaded)
    try:
        require_runnable(loaded)
    except ConfigError as error:
        problems = [*error.problems, *problems]
    return problems, [*warnings, *_spools_too_large(loaded)]


def _spools_too_large(loaded: Loaded) -> list[str]:
    """Whether the spools of all workers may come to take more than the disk of data_dir has."""
    from gateway.supervisor.cpu import worker_count
    from gateway.tools.doctor.wording import bytes_text

    settings = loaded.settings
    workers = worker_count(settings) or 1
    at = settings.data_dir.absolute()
    while not at.exists() and at != at.parent:
        at = at.parent
    try:
        disk = os.statvfs(at)
    except OSError:  # doctor says what is wrong with it
        return []
    need, total = settings.spool.disk_bytes(workers), disk.f_blocks * disk.f_frsize
    if need <= total:
        return []
    each = "the spool of 1 worker" if workers == 1 else f"the spools of {workers} workers"
    text = (
        f"spool.max_bytes = {bytes_text(settings.spool.max_bytes)} counts for each worker: {each} may come to take "
        f"{bytes_text(need)} (twice that and 64 MiB each), and the disk of data_dir has {bytes_text(total)} in all; "
        "lower it, or take fewer workers or a larger disk."
    )
    return [text]


def _topics_to_make(loaded: Loaded) -> str:
    """Which Kafka topics a start needs, as far as the settings name them; empty when it makes them itself."""
    from bridge.routing.router import Router

    settings = loaded.settings
    if settings.kafka.topics.create or not settings.routes:
        return ""
    router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
    needed = {*router.kafka_topics, *settings.dead_letter_topics, settings.ledger.topic} - {""}
    return (
        f"these topics have to be in Kafka before a start: {', '.join(sorted(needed))}. `gateway topics plan` looks, "
        "`gateway topics apply` makes them; with kafka.topics.create = true the start does."
    )


def _check_stream(loaded: Loaded) -> tuple[list[str], list[str]]:
    """The same for the stream job."""
    from streaming.kafka import topics

    try:
        topics(loaded.settings)
    except ConfigError as error:
        return list(error.problems), []
    return [], []


def _check_auth(loaded: Loaded) -> tuple[list[str], list[str]]:
    """The same for the service that EMQX asks."""
    from gateway.auth_service.requirements import require_servable

    try:
        require_servable(loaded)
    except ConfigError as error:
        return list(error.problems), []
    return [], []


def _check_routes(loaded: Loaded) -> tuple[list[str], list[str]]:
    """Problems and warnings of templates and of routes among each other, which the bridge judges when it compiles
    them."""
    from bridge.routing.router import Router

    settings = loaded.settings
    problems: list[str] = []
    for number, route in enumerate(settings.routes):
        try:
            Router([route], instance=settings.instance, reserved_topics=settings.own_topics)
        except ConfigError as error:
            origin = loaded.origin(("routes", number))
            problems += [f"routes[{number}] ({origin}): {problem}" for problem in error.problems]
    if problems or not settings.routes:
        return problems, []
    try:
        router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
    except ConfigError as error:
        return [f"routes ({loaded.origin('routes')}): {problem}" for problem in error.problems], []
    from bridge.intercept.loading import load_chains

    try:
        load_chains(settings).close()
    except ConfigError as error:
        return list(error.problems), []
    from bridge.routing.lint import SURE, lint

    doubtful = [
        f"{one.sentence} Better: {one.advice}" for one in lint(settings) if one.id in SURE and one.severity == "warn"
    ]
    return [], [*router.warnings, *doubtful]


def _show(arguments: argparse.Namespace) -> int:
    from config.loading.show import as_data, as_text

    try:
        loaded = _load(arguments)
    except ConfigError as error:
        return _refused(error)
    if arguments.json:
        from gateway.cli.table import print_json

        print_json(as_data(loaded))
    else:
        print(as_text(loaded), end="")
        for warning in loaded.warnings:
            tell(f"warning: {warning}", to=sys.stderr)
    return ExitStatus.OK


def _reference(arguments: argparse.Namespace) -> int:
    del arguments
    from config.loading.reference import reference

    print(reference(), end="")
    return ExitStatus.OK


def _refused(error: ConfigError) -> int:
    tell(str(error), to=sys.stderr)
    return error.exit_status
