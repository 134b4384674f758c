"""Settings of the tokens that the gateway shows to EMQX and Kafka."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from config.tables.tls import TlsSettings
from config.values.addresses import HttpUrlText
from config.values.grammar import Duration, Number, duration, within
from config.values.model import Table


class OAuthSettings(Table):
    token_url: HttpUrlText
    """Token endpoint of the identity provider, `https://…`. Redirects are not followed."""

    client_id: Annotated[str, Field(min_length=1, max_length=1024)]
    """The gateway's client id at the identity provider."""

    client_secret: SecretStr | None = None
    """Secret of `client_id`. Unset: the client certificate in `tls` is the proof (RFC 8705)."""

    client_authentication: Literal["basic", "post"] = "basic"
    """Place of the secret. `basic`: the Authorization header (RFC 6749, 2.3.1). `post`: the form."""

    scope: Annotated[str, Field(max_length=4096)] = ""
    """Scopes of the token, separated by spaces. Empty: the provider decides."""

    audience: Annotated[str, Field(max_length=4096)] = ""
    """Audience of the token, which Auth0 and others need. Empty: not sent."""

    parameters: dict[str, str] = Field(default={}, repr=False)
    """Further fields of the form, name to value, such as `resource`. Values are treated as secrets."""

    lifetime: Annotated[Duration, within("5s", "365d")] = duration("5m")
    """Assumed life of a token if neither the answer (`expires_in`) nor the token (`exp`) tells it."""

    timeout: Annotated[Duration, within("100ms", "2m")] = duration("10s")
    """Longest wait for an answer. The old token is used meanwhile."""

    tls: TlsSettings = TlsSettings()
    """TLS to the identity provider."""


class TokenSettings(Table):
    value: SecretStr | None = None
    """The token itself, for one that is valid for years. `value_file` equals `file`."""

    file: Path | None = None
    """File with the token. Another program renews it, such as Kubernetes (service account token). A change is read
    within five seconds, the expiry from a JWT."""

    oauth: OAuthSettings | None = None
    """OAuth 2.0 client credentials: the gateway fetches tokens from an identity provider."""

    renew_at: Annotated[Number, Field(ge=0.1, le=0.95)] = 0.75
    """Share of a token's life after which `oauth` fetches the next one. The rest is for an outage of the provider."""
