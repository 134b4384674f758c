"""``gateway auth acl``: the access rules of the built-in database."""

from __future__ import annotations

__all__ = ["add_parser"]

import sys
from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus
from gateway.cli.access import acl_check as auth_acl_check
from gateway.cli.access import acl_files as auth_acl_files
from gateway.cli.access.common import AdminError, add_common, database, operator, print_json, print_list, shown, table
from gateway.cli.access.rule_text import only, sentence, whom
from gateway.cli.arguments import positive
from gateway.cli.table import tell

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from auth.model import Rule, SubjectKind
    from auth.store.records import StoredRule

_DESCRIPTION = """\
The rules say who may publish to which topics and subscribe to which filters. They are one list, asked from the first to
the last; the first that matches a request decides, and what none matches is denied. The running service goes by a
change at once; what EMQX was told of it when a device logged in, at the device's next login.
"""
_TOPICS = """\
topics
  A filter, with + and #, and with ${clientid}, ${username}, ${tenant}, ${cert_common_name} or ${client_attrs.NAME},
  which stand for what the client has. A rule matches nothing for a client without that value, or with one that holds
  +, # or /. ${$} is a dollar sign. Topics that begin with $ are beyond # and +: name them ($SYS/#).

  A rule that allows is for subscriptions that it covers whole: a/# does not allow #. One that denies is for all that
  share a topic with it: after "deny a/b" nobody subscribes to a/#, but with a rule before it. Shared subscriptions are
  judged by their filter.

examples
  gateway auth acl add allow 'devices/${username}/#' --everybody --action publish
  gateway auth acl add allow 'commands/${username}/#' --everybody --action subscribe
  gateway auth acl add allow 'plant/#' --group operators --tenant acme
  gateway auth acl add deny 'plant/+/valve' --address 10.9.0.0/16 --first
"""
# The option, the kind of condition, what it is followed by, and the help.
_CONDITIONS: tuple[tuple[str, SubjectKind, str, str], ...] = (
    ("--username", "username", "NAME", "with this user name"),
    ("--clientid", "clientid", "ID", "with this client id"),
    ("--group", "group", "NAME", "in this group"),
    ("--tenant", "tenant", "NAME", "of this tenant"),
    ("--address", "address", "NETWORK", "from this address or network"),
    ("--common-name", "common_name", "NAME", "with this name in a verified certificate"),
    ("--attribute", "attribute", "NAME=VALUE", "with this client attribute"),
)


def add_parser(commands: Any) -> None:
    """Add ``gateway auth acl`` and its commands."""

    parser = commands.add_parser("acl", help="add, list, try, import and export access rules", description=_DESCRIPTION)
    parsers = parser.add_subparsers(dest="acl_command", required=True, metavar="COMMAND")
    add = parsers.add_parser(
        "add",
        help="add a rule",
        description="Add a rule, at the end of the list unless told otherwise.",
        epilog=_TOPICS,
    )
    add.add_argument("permission", choices=("allow", "deny"))
    add.add_argument("topic", metavar="TOPIC", help="what it is about; see below")
    add.add_argument(
        "--action",
        choices=("publish", "subscribe", "all"),
        help="default: all, which is both; publish with --retain, as a rule for all would be for every subscription",
    )
    add.add_argument(
        "--eq", action="store_true", help="compare the topic as text, wildcards included: a/# is then that filter alone"
    )
    add.add_argument("--qos", metavar="QOS", help="only for this QoS, or these: 0, 1, 2 or a list such as 0,1")
    add.add_argument(
        "--retain", choices=("true", "false"), help="only for messages published with, or without, the retain flag"
    )
    place = add.add_mutually_exclusive_group()
    place.add_argument("--first", action="store_true", help="at the front of the list")
    place.add_argument("--before", type=positive, metavar="ID", help="before this rule")
    add.set_defaults(run=_add)
    _add_conditions(add, "for clients that meet all of these (one at least)")
    who = add.add_argument_group("or")
    who.add_argument("--everybody", action="store_true", help="for all clients")

    remove = parsers.add_parser("remove", help="remove rules", description="Remove rules: all of these, or none.")
    remove.add_argument("ids", type=positive, nargs="+", metavar="ID", help="as `list` shows them")
    remove.set_defaults(run=_remove)

    listing = parsers.add_parser("list", help="list rules", description="List rules, in the order they are asked.")
    _add_conditions(listing, "only rules with all of these conditions")
    listing.set_defaults(run=_list)
    for command in (add, remove, listing):
        add_common(command)
    auth_acl_check.add_parser(parsers)
    auth_acl_files.add_parsers(parsers)


