"""``gateway auth acl import`` and ``export``."""

import argparse
import sys
from collections.abc import Sequence

from auth.errors import ImportFormatError
from auth.model import Rule
from auth.rules.acl_conf import AclFile, read_acl_conf
from auth.rules.acl_conf_writing import write_acl_conf
from auth.rules.files import read_rules, write_rules
from config.errors import ExitStatus
from gateway.cli.access.common import database, new_file, operator
from gateway.cli.arguments import read_input
from gateway.cli.parser import Commands, choice, flag
from gateway.cli.table import print_json, shown, tell


def add_parsers(parsers: Commands) -> None:
    """Add the two commands to those of ``gateway auth acl``."""
    status = "exit status: 0 all were added, 5 some were left out (--partial), 78 the file was refused"
    import_ = parsers.verb("import", _import, "add rules from a file", status)
    import_.add_argument("file", metavar="FILE", help="- is the input")
    flag(import_, "--replace", "remove all present rules in the same step")
    flag(import_, "--partial", "leave out rules without a counterpart")
    flag(import_, "--dry-run", "say what would happen, and change nothing")

    status = "exit status: 0 all were written, 5 acl.conf cannot express some, which are comments in it"
    export = parsers.verb("export", _export, "write all rules into a file", status)
    export.add_argument("file", metavar="FILE", help="a new file; - is the output")
    for command in (import_, export):
        text = "auto: acl.conf when the file's name ends in .conf, else json"
        choice(command, "--format", ("auto", "json", "acl.conf"), text)


def _is_conf(arguments: argparse.Namespace) -> bool:
    name: str = arguments.file
    return arguments.format == "acl.conf" or (arguments.format == "auto" and name.endswith(".conf"))


def _read(name: str) -> str:
    try:
        data = read_input(name)
    except ValueError as error:
        raise ImportFormatError(f"{shown(name)} cannot be read: {error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportFormatError(f"{shown(name)} is not UTF-8, at byte {error.start}.") from None


def _import(arguments: argparse.Namespace) -> int:
    """Add the rules of a file at the end of the list: EMQX's acl.conf, the answer of EMQX's REST API for its built-in
    database (JSON), or an export of this command. All of them or none.

    A rule of acl.conf without a counterpart is printed with its line, and the file is refused: without a denial, more
    would be allowed than in EMQX. With --partial the other rules are added.
    """
    text = _read(arguments.file)
    try:
        found = read_acl_conf(text) if _is_conf(arguments) else AclFile(tuple(read_rules(text)), ())
    except ImportFormatError as error:
        raise ImportFormatError(f"{shown(arguments.file)}: {error}. Nothing was imported.") from None
    left_out = [one for one in found.untranslated if one.left_out]
    if left_out and not arguments.partial:
        _say_untranslated(arguments.file, found)
        raise ImportFormatError(
            f"{shown(arguments.file)}: {len(left_out)} of its rules have no counterpart (see above). Change them, or "
            "leave them out with --partial. Nothing was imported."
        )
    dry_run = arguments.dry_run
    with (
        database(arguments, create=not dry_run) as (_settings, store),
        store.edit(operator(), wait_s=60, dry_run=dry_run) as editor,
    ):
        removed = editor.rules.clear() if arguments.replace else 0
        editor.rules.extend(found.rules)
    _report(arguments, found, removed)
    return ExitStatus.INCOMPLETE if left_out else ExitStatus.OK


def _report(arguments: argparse.Namespace, found: AclFile, removed: int) -> None:
    if arguments.json:
        remarks = [
            {"line": one.line, "reason": one.reason, "left_out": one.left_out, "permission": one.permission}
            for one in found.untranslated
        ]
        print_json({"added": len(found.rules), "removed": removed, "remarks": remarks, "dry_run": arguments.dry_run})
        return
    _say_untranslated(arguments.file, found)
    would = "would be " if arguments.dry_run else ""
    before = f"{removed} rules {would}removed, " if arguments.replace else ""
    print(f"{before}{len(found.rules)} rules {would}added.")


def _say_untranslated(name: str, found: AclFile) -> None:
    for one in found.untranslated:
        kind = f" ({one.permission})" if one.permission else ""
        what = "left out" if one.left_out else "note"
        tell(f"{shown(name)}, line {one.line}{kind}: {what}: {shown(one.reason)}", to=sys.stderr)


def _export(arguments: argparse.Namespace) -> int:
    """Write all rules into a file that `import` reads."""
    with database(arguments) as (_settings, store):
        rules = [stored.rule for stored in store.rules()]
    left_out: Sequence[tuple[Rule, str]] = ()
    if _is_conf(arguments):
        text, left_out = write_acl_conf(rules)
    else:
        text = write_rules(rules)
    with new_file(arguments.file) as file:
        file.write(text)
    for rule, reason in left_out:
        tell(f"{rule.source} was left out: {shown(reason)}", to=sys.stderr)
    if arguments.file != "-":
        if arguments.json:
            print_json({"rules": len(rules) - len(left_out), "left_out": len(left_out), "file": arguments.file})
        else:
            print(f"{len(rules) - len(left_out)} rules are in {shown(arguments.file)}.")
    return ExitStatus.INCOMPLETE if left_out else ExitStatus.OK
