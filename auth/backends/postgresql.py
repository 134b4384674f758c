"""Users in PostgreSQL, through asyncpg.

The query's placeholders become parameters of a prepared statement, so a user name is never part of the SQL. The
statement's name is unique to the connection, because a pooler may give each transaction another server connection,
where a common name could be another query. If the pooler does not support prepared statements, each question uses an
unnamed one in its own transaction: two more round trips, and always the right server connection.
"""

import contextlib
import ipaddress
import re
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import structlog

from auth.backends.foreign import Answer, ForeignAuthenticator
from auth.backends.record import RecordError
from auth.backends.templates import LoginTemplate, usable
from auth.errors import BackendDownError
from auth.model import LoginRequest
from auth.ports import PasswordHasher
from config.tables.auth import AuthPostgresqlSettings

log = structlog.get_logger("auth")

_INTEGERS: Final = frozenset({"int2", "int4", "int8"})
_TEXTS: Final = frozenset({"text", "varchar", "bpchar", "name", "unknown", "uuid", "inet", "cidr", "citext"})
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_POOLED: Final = (
    asyncpg.InvalidSQLStatementNameError,
    asyncpg.DuplicatePreparedStatementError,
    asyncpg.FeatureNotSupportedError,
)
_STALE: Final = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError)


@dataclass(eq=False, slots=True)
class _Link:
    """A connection, and the query prepared on it (None if a pooler would lose it)."""

    connection: Any
    statement: Any = None


class PostgresqlAuthenticator(ForeignAuthenticator[_Link]):
    """An ``auth.ports.Authenticator`` over a table that somebody else fills."""

    def __init__(self, settings: AuthPostgresqlSettings, hasher: PasswordHasher) -> None:
        """Raises ConfigError for a query that cannot be one. Belongs to the event loop it is used on."""
        template = LoginTemplate(settings.query)
        super().__init__("postgresql", "PostgreSQL", settings, template, hasher)
        self._settings = settings
        numbers = {name: number for number, name in enumerate(dict.fromkeys(self._template.names), 1)}
        self._sql = self._template.filled(tuple(f"${numbers[name]}" for name in self._template.names))
        self._first = [self._template.names.index(name) for name in numbers]
        self._pooled = False  # a pooler was noticed, which loses prepared statements

    def _concerns(self, request: LoginRequest) -> bool:
        values = self._template.values(request)
        return any(values) and usable(values) and not any("\0" in value for value in values)  # no text holds one

    async def _open(self) -> _Link:
        """A new connection, logged in, with the query prepared unless a pooler stands in between."""
        settings = self._settings
        connection = await asyncpg.connect(
            host=settings.host,
            port=settings.port,
            database=settings.database,
            user=settings.username,
            password=self._password()
            or "",  # "" rather than None, which would look for one in files and variables of libpq
            ssl=self._context() or False,
            statement_cache_size=0,
            server_settings={"application_name": "mqtt-kafka-gateway"},
        )
        link = _Link(connection)
        try:
            if not self._pooled:
                link.statement = await connection.prepare(self._sql, name=f"login_{secrets.token_hex(8)}")
                self._check_statement(link.statement)
        except _POOLED as error:
            if isinstance(error, _STALE):
                self._abort(link)
                raise
            self._found_a_pooler(error)
        except BaseException:
            self._abort(link)
            raise
        return link

    async def _ask(self, connection: _Link, request: LoginRequest) -> Answer:
        values = self._template.values(request)
        return await self._row(connection, [values[at] or None for at in self._first])

    async def _probe(self, connection: _Link) -> None:
        await self._row(connection, [None] * len(self._first))

    def _usable(self, connection: _Link) -> bool:
        return not connection.connection.is_closed() and (connection.statement is not None or self._pooled)

    def _abort(self, connection: _Link) -> None:
        with contextlib.suppress(Exception):
            connection.connection.terminate()

    # The query.

    async def _row(self, link: _Link, values: list[str | None]) -> Answer:
        """The user's row, or None, by the prepared query or, behind a pooler, by one prepared anew."""
        if link.statement is not None:
            try:
                return await self._fetch(link.statement, values)
            except _STALE:
                raise
            except _POOLED as error:
                self._found_a_pooler(error)
        link.statement = None
        # A pooler keeps a transaction on one server, so its unnamed statement is there when it is run.
        async with link.connection.transaction(readonly=True):
            statement = await link.connection.prepare(self._sql, name="")
            self._check_statement(statement)
            return await self._fetch(statement, values)

    async def _fetch(self, statement: Any, values: list[str | None]) -> Answer:
        """The row of a statement; None without one, or for values that its types cannot have; RecordError for a
        stored value that the query or the library cannot convert."""
        try:
            arguments = [
                _argument(name, value, kind.name)
                for name, value, kind in zip(
                    dict.fromkeys(self._template.names), values, statement.get_parameters(), strict=True
                )
            ]
        except ValueError:
            return None
        try:
            row = await statement.fetchrow(*arguments)
        except (asyncpg.DataError, ValueError, OverflowError) as error:
            # The probe's NULLs never raise this, so the probe finds a query that always fails.
            if isinstance(error, asyncpg.DataError) and _is_of(error, values):
                return None  # the column's type (a uuid, an address) cannot have this value, so the user is unknown
            return RecordError(f"a value in the table cannot be converted ({type(error).__name__})")
        return None if row is None else dict(row)

    def _check_statement(self, statement: Any) -> None:
        """Raises BackendDownError for a query without password_hash, or with a placeholder of another type than
        text."""
        columns = [column.name for column in statement.get_attributes()]
        if "password_hash" not in columns:
            raise self._down(
                f"answers auth.postgresql.query without a column password_hash; its columns are "
                f"{', '.join(columns)[:200] or 'none'}: name one so (SELECT … AS password_hash)",
                "settings",
            )
        for name, kind in zip(dict.fromkeys(self._template.names), statement.get_parameters(), strict=True):
            if kind.schema == "pg_catalog" and kind.name not in _TEXTS | _INTEGERS:
                raise self._down(
                    f"takes ${{{name}}} in auth.postgresql.query for a value of type {kind.name}: compare the "
                    f"column's text, CAST(column AS text) = ${{{name}}}",
                    "settings",
                )

    def _found_a_pooler(self, error: Exception) -> None:
        if not self._pooled:
            self._pooled = True
            log.info("auth_backend_pooler", backend=self.name, sign=type(error).__name__)

    # Errors.

    def _explained(self, error: BaseException) -> BackendDownError | None:
        """What an error of the library means; None for one of the network."""
        if isinstance(error, asyncpg.PostgresError):
            return self._explain_answer(error)
        if isinstance(error, ConnectionError) and "SSL" in str(error):
            return self._down(
                "does not offer TLS, which auth.postgresql.tls asks for: set ssl = on in its postgresql.conf", "tls"
            )
        stale = isinstance(error, (*_STALE, asyncpg.InterfaceError))
        return self._down("has lost the connection", "lost") if stale else None

    def _explain_answer(self, error: Any) -> BackendDownError:
        """What an error of the server means."""
        state: str = error.sqlstate or ""
        said = str(error.args[0] if error.args else "").splitlines()[:1]
        words = f" ({said[0][:200]})" if said else ""
        if isinstance(error, _STALE) or state.startswith("08") or state in {"57P01", "57P02"}:
            return self._down("ended the connection", "lost")
        if state.startswith("28"):
            return self._down(
                f"refuses the login{words}: check auth.postgresql.username, password and database, tls, and the "
                "server's pg_hba.conf",
                "login",
            )
        if state == "3D000":
            return self._down(f"has no such database{words}: check auth.postgresql.database", "settings")
        if state == "42501":
            return self._down(
                f"does not let auth.postgresql.username read what the query reads{words}: GRANT SELECT to it",
                "settings",
            )
        if state.startswith("42"):
            return self._down(f"cannot run auth.postgresql.query{words}: check it against the tables there", "settings")
        if state.startswith(("53", "57")):
            return self._down(f"cannot take the question now{words}", "busy")
        return self._down(f"failed at the query{words or f' (SQLSTATE {state})'}", "other")


