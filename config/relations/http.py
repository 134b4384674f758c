"""Relations between the settings of the HTTP port, and of secrets that open a port."""

from collections.abc import Callable

from config.relations.rules import Rule, value, when
from config.settings import Settings
from config.values.addresses import is_loopback
from config.values.secret_files import SHORTEST, VISIBLE


def is_visible(settings: Settings, path: str) -> bool:
    """Whether a header can carry the secret at ``path``, or none is given."""
    secret = value(settings, path)
    return secret is None or VISIBLE.fullmatch(secret.get_secret_value()) is not None


def guessable(path: str, host: str, has_other_proof: Callable[[Settings], bool] = lambda _: False) -> tuple[Rule, Rule]:
    """A short secret at ``path``: refused if other machines reach ``host`` with it alone, warned of on this machine."""

    def is_short(settings: Settings) -> bool:
        secret = value(settings, path)
        return secret is not None and 0 < len(secret.get_secret_value()) < SHORTEST

    def is_alone(settings: Settings) -> bool:
        return not is_loopback(value(settings, host)) and not has_other_proof(settings)

    return (
        when(
            lambda settings: is_short(settings) and is_alone(settings),
            f"<{path}> has fewer than {SHORTEST} characters, but <{host}> can be reached from other machines: it could "
            "be guessed; take a longer one, made at random.",
        ),
        when(
            lambda settings: is_short(settings) and is_loopback(value(settings, host)),
            f"<{path}> has fewer than {SHORTEST} characters: it can be guessed; take a longer one, made at random.",
            host,
        ),
    )


_SHORT_REFUSED, _SHORT_WARNED = guessable("http.token", "http.host")
_SHORT_FOR_OPERATORS, _ = guessable("http.token", "auth.operator_host")

REFUSED = (
    when(
        lambda settings: not is_visible(settings, "http.token"),
        "<http.token> is empty, or has characters other than visible ASCII: it cannot be sent in a header, and the "
        "port would stay closed; take letters and digits, or remove it.",
    ),
    _SHORT_REFUSED,
    _SHORT_FOR_OPERATORS,
)

WARNED = (
    when(
        lambda settings: (
            settings.http.token is not None and settings.http.tls is None and not is_loopback(settings.http.host)
        ),
        "<http.token> is sent readable over the network, since <http.host> can be reached from other machines and "
        "there is no http.tls; add an [http.tls] table, unless only Prometheus and operators are on that network, or "
        "TLS ends in front of the gateway.",
        "http.tls",
    ),
    _SHORT_WARNED,
)
