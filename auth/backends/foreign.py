"""The base of authenticators over a foreign table: login, TLS, the verdict on a record."""

import ssl
from collections.abc import Mapping
from typing import Any, TypeVar

from auth.backends.record import RecordError, Verification
from auth.backends.remote import RemoteAuthenticator
from auth.backends.templates import LoginTemplate
from auth.model import Ignore, LoginRequest, Verdict
from auth.ports import PasswordHasher
from bridge.fresh_secret import fresh
from bridge.tls import tls_context
from config.tables.auth import AuthMysqlSettings, AuthPostgresqlSettings, AuthRedisSettings

C = TypeVar("C")
Answer = Mapping[str, Any] | RecordError | None


class ForeignAuthenticator(RemoteAuthenticator[C, Answer]):
    """Asks for the record of one user: None for an unknown user, RecordError for a record that cannot be read."""

    def __init__(
        self,
        name: str,
        product: str,
        settings: AuthMysqlSettings | AuthPostgresqlSettings | AuthRedisSettings,
        template: LoginTemplate,
        hasher: PasswordHasher,
    ) -> None:
        """``product`` is the server's name in sentences, ``template`` finds the user."""
        super().__init__(
            name,
            f"The {product} server {settings.host}:{settings.port}",
            pool_size=settings.pool_size,
            timeout=settings.timeout,
        )
        self._secret, self._tls = settings.password, settings.tls
        self._template = template
        self._verification = Verification(
            name, hasher, settings.algorithm, settings.salt_position, settings.pbkdf2_iterations
        )

    def _check(self) -> None:
        self._context()

    def _context(self) -> ssl.SSLContext | None:
        return None if self._tls is None else tls_context(self._tls, f"auth.{self.name}.tls")

    def _password(self) -> str | None:
        return None if self._secret is None else fresh(self._secret, f"auth.{self.name}.password")

    async def _judge(self, request: LoginRequest, answer: Answer) -> Verdict:
        if answer is None:
            return Ignore(self.name)
        return await self._verification.judge(answer, user=self._template.user(request), password=request.password)
