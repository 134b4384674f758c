"""Relations between the settings of the access service. ``jwt`` has those of tokens."""

from collections.abc import Iterator

from config.relations.auth_backends import SERVERS
from config.relations.http import guessable, is_visible
from config.relations.rules import Rule, value, when
from config.settings import Settings
from config.values.addresses import is_loopback

# OWASP's choices for argon2id, in MiB and passes: one of them has to be reached.
_ARGON2 = ((46, 1), (19, 2), (12, 3), (9, 4), (7, 5))


def _is_mutual(settings: Settings) -> bool:
    """Whether only clients with a certificate reach the service."""
    return settings.auth.tls is not None and settings.auth.tls.client_ca_file is not None


def _chain(settings: Settings) -> Iterator[str]:
    """Refuses a source named twice, and users_file without its table."""
    chain = settings.auth.chain
    for number, name in enumerate(chain):
        if name in chain[:number]:
            yield f"<auth.chain> has {name} twice: it would only be asked again; name it once."
    if "users_file" in chain and settings.auth.users_file is None:
        yield (
            "<auth.chain> has users_file, but there is no [auth.users_file] table that says which file; add it, or "
            "take users_file out of the chain."
        )


def _timeouts(settings: Settings) -> Iterator[str]:
    """Refuses a server's timeout that uses up the time of the whole answer."""
    for name in SERVERS:
        if name in settings.auth.chain and value(settings, f"auth.{name}.timeout") >= settings.auth.answer_timeout:
            yield (
                f"<auth.{name}.timeout> is not shorter than <auth.answer_timeout>: a server that is down would use up "
                "the time for the whole answer, before the next is asked; lower the first."
            )


_SHORT_REFUSED, _SHORT_WARNED = guessable("auth.shared_secret", "auth.host", _is_mutual)
_EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound

REFUSED = (
    when(
        lambda s: s.auth.shared_secret is None and not is_loopback(s.auth.host) and not _is_mutual(s),
        "<auth.host> can be reached from other machines, and neither auth.shared_secret nor auth.tls.client_ca_file is "
        "set: everybody could try passwords; set one of them, and in EMQX too.",
        "auth.shared_secret",
        "auth.tls",
    ),
    _SHORT_REFUSED,
    when(
        lambda s: not is_visible(s, "auth.shared_secret"),
        "<auth.shared_secret> is empty, or has characters other than visible ASCII: EMQX could not send it in a "
        "header, and every question would be refused.",
    ),
    when(
        lambda s: (
            s.auth.port
            and s.auth.port == s.auth.operator_port
            and (s.auth.host == s.auth.operator_host or _EVERYWHERE & {s.auth.host, s.auth.operator_host})
        ),
        "<auth.port> and <auth.operator_port> are one port on one address (<auth.host>, <auth.operator_host>); give "
        "the second another.",
    ),
    Rule(("auth.chain", "auth.users_file"), _chain),
    when(
        lambda s: len(set(s.auth.database.identities)) < len(s.auth.database.identities),
        "<auth.database.identities> names one of them twice; name each once.",
    ),
    Rule(("auth.chain", "auth.answer_timeout", *(f"auth.{name}.timeout" for name in SERVERS)), _timeouts),
    when(
        lambda s: s.auth.protection.lockout > s.auth.protection.lockout_max,
        "<auth.protection.lockout> is longer than <auth.protection.lockout_max>: the first lock-out is above its own "
        "ceiling; lower the first or raise the second.",
    ),
)

WARNED = (
    when(
        lambda s: not is_loopback(s.auth.host) and s.auth.tls is None,
        "<auth.host> is reached without TLS: devices' passwords and the shared secret travel readable between EMQX and "
        "the service; add an [auth.tls] table, unless only they are on that network.",
        "auth.tls",
    ),
    _SHORT_WARNED,
    when(
        lambda s: s.auth.anonymous,
        "<auth.anonymous>: clients without credentials are admitted, with the rights of rules for everybody.",
    ),
    when(
        lambda s: s.auth.backend_down == "ignore",
        "<auth.backend_down>: while a backend is down EMQX asks its next authenticator; it must not admit more "
        "clients, and authorization.no_match is deny.",
    ),
    when(
        lambda s: not s.auth.protection.failures and not s.auth.protection.address_failures,
        "<auth.protection.failures> and <auth.protection.address_failures>: nobody is ever locked out, so passwords "
        "can be tried without limit.",
    ),
    when(
        lambda s: 0 < s.auth.protection.address_failures < s.auth.protection.failures,
        "<auth.protection.address_failures> is less than <auth.protection.failures>: one user's mistakes lock out "
        "everybody at its address before the user itself; raise the first or lower the second.",
    ),
    when(
        lambda s: (
            not any(
                s.auth.hashing.memory >= memory << 20 and s.auth.hashing.passes >= passes for memory, passes in _ARGON2
            )
        ),
        "<auth.hashing.memory> with <auth.hashing.passes> is less than any of OWASP's choices for argon2id: stolen "
        "hashes are tried faster; take 19MiB with 2, or 7MiB with 5.",
    ),
)
