"""``gateway auth ban``: clients that are refused."""

import argparse
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from auth.model import Ban
from auth.moments import format_moment
from gateway.cli.access.common import answer_list, database, moment, operator
from gateway.cli.arguments import UsageError
from gateway.cli.parser import Commands
from gateway.cli.table import answer, shown

_KINDS: Final = ("clientid", "username", "address")


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "ban",
        "Bans by client id, user name or address. A running service takes changes at once. A connected client stays "
        "connected until its next login.",
    )
    add = parsers.verb("add", _add, "ban a client")
    remove = parsers.verb("remove", _remove, "lift a ban")
    parsers.verb("list", _list, "list bans")
    for command in (add, remove):
        command.add_argument("kind", choices=_KINDS, metavar="KIND", help=", ".join(_KINDS))
        command.add_argument("value", metavar="VALUE", help='the name, or an address or network ("10.0.0.0/8")')
    add.add_argument(
        "--until", default="never", metavar="WHEN", help='its end: "1h", "2027-01-31" or "never" (default: %(default)s)'
    )
    add.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the list")


def _add(arguments: argparse.Namespace) -> int:
    """Ban a client, or change its ban."""
    until_s = moment(arguments.until)
    if until_s is not None and until_s <= time.time():
        raise UsageError(f"--until {shown(arguments.until)} is in the past.")
    with database(arguments, create=True) as (_settings, store), store.edit(operator()) as editor:
        ban = editor.bans.add(Ban(arguments.kind, arguments.value, arguments.reason, until_s))
    until = "for good" if until_s is None else f"until {format_moment(until_s)}"
    return answer(arguments, _as_data(ban), f"Banned the {ban.kind} {shown(ban.value)} {until}.")


def _remove(arguments: argparse.Namespace) -> int:
    with database(arguments) as (_settings, store), store.edit(operator()) as editor:
        ban = editor.bans.remove(arguments.kind, arguments.value)
    return answer(arguments, _as_data(ban), f"Lifted the ban of the {ban.kind} {shown(ban.value)}.")


def _list(arguments: argparse.Namespace) -> int:
    """List the present bans."""
    with database(arguments) as (_settings, store):
        bans = store.bans(now_s=time.time())
        return answer_list(
            arguments, map(_as_data, bans), ("KIND", "WHO", "UNTIL", "SINCE", "BY", "REASON"), _rows(bans)
        )


def _rows(bans: Iterable[Ban]) -> Iterator[tuple[str, ...]]:
    for ban in bans:
        yield (
            ban.kind,
            shown(ban.value),
            format_moment(ban.until_s),
            format_moment(ban.created_s),
            shown(ban.by),
            shown(ban.reason),
        )


def _as_data(ban: Ban) -> dict[str, Any]:
    return {
        "kind": ban.kind,
        "value": ban.value,
        "until": ban.until_s,
        "reason": ban.reason,
        "by": ban.by,
        "created_at": ban.created_s,
    }
