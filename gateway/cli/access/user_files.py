"""``gateway auth user import`` and ``export``."""

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TextIO

from auth.errors import ImportFormatError, StoreError
from auth.store.edit import Editor
from auth.store.user_entries import HashForm
from auth.store.user_formats import UserFile, export_lines, read_users
from auth.store.user_hashing import hash_entries
from config.errors import ExitStatus
from gateway.cli.access.common import database, new_file, operator, password_cost
from gateway.cli.arguments import UsageError
from gateway.cli.parser import Commands, choice, flag
from gateway.cli.table import answer, mention

_ALGORITHMS: Final = ("auto", "plain", "md5", "sha", "sha256", "sha512", "bcrypt", "pbkdf2")


def add_parsers(parsers: Commands) -> None:
    import_ = parsers.verb(
        "import",
        _import,
        "add users from a file",
        "Readable passwords (a column `password`) are hashed with argon2id before anything is stored, which takes some "
        "20 ms of a core each. Bare hashes (a column `password_hash`) need --algorithm; they are replaced when their "
        "user logs in.",
    )
    import_.add_argument("file", type=Path, metavar="FILE", help="CSV, JSON, or an export")
    choice(import_, "--identity", ("username", "clientid"), "the meaning of EMQX's user_id")
    text = "the algorithm of password_hash; auto: the hash names it, as bcrypt does"
    choice(import_, "--algorithm", _ALGORITHMS, text)
    choice(import_, "--salt-position", ("prefix", "suffix", "disable"), "the place of the salt")
    import_.add_argument(
        "--pbkdf2",
        default="sha256:4096",
        metavar="DIGEST:ITERATIONS",
        help="mac_fun and iterations of EMQX's pbkdf2 (default: %(default)s)",
    )
    what = import_.add_mutually_exclusive_group()
    text = "for existing users and tenants: refuse the whole file, keep them as they are, or overwrite them"
    choice(what, "--existing", ("refuse", "keep", "overwrite"), text)
    flag(what, "--replace", "overwrite existing users, and remove all that are not in the file")
    flag(import_, "--dry-run", "say what would happen, and change nothing")

    export = parsers.verb("export", _export, "write all users into a file")
    export.add_argument("file", metavar="FILE", help="a new file, readable for you alone; - is the output")


def _form(arguments: argparse.Namespace) -> HashForm:
    digest, _sign, iterations = arguments.pbkdf2.partition(":")
    if not (iterations.isascii() and iterations.isdigit() and len(iterations) < 10):
        raise UsageError("--pbkdf2 has not the form DIGEST:ITERATIONS, such as sha256:4096.")
    return HashForm(arguments.algorithm, arguments.salt_position, digest, int(iterations))


def _import(arguments: argparse.Namespace) -> int:
    """Add the users of an export, or of a bootstrap file of EMQX (CSV or JSON). All of them or none: the first error
    ends the import, with its line."""
    file = read_users(arguments.file, _form(arguments), arguments.identity)
    if arguments.replace:
        arguments.existing = "overwrite"
        if not file.entries:
            raise UsageError(f"{arguments.file} has no users: --replace would remove everybody.")
    with database(arguments, create=not arguments.dry_run) as (settings, store):
        if not arguments.dry_run and any(entry.plain is not None for entry in file.entries):
            with store.edit(operator(), wait_s=60, dry_run=True) as editor:
                _store(editor, file, arguments, Counter())  # refuse a bad file before minutes of hashing
            # Before the transaction, so that other writers do not wait for 100,000 hashes.
            file.entries = hash_entries(file.entries, password_cost(settings), mention)
        counts = Counter(dict.fromkeys(("added", "replaced", "kept", "removed", "tenants"), 0))
        with store.edit(operator(), wait_s=60, dry_run=arguments.dry_run) as editor:
            _store(editor, file, arguments, counts)
            said = ", ".join(f"{one} {name}" for name, one in counts.items() if one or name == "added")
            editor.session.record("user import", "users", said)
    return answer(
        arguments,
        {**counts, "file": str(arguments.file), "dry_run": arguments.dry_run},
        f"With this file: {said}. Nothing was changed." if arguments.dry_run else f"{said}.",
    )


def _store(editor: Editor, file: UserFile, arguments: argparse.Namespace, counts: Counter[str]) -> None:
    """Make the changes of an import, and count them. Raises StoreError and ImportFormatError."""
    for key in file.device_keys.values():
        editor.add_device_key(key)
    for tenant in file.tenants:
        known = editor.tenants.get(tenant.name)
        if known is None:
            editor.tenants.add(tenant)
        elif arguments.existing == "keep" or editor.tenants.alike(known, tenant):
            continue
        elif arguments.existing == "overwrite":
            editor.tenants.put(tenant)
        else:
            raise StoreError(f"The tenant {tenant.name!r} is there already, and differs: see --existing.")
        counts["tenants"] += 1
    if arguments.replace:  # first, so that tenants have room
        keys = {(entry.user.kind, entry.user.identity) for entry in file.entries}
        counts["removed"] = editor.users.remove_others(keys)
    for entry in file.entries:
        user = entry.user
        known_user = editor.users.get(user.kind, user.identity)
        # A user that is as before is not changed: a change ends its lock-out, and forgets its login.
        same = known_user is not None and entry.plain is None and editor.users.alike(known_user, user)
        if known_user is not None and (arguments.existing == "keep" or (arguments.existing == "overwrite" and same)):
            counts["kept"] += 1
            continue
        try:
            new = editor.users.add(user, overwrite=arguments.existing == "overwrite", audited=False)
        except StoreError as error:
            raise ImportFormatError(f"{arguments.file}, line {entry.line}: {error} Nothing was imported.") from None
        counts["added" if new else "replaced"] += 1


def _export(arguments: argparse.Namespace) -> int:
    """Write all tenants and users into a file that `import` and auth.users_file read, with their password hashes: keep
    it as secret as the database."""
    with database(arguments) as (_settings, store), store.at_one_moment():
        lines = export_lines(store.device_keys(), store.tenants(), store.users())
        with new_file(arguments.file) as file:
            count = _write(file, lines)
    if arguments.file == "-":
        return ExitStatus.OK
    text = f"{count} users are in {arguments.file}, with their password hashes: keep it as secret as the database."
    return answer(arguments, {"users": count, "file": arguments.file}, text)


def _write(file: TextIO, lines: Iterable[str]) -> int:
    """Write the lines; returns how many users were among them."""
    count = 0
    for line in lines:
        file.write(f"{line}\n")
        count += not line.startswith(('{"format"', '{"tenant": {'))
    return count
