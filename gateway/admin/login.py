"""The login of administration commands to Kafka: by ``[admin]``, or the gateway's own."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from bridge.fresh_secret import fresh
from bridge.tls import tls_context
from gateway.admin.errors import AdminError

if TYPE_CHECKING:
    import ssl

    from bridge.ports import Credential
    from config.settings import KafkaSettings, SaslSettings, Settings

_TOKEN_LEFT_NS = 10_000_000_000  # a token with less than 10 s left is not used


class AdminLogin:
    """The credentials of each connection. ``where`` is their table in the settings ("admin" or "kafka").

    Reads the TLS files; raises ConfigError if they are unusable. Any thread may use it.
    """

    def __init__(self, settings: Settings) -> None:
        own = settings.admin.security is not None
        self.where = "admin" if own else "kafka"
        kafka: KafkaSettings = settings.kafka
        self.security = settings.admin.security or kafka.security
        tls = settings.admin.tls if own else kafka.tls
        sasl = settings.admin.sasl if own else kafka.sasl
        self.sasl: SaslSettings | None = sasl if self.security.startswith("SASL") else None
        self.tls: ssl.SSLContext | None = None
        if self.security.endswith("SSL"):
            self.tls = tls_context(tls, f"{self.where}.tls")
        self._lock = threading.Lock()
        self._credential: Credential | None = None

    @property
    def who(self) -> str:
        """The user's name in messages."""
        if self.sasl is None:
            return "the certificate" if self.tls is not None else "an anonymous client"
        if self.sasl.mechanism == "OAUTHBEARER":
            return f"the token of {self.where}.sasl.token"
        return f"user {self.sasl.username!r}"

    @property
    def check(self) -> str:
        """Advice for a refused login."""
        if self.sasl is None:
            return f"Check {self.where}.security: the listener may want a login."
        if self.sasl.mechanism == "OAUTHBEARER":
            return "Check that the broker trusts the token's issuer, and expects its audience and scope."
        return f"Check {self.where}.sasl.username, password and mechanism."

    def mechanism(self) -> Any:
        """An object of kafka-python for the login of one connection. May fetch a token, which blocks for at most the
        identity provider's time-out. Raises GatewayError."""
        from gateway.admin.protocol import AbstractTokenProvider, get_sasl_mechanism

        assert self.sasl is not None, "asked for with SASL alone"
        options: dict[str, Any] = {"sasl_mechanism": self.sasl.mechanism}
        if self.sasl.mechanism == "OAUTHBEARER":
            token, extensions = self._token(), dict(self.sasl.extensions)

            class Shown(AbstractTokenProvider):  # type: ignore[misc]
                def token(self) -> str:
                    return token

                def extensions(self) -> dict[str, str]:
                    return extensions

            options["sasl_oauth_token_provider"] = Shown()
        else:
            if self.sasl.username is None or self.sasl.password is None:
                raise AdminError(
                    f"{self.where}.sasl has no user name and password for {self.sasl.mechanism}: give both."
                )
            options["sasl_plain_username"] = self.sasl.username
            options["sasl_plain_password"] = fresh(self.sasl.password, f"{self.where}.sasl.password")
        return get_sasl_mechanism(self.sasl.mechanism)(**options)

    def refused(self) -> None:
        """Note that the broker refused the token: the next connection gets a new one."""
        with self._lock:
            self._credential = None

    def _token(self) -> str:
        """The last token, or a new one if it expires within ``_TOKEN_LEFT_NS``."""
        with self._lock:
            found = self._credential
            if found is not None and found.expires_at_ns is not None:
                fresh_enough = found.expires_at_ns - time.monotonic_ns() > _TOKEN_LEFT_NS
                found = found if fresh_enough else None
            if found is None:
                found = self._credential = asyncio.run(self._fetch_token())
            return found.token

    async def _fetch_token(self) -> Credential:
        from auth.outward.tokens import token_source

        assert self.sasl is not None
        if self.sasl.token is None:
            raise AdminError(
                f"{self.where}.sasl has mechanism OAUTHBEARER and no token: add [{self.where}.sasl.token]."
            )
        source = token_source(self.sasl.token, f"{self.where}.sasl.token")
        await source.start()
        try:
            return await source.current()
        finally:
            await source.close()
