"""Users in MariaDB or MySQL, through aiomysql.

The library puts quoted parameters into the SQL, and the quoting depends on the server's mode and the connection's
character set. Here values are hexadecimal literals, which are safe in every mode.

The library also continues without TLS if the server offers none, and sends a readable password if the server asks for
it. Both are refused here before a secret is sent.
"""

import contextlib
from typing import Any, Final

import aiomysql
import pymysql.err
from pymysql.constants import CLIENT

from auth.backends.foreign import ForeignAuthenticator
from auth.backends.network_causes import causes
from auth.backends.templates import LoginTemplate, usable
from auth.errors import BackendDownError
from auth.model import LoginRequest
from auth.ports import PasswordHasher
from config.tables.auth import AuthMysqlSettings

Row = dict[str, Any]

_READABLE: Final = frozenset({"mysql_clear_password", "mysql_old_password"})

# Error numbers of the server (mysqld_error.h) and, from 2000, of the client.
_LOGIN: Final = frozenset({1044, 1045, 1130, 1131, 1132, 1133, 1251, 1524, 1698, 1820, 1862, 2059, 2061, 3118, 4151})
_QUERY: Final = frozenset({1046, 1052, 1054, 1064, 1109, 1146, 1149, 1210, 1222, 1247, 1305, 1318, 1356, 1582, 1630})
_RIGHTS: Final = frozenset({1142, 1143, 1227, 1370})
_BUSY: Final = frozenset({1040, 1041, 1129, 1203, 1205, 1213, 1226, 3024, 1969, 4031})
_LOST: Final = frozenset({1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 2055})
_NO_SUCH_VALUE: Final = frozenset({1267, 1270, 1271, 1292, 1300, 1366, 3854, 3988})
"""The column's character set or type cannot have the value, so the user is unknown."""


class _UnprotectedError(Exception):
    """The server asks to continue without the TLS of the settings, or for a readable password."""


class _Connection(aiomysql.Connection):  # type: ignore[misc]
    """Refuses to continue without TLS. The overridden methods are the library's own; tests with such a server watch
    them."""

    async def _request_authentication(self) -> None:
        """The library's, but refuses to send a readable password without TLS."""
        if self._ssl_context is not None and not self.server_capabilities & CLIENT.SSL:
            raise _UnprotectedError("offers no TLS, which auth.mysql.tls asks for: set its ssl_cert")
        if self._ssl_context is None:
            self._refuse_readable(self._server_auth_plugin)
        await super()._request_authentication()

    async def _process_auth(self, plugin_name: bytes, auth_packet: Any) -> Any:
        if not self._secure:
            self._refuse_readable(plugin_name.decode(errors="replace"))
        return await super()._process_auth(plugin_name, auth_packet)

    @staticmethod
    def _refuse_readable(plugin: str) -> None:
        """Raises _UnprotectedError if this way to log in sends a readable password."""
        if plugin in _READABLE:
            raise _UnprotectedError(
                f"asks for a readable password ({plugin}) over a connection without TLS: set auth.mysql.tls, or give "
                "the user another way to log in"
            )


class _Cursor(aiomysql.DictCursor):  # type: ignore[misc]
    async def _show_warnings(self, connection: Any) -> None:
        """Does nothing: it would take a round trip, and print a client's name."""


