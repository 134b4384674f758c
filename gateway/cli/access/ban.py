"""``gateway auth ban``: who is kept out, whatever it shows."""

from __future__ import annotations

__all__ = ["add_parser"]

import time
from typing import TYPE_CHECKING, Any, Final

from config.errors import ExitStatus
from gateway.cli.access.common import (
    AdminError,
    add_common,
    database,
    moment,
    operator,
    print_json,
    print_list,
    shown,
    table,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from auth.model import Ban

_KINDS: Final = ("clientid", "username", "address")


def add_parser(commands: Any) -> None:
    """Add ``gateway auth ban`` and its commands."""
    parser = commands.add_parser(
        "ban",
        help="keep clients out, and let them in again",
        description="Bans: by client id, user name, or address. A running service takes changes over at once; whoever "
        "is connected stays so until it logs in anew.",
    )
    parsers = parser.add_subparsers(dest="ban_command", required=True, metavar="COMMAND")

    add = parsers.add_parser("add", help="ban somebody", description="Ban somebody, or change a ban that is there.")
    remove = parsers.add_parser("remove", help="lift a ban", description="Lift a ban.")
    for command in (add, remove):
        command.add_argument("kind", choices=_KINDS, metavar="KIND", help=f"{', '.join(_KINDS)}")
        command.add_argument("value", metavar="VALUE", help='the name, or an address or network ("10.0.0.0/8")')
    add.add_argument(
        "--until", default="never", metavar="WHEN", help='its end: "1h", "2027-01-31" or "never" (default: %(default)s)'
    )
    add.add_argument("--reason", default="", metavar="TEXT", help="why, for those who look later")
    add.set_defaults(run=_add)
    remove.set_defaults(run=_remove)

    listing = parsers.add_parser("list", help="list bans", description="List the bans that are not over.")
    listing.set_defaults(run=_list)
    for command in (add, remove, listing):
        add_common(command)


def _add(arguments: argparse.Namespace) -> int:
    from auth.model import Ban
    from auth.moments import format_moment

    until_s = moment(arguments.until)
    if until_s is not None and until_s <= time.time():
        raise AdminError(f"--until {shown(arguments.until)} is over already.")
    with database(arguments, create=True) as (_settings, store), store.edit(operator()) as editor:
        ban = editor.bans.add(Ban(arguments.kind, arguments.value, arguments.reason, until_s))
    if arguments.json:
        print_json(_as_data(ban))
    else:
        until = "for good" if until_s is None else f"until {format_moment(until_s)}"
        print(f"Banned the {ban.kind} {shown(ban.value)} {until}.")
    return ExitStatus.OK


def _remove(arguments: argparse.Namespace) -> int:
    with database(arguments) as (_settings, store), store.edit(operator()) as editor:
        ban = editor.bans.remove(arguments.kind, arguments.value)
    if arguments.json:
        print_json(_as_data(ban))
    else:
        print(f"Lifted the ban of the {ban.kind} {shown(ban.value)}.")
    return ExitStatus.OK


def _list(arguments: argparse.Namespace) -> int:
    with database(arguments) as (_settings, store):
        bans = store.bans(now_s=time.time())
        if arguments.json:
            print_list(_as_data(ban) for ban in bans)
        else:
            for line in table(("KIND", "WHO", "UNTIL", "SINCE", "BY", "REASON"), _rows(bans)):
                print(line)
    return ExitStatus.OK


def _rows(bans: Iterable[Ban]) -> Iterator[tuple[str, ...]]:
    from auth.moments import format_moment

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
