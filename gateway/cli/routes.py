"""``gateway routes``: the routes, and likely mistakes in them."""

import argparse
from typing import Any

from bridge.routing.lint import Finding, lint
from bridge.routing.router import Route
from config.errors import ConfigError, ExitStatus
from config.numbers import many
from config.settings import RouteSettings, Settings
from gateway.cli.arguments import load_noted
from gateway.cli.parser import Commands, flag
from gateway.cli.table import print_json, say, severity, table, tell

_LINT_EPILOG = """\
findings (docs/routing.md explains each):
  FAIL  broken, same-name, unreachable
  warn  unreachable-filter, shadowed, delivered-twice, level-missing, any-topic,
        no-key, constant-key, keys-differ, tombstone-without-key,
        interceptor-twice, interceptor-idle
  ok    narrower-first, fetched-twice, level-missing (in headers),
        key-not-device, own-topic; shown with --all

exit status: 0 nothing worse than "ok" (with --strict: nothing at all), 1 a FAIL (with --strict also a warn), 78 the
settings cannot be read
"""


def add_parser(commands: Commands) -> None:
    actions = commands.group(
        "routes",
        "Shows and checks the routes in the settings. Connects to nothing, changes nothing.",
    )
    actions.verb("list", _list, "the routes in the order they are tried")
    text = "routes that are never reached, topics that come twice, keys that break order"
    parser = actions.verb("lint", _lint, text, _LINT_EPILOG)
    flag(parser, "--all", "also findings that are mostly intended")
    flag(parser, "--strict", "end with status 1 for a warn as well: for a pipeline")


def _list(arguments: argparse.Namespace) -> int:
    """The routes in the order they are tried, with what each subscribes to and where it writes."""
    settings = load_noted(arguments.config).settings
    rows = [_row(settings, route) for route in settings.routes]
    if arguments.json:
        print_json({"routes": rows})
        return ExitStatus.OK
    if not rows:
        tell("There are no routes: nothing would be subscribed.")
        return ExitStatus.OK
    headers = ("", "ROUTE", "FILTERS", "KAFKA TOPIC", "KEY", "QOS", "SESSIONS", "WAY", "INTERCEPTORS")
    say(
        table(
            headers,
            (
                (
                    number, row["name"], "  ".join(row["filters"]), row["topic"], row["key"] or None, row["qos"],
                    row["group"] or "mqtt.sessions", row["way"], " → ".join(row["interceptors"]) or None,
                )
                for number, row in enumerate(rows)
            ),
        )
    )  # fmt: skip
    return ExitStatus.OK


def _row(settings: Settings, route: RouteSettings) -> dict[str, Any]:
    chain = [one.label for one in (*settings.interceptors, *route.interceptors)]
    try:
        compiled = Route(route, index=0, instance=settings.instance, reserved_topics=settings.own_topics)
        way = "fast" if compiled.fast and not chain else "slow"
    except ConfigError:
        way = "broken"
    return {
        "name": route.name,
        "filters": list(route.filters),
        "topic": route.topic,
        "key": route.key,
        "qos": route.qos,
        "group": route.group,
        "way": way,
        "interceptors": chain,
    }


def _lint(arguments: argparse.Namespace) -> int:
    """Finds likely mistakes in the routes: routes and filters that are never reached, topics that two routes ask for or
    EMQX delivers twice, templates without a value for some topics, keys that put all records into one partition or one
    device into several. Each finding has an MQTT topic as an example, for `gateway explain TOPIC`. Findings are
    certain, but may be intended."""
    settings = load_noted(arguments.config).settings
    found = lint(settings)
    bad = [one for one in found if one.severity == "FAIL" or (arguments.strict and one.severity == "warn")]
    status = ExitStatus.FAILED if bad else ExitStatus.OK
    shown = [one for one in found if one.severity != "ok" or arguments.all]
    if arguments.json:
        print_json({"routes": len(settings.routes), "findings": shown})
        return status
    for one in shown:
        say(f"{severity(one.severity):<4}  {one.id}\n      {one.sentence}\n      → {one.advice}.\n")
    tell(_verdict(found, len(settings.routes), hidden=len(found) - len(shown)))
    return status


def _verdict(found: list[Finding], routes: int, *, hidden: int) -> str:
    counts = {word: sum(one.severity == word for one in found) for word in ("FAIL", "warn")}
    text = f"{many(routes, 'route')}: {counts['FAIL']} FAIL, {counts['warn']} warn"
    return f"{text}; {hidden} more with --all" if hidden else text
