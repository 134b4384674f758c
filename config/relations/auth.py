"""Relations between the settings of the service that EMQX asks. Those of tokens are in ``relations_jwt``."""

from __future__ import annotations

__all__ = ["REFUSED", "WARNED"]

import re
from typing import TYPE_CHECKING, Final

from config.relations.rules import Rule, View
from config.values.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

    from config.auth import AuthSettings

_SECRET_LENGTH: Final = 16  # of letters and digits at random: 80 bits and more
_VISIBLE: Final = re.compile(r"[!-~]+")
_SERVERS: Final = ("postgresql", "mysql", "redis", "ldap")
# OWASP's choices for argon2id, in MiB and passes: one of them has to be reached.
_ARGON2: Final = ((46, 1), (19, 2), (12, 3), (9, 4), (7, 5))


def _secret(auth: AuthSettings) -> str:
    return "" if auth.shared_secret is None else auth.shared_secret.get_secret_value()


def _exposed(view: View) -> Iterator[str]:
    auth = view.settings.auth
    mutual = auth.tls is not None and auth.tls.client_ca_file is not None
    if is_loopback(auth.host) or mutual:
        return
    if auth.shared_secret is None:
        yield (
            f"{view.say('auth', 'host')} can be reached from other machines, and neither auth.shared_secret nor "
            "auth.tls.client_ca_file is set: whoever reaches it could try passwords; set one of them, and in EMQX too."
        )
    elif 0 < len(_secret(auth)) < _SECRET_LENGTH:
        yield (
            f"{view.say('auth', 'shared_secret')} has fewer than {_SECRET_LENGTH} characters, but "
            f"{view.say('auth', 'host')} can be reached from other machines: it could be found by trying; take a "
            "longer one, made at random."
        )


def _secret_text(view: View) -> Iterator[str]:
    secret = view.settings.auth.shared_secret
    if secret is not None and not _VISIBLE.fullmatch(secret.get_secret_value()):
        yield (
            f"{view.say('auth', 'shared_secret')} is empty, or has characters other than visible ASCII: EMQX could "
            "not send it in a header, and every question would be turned away."
        )