def _argument(name: str, value: str | None, kind: str) -> str | int | None:
    """The value of the placeholder ``name`` for a parameter of this type.

    Raises ValueError for a text instead of a number, and for a name from the client in another spelling than the
    usual one: ``042`` or ``{UUID}`` finds the same row, but to bans, lock-outs and rules it is another name."""
    if value is None:
        return None
    if kind in _INTEGERS and not _INTEGER.fullmatch(value):
        raise ValueError("not a whole number")
    if name in _TYPED and kind in _USUAL and value not in {usual := _USUAL[kind](value), usual.upper()}:
        raise ValueError("not the usual spelling")
    return int(value) if kind in _INTEGERS else value


def _usual_address(value: str) -> str:
    """An address or network as PostgreSQL writes it as an inet. Raises ValueError for another text."""
    found = ipaddress.ip_interface(value)
    return str(found.ip if found.network.prefixlen == found.max_prefixlen else found)


_TYPED: Final = frozenset({"username", "clientid"})  # the client chooses these
_USUAL: Final[dict[str, Callable[[str], str]]] = {
    **dict.fromkeys(_INTEGERS, lambda value: str(int(value))),
    "uuid": lambda value: str(uuid.UUID(value)),
    "inet": _usual_address,
    "cidr": _usual_address,
}


def _is_of(error: asyncpg.DataError, values: list[str | None]) -> bool:
    """Whether a value of the login cannot be converted, rather than one in the user's row. The server quotes the value,
    in the marks of its language. A login's value that it does not quote counts as the row's."""
    said: str | None = error.message
    if said is None or isinstance(error, asyncpg.UntranslatableCharacterError):  # the client library's; LATIN1's
        return True
    return any(value and re.search(rf'["«»„“”]\s*{re.escape(value)}\s*["«»“”]', said) for value in values)
