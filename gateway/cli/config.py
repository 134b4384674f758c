"""``gateway config``: check the settings, show them with their origins, print the reference."""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial

from bridge.intercept.loading import load_chains
from bridge.routing.lint import SURE, lint
from bridge.routing.router import Router
from bridge.tls import client_tables, tls_context
from config.errors import ConfigError, ExitStatus
from config.extras import how_to_install
from config.loading.load import Loaded, load, require_runnable
from config.loading.reference import reference
from config.loading.show import as_data, as_text
from config.numbers import bytes_text, many
from config.settings import Settings
from gateway.auth_service.requirements import require_servable
from gateway.cli.parser import Commands, choice
from gateway.cli.table import print_json, say, tell
from gateway.data_dir import identity
from gateway.http.tls import TlsContext
from gateway.supervisor.cpu import worker_count


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "config",
        "Check the settings, show them with their origins, print the reference. Connects to nothing.",
    )
    check = parsers.verb("check", _check, "check all settings and exit", json="")
    choice(check, "--for", ("run", "stream", "auth"), "what is to be started", dest="purpose")
    json = "print one JSON object instead of TOML"
    parsers.verb("show", _show, "print every setting with where it came from", json=json)
    parsers.verb("reference", _reference, "print the configuration reference as Markdown", json="", config="")


def _check(arguments: argparse.Namespace) -> int:
    """Read and check all settings as a start would, without connecting to anything. Ends with status 78 and every
    problem when something is wrong."""
    try:
        loaded = load(arguments.config)
    except ConfigError as error:
        return _refused(error)
    problems, warnings = {"run": check_run, "stream": _check_stream, "auth": _check_auth}[arguments.purpose](loaded)
    if arguments.purpose == "run" and not problems:
        problems, found = _check_tls(loaded.settings)
        problems += _problems(lambda: identity.judge(loaded.settings.data_dir, loaded.settings.instance))
        warnings += found
    if problems:
        return _refused(ConfigError(*problems))
    if arguments.purpose == "run" and loaded.settings.stream.silver.schemas is not None:
        found, unjudged = _check_schemas(loaded)
        warnings += [*(f"{one} The gateway runs with it, the job silver does not start." for one in found), *unjudged]
    warnings = [*loaded.warnings, *warnings]
    for warning in warnings:
        tell(f"warning: {warning}")
    if arguments.purpose == "run":
        for note in (loaded.profile, _topics_to_make(loaded)):
            if note:
                tell(f"note: {note}")
    where = f"from {loaded.file}" if loaded.file is not None else "of the environment, without a file,"
    count = f", {many(len(warnings), 'warning')}" if warnings else ""
    tell(f"OK: settings {where} can be used{count}")
    return ExitStatus.OK


def check_run(loaded: Loaded) -> tuple[list[str], list[str]]:
    """Problems and warnings beyond loading, for a gateway that is to run here."""
    problems, warnings = _check_routes(loaded)
    try:
        require_runnable(loaded)
    except ConfigError as error:
        problems = [*error.problems, *problems]
    return problems, [*warnings, *_spools_too_large(loaded)]


def _check_tls(settings: Settings) -> tuple[list[str], list[str]]:
    """Problems and warnings of certificates, keys and authorities; a gateway starts without those of its operator."""
    problems: list[str] = []
    warnings: list[str] = []
    for where, tls in client_tables(settings).items():
        if tls.ca_file is not None or tls.certificate_file is not None:
            found = warnings if where.startswith(("admin", "emqx")) else problems
            found += _problems(partial(tls_context, tls, where))
    if settings.http.tls is not None:
        problems += _problems(partial(TlsContext, settings.http.tls, "http.tls"))
    return problems, warnings


def _spools_too_large(loaded: Loaded) -> list[str]:
    """A warning when the spools of all workers may outgrow the disk of data_dir."""
    settings = loaded.settings
    workers = worker_count(settings) or 1
    at = settings.data_dir.absolute()
    try:
        while not at.exists() and at != at.parent:
            at = at.parent
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
    """The Kafka topics of the settings that a start needs; empty when the start makes them."""
    settings = loaded.settings
    if settings.kafka.topics.create or not settings.routes:
        return ""
    router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
    needed = {*router.kafka_topics, *settings.dead_letter_topics, settings.ledger.topic} - {""}
    return (
        f"Kafka must have these topics before a start: {', '.join(sorted(needed))}. `gateway topics plan` checks, "
        "`gateway topics apply` makes them; with kafka.topics.create = true the start does."
    )


def _check_stream(loaded: Loaded) -> tuple[list[str], list[str]]:
    """Problems and warnings for the Spark jobs."""
    from streaming.kafka.options import source_options, topics

    settings = loaded.settings
    problems, warnings = _check_schemas(loaded)
    return [
        *_problems(lambda: topics(settings)),
        *_problems(lambda: source_options(settings.kafka)),
        *problems,
    ], warnings


def _check_schemas(loaded: Loaded) -> tuple[list[str], list[str]]:
    """What is wrong with the folder ``stream.silver.schemas``; a warning where it cannot be judged here."""
    from streaming.decoding.device_schemas import load_device_schemas

    try:
        return _problems(lambda: load_device_schemas(loaded.settings.stream.silver.schemas)), []
    except ModuleNotFoundError as error:
        why = f"the package {error.name} is missing here. To install it: {how_to_install('streaming')}"
        return [], [f"stream.silver.schemas was not judged: {why}"]


def _check_auth(loaded: Loaded) -> tuple[list[str], list[str]]:
    """Problems and warnings for the access service."""
    return _problems(lambda: require_servable(loaded)), []


def _problems(check: Callable[[], object]) -> list[str]:
    """The problems of the ConfigError that ``check`` raises; none if it raises none."""
    try:
        check()
    except ConfigError as error:
        return list(error.problems)
    return []


def _check_routes(loaded: Loaded) -> tuple[list[str], list[str]]:
    """Problems and warnings of routes and templates, which appear when the bridge compiles them."""
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
    if problems := _problems(lambda: load_chains(settings).close()):
        return problems, []

    doubtful = [
        f"{one.sentence} Better: {one.advice}" for one in lint(settings) if one.id in SURE and one.severity == "warn"
    ]
    return [], [*router.warnings, *doubtful]


def _show(arguments: argparse.Namespace) -> int:
    """Print every setting in effect with where it came from. Secrets are masked."""
    try:
        loaded = load(arguments.config)
    except ConfigError as error:
        return _refused(error)
    if arguments.json:
        print_json(as_data(loaded))
    else:
        say(as_text(loaded))
        for warning in loaded.warnings:
            tell(f"warning: {warning}", to=sys.stderr)
    return ExitStatus.OK


def _reference(arguments: argparse.Namespace) -> int:
    """Print the configuration reference, docs/configuration.md, as Markdown."""
    del arguments
    print(reference(), end="")
    return ExitStatus.OK


def _refused(error: ConfigError) -> int:
    tell(str(error), to=sys.stderr)
    return error.exit_status
