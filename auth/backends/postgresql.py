"""Users in PostgreSQL, through asyncpg.

The query's placeholders become parameters of a prepared statement, so a user name is never part of the SQL. Its name
is unique to the connection: behind a pooler that hands each transaction to another server connection, a statement of
a common name could be somebody else's query. Where the pooler does not carry statements over, the first sign of it
turns to unnamed ones within a transaction of their own: two more round trips, and always the right server.
"""

from __future__ import annotations

__all__ = ["PostgresqlAuthenticator"]

import contextlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import structlog

from auth.backends.network_causes import causes, network_cause
from auth.backends.record import Verification
from auth.backends.remote import RemoteAuthenticator
from auth.backends.templates import LoginTemplate, usable
from auth.errors import BackendDownError
from auth.model import Ignore
from bridge.fresh_secret import fresh
from bridge.tls import tls_context
from config.error_words import words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from auth.model import LoginRequest, Verdict
    from auth.ports import PasswordHasher
    from config.auth import AuthPostgresqlSettings

log = structlog.get_logger("auth")

Row = dict[str, Any]

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
    """A connection, and the query prepared on it (None where a pooler would lose it)."""

    connection: Any
    statement: Any = None


class PostgresqlAuthenticator(RemoteAuthenticator[_Link, "Row | None"]):
    """An ``auth.ports.Authenticator`` over a table that somebody else fills."""

    def __init__(self, settings: AuthPostgresqlSettings, hasher: PasswordHasher) -> None:
        """Raises ConfigError for a query that cannot be one. Belongs to the event loop it is used on."""
        super().__init__(
            "postgresql",
            f"The PostgreSQL server {settings.host}:{settings.port}",
            pool_size=settings.pool_size,
            timeout=settings.timeout,
        )
        self._settings = settings
        self._template = LoginTemplate(settings.query, "auth.postgresql.query", sql=True)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(self._template.names), 1)}
        self._sql = self._template.filled(tuple(f"${numbers[name]}" for name in self._template.names))
        self._first = [self._template.names.index(name) for name in numbers]
        self._pooled = False
        self._verification = Verification(
            self.name, hasher, settings.algorithm, settings.salt_position, settings.pbkdf2_iterations
        )

    def _check(self) -> None:
        if self._settings.tls is not None:
            tls_context(self._settings.tls, "auth.postgresql.tls")

    def _concerns(self, request: LoginRequest) -> bool:
        values = self._template.values(request)
        return any(values) and usable(values) and not any("\0" in value for value in values)  # no text holds one

    async def _open(self) -> _Link:
        settings = self._settings
        password = "" if settings.password is None else fresh(settings.password, "auth.postgresql.password")
        connection = await asyncpg.connect(
            host=settings.host,
            port=settings.port,
            database=settings.database,
            user=settings.username,
            password=password,  # "" rather than None, which would look for one in files and variables of libpq
            ssl=False if settings.tls is None else tls_context(settings.tls, "auth.postgresql.tls"),
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

    async def _ask(self, connection: _Link, request: LoginRequest) -> Row | None:
        values = self._template.values(request)
        return await self._row(connection, [values[at] or None for at in self._first])

    async def _probe(self, connection: _Link) -> None:
        await self._row(connection, [None] * len(self._first))

    async def _judge(self, request: LoginRequest, answer: Mapping[str, Any] | None) -> Verdict:
        if answer is None:
            return Ignore(self.name)
        return await self._verification.judge(answer, user=self._template.user(request), password=request.password)

    def _usable(self, connection: _Link) -> bool:
        return not connection.connection.is_closed() and (connection.statement is not None or self._pooled)

    def _abort(self, connection: _Link) -> None:
        with contextlib.suppress(Exception):
            connection.connection.terminate()

    # The query.

    async def _row(self, link: _Link, values: list[str | None]) -> Row | None:
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

    async def _fetch(self, statement: Any, values: list[str | None]) -> Row | None:
        try:
            arguments = [
                _argument(value, kind.name) for value, kind in zip(values, statement.get_parameters(), strict=True)
            ]
        except ValueError:
            return None
        try:
            row = await statement.fetchrow(*arguments)
        except (asyncpg.DataError, ValueError):  # the server's and the client's
            # The value is none that the column can have (a uuid, an address): nobody is called that. The probe's
            # NULLs never end here, so a query that fails for everybody is seen by then.
            return None
        return None if row is None else dict(row)

    def _check_statement(self, statement: Any) -> None:
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
                    f"takes ${{{name}}} in auth.postgresql.query for a value of type {kind.name}: write "
                    f"CAST(${{{name}}} AS text), and turn that into what the column needs",
                    "settings",
                )

    def _found_a_pooler(self, error: Exception) -> None:
        if not self._pooled:
            self._pooled = True
            log.info("auth_backend_pooler", backend=self.name, sign=type(error).__name__)

    # Errors.

    def _explain(self, error: Exception) -> BackendDownError:
        if isinstance(error, BackendDownError):
            return error
        for one in causes(error):
            if isinstance(one, asyncpg.PostgresError):
                return self._explain_answer(one)
            if isinstance(one, ConnectionError) and "SSL" in str(one):
                return self._down(
                    "does not offer TLS, which auth.postgresql.tls asks for: set ssl = on in its postgresql.conf", "tls"
                )
            if isinstance(one, (*_STALE, asyncpg.InterfaceError)):
                return self._down("has lost the connection", "lost")
        known = network_cause(error, "auth.postgresql")
        if known is not None:
            return self._down(known[1], known[0])
        return self._down(f"could not be asked ({words(error)})", "other")

    def _explain_answer(self, error: Any) -> BackendDownError:
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


def _argument(value: str | None, kind: str) -> str | int | None:
    """The value as the parameter's type takes it. Raises ValueError for a text that is no number where one is asked."""
    if value is None or kind not in _INTEGERS:
        return value
    if not _INTEGER.fullmatch(value):
        raise ValueError("not a whole number")
    return int(value)
