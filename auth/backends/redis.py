"""Users in Redis: a hash for each, found by a key that the login's names are part of.

Commands carry the length of each argument, so a name is never more than a part of the key, whatever bytes it holds.
"""

from __future__ import annotations

from config import error_words

__all__ = ["RedisAuthenticator"]

import contextlib
from typing import TYPE_CHECKING, Any

from redis import exceptions
from redis.asyncio.connection import Connection

from auth.backends.network_causes import causes, network_cause
from auth.backends.record import FIELDS, Verification
from auth.backends.remote import RemoteAuthenticator
from auth.backends.templates import LoginTemplate, usable
from auth.errors import BackendDownError
from auth.model import Ignore
from bridge.fresh_secret import fresh
from bridge.tls import tls_context

if TYPE_CHECKING:
    import ssl

    from auth.model import LoginRequest, Verdict
    from auth.ports import PasswordHasher
    from config.auth import AuthRedisSettings

Fields = dict[str, bytes | None]


class _Connection(Connection):
    """The library's own connection, with a TLS context of ours."""

    def __init__(self, context: ssl.SSLContext | None, **options: Any) -> None:
        super().__init__(**options)
        self._context = context

    def _connection_arguments(self) -> dict[str, Any]:
        arguments = dict(super()._connection_arguments())
        if self._context is not None:
            arguments["ssl"] = self._context
        return arguments


class RedisAuthenticator(RemoteAuthenticator[_Connection, "Fields | None"]):
    """An ``auth.ports.Authenticator`` over hashes that somebody else fills."""

    def __init__(self, settings: AuthRedisSettings, hasher: PasswordHasher) -> None:
        """Raises ConfigError for a key that cannot be one. Belongs to the event loop it is used on."""
        super().__init__(
            "redis",
            f"The Redis server {settings.host}:{settings.port}",
            pool_size=settings.pool_size,
            timeout=settings.timeout,
        )
        self._settings = settings
        self._template = LoginTemplate(settings.key, "auth.redis.key")
        self._verification = Verification(
            self.name, hasher, settings.algorithm, settings.salt_position, settings.pbkdf2_iterations
        )

    def _check(self) -> None:
        if self._settings.tls is not None:
            tls_context(self._settings.tls, "auth.redis.tls")

    def _concerns(self, request: LoginRequest) -> bool:
        values = self._template.values(request)
        return all(values) and usable(values)  # with a part of it empty, the key would be another user's

    async def _open(self) -> _Connection:
        settings = self._settings
        connection = _Connection(
            None if settings.tls is None else tls_context(settings.tls, "auth.redis.tls"),
            host=settings.host,
            port=settings.port,
            db=settings.database,
            username=settings.username,
            password=None if settings.password is None else fresh(settings.password, "auth.redis.password"),
            protocol=2,
            driver_info=None,
            socket_timeout=None,  # each question has its deadline from us
            socket_connect_timeout=None,
        )
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            self._abort(connection)
            raise
        return connection

    async def _ask(self, connection: _Connection, request: LoginRequest) -> Fields | None:
        return await self._fields(connection, self._template.filled(self._template.values(request)))

    async def _probe(self, connection: _Connection) -> None:
        await self._fields(connection, self._template.filled(("",) * len(self._template.names)))

    async def _judge(self, request: LoginRequest, answer: Fields | None) -> Verdict:
        if answer is None:
            return Ignore(self.name)
        return await self._verification.judge(answer, user=self._template.user(request), password=request.password)

    def _usable(self, connection: _Connection) -> bool:
        return bool(connection.is_connected)

    def _abort(self, connection: _Connection) -> None:
        with contextlib.suppress(Exception):
            writer = connection._writer  # noqa: SLF001 - disconnect() may wait, and is not to be called from everywhere
            connection._writer = connection._reader = None  # noqa: SLF001 - else it warns that it was not closed
            if writer is not None:
                writer.transport.abort()

    async def _fields(self, connection: _Connection, key: str) -> Fields | None:
        await connection.send_command("HMGET", key.encode(), *FIELDS)
        try:
            values = await connection.read_response()
        except exceptions.ResponseError as error:
            if str(error).startswith("WRONGTYPE"):  # some other program's key: no user
                return None
            raise
        fields = dict(zip(FIELDS, values, strict=True))
        return None if all(value is None for value in values) else fields

    # Errors.

    def _explain(self, error: Exception) -> BackendDownError:
        if isinstance(error, BackendDownError):
            return error
        for one in causes(error):
            if isinstance(one, exceptions.RedisError):
                told = self._explain_answer(one)
                if told is not None:
                    return told
        known = network_cause(error, "auth.redis")
        if known is not None:
            return self._down(known[1], known[0])
        if isinstance(error, exceptions.ConnectionError):
            return self._down("closed the connection: was it stopped, or is there a proxy in between?", "lost")
        return self._down(f"could not be asked ({error_words.words(error)})", "other")

    def _explain_answer(self, error: exceptions.RedisError) -> BackendDownError | None:
        """None for what is no answer of the server but a failure on the way."""
        words = f" ({str(error).splitlines()[0][:200]})" if str(error) else ""
        match error:
            case exceptions.NoPermissionError():
                return self._down(
                    f"does not let auth.redis.username read the key{words}: it needs HMGET on those of auth.redis.key",
                    "settings",
                )
            case exceptions.AuthenticationError():
                return self._down(
                    f"refuses the login{words}: check auth.redis.username and auth.redis.password", "login"
                )
            case (
                exceptions.BusyLoadingError()
                | exceptions.MaxConnectionsError()
                | exceptions.MasterDownError()
                | exceptions.TryAgainError()
            ):
                return self._down(f"cannot take the question now{words}", "busy")
            case exceptions.ConnectionError() if "max number of clients" in words:
                return self._down(f"cannot take the question now{words}", "busy")
            case exceptions.AskError() | exceptions.ClusterError() | exceptions.ClusterCrossSlotError():
                return self._down(
                    f"is part of a cluster, which is not supported{words}: name a single server", "settings"
                )
            case exceptions.InvalidResponse():
                return self._down("does not speak Redis: is it one, and does it want TLS on this port?", "other")
            case exceptions.ResponseError():
                return self._explain_response(str(error), words)
            case _:
                return None

    def _explain_response(self, text: str, words: str) -> BackendDownError:
        if "DB index" in text or "SELECT" in text:
            return self._down(f"has no such database{words}: check auth.redis.database", "settings")
        if text.startswith("BUSY"):  # a script that runs for too long
            return self._down(f"cannot take the question now{words}", "busy")
        return self._down(f"failed at the question{words}", "other")
