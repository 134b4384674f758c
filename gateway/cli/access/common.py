"""Shared by the administration commands of ``gateway auth``: the database, the operator, passwords."""

import argparse
import contextlib
import getpass
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from auth.errors import StoreError
from auth.model import LoginRequest
from auth.moments import parse_expiry
from auth.passwords import Argon2Cost
from auth.store.store import Store, database_path
from config.errors import ExitStatus
from config.settings import Settings
from gateway.base.process.running_user import running_user
from gateway.cli.arguments import UsageError, load_noted
from gateway.cli.parser import flag, repeated
from gateway.cli.table import shown, table_lines
from gateway.data_dir import durable

_PASSWORD_BYTES: Final = 65_535


def add_password_options(parser: argparse.ArgumentParser) -> None:
    """Options for a password. None takes the password itself: everybody on the machine sees arguments."""
    ways = parser.add_mutually_exclusive_group()
    flag(
        ways,
        "--generate",
        "make a secret of 190 random bits and print it once; for devices, since it is cheap to verify",
    )
    ways.add_argument(
        "--password-file", type=Path, metavar="FILE", help="the password is the first line of FILE; - is the input"
    )
    flag(ways, "--password-stdin", "the password is the first line of the input")
    flag(ways, "--no-password", "no password: the user cannot log in with one")


def add_attributes(parser: argparse._ActionsContainer) -> None:
    text = "a client attribute, for rules and topics; may be given several times"
    repeated(parser, "--attribute", "NAME=VALUE", text, dest="attributes")


def add_client(parser: argparse._ActionsContainer) -> None:
    """What EMQX sees of a client."""
    parser.add_argument("--username", default="", metavar="NAME")
    parser.add_argument("--clientid", default="", metavar="ID")
    parser.add_argument("--address", default="", metavar="IP", help="where it connects from, as EMQX sees it")
    parser.add_argument("--common-name", default="", metavar="NAME", help="of its verified certificate")


def login_of(arguments: argparse.Namespace, password: str = "") -> LoginRequest:
    return LoginRequest(arguments.username, arguments.clientid, password, arguments.address, arguments.common_name)


def attributes(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise UsageError(f"--attribute {shown(text)} has not the form NAME=VALUE.")
        found[name] = value
    return found


@contextlib.contextmanager
def database(arguments: argparse.Namespace, *, create: bool = False) -> Iterator[tuple[Settings, Store]]:
    """The settings, and the open database. Without ``create`` a missing one is an error."""
    settings = load_noted(arguments.config).settings
    path = database_path(settings)
    if not create and not path.exists():
        raise StoreError(
            f"{path.absolute()}: there is no database. `gateway auth init` makes it; or check "
            "auth.database.file, data_dir and --config."
        )
    store = Store(path)
    store.open()
    try:
        yield settings, store
    finally:
        store.close()


@contextlib.contextmanager
def new_file(name: str) -> Iterator[TextIO]:
    """A file to write, which must not exist and only this user may read; - is the output. Raises UsageError."""
    if name == "-":
        yield sys.stdout
        return
    try:
        with durable.new_file(Path(name), 0o600) as file:
            yield file
    except FileExistsError:
        raise UsageError(f"{shown(name)} is there already, and is left as it is: name another file.") from None
    except OSError as error:
        raise UsageError(f"{shown(name)} cannot be written: {error.strerror}.") from error


def operator() -> str:
    """The operator for the audit: the kernel's user, and the user of sudo. Variables such as ``LOGNAME``, which anybody
    can set, do not count."""
    return shown(running_user())[:200]


def password_cost(settings: Settings) -> Argon2Cost:
    return Argon2Cost(settings.auth.hashing.memory >> 10, settings.auth.hashing.passes)


def read_password(arguments: argparse.Namespace, name: str) -> str:
    """The password, by the options. Raises UsageError."""
    if arguments.password_stdin or arguments.password_file is not None:
        return password_in(arguments.password_file or Path("-"))
    if not sys.stdin.isatty():
        raise UsageError("No terminal to ask for a password: use --generate, --password-file or --password-stdin.")
    try:
        first = getpass.getpass(f"Password for {shown(name)}: ")
        again = getpass.getpass("The same again: ")
    except EOFError:
        raise UsageError("No password was typed; nothing was changed.") from None
    except UnicodeDecodeError:
        raise UsageError("What was typed is not UTF-8; nothing was changed.") from None
    if again != first:
        raise UsageError("The two passwords differ; nothing was changed.")
    return _password(first.encode("utf-8", "surrogateescape"), "what was typed")


def password_in(file: Path) -> str:
    """The password in the first line of a file; - is the input. Raises UsageError."""
    if file == Path("-"):
        return _password(sys.stdin.buffer.readline(_PASSWORD_BYTES + 3), "the input")
    try:
        with file.open("rb") as opened:
            return _password(opened.readline(_PASSWORD_BYTES + 3), str(file))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error


def _password(data: bytes, source: str) -> str:
    data = data.removesuffix(b"\n").removesuffix(b"\r")
    if not 1 <= len(data) <= _PASSWORD_BYTES:
        raise UsageError(f"The first line of {source} is no password: one has 1 to {_PASSWORD_BYTES} bytes.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"The password in {source} is not UTF-8.") from None


def moment(text: str) -> int | None:
    try:
        return parse_expiry(text, time.time())
    except ValueError as error:
        raise UsageError(f"{shown(text)}: {error}.") from None


def answer_list(
    arguments: argparse.Namespace, data: Iterable[object], head: Sequence[str], rows: Iterable[Sequence[str]]
) -> int:
    """Print ``data`` with ``--json``, else a table; the other one is not read."""
    if arguments.json:
        print_list(data)
    else:
        for line in table_lines(head, rows):
            print(line, end="")
    return ExitStatus.OK


def print_list(rows: Iterable[object]) -> None:
    """Print a JSON list, an item a line, as the items come: the list may be long."""
    print("[", end="")
    for number, row in enumerate(rows):
        print(",\n " if number else "\n ", json.dumps(row), sep="", end="")
    print("\n]")
