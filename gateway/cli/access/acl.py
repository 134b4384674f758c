"""``gateway auth acl``: the access rules of the built-in database."""

import argparse
import sys
from collections.abc import Iterator, Sequence

from auth.errors import RuleFormatError
from auth.model import Rule, SubjectKind
from auth.rules.emqx_forms import actions_of, qos_of, retain_of
from auth.rules.files import action_text, rule_as_json
from auth.rules.rules import rule_problem
from auth.rules.topics import parse_topic
from auth.store.records import StoredRule
from auth.store.values import check_identity
from config.errors import ExitStatus
from gateway.cli.access import acl_check as auth_acl_check
from gateway.cli.access import acl_files as auth_acl_files
from gateway.cli.access.common import answer_list, database, operator, print_list
from gateway.cli.access.rule_text import only, sentence, whom
from gateway.cli.arguments import UsageError, positive
from gateway.cli.parser import Commands, flag, repeated
from gateway.cli.table import answer, shown, tell

_DESCRIPTION = """\
The rules say who may publish to which topics and subscribe to which filters. They are one list: the first rule that
matches a request decides, and a request without a match is denied. The running service takes a change at once. For the
rules that EMQX got at a device's login, a change counts at the next login.
"""
_TOPICS = """\
topics
  A filter, with + and #, and with ${clientid}, ${username}, ${tenant}, ${cert_common_name} or ${client_attrs.NAME} for
  the client's own values. A rule matches nothing for a client without that value, or with +, # or / in it. ${$} is a
  dollar sign. # and + do not match topics that begin with $: name them ($SYS/#).

  An allow rule holds for subscriptions that it covers completely: a/# does not allow #. A deny rule holds for every
  subscription that shares a topic with it: after "deny a/b" nobody subscribes to a/#, except by an earlier rule. Shared
  subscriptions are judged by their filter.

examples
  gateway auth acl add allow 'devices/${username}/#' --everybody --action publish
  gateway auth acl add allow 'commands/${username}/#' --everybody --action subscribe
  gateway auth acl add allow 'plant/#' --group operators --tenant acme
  gateway auth acl add deny 'plant/+/valve' --address 10.9.0.0/16 --first
"""
# The option, the kind of condition, the metavar, and the help.
_CONDITIONS: tuple[tuple[str, SubjectKind, str, str], ...] = (
    ("--username", "username", "NAME", "with this user name"),
    ("--clientid", "clientid", "ID", "with this client id"),
    ("--group", "group", "NAME", "in this group"),
    ("--tenant", "tenant", "NAME", "of this tenant"),
    ("--address", "address", "NETWORK", "from this address or network"),
    ("--common-name", "common_name", "NAME", "with this name in a verified certificate"),
    ("--attribute", "attribute", "NAME=VALUE", "with this client attribute"),
)


def add_parser(commands: Commands) -> None:
    parsers = commands.group("acl", _DESCRIPTION)
    add = parsers.verb("add", _add, "add a rule", _TOPICS)
    add.add_argument("permission", choices=("allow", "deny"))
    add.add_argument("topic", metavar="TOPIC", help="a topic or filter; see below")
    add.add_argument(
        "--action",
        choices=("publish", "subscribe", "all"),
        help="default: all, which is both; publish with --retain, which has no meaning for subscriptions",
    )
    flag(add, "--eq", "compare the topic as text: a/# is then that filter alone")
    add.add_argument("--qos", metavar="QOS", help="only for this QoS, or these: 0, 1, 2 or a list such as 0,1")
    add.add_argument(
        "--retain", choices=("true", "false"), help="only for messages published with, or without, the retain flag"
    )
    place = add.add_mutually_exclusive_group()
    flag(place, "--first", "at the front of the list")
    place.add_argument("--before", type=positive, metavar="ID", help="before this rule")
    _add_conditions(add, "for clients that meet all of these (one at least)")
    flag(add.add_argument_group("or"), "--everybody", "for all clients")

    remove = parsers.verb("remove", _remove, "remove rules")
    remove.add_argument("ids", type=positive, nargs="+", metavar="ID", help="as `list` shows them")

    listing = parsers.verb("list", _list, "list rules")
    _add_conditions(listing, "only rules with all of these conditions")
    auth_acl_check.add_parser(parsers)
    auth_acl_files.add_parsers(parsers)


def _add_conditions(parser: argparse.ArgumentParser, title: str) -> None:
    group = parser.add_argument_group(title)
    for option, kind, metavar, text in _CONDITIONS:
        repeated(group, option, metavar, text, dest=f"who_{kind}")


def _conditions(arguments: argparse.Namespace) -> tuple[tuple[SubjectKind, str], ...]:
    return tuple((kind, value) for _, kind, _, _ in _CONDITIONS for value in getattr(arguments, f"who_{kind}"))


def _add(arguments: argparse.Namespace) -> int:
    """Add a rule, at the end of the list unless told otherwise."""
    rule = _rule(arguments)
    with database(arguments, create=True) as (settings, store), store.edit(operator()) as editor:
        if arguments.first or arguments.before is not None:
            number = editor.rules.insert(rule, arguments.before)  # None: at the front
        else:
            number = editor.rules.append(rule)
    answer(arguments, {"id": number, **rule_as_json(rule)}, f"Added rule {number}: {sentence(rule)}.")
    _warn_of_attributes(rule, settings.auth.client_attributes)
    return ExitStatus.OK


def _warn_of_attributes(rule: Rule, sent: Sequence[str]) -> None:
    """Warn of a rule with other attributes than those ``sent`` to EMQX, which alone it can ask with."""
    asked = {name.removeprefix("client_attrs.") for name in parse_topic(rule.topic).parts[1::2] if "." in name}
    asked |= {value.partition("=")[0] for kind, value in rule.who if kind == "attribute"}
    if missing := sorted(asked - {*sent, "tenant", "groups"}):
        tell(
            f"gateway: the rule needs {', '.join(missing)}, but auth.client_attributes does not name "
            f"{'it' if len(missing) == 1 else 'them'}. EMQX does not get it then, and the rule matches nobody.",
            to=sys.stderr,
        )


def _rule(arguments: argparse.Namespace) -> Rule:
    who = _conditions(arguments)
    if bool(who) == arguments.everybody:
        raise UsageError(
            "Name the clients of the rule: --everybody, or conditions such as --username or --group (see --help)."
        )
    try:
        qos = qos_of(arguments.qos)
    except RuleFormatError as error:
        raise UsageError(f"--qos {shown(arguments.qos)}: {error}.") from None
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
        raise UsageError(f"{problem[0].upper()}{problem[1:]}.")
    return rule


def _remove(arguments: argparse.Namespace) -> int:
    """Remove all of these rules, or none."""
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
    """List rules, in the order they are asked."""
    wanted = {(kind, check_identity(kind, value)) for kind, value in _conditions(arguments)}  # as they are stored
    with database(arguments) as (_settings, store):
        found = (stored for stored in store.rules() if wanted <= set(stored.rule.who))
        head = ("ID", "PERMISSION", "ACTION", "TOPIC", "WHO", "ONLY")
        return answer_list(arguments, map(_as_data, found), head, _rows(found))


def _as_data(stored: StoredRule) -> dict[str, object]:
    return {"id": stored.id, **rule_as_json(stored.rule)}


def _rows(found: Iterator[StoredRule]) -> Iterator[tuple[str, ...]]:
    for stored in found:
        rule = stored.rule
        yield str(stored.id), rule.permission, action_text(rule), shown(rule.topic), whom(rule), ", ".join(only(rule))
