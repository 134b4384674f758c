"""Settings of the tokens that the gateway shows to EMQX and Kafka."""

__all__ = ["OAuthSettings", "TokenSettings"]

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from config.tls import TlsSettings
from config.values.addresses import HttpUrlText
from config.values.grammar import Duration
from config.values.model import Table


class OAuthSettings(Table):
    token_url: HttpUrlText
    """The token endpoint of the identity provider, `https://…`. Required when the table is there. Redirects are not
    followed: the secret is for this address alone."""

    client_id: Annotated[str, Field(min_length=1, max_length=1024)]
    """Who the gateway is at the identity provider. Required when the table is there."""

    client_secret: SecretStr | None = None
    """The secret of `client_id`. Unset: none is sent, which suits a provider that knows the gateway by the client
    certificate in `tls` (RFC 8705)."""

    client_authentication: Literal["basic", "post"] = "basic"
    """Where the secret stands: `basic`, in the Authorization header, which every provider must understand (RFC 6749,
    2.3.1); `post`, in the form, for one that wants it there."""

    scope: Annotated[str, Field(max_length=4096)] = ""
    """What the token shall be good for, several with spaces between. Empty: the provider decides."""

    audience: Annotated[str, Field(max_length=4096)] = ""
    """Whom the token shall be for (`audience`, which Auth0 and others ask for). Empty: not sent."""

    parameters: dict[str, str] = Field(default={}, repr=False)
    """Further fields of the form, name to value, as a provider may want (`resource`). Values are treated as
    secrets."""

    lifetime: Annotated[Duration, Field(ge=timedelta(seconds=5), le=timedelta(days=365))] = timedelta(minutes=5)
    """How long a token is taken to be good when neither the answer (`expires_in`) nor the token itself (`exp`) says.
    5 minutes is shorter than any provider's default. Long: a token that has expired is found out by a refusal."""

    timeout: Annotated[Duration, Field(ge=timedelta(milliseconds=100), le=timedelta(minutes=2))] = timedelta(seconds=10)
    """Longest wait for an answer, connecting included. 10 s suits a provider on another continent. Short: a busy one
    is never heard. Long: a dead one is given up later, while the old token is still used."""

    tls: TlsSettings = TlsSettings()
    """TLS to the identity provider."""


class TokenSettings(Table):
    value: SecretStr | None = None
    """The token itself, for one that is good for years. As `value_file` it is the same as `file`: read again when it
    changes."""

    file: Path | None = None
    """File that holds the token and nothing else, a line end after it allowed; something beside the gateway keeps it
    fresh (a Kubernetes service account token, a vault's agent). It is read again within five seconds of a change. A
    JWT in it says itself when it expires."""

    oauth: OAuthSettings | None = None
    """OAuth 2.0 client credentials: the gateway fetches the token from an identity provider, and a new one in time."""

    renew_at: Annotated[float, Field(ge=0.1, le=0.95)] = 0.75
    """Share of a token's life after which the next one is fetched, with `oauth`. 0.75 leaves a quarter of the life for
    a provider that is down. Small: more tokens than needed. Large: no time for a second attempt."""
