"""The credentials of a session: user name, password or token, and client certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bridge.fresh_secret import fresh
from bridge.tls import TlsFiles
from config.errors import GatewayError
from gateway.mqtt.errors import ConnectError

if TYPE_CHECKING:
    import ssl

    from bridge.certificate import Validity
    from bridge.ports import Credential, CredentialSource
    from config.settings import MqttSettings


@dataclass(frozen=True, slots=True)
class Shown:
    """The credentials of one connection. ``certificate`` is the validity of its client certificate, or None."""

    username: str | None
    password: str | None = field(default=None, repr=False)
    context: ssl.SSLContext | None = None
    credential: Credential | None = None
    certificate: Validity | None = None


class Login:
    """The credentials of a worker's sessions. Belongs to the event loop's thread.

    ``tokens`` is the source behind ``mqtt.token``; its owner starts and closes it.
    """

    def __init__(self, settings: MqttSettings, tokens: CredentialSource | None = None) -> None:
        assert settings.token is None or tokens is not None, "mqtt.token needs its source"
        self._settings = settings
        self._tls: TlsFiles | None = None
        self.tokens = tokens

    def adopt(self, settings: MqttSettings) -> None:
        """Show the user and password of other settings from the next connection on. All other settings must be the
        same."""
        self._settings = settings

    async def show(self, *, encrypted: bool) -> Shown:
        """The credentials for a connection that is made now. Reads small files; waits for a first token.

        Raises ConnectError when there is no token, and ConfigError for TLS files that cannot be used at the first call.
        """
        settings, credential = self._settings, None
        password = None if settings.password is None else fresh(settings.password, "mqtt.password")
        if self.tokens is not None:
            try:
                credential = await self.tokens.current()
            except GatewayError as error:
                raise ConnectError(f"There is no token to show to the MQTT broker: {error}", "token") from error
            password = credential.token
        context = self.context() if encrypted else None
        certificate = self.certificate() if encrypted else None
        return Shown(settings.username, password, context, credential, certificate)

    async def token(self) -> Credential | None:
        """The token that would be shown now; None without tokens, or when there is none."""
        try:
            return None if self.tokens is None else await self.tokens.current()
        except GatewayError:  # its source has said so
            return None

    def context(self) -> ssl.SSLContext:
        """The TLS context for a connection that is made now."""
        if self._tls is None:
            self._tls = TlsFiles(self._settings.tls, "mqtt.tls")
        return self._tls.context()

    def certificate(self) -> Validity | None:
        """How long the client certificate of ``context`` is valid; None without one, or when it is unknown."""
        return None if self._tls is None else self._tls.validity

    def look_at_certificate(self) -> Validity | None:
        """As ``certificate``, after reading its file again; None as long as no connection was encrypted."""
        if self._tls is not None:
            self._tls.context()
        return self.certificate()

    @property
    def expires(self) -> bool:
        """Whether the credentials can expire: a token, or a certificate."""
        return self.tokens is not None or self._settings.tls.certificate_file is not None

    async def other_token(self, refused: Shown) -> bool:
        """Tell the source that the broker refused this token; whether there is another one by now."""
        if self.tokens is None or refused.credential is None:
            return False
        self.tokens.refused(refused.credential)
        other = await self.token()
        return other is not None and other.number != refused.credential.number
