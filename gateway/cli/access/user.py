"""``gateway auth user``: the users of the built-in database."""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from auth.errors import NotStoredError
from auth.model import Ban, Condition
from auth.moments import format_moment
from auth.networks import enclosing, prefix_code
from auth.passwords import generate_secret, hash_argon2id, hash_device_secret, parse
from auth.store.edit import Editor
from auth.store.records import User
from auth.store.store import Store
from config.errors import ExitStatus
from config.settings import Settings
from gateway.cli.access import user_files as auth_user_files
from gateway.cli.access.common import (
    add_attributes,
    add_password_options,
    answer_list,
    attributes,
    database,
    moment,
    operator,
    password_cost,
    read_password,
)
from gateway.cli.arguments import UsageError
from gateway.cli.parser import Commands, choice, flag, repeated
from gateway.cli.table import answer, print_json, shown, tell

_KINDS: Final = ("username", "clientid", "common_name", "address")


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "user",
        "Users of the built-in database. A running service takes changes at once.",
    )
    add = parsers.verb("add", _add, "add a user")
    add.add_argument("name", metavar="NAME", help="the name it logs in with: its user name, or by --kind")
    _add_kind(add)
    add_password_options(add)
    add.add_argument("--tenant", default="", metavar="NAME", help="the tenant that it belongs to")
    repeated(add, "--group", "NAME", "may be given several times", dest="groups")
    add_attributes(add)
    flag(add, "--superuser", "may publish and subscribe everywhere, without rules")
    flag(add, "--disabled", "cannot log in until it is enabled")
    add.add_argument(
        "--expires", default="never", metavar="WHEN", help='"30d", "2027-01-31" or "never" (default: %(default)s)'
    )

    passwd = parsers.verb("passwd", _passwd, "give a user another password")
    passwd.add_argument("name", metavar="NAME", help="the user")
    _add_kind(passwd)
    add_password_options(passwd)

    switches = {word: parsers.verb(word, _enable_or_disable, f"{word} users") for word in ("disable", "enable")}
    for word, switch in switches.items():
        switch.set_defaults(disabled=word == "disable")
    for command in (*switches.values(), parsers.verb("remove", _remove, "remove users")):
        command.add_argument("names", nargs="+", metavar="NAME", help="the users")
        _add_kind(command)

    listing = parsers.verb("list", _list, "list users")
    listing.add_argument("--kind", choices=_KINDS, default="", help="only those of this kind")
    listing.add_argument("--tenant", default="", metavar="NAME", help="only those of this tenant")

    show = parsers.verb("show", _show, "show a user")
    show.add_argument("name", metavar="NAME", help="the user")
    _add_kind(show)
    auth_user_files.add_parsers(parsers)


def _add_kind(parser: argparse.ArgumentParser) -> None:
    text = "what identifies the user; a common_name (of a verified client certificate) or an address (a network) needs "
    choice(parser, "--kind", _KINDS, f"{text}no password")


def _password(arguments: argparse.Namespace, settings: Settings) -> tuple[str, str]:
    """The password to store, as far as it can be made without the database's lock, and the secret to print."""
    if arguments.no_password or arguments.kind not in {"username", "clientid"}:
        if arguments.generate or arguments.password_file or arguments.password_stdin:
            raise UsageError(
                f"A user of the kind {arguments.kind} has no password: its certificate or address suffices."
            )
        return "", ""
    if arguments.generate:
        return "", generate_secret()
    return hash_argon2id(read_password(arguments, arguments.name), password_cost(settings)), ""


def _stored(editor: Editor, stored: str, secret: str) -> str:
    return hash_device_secret(secret, editor.current_device_key()) if secret else stored


def _say_done(arguments: argparse.Namespace, sentence: str, secret: str, **facts: object) -> int:
    data = {**facts, "name": arguments.name, "kind": arguments.kind}
    if secret:
        data["secret"] = secret
        sentence += f" Its secret is printed only this once:\n{secret}"
    return answer(arguments, data, sentence)


def _add(arguments: argparse.Namespace) -> int:
    """Add a user: a device or a person."""
    expires_at_s = moment(arguments.expires)
    with database(arguments, create=True) as (settings, store):
        stored, secret = _password(arguments, settings)
        with store.edit(operator()) as editor:
            editor.users.add(
                User(
                    arguments.kind,
                    arguments.name,
                    _stored(editor, stored, secret),
                    arguments.tenant,
                    frozenset(arguments.groups),
                    attributes(arguments.attributes),
                    arguments.superuser,
                    arguments.disabled,
                    expires_at_s,
                )
            )
    status = _say_done(arguments, f"Added the {arguments.kind} {shown(arguments.name)}.", secret, added=True)
    auth = settings.auth
    if "database" not in auth.chain or arguments.kind not in auth.database.identities:
        tell(
            "gateway: no login finds this user, since auth.chain does not name database, or auth.database.identities "
            f"not {arguments.kind}.",
            to=sys.stderr,
        )
    return status


def _passwd(arguments: argparse.Namespace) -> int:
    with database(arguments) as (settings, store):
        stored, secret = _password(arguments, settings)
        with store.edit(operator()) as editor:
            password = _stored(editor, stored, secret)  # a secret is hashed with a key of the database
            editor.users.change(arguments.kind, arguments.name, "user passwd", password=password)
    what = "has no password now" if arguments.no_password else "has another password now"
    return _say_done(arguments, f"The {arguments.kind} {shown(arguments.name)} {what}.", secret, changed=True)


