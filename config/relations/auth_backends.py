"""Relations within the tables of the servers that the access service asks about users."""

from __future__ import annotations

__all__ = ["REFUSED", "WARNED"]

from typing import TYPE_CHECKING, Final

from config.relations.rules import Rule, View
from config.values.auth_placeholders import quoted_placeholder, split_placeholders

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEXTS: Final = (("postgresql", "query"), ("mysql", "query"), ("redis", "key"), ("ldap", "bind_dn"))
_SERVERS: Final = ("postgresql", "mysql", "redis", "ldap")


def _texts(view: View) -> Iterator[str]:
    """Only of servers that are asked: the others are told to have no effect."""
    auth = view.settings.auth
    for server, name in _TEXTS:
        if server in auth.chain and not (server == "ldap" and auth.ldap.search_base is not None):
            yield from _text(view, server, name)
    if "ldap" in auth.chain and auth.ldap.search_base is not None:
        yield from _text(view, "ldap", "search_filter")


def _text(view: View, server: str, name: str) -> Iterator[str]:
    text: str = view.value("auth", server, name)
    say = view.say("auth", server, name)
    try:
        _, names = split_placeholders(text)
        quoted = quoted_placeholder(text) if name == "query" else None
    except ValueError as error:
        yield f"{say}: {error}."
        return
    if not names:
        yield f"{say} has no placeholder such as ${{username}}: all devices would be the same user; put one in."
    elif quoted is not None:
        yield (
            f"{say} has ${{{quoted}}} within quotes: there it is text and not the value, since a placeholder becomes "
            "a parameter; remove the quotes."
        )


def _searcher(view: View) -> Iterator[str]:
    ldap = view.settings.auth.ldap
    if ldap.search_password is not None and ldap.search_username is None:
        yield (
            f"{view.say('auth', 'ldap', 'search_password')} is given without auth.ldap.search_username: it would "
            "belong to nobody; give the name to search as too."
        )
    if ldap.search_username is not None and (
        ldap.search_password is None or not ldap.search_password.get_secret_value()
    ):
        yield (
            f"{view.say('auth', 'ldap', 'search_username')} is given without auth.ldap.search_password: a bind with a "
            "name and no password is an anonymous one to most directories; give it, or remove the name."
        )


def _superusers(view: View) -> Iterator[str]:
    ldap = view.settings.auth.ldap
    if ldap.superuser_group is not None and ldap.group_attribute is None:
        yield (
            f"{view.say('auth', 'ldap', 'superuser_group')} is given without auth.ldap.group_attribute: no groups are "
            "read, so nobody would be in it; name the attribute (memberOf in most directories)."
        )


def _certificates(view: View) -> Iterator[str]:
    for server in _SERVERS:
        tls = view.value("auth", server, "tls")
        if tls is None or tls.certificate_file is not None:
            continue
        for name in ("key_file", "key_password"):
            if getattr(tls, name) is not None:
                yield (
                    f"{view.say('auth', server, 'tls', name)} is given without auth.{server}.tls.certificate_file: a "
                    "key alone identifies nobody; give the certificate too, or remove the key."
                )


_TLS: Final = tuple(f"auth.{server}.tls" for server in _SERVERS)

REFUSED = (
    Rule(
        (
            "auth.chain",
            *(f"auth.{server}.{name}" for server, name in _TEXTS),
            "auth.ldap.search_base",
            "auth.ldap.search_filter",
        ),
        _texts,
    ),
    Rule(("auth.ldap.search_username", "auth.ldap.search_password"), _searcher),
    Rule(("auth.ldap.superuser_group", "auth.ldap.group_attribute"), _superusers),
    Rule(_TLS, _certificates),
)


def _unverified(view: View) -> Iterator[str]:
    auth = view.settings.auth
    for server in _SERVERS:
        tls = view.value("auth", server, "tls")
        if server in auth.chain and tls is not None and not tls.verify:
            yield (
                f"{view.say('auth', server, 'tls', 'verify')}: anybody on the way can pretend to be the server and say "
                f"who may log in; name its authority in auth.{server}.tls.ca_file instead."
            )


def _salts(view: View) -> Iterator[str]:
    auth = view.settings.auth
    for server in ("postgresql", "mysql", "redis"):
        if server in auth.chain and view.value("auth", server, "algorithm") == "plain":
            yield (
                f"{view.say('auth', server, 'algorithm')}: whoever reads that table has all passwords; it is there for "
                "moving away from it."
            )


WARNED = (
    Rule(("auth.chain", *_TLS), _unverified),
    Rule(("auth.chain", *(f"auth.{server}.algorithm" for server in ("postgresql", "mysql", "redis"))), _salts),
)