def _add_conditions(parser: argparse.ArgumentParser, title: str) -> None:
    group = parser.add_argument_group(title)
    for option, kind, metavar, text in _CONDITIONS:
        group.add_argument(option, dest=f"who_{kind}", action="append", default=[], metavar=metavar, help=text)


def _conditions(arguments: argparse.Namespace) -> tuple[tuple[SubjectKind, str], ...]:
    return tuple((kind, value) for _, kind, _, _ in _CONDITIONS for value in getattr(arguments, f"who_{kind}"))


def _add(arguments: argparse.Namespace) -> int:
    from auth.rules.files import rule_as_json

    rule = _rule(arguments)
    with database(arguments, create=True) as (settings, store), store.edit(operator()) as editor:
        if arguments.first or arguments.before is not None:
            number = editor.rules.insert(rule, arguments.before)
        else:
            number = editor.rules.append(rule)
    if arguments.json:
        print_json({"id": number, **rule_as_json(rule)})
    else:
        tell(f"Added rule {number}: {sentence(rule)}.")
    _warn_of_attributes(rule, settings.auth.client_attributes)
    return ExitStatus.OK


def _warn_of_attributes(rule: Rule, told: Sequence[str]) -> None:
    """Say so when a rule asks for attributes that EMQX is not told, and so cannot send back with its questions."""
    from auth.rules.topics import parse_topic

    asked = {name.removeprefix("client_attrs.") for name in parse_topic(rule.topic).parts[1::2] if "." in name}
    asked |= {value.partition("=")[0] for kind, value in rule.who if kind == "attribute"}
    if missing := sorted(asked - {*told, "tenant", "groups"}):
        tell(
            f"gateway: the rule asks for {', '.join(missing)}, and auth.client_attributes does not name "
            f"{'it' if len(missing) == 1 else 'them'}: it matches nobody as long as EMQX is not told.",
            to=sys.stderr,
        )


def _rule(arguments: argparse.Namespace) -> Rule:
    from auth.errors import RuleFormatError
    from auth.model import Rule
    from auth.rules.emqx_forms import actions_of, qos_of, retain_of
    from auth.rules.rules import rule_problem

    who = _conditions(arguments)
    if bool(who) == arguments.everybody:
        raise AdminError(
            "Say whom the rule concerns: either --everybody, or conditions such as --username or --group (see --help)."
        )
    try:
        qos = qos_of(arguments.qos)
    except RuleFormatError as error:
        raise AdminError(f"--qos {shown(arguments.qos)}: {error}.") from None
    rule = Rule(
        arguments.permission,
        arguments.topic,
        who or (("all", ""),),
        actions_of(arguments.action or ("all" if arguments.retain is None else "publish")),
        arguments.eq,
        qos,
        retain_of(arguments.retain),
    )
    problem = rule_problem(rule)
    if problem:
        raise AdminError(f"{problem[0].upper()}{problem[1:]}.")
    return rule


def _remove(arguments: argparse.Namespace) -> int:
    ids = list(dict.fromkeys(arguments.ids))
    with database(arguments) as (_settings, store), store.edit(operator()) as editor:
        removed = editor.rules.remove(ids)
    if arguments.json:
        print_list([_as_data(stored) for stored in removed])
    else:
        for stored in removed:
            tell(f"Removed rule {stored.id}: {sentence(stored.rule)}.")
    return ExitStatus.OK


def _list(arguments: argparse.Namespace) -> int:
    wanted = set(_conditions(arguments))
    with database(arguments) as (_settings, store):
        found = (stored for stored in store.rules() if wanted <= set(stored.rule.who))
        if arguments.json:
            print_list(map(_as_data, found))
        else:
            for line in table(("ID", "PERMISSION", "ACTION", "TOPIC", "WHO", "ONLY"), _rows(found)):
                print(line)
    return ExitStatus.OK


def _as_data(stored: StoredRule) -> dict[str, object]:
    from auth.rules.files import rule_as_json

    return {"id": stored.id, **rule_as_json(stored.rule)}


def _rows(found: Iterator[StoredRule]) -> Iterator[tuple[str, ...]]:
    from auth.rules.files import action_text

    for stored in found:
        rule = stored.rule
        yield str(stored.id), rule.permission, action_text(rule), shown(rule.topic), whom(rule), ", ".join(only(rule))
