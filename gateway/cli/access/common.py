"""What the administration commands of ``gateway auth`` share: the database, who is at the keyboard, passwords."""

from __future__ import annotations

__all__ = [
    "AdminError",
    "add_attributes",
    "add_common",
    "add_password_options",
    "as_rule",
    "attributes",
    "database",
    "moment",
    "operator",
    "password_cost",
    "print_json",
    "print_list",
    "read_password",
    "shown",
    "table",
]

import contextlib
import getpass
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from config.errors import ExitStatus, GatewayError
from gateway.base.running_user import running_user
from gateway.cli.arguments import add_config, add_json, load_noted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from auth.passwords import Argon2Cost
    from auth.store.store import Store
    from config.settings import Settings

_PASSWORD_BYTES: Final = 65_535


class AdminError(GatewayError):
    """Arguments that do not fit together, or a password that cannot be had."""

    exit_status = ExitStatus.USAGE


def add_common(parser: argparse.ArgumentParser) -> None:
    """``--config`` and ``--json``."""
    add_json(parser)
    add_config(parser)


def add_password_options(parser: argparse.ArgumentParser, *, none: bool) -> None:
    """Ways to a password, none of them an argument: those are seen by everybody on the machine, and kept by shells."""
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--generate",
        action="store_true",
        help="make a secret of 190 random bits and print it, once; for devices, whose logins it makes cheap",
    )
    ways.add_argument(
        "--password-file", type=Path, metavar="FILE", help="the password is the first line of FILE; - is the input"
    )
    ways.add_argument("--password-stdin", action="store_true", help="the password is the first line of the input")
    if none:
        ways.add_argument("--no-password", action="store_true", help="no password: the user cannot log in with one")


def add_attributes(parser: argparse.ArgumentParser) -> None:
    """``--attribute NAME=VALUE``."""
    parser.add_argument(
        "--attribute",
        dest="attributes",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a client attribute, for rules and topics; may be given several times",
    )


def attributes(texts: Sequence[str]) -> dict[str, str]:
    """The attributes that were given. Raises AdminError."""
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise AdminError(f"--attribute {shown(text)} has not the form NAME=VALUE.")
        found[name] = value
    return found


@contextlib.contextmanager
def database(arguments: argparse.Namespace, *, create: bool = False) -> Iterator[tuple[Settings, Store]]:
    """The settings, and the database open. Without ``create`` one that is not there is an error."""
    from auth.errors import StoreError
    from auth.store.store import Store, database_path

    settings = load_noted(arguments.config).settings
    path = database_path(settings)
    if not create and not path.exists():
        raise StoreError(
            f"{path.absolute()}: there is no database yet. `gateway auth init` makes it; or check "
            "auth.database.file, data_dir and --config."
        )
    store = Store(path)
    store.open()
    try:
        yield settings, store
    finally:
        store.close()


def operator() -> str:
    """Who is at the keyboard, for the audit: the kernel's word, and what sudo says of whom it is for. A variable such
    as ``LOGNAME``, which anybody can set, is not looked at."""
    return shown(running_user())[:200]


def password_cost(settings: Settings) -> Argon2Cost:
    """What a new hash costs."""
    from auth.passwords import Argon2Cost

    return Argon2Cost(settings.auth.hashing.memory >> 10, settings.auth.hashing.passes)


def read_password(arguments: argparse.Namespace, name: str) -> str:
    """The password, from where the options say. Raises AdminError."""
    if arguments.password_stdin or arguments.password_file == Path("-"):
        return _password(sys.stdin.buffer.readline(_PASSWORD_BYTES + 3), "the input")
    if arguments.password_file is not None:
        try:
            with arguments.password_file.open("rb") as file:
                data = file.readline(_PASSWORD_BYTES + 3)
        except OSError as error:
            raise AdminError(f"{arguments.password_file} cannot be read: {error.strerror}.") from error
        return _password(data, str(arguments.password_file))
    if not sys.stdin.isatty():
        raise AdminError("No terminal to ask for a password: use --generate, --password-file or --password-stdin.")
    first = getpass.getpass(f"Password for {shown(name)}: ")
    if getpass.getpass("The same again: ") != first:
        raise AdminError("These were two different passwords; nothing was changed.")
    return _password(first.encode("utf-8", "surrogateescape"), "what was typed")


def _password(data: bytes, source: str) -> str:
    data = data.removesuffix(b"\n").removesuffix(b"\r")
    if not 1 <= len(data) <= _PASSWORD_BYTES:
        raise AdminError(f"The first line of {source} is no password: one has 1 to {_PASSWORD_BYTES} bytes.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise AdminError(f"The password in {source} is not UTF-8.") from None


def moment(text: str) -> int | None:
    """A moment in time. Raises AdminError."""
    from auth.moments import parse_moment

    try:
        return parse_moment(text, time.time())
    except ValueError as error:
        raise AdminError(f"{shown(text)}: {error}.") from None


def shown(text: str) -> str:
    """Text that a client chose, safe on a terminal: what is not printable is written as its escape."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def print_json(value: object) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2))


def print_list(rows: Iterable[object]) -> None:
    """A JSON list, an item a line, written as it comes: it may be long."""
    print("[", end="")
    for number, row in enumerate(rows):
        print(",\n " if number else "\n ", json.dumps(row), sep="", end="")
    print("\n]")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table, as wide as its first thousand rows need."""
    waiting: list[Sequence[str]] = [head]
    widths: list[int] = []

    def line(row: Sequence[str]) -> str:
        return "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()

    for row in rows:
        if not widths:
            waiting.append(row)
            if len(waiting) <= 1000:
                continue
            widths = _widths(waiting)
            yield from map(line, waiting)
        else:
            yield line(row)
    if not widths:
        widths = _widths(waiting)
        yield from map(line, waiting)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]


def as_rule(stored: Any) -> str:
    """A rule on one line."""
    rule = stored.rule
    who = " and ".join(f"{kind} {shown(value)}".strip() for kind, value in rule.who)
    return f"rule {stored.id}: {rule.permission} {who} to {' and '.join(sorted(rule.actions))} {shown(rule.topic)}"
