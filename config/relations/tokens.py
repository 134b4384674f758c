"""Relations within a token's table, wherever it stands: ``mqtt.token``, ``kafka.sasl.token``."""

from __future__ import annotations

__all__ = ["token_refused", "token_warned"]

from typing import TYPE_CHECKING

from config.schema import dotted
from config.values.addresses import is_readable_on_the_way

if TYPE_CHECKING:
    from collections.abc import Iterator

    from config.relations.rules import View
    from config.tokens import TokenSettings

_SOURCES = ("value", "file", "oauth")


def token_refused(view: View, *at: str) -> Iterator[str]:
    """What cannot be in the token table at ``at``; nothing when there is no such table."""
    token: TokenSettings | None = view.value(*at)
    if token is None:
        return
    given = [name for name in _SOURCES if getattr(token, name) is not None]
    if not given:
        yield (
            f"{view.say(*at)} has none of value, file and oauth: there would be no token to show; give one of them, "
            "or remove the table."
        )
    elif len(given) > 1:
        yield (
            f"{view.say(*at, given[0])} and {view.say(*at, given[1])} are both given, and only one can be the token; "
            "remove one."
        )
    if token.oauth is None:
        return
    where, oauth = (*at, "oauth"), token.oauth
    if oauth.client_secret is None and oauth.tls.certificate_file is None:
        yield (
            f"{view.say(*where, 'client_id')} has neither {dotted((*where, 'client_secret'))} nor "
            f"{dotted((*where, 'tls', 'certificate_file'))}: the identity provider could not know that it is us; give "
            "one of them."
        )
    for name in ("key_file", "key_password"):
        if getattr(oauth.tls, name) is not None and oauth.tls.certificate_file is None:
            yield (
                f"{view.say(*where, 'tls', name)} is given without {dotted((*where, 'tls', 'certificate_file'))}: a "
                "key alone identifies nobody; give the certificate too, or remove the key."
            )
    for name in sorted({"grant_type", "client_id", "client_secret", "scope", "audience"} & oauth.parameters.keys()):
        yield (
            f'{view.say(*where, "parameters")} has "{name}", which is no further field: it would be sent twice; '
            + ("remove it." if name == "grant_type" else f"write it to {dotted((*where, name))}.")
        )


def token_warned(view: View, *at: str) -> Iterator[str]:
    """What in the token table at ``at`` is allowed and deserves a look."""
    token: TokenSettings | None = view.value(*at)
    if token is None or token.oauth is None:
        return
    where, oauth = (*at, "oauth"), token.oauth
    if is_readable_on_the_way(oauth.token_url):
        yield (
            f"{view.say(*where, 'token_url')} is not encrypted: everybody on the way can read the client secret and "
            "the tokens; use https://."
        )
    if not oauth.tls.verify:
        yield (
            f"{view.say(*where, 'tls', 'verify')}: anybody on the way can pretend to be the identity provider and "
            f"read the client secret; name the authority in {dotted((*where, 'tls', 'ca_file'))} instead."
        )
