"""PostgreSQL in particular: column types, poolers, logins, and servers that play false."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from auth.backends.postgresql import PostgresqlAuthenticator
from auth.errors import BackendDownError
from auth.model import Allow, Deny, Ignore
from config.errors import ConfigError
from tests.integration.auth_sites import GOOD, PostgresqlSite, login
from tests.servers import postgresql
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.playing import played
from tests.servers.postgresql import Postgresql


@pytest.fixture
def site(postgresql_server: Postgresql, unique: str) -> Iterator[PostgresqlSite]:
    made = PostgresqlSite(postgresql_server, unique)
    yield made
    made.close()


@pytest.fixture
def pooler(postgresql_server: Postgresql) -> Iterator[Pgbouncer]:
    server = Pgbouncer(postgresql_server)
    try:
        server.start()
        yield server
    finally:
        server.stop()


async def test_behind_a_pooler_that_moves_transactions_between_servers(site: PostgresqlSite, pooler: Pgbouncer) -> None:
    for number in range(20):
        await site.put_password(f"lamp-{number}", f"of {number}")
    with capture_logs() as logs:
        async with site.running(port=pooler.port) as authenticator:
            for _ in range(3):
                verdicts = await asyncio.gather(
                    *(login(authenticator, f"lamp-{number}", f"of {number}") for number in range(20)),
                    *(login(authenticator, f"lamp-{number}", "wrong") for number in range(20)),
                    *(login(authenticator, f"plug-{number}") for number in range(20)),
                )
                for number, verdict in enumerate(verdicts):
                    kind = (Allow, Deny, Ignore)[number // 20]
                    assert isinstance(verdict, kind), f"{number}: {verdict}"
            assert not authenticator.failures
    told = [line for line in logs if line["event"] == "auth_backend_pooler"]
    assert len(told) == 1, "the pooler was not met, or told more than once"


async def test_a_table_that_changes_costs_no_login(site: PostgresqlSite) -> None:
    """SELECT * of a changed table invalidates the prepared statement (cached plan must not change result type)."""
    await site.put_password("lamp")
    async with site.running(pool_size=1) as authenticator:
        assert isinstance(await login(authenticator, "lamp"), Allow)
        site.server.sql(f'ALTER TABLE "{site.table}" ADD COLUMN note text')
        assert isinstance(await login(authenticator, "lamp"), Allow)
        assert not authenticator.failures


@pytest.mark.parametrize(("kind", "stored", "asked", "others"), [
    ("varchar(80)", "lamp", "lamp", ["LAMP", "lamp ", "x"]),
    ("char(20)", "lamp", "lamp", ["LAMP", "x" * 30]),
    ("integer", "42", "42", ["x", "4.2", "99999999999", "9" * 30, "\uff14\uff12", " 42", "4_2", "042"]),
    ("bigint", "0", "0", ["x", "-", "9" * 19, "00", "-0"]),
    ("uuid", "7a2b0c1e-0000-4000-8000-000000000001", "7A2B0C1E-0000-4000-8000-000000000001", [
        "x", "7a2b", "7a2b0c1e000040008000000000000001", "{7a2b0c1e-0000-4000-8000-000000000001}",
        "7A2b0c1e-0000-4000-8000-000000000001",
    ]),
    ("inet", "10.0.0.1", "10.0.0.1", ["x", "10.0.0.999", "10.0.0.1; DROP", "10.0.0.1/32"]),
    ("inet", "10.0.0.0/8", "10.0.0.0/8", ["10/8", "10.0.0.0/08"]),
    ("cidr", "fd00::1", "fd00::1", ["fd00::01", "fd00::1/128"]),
])  # fmt: skip
async def test_other_column_types(site: PostgresqlSite, kind: str, stored: str, asked: str, others: list[str]) -> None:
    """Another spelling of a number, UUID or address would be another name for bans, lock-outs and rules."""
    table = f"{site.table[:50]}_typed"
    hashed = await site.hasher.hash(GOOD)
    site.server.sql(
        f'CREATE TABLE "{table}" (id {kind}, password_hash text); GRANT SELECT ON "{table}" TO gateway;'
        f"INSERT INTO \"{table}\" VALUES ('{stored}', '{hashed}')"
    )
    query = f'SELECT password_hash FROM "{table}" WHERE id = ${{username}}'
    async with site.running(query=query) as authenticator:
        assert isinstance(await login(authenticator, asked), Allow)
        for other in others:
            assert isinstance(await login(authenticator, other), Ignore), repr(other)
        assert not authenticator.failures, "a client's name counted against the server"


@pytest.mark.parametrize(("column", "good", "bad"), [
    ("tenant::int", "1", "x"),
    ("tenant::int", "1", ""),
    ("tenant::uuid", "7a2b0c1e-0000-4000-8000-000000000001", "7a2b"),
    ("tenant::timestamp", "2026-01-01", "20000-01-01"),  # the server can, the library cannot
])  # fmt: skip
@pytest.mark.parametrize("pooled", [False, True])
async def test_a_stored_value_that_cannot_be_converted_refuses_its_user_alone(
    site: PostgresqlSite, pooled: bool, column: str, good: str, bad: str
) -> None:
    """Passed on as unknown, such a user was let in by a weaker authenticator."""
    await site.put_password("7", tenant=bad)
    await site.put_password("8", tenant=good)
    query = (
        f'SELECT password_hash, {column} AS x FROM "{site.table}" '
        "WHERE username = CAST(CAST(${username} AS text)::int AS text)"
    )
    async with site.running(query=query, pool_size=1) as authenticator:
        assert isinstance(authenticator, PostgresqlAuthenticator)
        authenticator._pooled = pooled
        for _ in range(4):
            verdict = await login(authenticator, "7")
            assert isinstance(verdict, Deny)
            assert (verdict.reason, "cannot be converted" in verdict.detail) == ("refused", True)
            assert isinstance(await login(authenticator, "8"), Allow)
            for name in ("9", "x", "99999999999", "7a2b", "integer"):
                assert isinstance(await login(authenticator, name), Ignore), name
        assert not authenticator.failures


async def test_a_name_that_the_database_cannot_write_is_nobodys(site: PostgresqlSite) -> None:
    site.server.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    query = "SELECT 'x' AS password_hash WHERE '\u00e4' = ${username}"
    async with site.running(database="latin", query=query) as authenticator:
        assert isinstance(await login(authenticator, "\u00e4"), Deny)
        assert isinstance(await login(authenticator, "\u20ac"), Ignore)


async def test_a_column_type_that_takes_no_text_is_told(site: PostgresqlSite) -> None:
    table = f"{site.table[:50]}_typed"
    site.server.sql(f'CREATE TABLE "{table}" (id numeric, password_hash text); GRANT SELECT ON "{table}" TO gateway')
    query = f'SELECT password_hash FROM "{table}" WHERE id = ${{username}}'
    with pytest.raises(ConfigError, match=r"of type numeric: .*, CAST\(column AS text\) = \$\{username\}"):
        async with site.running(query=query):
            pass


async def test_several_placeholders_and_none_that_matches_when_empty(site: PostgresqlSite) -> None:
    hashed = await site.hasher.hash(GOOD)
    site.put("", password_hash=hashed)
    site.put("lamp", password_hash=hashed)
    query = (
        f'SELECT password_hash FROM "{site.table}" WHERE username = ${{username}} OR username = ${{clientid}} '
        "OR username = ${username}"
    )
    async with site.running(query=query) as authenticator:
        assert isinstance(await login(authenticator, "", clientid="lamp"), Allow)
        assert isinstance(await login(authenticator, "lamp"), Allow), "the empty client id matched the empty name"
        assert isinstance(await login(authenticator, "", clientid="x"), Ignore), "the empty name matched"
        verdict = await login(authenticator, "", clientid="lamp")
        assert isinstance(verdict, Allow)
        assert verdict.user == "lamp"


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"query": "SELECT x AS password_hash FROM nowhere WHERE u = ${username}"}, "cannot run auth.postgresql.query"),
    ({"query": "SELECT nothing FROM {table} WHERE username = ${username}"}, "cannot run auth.postgresql.query"),
    ({"query": "SELEC 1 WHERE 'a' = ${username}"}, "cannot run auth.postgresql.query"),
    (
        {"query": "SELECT salt FROM {table} WHERE username = ${username}"},
        "without a column password_hash.*are salt",
    ),
    ({"query": "SELECT rolpassword AS password_hash FROM pg_authid WHERE rolname = ${username}"}, "GRANT SELECT"),
    ({"database": "elsewhere"}, "check auth.postgresql.database"),
    ({"username": "tlsonly"}, r"refuses the login.*pg_hba\.conf"),
    ({"username": "nobody"}, "refuses the login"),
], ids=["table", "column", "syntax", "no hash", "rights", "database", "no TLS", "user"])  # fmt: skip
async def test_settings_that_the_server_refuses_end_the_start(
    site: PostgresqlSite, changes: dict[str, Any], sentence: str
) -> None:
    changes = {name: value.replace("{table}", f'"{site.table}"') for name, value in changes.items()}
    with pytest.raises(ConfigError, match=sentence) as caught:
        async with site.running(**changes):
            pass
    assert postgresql.PASSWORD not in str(caught.value)
    site.server.halt()
    try:
        async with site.running(**changes) as authenticator:
            assert not authenticator.up, "the server is down, so nobody can know"
    finally:
        site.server.heal()


async def test_a_table_dropped_under_way_is_told_and_heals(site: PostgresqlSite) -> None:
    await site.put_password("lamp")
    async with site.running() as authenticator:
        assert isinstance(await login(authenticator, "lamp"), Allow)
        site.server.sql(f'ALTER TABLE "{site.table}" RENAME TO "{site.table}_away"')
        with pytest.raises(BackendDownError, match=r"cannot run auth\.postgresql\.query") as caught:
            await login(authenticator, "lamp")
        assert caught.value.cause == "settings"
        assert not authenticator.up
        site.server.sql(f'ALTER TABLE "{site.table}_away" RENAME TO "{site.table}"')
        assert isinstance(await login(authenticator, "lamp"), Allow)
        assert authenticator.up


async def test_tls_that_is_asked_for_and_not_offered(site: PostgresqlSite) -> None:
    """A server, or somebody in front of it, that says no to TLS is not shown the password."""
    received = bytearray()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(8))
        writer.write(b"N")
        received.extend(await reader.read())

    async with played(refuse) as port, site.running(port=port, **site.over_tls()) as authenticator:
        assert authenticator.failures["tls"] >= 1, authenticator.problem
        assert "does not offer TLS" in authenticator.problem
    assert received[:8] == b"\0\0\0\x08\x04\xd2\x16\x2f", "no SSLRequest"
    assert b"gateway" not in received
    assert postgresql.PASSWORD.encode() not in received
