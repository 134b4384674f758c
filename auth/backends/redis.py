"""Users in Redis: a hash for each, found by a key with the login's names.

Commands carry the length of each argument, so a name is only a part of the key, whatever its bytes.
"""

import contextlib
import ssl
from typing import Any

from redis import exceptions
from redis.asyncio.connection import Connection

from auth.backends.foreign import ForeignAuthenticator
from auth.backends.record import FIELDS
from auth.backends.templates import LoginTemplate
from auth.errors import BackendDownError
from auth.model import LoginRequest
from auth.ports import PasswordHasher
from config.tables.auth import AuthRedisSettings

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


class RedisAuthenticator(ForeignAuthenticator[_Connection]):
    """An ``auth.ports.Authenticator`` over hashes that somebody else fills."""

    def __init__(self, settings: AuthRedisSettings, hasher: PasswordHasher) -> None:
        """Raises ConfigError for a key that cannot be one. Belongs to the event loop it is used on."""
        template = LoginTemplate(settings.key)
        super().__init__("redis", "Redis", settings, template, hasher)
        self._settings = settings

    def _concerns(self, request: LoginRequest) -> bool:
        return self._template.concerns(request)

    async def _open(self) -> _Connection:
        """A new connection, logged in."""
        settings = self._settings
        connection = _Connection(
            self._context(),
            host=settings.host,
            port=settings.port,
            db=settings.database,
            username=settings.username,
            password=self._password(),
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

    def _usable(self, connection: _Connection) -> bool:
        return bool(connection.is_connected)

    def _abort(self, connection: _Connection) -> None:
        """Close the connection without waiting. Never raises."""
        with contextlib.suppress(Exception):
            writer = connection._writer  # noqa: SLF001 - disconnect() may wait, and is not to be called from everywhere
            connection._writer = connection._reader = None  # noqa: SLF001 - else it warns that it was not closed
            if writer is not None:
                writer.transport.abort()

    async def _fields(self, connection: _Connection, key: str) -> Fields | None:
        """The fields of a user's key; None without such a key."""
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

    def _otherwise(self, error: Exception) -> BackendDownError | None:
        if isinstance(error, exceptions.ConnectionError):
            return self._down("closed the connection: was it stopped, or is there a proxy in between?", "lost")
        return None

    def _explained(self, error: BaseException) -> BackendDownError | None:
        """The error in words, if the server answered with it; None for a failure of the network."""
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
        """What a text of the server, which no class of the library stands for, means."""
        if "DB index" in text or "SELECT" in text:
            return self._down(f"has no such database{words}: check auth.redis.database", "settings")
        if text.startswith("BUSY"):  # a script that runs for too long
            return self._down(f"cannot take the question now{words}", "busy")
        return self._down(f"failed at the question{words}", "other")
