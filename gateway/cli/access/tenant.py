"""``gateway auth tenant``: customers or sites, with limits and attributes of their users."""

import argparse
from collections.abc import Iterator
from typing import Any

from auth.model import Tenant
from auth.store.store import Store
from gateway.cli.access.common import add_attributes, answer_list, attributes, database, operator
from gateway.cli.arguments import UsageError
from gateway.cli.parser import Commands, repeated
from gateway.cli.table import answer, shown


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "tenant",
        "Tenants: groups of users with limits, attributes and rules of their own.",
    )
    add = parsers.verb("add", _add, "add a tenant")
    set_ = parsers.verb("set", _set, "change a tenant")
    remove = parsers.verb("remove", _remove, "remove a tenant without users")
    parsers.verb("list", _list, "list tenants")
    for command in (add, set_):
        command.add_argument("name", metavar="NAME", help="its name; it can stand in topics as ${tenant}")
        command.add_argument(
            "--logins-per-second",
            metavar="N",
            help='logins verified for it per second; 0 is no limit, "default" is auth.limits.tenant_logins_per_second',
        )
        command.add_argument("--users-max", metavar="N", help='its most users; "none" is no limit')
        add_attributes(command)
    repeated(set_, "--no-attribute", "NAME", "take an attribute away", dest="without")
    switch = set_.add_mutually_exclusive_group()
    switch.add_argument(
        "--disable", dest="enabled", action="store_false", default=None, help="let none of its users in"
    )
    switch.add_argument("--enable", dest="enabled", action="store_true", help="let its users in again")
    remove.add_argument("name", metavar="NAME", help="the tenant")


def _number(option: str, text: str | None, unlimited: str) -> int | None:
    """An option's number; None if it is not given, or is the word ``unlimited``."""
    if text is None or text == unlimited:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UsageError(f"{option} {shown(text)} is neither a number nor {unlimited}.")
    return int(text)


def _limits(arguments: argparse.Namespace) -> tuple[int | None, int | None]:
    """A tenant's limits as the database stores them: logins a second, users."""
    return (
        _number("--logins-per-second", arguments.logins_per_second, "default"),
        _number("--users-max", arguments.users_max, "none"),
    )


def _add(arguments: argparse.Namespace) -> int:
    rate, users_max = _limits(arguments)
    tenant = Tenant(
        arguments.name,
        enabled=True,
        logins_per_second=rate,
        users_max=users_max,
        attributes=attributes(arguments.attributes),
    )
    with database(arguments, create=True) as (_settings, store), store.edit(operator()) as editor:
        editor.tenants.add(tenant)
    return answer(arguments, _as_data(tenant), f"Added the tenant {shown(tenant.name)}.")


def _set(arguments: argparse.Namespace) -> int:
    """Change the given values."""
    limits = zip(("logins_per_second", "users_max"), _limits(arguments), strict=True)
    fields: dict[str, Any] = {name: value for name, value in limits if getattr(arguments, name) is not None}
    if arguments.enabled is not None:
        fields["enabled"] = arguments.enabled
    given = attributes(arguments.attributes)
    if not (fields or given or arguments.without):
        raise UsageError("Give a value to change: see --help.")
    with database(arguments) as (_settings, store), store.edit(operator()) as editor:
        known = editor.tenants.get(arguments.name)
        if known is not None and (given or arguments.without):
            merged = {**known.attributes, **given}
            fields["attributes"] = {name: merged[name] for name in merged if name not in arguments.without}
        tenant = editor.tenants.change(arguments.name, **fields)
    return answer(arguments, _as_data(tenant), f"Changed the tenant {shown(tenant.name)}.")


def _remove(arguments: argparse.Namespace) -> int:
    """Remove a tenant that has no users."""
    with database(arguments) as (settings, store):
        with store.edit(operator()) as editor:
            tenant = editor.tenants.remove(arguments.name)
        rules = [one.id for one in store.rules(kind="tenant", value=arguments.name)]
    left = f" Rules that still name it: {', '.join(map(str, rules))}." if rules else ""
    if not tenant.enabled and set(settings.auth.chain) != {"database"}:
        left += " It was disabled: its users in other backends of auth.chain get in now."
    return answer(arguments, _as_data(tenant), f"Removed the tenant {shown(tenant.name)}.{left}")


def _as_data(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "enabled": tenant.enabled,
        "logins_per_second": tenant.logins_per_second,
        "users_max": tenant.users_max,
        "attributes": dict(tenant.attributes),
    }


def _list(arguments: argparse.Namespace) -> int:
    """List tenants and how many users they have."""
    with database(arguments) as (_settings, store):
        data = ({**_as_data(one), "users": store.count_users(one.name)} for one in list(store.tenants()))
        return answer_list(arguments, data, ("NAME", "USERS", "AT MOST", "LOGINS/S", "ATTRIBUTES", ""), _rows(store))


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
