"""What a session shows to the broker when it connects: user name, password or token, and client certificate, as they
are at that moment."""

from __future__ import annotations

__all__ = ["Login", "Shown"]

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
    """What one connection has shown. ``certificate`` is how long its client certificate is good, None without one."""

    username: str | None
    password: str | None = field(default=None, repr=False)
    context: ssl.SSLContext | None = None
    credential: Credential | None = None
    certificate: Validity | None = None


class Login:
    """How the sessions of a worker prove themselves. Belongs to the event loop's thread.

    ``tokens`` is where ``mqtt.token`` comes from, and needed with it; its owner starts and closes it.
    """

    def __init__(self, settings: MqttSettings, tokens: CredentialSource | None = None) -> None:
        assert settings.token is None or tokens is not None, "mqtt.token needs its source"
        self._settings = settings
        self._tls: TlsFiles | None = None
        self.tokens = tokens

    def adopt(self, settings: MqttSettings) -> None:
        """Show the user and password of other settings from the next connection on; what else they say must be the
        same."""
        self._settings = settings

    async def show(self, *, encrypted: bool) -> Shown:
        """For a connection that is made now. Reads small files; waits for a token where there is none yet.

        Raises ConnectError when none can be had, and ConfigError at first for TLS files that cannot be used."""
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
        """How long the client certificate of ``context`` is good; None without one, or when it cannot be told."""
        return None if self._tls is None else self._tls.validity

    def look_at_certificate(self) -> Validity | None:
        """The same, after a look at its file; None as long as nothing was encrypted."""
        if self._tls is not None:
            self._tls.context()
        return self.certificate()

    @property
    def expires(self) -> bool:
        """Whether what is shown can come to an end: a token, or a certificate."""
        return self.tokens is not None or self._settings.tls.certificate_file is not None

    async def other_token(self, refused: Shown) -> bool:
        """The broker has refused what was shown: whether there is another token than that by now."""
        if self.tokens is None or refused.credential is None:
            return False
        self.tokens.refused(refused.credential)
        other = await self.token()
        return other is not None and other.number != refused.credential.number