def _ports(view: View) -> Iterator[str]:
    auth = view.settings.auth
    everywhere = {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
    meet = auth.host == auth.operator_host or everywhere & {auth.host, auth.operator_host}
    if auth.port and auth.port == auth.operator_port and meet:
        yield (
            f"{view.say('auth', 'port')} and {view.say('auth', 'operator_port')} are one port on one address "
            f"({view.say('auth', 'host')}, {view.say('auth', 'operator_host')}); give the second another."
        )


def _chain(view: View) -> Iterator[str]:
    auth = view.settings.auth
    for number, name in enumerate(auth.chain):
        if name in auth.chain[:number]:
            yield f"{view.say('auth', 'chain')} has {name} twice: it would only be asked again; name it once."
    if "users_file" in auth.chain and auth.users_file is None:
        yield (
            f"{view.say('auth', 'chain')} has users_file, but there is no [auth.users_file] table that says which "
            "file; add it, or take users_file out of the chain."
        )


def _identities(view: View) -> Iterator[str]:
    identities = view.settings.auth.database.identities
    if len(set(identities)) < len(identities):
        yield f"{view.say('auth', 'database', 'identities')} names one of them twice; name each once."


def _timeouts(view: View) -> Iterator[str]:
    auth = view.settings.auth
    for name in _SERVERS:
        if name in auth.chain and view.value("auth", name, "timeout") >= auth.answer_timeout:
            yield (
                f"{view.say('auth', name, 'timeout')} is not shorter than {view.say('auth', 'answer_timeout')}: a "
                "server that is down would use up the time for the whole answer, and nobody behind it be asked; lower "
                "the first."
            )


def _lockouts(view: View) -> Iterator[str]:
    protection = view.settings.auth.protection
    if protection.lockout > protection.lockout_max:
        yield (
            f"{view.say('auth', 'protection', 'lockout')} is longer than "
            f"{view.say('auth', 'protection', 'lockout_max')}: the first lock-out is above its own ceiling; lower the "
            "first or raise the second."
        )


_TIMEOUTS: Final = tuple(f"auth.{name}.timeout" for name in _SERVERS)

REFUSED = (
    Rule(("auth.host", "auth.shared_secret", "auth.tls"), _exposed),
    Rule(("auth.shared_secret",), _secret_text),
    Rule(("auth.host", "auth.port", "auth.operator_host", "auth.operator_port"), _ports),
    Rule(("auth.chain", "auth.users_file"), _chain),
    Rule(("auth.database.identities",), _identities),
    Rule(("auth.chain", "auth.answer_timeout", *_TIMEOUTS), _timeouts),
    Rule(("auth.protection.lockout", "auth.protection.lockout_max"), _lockouts),
)


def _readable(view: View) -> Iterator[str]:
    auth = view.settings.auth
    if not is_loopback(auth.host) and auth.tls is None:
        yield (
            f"{view.say('auth', 'host')} is reached without TLS: devices' passwords and the shared secret travel "
            "readable between EMQX and the service; add an [auth.tls] table, unless only they are on that network."
        )


def _readable_backends(view: View) -> Iterator[str]:
    auth = view.settings.auth
    for name in ("postgresql", "mysql", "redis"):
        if name in auth.chain and not is_loopback(view.value("auth", name, "host")) and _bare(view, name):
            yield (
                f"{view.say('auth', name, 'host')} is another machine, and there is no auth.{name}.tls: password "
                "hashes travel readable, and whoever is on the way can put in others; add the table."
            )
    address = auth.ldap.address
    host = address.partition("://")[2].rpartition(":")[0] or address.partition("://")[2]
    if (
        "ldap" in auth.chain
        and address.startswith("ldap://")
        and not is_loopback(host.strip("[]"))
        and _bare(view, "ldap")
    ):
        yield (
            f"{view.say('auth', 'ldap', 'address')} is another machine, and there is no auth.ldap.tls: devices' "
            "passwords travel readable; add the table (StartTLS), or write ldaps://."
        )


def _bare(view: View, name: str) -> bool:
    return view.value("auth", name, "tls") is None


def _weak_secret(view: View) -> Iterator[str]:
    auth = view.settings.auth
    if is_loopback(auth.host) and 0 < len(_secret(auth)) < _SECRET_LENGTH:
        yield (
            f"{view.say('auth', 'shared_secret')} has fewer than {_SECRET_LENGTH} characters: it can be found by "
            "trying; take a longer one, made at random."
        )


def _open_ends(view: View) -> Iterator[str]:
    auth = view.settings.auth
    if auth.anonymous:
        yield (
            f"{view.say('auth', 'anonymous')}: clients that show nothing are let in; what rules for everybody allow, "
            "anybody may do."
        )
    if auth.backend_down == "ignore":
        yield (
            f"{view.say('auth', 'backend_down')}: while a backend is down EMQX asks its next authenticator; be sure "
            "that there is none that lets in more, and that authorization.no_match is deny."
        )


def _guessing(view: View) -> Iterator[str]:
    protection = view.settings.auth.protection
    failures = view.say("auth", "protection", "failures")
    addresses = view.say("auth", "protection", "address_failures")
    if not protection.failures and not protection.address_failures:
        yield f"{failures} and {addresses}: nobody is ever locked out, so passwords can be tried without end."
    elif 0 < protection.address_failures < protection.failures:
        yield (
            f"{addresses} is less than {failures}: one user's mistakes lock out everybody at its address before the "
            "user itself; raise the first or lower the second."
        )


def _weak_hashes(view: View) -> Iterator[str]:
    hashing = view.settings.auth.hashing
    if not any(hashing.memory >= memory << 20 and hashing.passes >= passes for memory, passes in _ARGON2):
        yield (
            f"{view.say('auth', 'hashing', 'memory')} with {view.say('auth', 'hashing', 'passes')} is less than any "
            "of OWASP's choices for argon2id: stolen hashes are tried faster; take 19MiB with 2, or 7MiB with 5."
        )


def _unused(view: View) -> Iterator[str]:
    auth = view.settings.auth
    for name in (*_SERVERS, "users_file"):
        if name not in auth.chain and view.changed("auth", name):
            yield f"{view.say('auth', name)} has no effect, since {view.say('auth', 'chain')} has no {name}."
    if not auth.hand_over_rules and view.changed("auth", "hand_over_max"):
        yield f"{view.say('auth', 'hand_over_max')} has no effect: {view.say('auth', 'hand_over_rules')}."
    if not auth.protection.flapping_logins:
        for name in ("flapping_window", "flapping_ban"):
            if view.changed("auth", "protection", name):
                yield (
                    f"{view.say('auth', 'protection', name)} has no effect: "
                    f"{view.say('auth', 'protection', 'flapping_logins')}."
                )


WARNED = (
    Rule(("auth.host", "auth.tls"), _readable),
    Rule(
        (
            "auth.chain",
            "auth.ldap.address",
            *(f"auth.{name}.host" for name in ("postgresql", "mysql", "redis")),
            *(f"auth.{name}.tls" for name in _SERVERS),
        ),
        _readable_backends,
    ),
    Rule(("auth.host", "auth.shared_secret"), _weak_secret),
    Rule(("auth.anonymous", "auth.backend_down"), _open_ends),
    Rule(("auth.protection.failures", "auth.protection.address_failures"), _guessing),
    Rule(("auth.hashing.memory", "auth.hashing.passes"), _weak_hashes),
    Rule(
        (
            "auth.chain",
            "auth.hand_over_rules",
            "auth.hand_over_max",
            "auth.protection.flapping_logins",
            "auth.protection.flapping_window",
            "auth.protection.flapping_ban",
            *(f"auth.{name}" for name in (*_SERVERS, "users_file")),
        ),
        _unused,
    ),
)
