"""Relations within the tables of the servers that the access service asks about users."""

from collections.abc import Iterator

from config.relations.client_tls import tls_files
from config.relations.rules import Rule, value, when
from config.settings import Settings
from config.values.addresses import is_loopback, parse_ldap_address
from config.values.auth_placeholders import check_template

_STORES = ("postgresql", "mysql", "redis")
SERVERS = (*_STORES, "ldap")
_TEXTS = ("postgresql.query", "mysql.query", "redis.key", "ldap.bind_dn", "ldap.search_filter")


def _texts(settings: Settings) -> Iterator[str]:
    """Refuses lookups that find no user, of servers in the chain: ``unused`` warns of the others."""
    searches = settings.auth.ldap.search_base is not None
    unused = "ldap.bind_dn" if searches else "ldap.search_filter"
    for path in _TEXTS:
        if path.partition(".")[0] in settings.auth.chain and path != unused:
            try:
                check_template(value(settings, f"auth.{path}"), sql=path.endswith("query"))
            except ValueError as error:
                yield f"<auth.{path}>: {error}."


REFUSED = (
    Rule(("auth.chain", *(f"auth.{path}" for path in _TEXTS), "auth.ldap.search_base"), _texts),
    when(
        lambda s: s.auth.ldap.search_password is not None and s.auth.ldap.search_username is None,
        "<auth.ldap.search_password> is given without auth.ldap.search_username: it needs a user name; give the name "
        "to search as too.",
        "auth.ldap.search_username",
    ),
    when(
        lambda s: (
            s.auth.ldap.search_username is not None
            and not (s.auth.ldap.search_password and s.auth.ldap.search_password.get_secret_value())
        ),
        "<auth.ldap.search_username> is given without auth.ldap.search_password: a bind with a name and no password "
        "is an anonymous one to most directories; give it, or remove the name.",
        "auth.ldap.search_password",
    ),
    when(
        lambda s: s.auth.ldap.superuser_group is not None and s.auth.ldap.group_attribute is None,
        "<auth.ldap.superuser_group> is given without auth.ldap.group_attribute: no groups are read, so it would have "
        "no members; name the attribute (memberOf in most directories).",
        "auth.ldap.group_attribute",
    ),
    Rule(
        tuple(f"auth.{server}.tls" for server in SERVERS),
        lambda s: [text for server in SERVERS for text in tls_files(s, f"auth.{server}.tls")],
    ),
)


def _unverified(settings: Settings) -> Iterator[str]:
    """Warns of user servers in the chain whose certificate is not verified."""
    for server in SERVERS:
        if server in settings.auth.chain and value(settings, f"auth.{server}.tls.verify") is False:
            yield (
                f"<auth.{server}.tls.verify>: others on the network can pretend to be the server and say who may log "
                f"in; name its authority in auth.{server}.tls.ca_file instead."
            )


def _plain_passwords(settings: Settings) -> Iterator[str]:
    """Warns of readable passwords in a server's table."""
    for server in _STORES:
        if server in settings.auth.chain and value(settings, f"auth.{server}.algorithm") == "plain":
            yield (
                f"<auth.{server}.algorithm>: everybody who reads that table has all passwords; use it only until users "
                "have hashes."
            )


def _readable(settings: Settings) -> Iterator[str]:
    """Warns of connections to other machines over which passwords or hashes can be read."""
    bare = [one for one in SERVERS if one in settings.auth.chain and value(settings, f"auth.{one}.tls") is None]
    for server in bare:
        if server != "ldap" and not is_loopback(value(settings, f"auth.{server}.host")):
            yield (
                f"<auth.{server}.host> is on another machine, and there is no auth.{server}.tls: password hashes are "
                "readable and can be changed on the network; add the table."
            )
    address = parse_ldap_address(settings.auth.ldap.address)
    if "ldap" in bare and not address.encrypted and not is_loopback(address.host):
        yield (
            "<auth.ldap.address> is on another machine, and there is no auth.ldap.tls: devices' passwords are readable "
            "on the network; add the table (StartTLS), or write ldaps://."
        )


WARNED = (
    Rule(("auth.chain", *(f"auth.{server}.tls" for server in SERVERS)), _unverified),
    Rule(("auth.chain", *(f"auth.{server}.algorithm" for server in _STORES)), _plain_passwords),
    Rule(
        (
            "auth.chain",
            "auth.ldap.address",
            *(f"auth.{server}.host" for server in _STORES),
            *(f"auth.{server}.tls" for server in SERVERS),
        ),
        _readable,
    ),
)