def _enable_or_disable(arguments: argparse.Namespace) -> int:
    word = "disable" if arguments.disabled else "enable"
    with database(arguments) as (_settings, store), store.edit(operator()) as editor:
        for name in arguments.names:
            editor.users.change(arguments.kind, name, f"user {word}", disabled=arguments.disabled)
    after = " A connected one stays connected until its next login (auth.session_max)." if arguments.disabled else ""
    return answer(
        arguments,
        {"kind": arguments.kind, "names": arguments.names, "disabled": arguments.disabled},
        f"{word.capitalize()}d: {', '.join(map(shown, arguments.names))}.{after}",
    )


def _remove(arguments: argparse.Namespace) -> int:
    """Remove users. Their rules and bans stay: `gateway auth forget` removes those as well."""
    with database(arguments) as (_settings, store):
        with store.edit(operator()) as editor:
            removed = {name: editor.users.remove(arguments.kind, name) for name in arguments.names}
        found = _rules_of(store, *removed.values())
        left = {name: found[user.kind, user.identity] for name, user in removed.items()}
    if arguments.json:
        print_json({"kind": arguments.kind, "removed": arguments.names, "rules_left": left})
        return ExitStatus.OK
    tell(f"Removed: {', '.join(map(shown, arguments.names))}.")
    for name, rules in left.items():
        if rules:
            tell(f"Rules that still name {shown(name)}: {', '.join(map(str, rules))}.")
    return ExitStatus.OK


def _rules_of(store: Store, *users: User) -> dict[Condition, list[int]]:
    """The ids of the rules that name each user. With several users each rule is read, once."""
    found: dict[Condition, list[int]] = {(user.kind, user.identity): [] for user in users}
    kind, value = next(iter(found)) if len(found) == 1 else ("", "")
    for stored in store.rules(kind=kind, value=value):
        for condition in found.keys() & set(stored.rule.who):
            found[condition].append(stored.id)
    return found


def _ban_of(store: Store, user: User) -> Ban | None:
    """The present ban of the user's name, or of its whole network."""
    now_s = time.time()
    if user.kind == "address":
        length = prefix_code(user.identity)
        wider = [ban for ban in store.bans(now_s=now_s) if ban.kind == "address" and prefix_code(ban.value) <= length]
        holding = enclosing(user.identity.partition("/")[0], [prefix_code(ban.value) for ban in wider])
        return next((ban for ban in wider if ban.value in holding), None)
    clientid, username = (user.identity if user.kind == kind else "" for kind in ("clientid", "username"))
    return store.find_ban(clientid, username, "", now_s)


def _list(arguments: argparse.Namespace) -> int:
    """List users, without secrets."""
    with database(arguments) as (_settings, store):
        users = store.users(kind=arguments.kind, tenant=arguments.tenant)
        head = ("KIND", "NAME", "PASSWORD", "TENANT", "GROUPS", "EXPIRES", "")
        return answer_list(arguments, map(_as_data, users), head, _rows(users))


def _rows(users: Iterable[User]) -> Iterator[tuple[str, ...]]:
    for user in users:
        marks = [word for word, on in (("superuser", user.is_superuser), ("disabled", user.disabled)) if on]
        yield (
            user.kind,
            shown(user.identity),
            _hash_kind(user),
            shown(user.tenant) or "-",
            shown(",".join(sorted(user.groups))) or "-",
            format_moment(user.expires_at_s),
            " ".join(marks),
        )


def _hash_kind(user: User) -> str:
    """The kind of the stored password, never the password."""
    if not user.password:
        return "none"
    kind = parse(user.password).digest
    return "generated" if kind == "blake2b" else kind


def _as_data(user: User) -> dict[str, Any]:
    return {
        "kind": user.kind,
        "name": user.identity,
        "password": _hash_kind(user),
        "tenant": user.tenant,
        "groups": sorted(user.groups),
        "attributes": dict(user.attributes),
        "is_superuser": user.is_superuser,
        "disabled": user.disabled,
        "expires_at": user.expires_at_s,
        "created_at": user.created_s,
        "changed_at": user.changed_s,
    }


def _show(arguments: argparse.Namespace) -> int:
    """Show a user, its rules and its bans."""
    with database(arguments) as (_settings, store):
        user = store.user(arguments.kind, arguments.name)
        if user is None:
            raise NotStoredError(
                f"There is no {arguments.kind} {shown(arguments.name)}. Names are compared byte for byte; --kind names "
                "other kinds."
            )
        ban = _ban_of(store, user)
        data = _as_data(user) | {
            "rules": _rules_of(store, user)[user.kind, user.identity],
            "banned_until": None if ban is None else format_moment(ban.until_s),
        }
    if arguments.json:
        print_json(data)
        return ExitStatus.OK
    for key in ("created_at", "changed_at", "expires_at"):
        data[key] = format_moment(data[key])
    for key, value in data.items():
        print(f"{key:14} {shown(_as_text(value))}")
    return ExitStatus.OK


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        value = [f"{name}={one}" for name, one in value.items()]
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return str(value or "-")
