"""``gateway auth user import`` and ``export``."""

from __future__ import annotations

__all__ = ["add_parsers"]

import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from config.errors import ExitStatus
from gateway.cli.access.common import AdminError, add_common, database, operator, password_cost, print_json
from gateway.cli.table import mention, tell

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from auth.store.edit import Editor
    from auth.store.user_entries import HashForm
    from auth.store.user_formats import UserFile

_ALGORITHMS: Final = ("auto", "plain", "md5", "sha", "sha256", "sha512", "bcrypt", "pbkdf2")
_EXISTING: Final = ("refuse", "keep", "overwrite")


def add_parsers(parsers: Any) -> None:
    """Add the two commands."""
    import_ = parsers.add_parser(
        "import",
        help="take over users from a file",
        description="Take over the users of an export, or of a bootstrap file of EMQX (CSV or JSON). All of them or "
        "none: the first thing that is wrong ends it, with its line.",
        epilog="Readable passwords (a column `password`) are hashed with argon2id before anything is stored, which "
        "takes some 20 ms of a core each. Bare hashes (a column `password_hash`) need --algorithm; they are hashed "
        "anew when their user logs in.",
    )
    import_.add_argument("file", type=Path, metavar="FILE", help="CSV, JSON, or an export")
    import_.add_argument(
        "--identity",
        choices=("username", "clientid"),
        default="username",
        help="what EMQX's user_id is (default: %(default)s)",
    )
    import_.add_argument(
        "--algorithm",
        choices=_ALGORITHMS,
        default="auto",
        help="how password_hash was made; auto: it says so itself, as bcrypt does (default: %(default)s)",
    )
    import_.add_argument(
        "--salt-position",
        choices=("prefix", "suffix", "disable"),
        default="prefix",
        help="where the salt stood (default: %(default)s)",
    )
    import_.add_argument(
        "--pbkdf2",
        default="sha256:4096",
        metavar="DIGEST:ITERATIONS",
        help="mac_fun and iterations of EMQX's pbkdf2 (default: %(default)s)",
    )
    what = import_.add_mutually_exclusive_group()
    what.add_argument(
        "--existing",
        choices=_EXISTING,
        default="refuse",
        help="what to do with users and tenants that are there already: refuse the whole file, keep them as they are, "
        "or overwrite them (default: %(default)s)",
    )
    what.add_argument(
        "--replace",
        action="store_true",
        help="overwrite what is there, and remove users that are not in the file: afterwards these are the users",
    )
    import_.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")
    import_.set_defaults(run=_import)

    export = parsers.add_parser(
        "export",
        help="write all users into a file",
        description="Write all tenants and users into a file that `import` and auth.users_file read, with their "
        "password hashes: keep it as secret as the database.",
    )
    export.add_argument("file", metavar="FILE", help="a new file, readable for you alone; - is the output")
    export.set_defaults(run=_export)
    for command in (import_, export):
        add_common(command)


def _form(arguments: argparse.Namespace) -> HashForm:
    from auth.store.user_entries import HashForm

    digest, _sign, iterations = arguments.pbkdf2.partition(":")
    if not (iterations.isascii() and iterations.isdigit() and len(iterations) < 10):
        raise AdminError("--pbkdf2 has not the form DIGEST:ITERATIONS, such as sha256:4096.")
    return HashForm(arguments.algorithm, arguments.salt_position, digest, int(iterations))


def _import(arguments: argparse.Namespace) -> int:
    from auth.store.user_formats import read_users
    from auth.store.user_hashing import hash_entries

    file = read_users(arguments.file, _form(arguments), arguments.identity)
    if arguments.replace:
        arguments.existing = "overwrite"
        if not file.entries:
            raise AdminError(f"{arguments.file} has no users: --replace would remove everybody.")
    with database(arguments, create=not arguments.dry_run) as (settings, store):
        if not arguments.dry_run and any(entry.plain is not None for entry in file.entries):
            with store.edit(operator(), wait_s=60, dry_run=True) as editor:
                _store(editor, file, arguments, Counter())  # a file that is refused is refused before it costs minutes
            # Before the transaction: other writers do not wait while 100,000 passwords are hashed.
            file.entries = hash_entries(file.entries, password_cost(settings), mention)
        counts = Counter(dict.fromkeys(("added", "replaced", "kept", "removed", "tenants"), 0))
        with store.edit(operator(), wait_s=60, dry_run=arguments.dry_run) as editor:
            _store(editor, file, arguments, counts)
            said = ", ".join(f"{one} {name}" for name, one in counts.items() if one or name == "added")
            editor.session.record("user import", "users", said)
    if arguments.json:
        print_json({**counts, "file": str(arguments.file), "dry_run": arguments.dry_run})
    else:
        tell(f"With this file: {said}. Nothing was changed." if arguments.dry_run else f"{said}.")
    return ExitStatus.OK


def _store(editor: Editor, file: UserFile, arguments: argparse.Namespace, counts: Counter[str]) -> None:
    from auth.errors import ImportFormatError, StoreError

    for key in file.device_keys.values():
        editor.add_device_key(key)
    for tenant in file.tenants:
        known = editor.tenants.get(tenant.name)
        if known is None:
            editor.tenants.add(tenant)
        elif arguments.existing == "overwrite":
            editor.tenants.put(tenant)
        elif arguments.existing == "refuse" and not editor.tenants.alike(known, tenant):
            raise StoreError(f"The tenant {tenant.name!r} is there already, and differs: see --existing.")
        else:
            continue
        counts["tenants"] += 1
    if arguments.replace:  # first: a tenant has room again for others
        keys = {(entry.user.kind, entry.user.identity) for entry in file.entries}
        counts["removed"] = editor.users.remove_others(keys)
    for entry in file.entries:
        user = entry.user
        known_user = editor.users.get(user.kind, user.identity)
        if known_user is not None and arguments.existing == "keep":
            counts["kept"] += 1
            continue
        try:
            new = editor.users.add(user, overwrite=arguments.existing == "overwrite", audited=False)
        except StoreError as error:
            raise ImportFormatError(f"{arguments.file}, line {entry.line}: {error} Nothing was imported.") from None
        counts["added" if new else "replaced"] += 1


def _export(arguments: argparse.Namespace) -> int:
    from auth.store.user_formats import export_lines

    with database(arguments) as (_settings, store):
        lines = export_lines(store.device_keys(), store.tenants(), store.users())
        if arguments.file == "-":
            count = _write(sys.stdout, lines)
            return ExitStatus.OK
        path = Path(arguments.file)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                count = _write(file, lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise AdminError(f"{path} cannot be written: {error.strerror}.") from error
    if arguments.json:
        print_json({"users": count, "file": str(path)})
    else:
        tell(f"{count} users are in {path}, with their password hashes: keep it as secret as the database.")
    return ExitStatus.OK


def _write(file: TextIO, lines: Iterable[str]) -> int:
    """Write the lines; returns how many users were among them."""
    count = 0
    for line in lines:
        file.write(f"{line}\n")
        count += not line.startswith(('{"format"', '{"tenant": {'))
    return count
