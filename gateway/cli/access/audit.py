"""``gateway auth audit``: who changed what in the built-in database."""

from __future__ import annotations

__all__ = ["add_parser"]

from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus
from gateway.cli.access.common import AdminError, add_common, database, print_list, shown, table

if TYPE_CHECKING:
    import argparse

_LIMIT = 50


def add_parser(commands: Any) -> None:
    """Add ``gateway auth audit``."""
    parser = commands.add_parser(
        "audit",
        help="list who changed what",
        description="List changes of users, rules, tenants and bans, the newest last. The database keeps the last "
        "million; no password or hash is among them.",
    )
    parser.add_argument("--limit", type=int, default=_LIMIT, metavar="N", help="the N newest (default: %(default)s)")
    add_common(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from auth.moments import format_moment

    if arguments.limit < 1:
        raise AdminError("--limit is a number of at least 1.")
    with database(arguments) as (_settings, store):
        entries = store.audit(arguments.limit)[::-1]
    if arguments.json:
        print_list(
            {
                "id": entry.id,
                "at": entry.at_s,
                "by": entry.by,
                "action": entry.action,
                "subject": entry.subject,
                "detail": entry.detail,
            }
            for entry in entries
        )
        return ExitStatus.OK
    rows = (
        (format_moment(entry.at_s), shown(entry.by), entry.action, shown(entry.subject), shown(entry.detail))
        for entry in entries
    )
    for line in table(("WHEN", "WHO", "WHAT", "OF", "DETAIL"), rows):
        print(line)
    return ExitStatus.OK
