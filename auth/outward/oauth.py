"""Tokens from an OAuth 2.0 token endpoint, by client credentials (RFC 6749, 4.4)."""

import base64
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote_plus

from auth.errors import CredentialError
from auth.jwt.fetching import Answer, Fetcher
from auth.jwt.parsing import json_object, moment
from auth.outward.keeper import Found
from auth.outward.token_text import problem_of_token, token_expiry_ns
from bridge.fresh_secret import fresh
from bridge.tls import tls_context
from config.settings import OAuthSettings

LARGEST = 256 << 10
_LONGEST_LIFE_S = 365 * 86_400
_CODE = re.compile(r"[a-z_]{1,40}", re.ASCII)
_HINTS = {
    "invalid_client": "Check client_id, client_secret and client_authentication",
    "invalid_scope": "Check scope",
    "invalid_target": "Check audience, and resource among the parameters",
    "invalid_request": "Check client_authentication, scope, audience and parameters",
    "unauthorized_client": "The provider must allow this client the client credentials grant",
    "unsupported_grant_type": "The provider must offer the client credentials grant",
}


class OAuthClient:
    """Asks for tokens, one at a time. ``where`` is the table's name ("mqtt.token.oauth")."""

    def __init__(
        self,
        settings: OAuthSettings,
        where: str,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._settings = settings
        self._where = where
        self._monotonic_ns = monotonic_ns
        self._fetcher = Fetcher(
            settings.token_url,
            f"{where}.token_url",
            tls=settings.tls,
            tls_setting=f"{where}.tls",
            timeout_s=settings.timeout.total_seconds(),
            largest=LARGEST,
        )

    def check(self) -> None:
        """Read the files of TLS. Blocks; raises ConfigError."""
        if self._settings.token_url.lower().startswith("https://"):
            tls_context(self._settings.tls, f"{self._where}.tls")

    async def token(self) -> Found:
        """A new token. Raises GatewayError, without secrets in its sentence."""
        asked_ns = self._monotonic_ns()
        answer = await self._fetcher.post(*self._request())
        return self._token_from(self._body(answer), asked_ns)

    def _request(self) -> tuple[dict[str, str], dict[str, str]]:
        """The form and the headers of a token request (RFC 6749, 4.4.2)."""
        settings = self._settings
        form = {"grant_type": "client_credentials", **settings.parameters}
        if settings.scope:
            form["scope"] = settings.scope
        if settings.audience:
            form["audience"] = settings.audience
        headers = {"Cache-Control": "no-store"}
        if settings.client_secret is None:
            return form | {"client_id": settings.client_id}, headers
        secret = fresh(settings.client_secret, f"{self._where}.client_secret")
        if settings.client_authentication == "post":
            return form | {"client_id": settings.client_id, "client_secret": secret}, headers
        # Form-encoded before joining (2.3.1), because a colon in the id would end it.
        pair = f"{quote_plus(settings.client_id)}:{quote_plus(secret)}"
        return form, headers | {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def _body(self, answer: Answer) -> dict[str, Any]:
        """The JSON of a good answer. Raises CredentialError for another."""
        try:
            body = json_object(answer.body)
        except ValueError as error:
            if answer.status == 200:
                raise CredentialError(
                    f"{self._fetcher} does not answer with a token: {error}. Is it the token endpoint?"
                ) from None
            body = {}
        if answer.status != 200:
            raise CredentialError(self._refusal(answer.status, body))
        return body

    def _refusal(self, status: int, body: Mapping[str, Any]) -> str:
        """The sentence for an answer that is not 200."""
        code = body.get("error")
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            hint = "Is it the token endpoint?" if status < 500 else "The provider has trouble of its own."
            return f"{self._fetcher} answers with status {status}. {hint}"
        hint = _HINTS.get(code, f"Check {self._where}")
        return f"{self._fetcher} refuses ({status} {code}). {hint}."

    def _token_from(self, body: Mapping[str, Any], asked_ns: int) -> Found:
        """The token in an answer to a request at ``asked_ns``; its life is the answer's, the token's or the
        settings'."""
        token, kind = body.get("access_token"), body.get("token_type", "Bearer")
        if not isinstance(token, str):
            raise CredentialError(f"{self._fetcher} answers without access_token. Is it the token endpoint?")
        if not isinstance(kind, str) or kind.lower() != "bearer":
            raise CredentialError(
                f"{self._fetcher} gives a token that is not of type Bearer, which the gateway cannot use."
            )
        if (problem := problem_of_token(token)) is not None:
            raise CredentialError(f"{self._fetcher} gives a token that cannot be used: {problem}.")
        life_s = moment(body.get("expires_in"))
        if life_s is not None and 0 < life_s <= _LONGEST_LIFE_S:
            return Found(token, asked_ns + int(life_s * 1e9))
        expires_at_ns = token_expiry_ns(token, self._monotonic_ns(), time.time())
        if expires_at_ns is None or expires_at_ns <= self._monotonic_ns():
            expires_at_ns = asked_ns + int(self._settings.lifetime.total_seconds() * 1e9)
        return Found(token, expires_at_ns)
