"""Relations within a token's table, wherever it stands: ``mqtt.token``, ``kafka.sasl.token``."""

from collections.abc import Iterator

from config.relations.client_tls import tls_files
from config.relations.rules import value
from config.settings import Settings
from config.tables.tokens import TokenSettings
from config.values.addresses import is_readable_on_the_way

_SOURCES = ("value", "file", "oauth")


def token_refused(settings: Settings, at: str) -> Iterator[str]:
    """Errors in the token table at ``at``; nothing without such a table."""
    token: TokenSettings | None = value(settings, at)
    if token is None:
        return
    given = [name for name in _SOURCES if getattr(token, name) is not None]
    if not given:
        yield (
            f"<{at}> has none of value, file and oauth: there would be no token to show; give one of them, or remove "
            "the table."
        )
    elif len(given) > 1:
        yield (f"<{at}.{given[0]}> and <{at}.{given[1]}> are both given, and only one can be the token; remove one.")
    if token.oauth is None:
        return
    where, oauth = f"{at}.oauth", token.oauth
    if oauth.client_secret is None and oauth.tls.certificate_file is None:
        yield (
            f"<{where}.client_id> has neither {where}.client_secret nor {where}.tls.certificate_file: the identity "
            "provider could not know that it is us; give one of them."
        )
    yield from tls_files(settings, f"{where}.tls")
    for name in sorted({"grant_type", "client_id", "client_secret", "scope", "audience"} & oauth.parameters.keys()):
        yield (
            f'<{where}.parameters> has "{name}", which is no further field: it would be sent twice; '
            + ("remove it." if name == "grant_type" else f"write it to {where}.{name}.")
        )


def token_warned(settings: Settings, at: str) -> Iterator[str]:
    """Warnings about the token table at ``at``; none without such a table."""
    token: TokenSettings | None = value(settings, at)
    if token is None or token.oauth is None:
        return
    if is_readable_on_the_way(token.oauth.token_url):
        yield (
            f"<{at}.oauth.token_url> is not encrypted: the client secret and the tokens are readable on the network; "
            "use https://."
        )
    if not token.oauth.tls.verify:
        yield (
            f"<{at}.oauth.tls.verify>: others on the network can pretend to be the identity provider and read the "
            f"client secret; name the authority in {at}.oauth.tls.ca_file instead."
        )