class MysqlAuthenticator(ForeignAuthenticator[_Connection]):
    """An ``auth.ports.Authenticator`` over a table that somebody else fills."""

    def __init__(self, settings: AuthMysqlSettings, hasher: PasswordHasher) -> None:
        """Raises ConfigError for a query that cannot be one. Belongs to the event loop it is used on."""
        template = LoginTemplate(settings.query)
        super().__init__("mysql", "MariaDB or MySQL", settings, template, hasher)
        self._settings = settings

    def _concerns(self, request: LoginRequest) -> bool:
        values = self._template.values(request)
        return any(values) and usable(values)

    async def _open(self) -> _Connection:
        """A new connection, logged in."""
        settings = self._settings
        password = self._password() or ""
        connection = _Connection(
            host=settings.host,
            port=settings.port,
            db=settings.database,
            user=settings.username,
            password=password.encode().decode("latin-1"),  # the library encodes it so: this way UTF-8 arrives
            ssl=self._context(),
            charset="utf8mb4",
            autocommit=True,  # without it a connection would see the table as of its first query
            program_name="mqtt-kafka-gateway",
        )
        try:
            await connection._connect()  # noqa: SLF001 - what aiomysql.connect does, with a class of its own
        except BaseException:
            self._abort(connection)
            raise
        return connection

    async def _ask(self, connection: _Connection, request: LoginRequest) -> Row | None:
        return await self._row(connection, self._template.values(request))

    async def _probe(self, connection: _Connection) -> None:
        await self._row(connection, ("",) * len(self._template.names))

    def _usable(self, connection: _Connection) -> bool:
        return not connection.closed

    def _abort(self, connection: _Connection) -> None:
        """Close the connection without waiting. Never raises."""
        with contextlib.suppress(Exception):
            writer = connection._writer  # noqa: SLF001 - close() would wait for a frozen server's goodbye to TLS
            if writer is not None:
                writer.transport.abort()
        with contextlib.suppress(Exception):
            connection.close()

    async def _row(self, connection: _Connection, values: tuple[str, ...]) -> Row | None:
        """The user's row; None without one, or for values that no column can have."""
        sql = self._template.filled(tuple(_literal(value) for value in values))
        async with connection.cursor(_Cursor) as cursor:
            try:
                await cursor.execute(sql)
            except pymysql.err.MySQLError as error:
                if any(values) and _number(error) in _NO_SUCH_VALUE:
                    return None
                raise
            columns = [column[0] for column in cursor.description or ()]
            if "password_hash" not in columns:
                raise self._down(
                    "answers auth.mysql.query without a column password_hash; its columns are "
                    f"{', '.join(columns)[:200] or 'none'}: name one so (SELECT … AS password_hash)",
                    "settings",
                )
            row: Row | None = await cursor.fetchone()
        return row

    # Errors.

    def _explained(self, error: BaseException) -> BackendDownError | None:
        if isinstance(error, _UnprotectedError):
            return self._down(str(error), "tls")
        server_said = isinstance(error, pymysql.err.MySQLError) and _number(error) < 2000
        return self._explain_answer(error) if server_said else None

    def _otherwise(self, error: Exception) -> BackendDownError | None:
        one = next((one for one in causes(error) if isinstance(one, pymysql.err.MySQLError)), None)
        return None if one is None else self._explain_answer(one)

    def _explain_answer(self, error: pymysql.err.MySQLError) -> BackendDownError:
        """What an error of the server means."""
        number = _number(error)
        said = str(error.args[1]).splitlines()[:1] if len(error.args) > 1 else []
        words = f" ({said[0][:200]})" if said else ""
        if number in _LOGIN:
            return self._down(
                f"refuses the login{words}: check auth.mysql.username, password and database, tls, and from where the "
                "server lets this user in",
                "login",
            )
        if number == 1049:
            return self._down(f"has no such database{words}: check auth.mysql.database", "settings")
        if number in _RIGHTS:
            return self._down(
                f"does not let auth.mysql.username read what the query reads{words}: does it exist? If so, "
                "GRANT SELECT on it",
                "settings",
            )
        if number in _QUERY:
            return self._down(f"cannot run auth.mysql.query{words}: check it against the tables there", "settings")
        if number in _BUSY:
            return self._down(f"cannot take the question now{words}", "busy")
        if number in _LOST or isinstance(error, pymysql.err.InternalError | pymysql.err.InterfaceError):
            return self._down("has lost the connection", "lost")
        return self._down(f"failed at the query{words or f' (error {number})'}", "other")


def _number(error: BaseException) -> int:
    number = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 9999


def _literal(value: str) -> str:
    """The value as SQL; one that is empty equals nothing."""
    return f"_utf8mb4 X'{value.encode().hex()}'" if value else "NULL"
