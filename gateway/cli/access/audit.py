"""``gateway auth audit``: the changes of the built-in database."""

import argparse

from auth.moments import format_moment
from gateway.cli.access.common import answer_list, database
from gateway.cli.arguments import positive
from gateway.cli.parser import Commands
from gateway.cli.table import shown


def add_parser(commands: Commands) -> None:
    parser = commands.verb("audit", _run)
    parser.add_argument("--limit", type=positive, default=50, metavar="N", help="the N newest (default: %(default)s)")


def _run(arguments: argparse.Namespace) -> int:
    """List changes of users, rules, tenants and bans, the newest last. The database keeps the last million; no password
    or hash is among them."""
    with database(arguments) as (_settings, store):
        entries = store.audit(arguments.limit)[::-1]
    data = (
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
    rows = (
        (format_moment(entry.at_s), shown(entry.by), entry.action, shown(entry.subject), shown(entry.detail))
        for entry in entries
    )
    return answer_list(arguments, data, ("WHEN", "WHO", "WHAT", "OF", "DETAIL"), rows)
