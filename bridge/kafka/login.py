"""The password, certificate or token of each connection to Kafka, read anew.

aiokafka takes these once, when a client is made. ``KafkaLogin`` gives them before each connection, so a rotated secret
needs no restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka_errors
from aiokafka.abc import AbstractTokenProvider

from bridge.fresh_secret import fresh
from bridge.tls import TlsFiles
from config.errors import GatewayError

if TYPE_CHECKING:
    import ssl

    from bridge.certificate import Validity
    from bridge.ports import Credential, CredentialSource
    from config.settings import KafkaSettings


class ShownToken(AbstractTokenProvider):  # type: ignore[misc]
    """The token of one connection, for aiokafka. ``credential`` is the one that was shown, None before."""

    def __init__(
        self, source: CredentialSource, extensions: dict[str, str], shown: Callable[[Credential], None]
    ) -> None:
        self._source = source
        self._tell = shown  # gets each token that is shown
        self._extensions = extensions
        self.credential: Credential | None = None  # shown last

    async def token(self) -> str:
        """The present token. Raises KafkaConnectionError without one, so aiokafka connects again later."""
        try:
            self.credential = await self._source.current()
        except GatewayError as error:
            raise kafka_errors.KafkaConnectionError(str(error)) from error
        self._tell(self.credential)
        return self.credential.token

    def extensions(self) -> dict[str, str]:
        return self._extensions

    def refused(self) -> None:
        """Report that the broker refused the token."""
        if self.credential is not None:
            self._source.refused(self.credential)


class KafkaLogin:
    """The credentials of all connections of a process. Belongs to the event loop's thread.

    OAUTHBEARER needs ``tokens``, whose owner starts and closes it. ``not_renewed`` is called each time that a
    connection with an expiring token could not be replaced. Raises ConfigError for TLS files that cannot be used.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        tokens: CredentialSource | None = None,  # for OAUTHBEARER alone
        not_renewed: Callable[[], None] | None = None,  # called when a connection's renewal failed
    ) -> None:
        sasl = settings.sasl if settings.security.startswith("SASL") else None
        assert sasl is None or sasl.mechanism != "OAUTHBEARER" or tokens is not None, "OAUTHBEARER needs its tokens"
        self._security = settings.security
        self._sasl = sasl
        self._tls = TlsFiles(settings.tls, "kafka.tls") if settings.security.endswith("SSL") else None
        self.tokens = tokens
        self.not_renewed = not_renewed
        self.shown: Credential | None = None  # the token of the latest connection

    def adopt(self, settings: KafkaSettings) -> None:
        """Use the user and password of other settings from the next connection on. All else about security must be
        the same."""
        self._sasl = settings.sasl if settings.security.startswith("SASL") else None

    def trial(self, settings: KafkaSettings) -> KafkaLogin:
        """A login with other settings and the same tokens, to test whether Kafka accepts it."""
        return KafkaLogin(settings, self.tokens)

    def options(self) -> dict[str, Any]:
        """The present credentials as aiokafka's options. Reads small files that have changed."""
        options: dict[str, Any] = {"security_protocol": self._security}
        if (context := self.context()) is not None:
            options["ssl_context"] = context
        if self._sasl is not None:
            options["sasl_mechanism"] = self._sasl.mechanism
            if self._sasl.username is not None and self._sasl.password is not None:
                options["sasl_plain_username"] = self._sasl.username
                options["sasl_plain_password"] = fresh(self._sasl.password, "kafka.sasl.password")
            if self.tokens is not None:
                options["sasl_oauth_token_provider"] = ShownToken(self.tokens, dict(self._sasl.extensions), self._note)
        return options

    def _note(self, credential: Credential) -> None:
        self.shown = credential

    def context(self) -> ssl.SSLContext | None:
        """The TLS context for the next connection; None without TLS."""
        return None if self._tls is None else self._tls.context()

    @property
    def certificate(self) -> Validity | None:
        """The validity of the client certificate in use; None without one."""
        return None if self._tls is None else self._tls.validity

    @property
    def who(self) -> str:
        """The gateway's name in sentences about a refused login."""
        if self._sasl is None:
            return "us"
        if self._sasl.mechanism == "OAUTHBEARER":
            return "the token of kafka.sasl.token"
        return f"user {self._sasl.username!r}"

    @property
    def check(self) -> str:
        """A sentence for the operator after a refused login."""
        if self._sasl is not None and self._sasl.mechanism == "OAUTHBEARER":
            return "Check that the broker trusts its issuer, and expects its audience and scope"
        return "Check kafka.sasl.username, password and mechanism"
