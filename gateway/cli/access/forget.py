"""``gateway auth forget``: erases a device."""

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

from auth.store.forget import Forgotten, forget, wipe
from config.errors import ExitStatus
from gateway.cli.access.common import database, operator
from gateway.cli.access.rule_text import sentence
from gateway.cli.parser import Commands, flag
from gateway.cli.table import print_json, shown


def add_parser(commands: Commands) -> None:
    parser = commands.verb("forget", _run)
    parser.add_argument("device", metavar="DEVICE", help="the name, compared byte for byte")
    flag(parser, "--dry-run", "say what would be removed, and remove nothing")


def _run(arguments: argparse.Namespace) -> int:
    """Remove all entries of a device in the built-in database: the user of this user name, client id or certificate
    name, its rules and bans. Its name in the audit is replaced. Removed entries are overwritten in the file. Exports,
    copies and EMQX's own data stay."""
    wiped = True
    with database(arguments) as (_settings, store):
        with store.edit(operator(), wait_s=60, dry_run=arguments.dry_run) as editor:
            found = forget(editor, arguments.device)
        path = store.path
    if not arguments.dry_run:
        wiped = wipe(path)
    anything = bool(found.users or found.rules or found.bans or found.audit)
    if arguments.json:
        print_json(_as_data(found, dry_run=arguments.dry_run, wiped=wiped))
    else:
        for line in _lines(arguments, found, wiped=wiped):
            print(line)
    if not anything:
        return ExitStatus.NOT_FOUND
    return ExitStatus.OK if wiped and not found.topics and not found.spellings else ExitStatus.INCOMPLETE


def _as_data(found: Forgotten, *, dry_run: bool, wiped: bool) -> dict[str, Any]:
    return {
        "users": [{"kind": user.kind, "name": user.identity} for user in found.users],
        "rules": [stored.id for stored in found.rules],
        "bans": found.bans,
        "audit_entries": found.audit,
        "rules_with_it_in_their_topic": [stored.id for stored in found.topics],
        "banned_spellings": found.spellings,
        "pseudonym": found.pseudonym,
        "wiped": wiped,
        "dry_run": dry_run,
    }


def _lines(arguments: argparse.Namespace, found: Forgotten, *, wiped: bool) -> Iterator[str]:
    name = shown(arguments.device)
    if not (found.users or found.rules or found.bans or found.audit):
        yield f"Nothing is stored under the name {name}."
    else:
        yield f"{'Would be removed' if arguments.dry_run else 'Removed'}:"
        for user in found.users:
            yield f"  {user.kind} {shown(user.identity)}"
        for stored in found.rules:
            yield f"  rule {stored.id}: {sentence(stored.rule)}"
        yield f"  {found.bans} bans"
        yield f"  its name in {found.audit} entries of the audit, which call it {found.pseudonym!r}"
    for stored in found.topics:
        removal = f"`gateway auth acl remove {stored.id}`"
        yield f"Left, since it concerns others; {removal} removes it: rule {stored.id}: {sentence(stored.rule)}"
    for spelling in found.spellings:
        removal = f"`gateway auth forget {shlex.quote(shown(spelling))}`"
        yield f"Left, since the name is written in another way; {removal} removes it: a ban of {shown(spelling)}"
    if not wiped:
        yield (
            "The database's log still has old pages, since the service was reading: repeat the command, or restart "
            "the service."
        )
    elif not arguments.dry_run and found.users:
        yield (
            "A running service has forgotten its login. Counted failures and lock-outs end by themselves "
            "(auth.protection). A connected device stays connected until its next login."
        )
