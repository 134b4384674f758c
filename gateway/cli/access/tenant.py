"""``gateway auth tenant``: customers or sites, and what holds for all of their users."""

from __future__ import annotations

__all__ = ["add_parser"]

from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus
from gateway.cli.access.common import (
    AdminError,
    add_attributes,
    add_common,
    attributes,
    database,
    operator,
    print_json,
    print_list,
    shown,
    table,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from auth.model import Tenant
    from auth.store.store import Store


def add_parser(commands: Any) -> None:
    """Add ``gateway auth tenant`` and its commands."""
    parser = commands.add_parser(
        "tenant",
        help="add, change, list and remove tenants",
        description="Tenants: users that belong together, with limits, attributes and rules of their own.",
    )
    parsers = parser.add_subparsers(dest="tenant_command", required=True, metavar="COMMAND")

    add = parsers.add_parser("add", help="add a tenant", description="Add a tenant.")
    set_ = parsers.add_parser("set", help="change a tenant", description="Change what is given, and nothing else.")
    for command in (add, set_):
        command.add_argument("name", metavar="NAME", help="its name; it can stand in topics as ${tenant}")
        command.add_argument(
            "--logins-per-second",
            metavar="N",
            help='logins a second that are verified for it; 0 is no limit, "default" what '
            "auth.limits.tenant_logins_per_second says",
        )
        command.add_argument("--users-max", metavar="N", help='users that it may have; "none" is no limit')
        add_attributes(command)
    add.set_defaults(run=_add)
    set_.add_argument(
        "--no-attribute", dest="without", action="append", default=[], metavar="NAME", help="take an attribute away"
    )
    switch = set_.add_mutually_exclusive_group()
    switch.add_argument(
        "--disable", dest="enabled", action="store_false", default=None, help="let none of its users in"
    )
    switch.add_argument("--enable", dest="enabled", action="store_true", help="let its users in again")
    set_.set_defaults(run=_set)

    remove = parsers.add_parser(
        "remove", help="remove a tenant without users", description="Remove a tenant, which has no users any more."
    )
    remove.add_argument("name", metavar="NAME", help="the tenant")
    remove.set_defaults(run=_remove)

    listing = parsers.add_parser("list", help="list tenants", description="List tenants and how many users they have.")
    listing.set_defaults(run=_list)
    for command in (add, set_, remove, listing):
        add_common(command)


def _number(option: str, text: str | None, unlimited: str) -> int | None:
    if text is None or text == unlimited:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise AdminError(f"{option} {shown(text)} is neither a number nor {unlimited}.")
    return int(text)


def _limits(arguments: argparse.Namespace) -> tuple[int | None, int | None]:
    """Logins a second and users at most, as they are stored."""
    return (
        _number("--logins-per-second", arguments.logins_per_second, "default"),
        _number("--users-max", arguments.users_max, "none"),
    )


def _add(arguments: argparse.Namespace) -> int:
    from auth.model import Tenant

    rate, users_max = _limits(arguments)
    tenant = Tenant(arguments.name, True, rate, users_max, attributes(arguments.attributes))
    with database(arguments, create=True) as (_settings, store), store.edit(operator()) as editor:
        editor.tenants.add(tenant)
    return _say(arguments, tenant, f"Added the tenant {shown(tenant.name)}.")


def _set(arguments: argparse.Namespace) -> int:
    limits = zip(("logins_per_second", "users_max"), _limits(arguments), strict=True)
    fields: dict[str, Any] = {name: value for name, value in limits if getattr(arguments, name) is not None}
    if arguments.enabled is not None:
        fields["enabled"] = arguments.enabled
    given = attributes(arguments.attributes)
    if not (fields or given or arguments.without):
        raise AdminError("Nothing says what to change: see --help.")
    with database(arguments) as (_settings, store), store.edit(operator()) as editor:
        known = editor.tenants.get(arguments.name)
        if known is not None and (given or arguments.without):
            merged = {**known.attributes, **given}
            fields["attributes"] = {name: merged[name] for name in merged if name not in arguments.without}
        tenant = editor.tenants.change(arguments.name, **fields)
    return _say(arguments, tenant, f"Changed the tenant {shown(tenant.name)}.")


def _remove(arguments: argparse.Namespace) -> int:
    with database(arguments) as (_settings, store):
        with store.edit(operator()) as editor:
            tenant = editor.tenants.remove(arguments.name)
        rules = [one.id for one in store.rules(kind="tenant", value=arguments.name)]
    left = f" Rules that still name it: {', '.join(map(str, rules))}." if rules else ""
    return _say(arguments, tenant, f"Removed the tenant {shown(tenant.name)}.{left}")


def _say(arguments: argparse.Namespace, tenant: Tenant, sentence: str) -> int:
    if arguments.json:
        print_json(_as_data(tenant))
    else:
        print(sentence)
    return ExitStatus.OK


def _as_data(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "enabled": tenant.enabled,
        "logins_per_second": tenant.logins_per_second,
        "users_max": tenant.users_max,
        "attributes": dict(tenant.attributes),
    }


def _list(arguments: argparse.Namespace) -> int:
    with database(arguments) as (_settings, store):
        if arguments.json:
            print_list({**_as_data(one), "users": store.count_users(one.name)} for one in list(store.tenants()))
        else:
            for line in table(("NAME", "USERS", "AT MOST", "LOGINS/S", "ATTRIBUTES", ""), _rows(store)):
                print(line)
    return ExitStatus.OK


def _rows(store: Store) -> Iterator[tuple[str, ...]]:
    for tenant in list(store.tenants()):
        rate = tenant.logins_per_second
        yield (
            shown(tenant.name),
            str(store.count_users(tenant.name)),
            "-" if tenant.users_max is None else str(tenant.users_max),
            "default" if rate is None else str(rate) if rate else "no limit",
            shown(", ".join(f"{name}={value}" for name, value in tenant.attributes.items())) or "-",
            "" if tenant.enabled else "disabled",
        )
