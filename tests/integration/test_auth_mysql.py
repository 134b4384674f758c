"""MariaDB in particular: names that it takes for the same, settings it refuses, and servers that play false."""

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from auth.errors import BackendDownError
from auth.model import Allow, Ignore
from config.errors import ConfigError
from config.tables.auth import AuthMysqlSettings
from tests.integration.auth_sites import MysqlSite, login
from tests.servers import mariadb
from tests.servers.mariadb import Mariadb
from tests.servers.playing import played
from tests.waiting import until


@pytest.fixture
def site(mysql_server: Mariadb, unique: str) -> Iterator[MysqlSite]:
    made = MysqlSite(mysql_server, unique)
    yield made
    made.close()


SAME = ("LAMP", "Lamp", "lamp ", "lamp   ", "l\u00e1mp")


async def test_the_default_query_compares_exactly(site: MysqlSite) -> None:
    """Without its second condition the server would take all of these for lamp."""
    await site.put_password("lamp")
    query = AuthMysqlSettings().query.replace("mqtt_user", f"`{site.table}`")
    loose = f"SELECT password_hash FROM `{site.table}` WHERE username = ${{username}}"
    async with site.running(query=query) as exact, site.running(query=loose) as other:
        assert isinstance(await login(exact, "lamp"), Allow)
        for name in SAME:
            assert isinstance(await login(exact, name), Ignore), repr(name)
            assert isinstance(await login(other, name), Allow), f"{name!r}: then the condition is not needed"


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,PIPES_AS_CONCAT"])
async def test_no_mode_of_the_server_opens_a_way_in(site: MysqlSite, mode: str) -> None:
    await site.put_password("lamp")
    site.server.sql("SET GLOBAL sql_mode = %s", (mode,))
    try:
        async with site.running() as authenticator:
            for name in ("' OR 1=1 -- ", "\\' OR 1=1 -- ", '" OR 1=1 -- ', "\\", "x' || '1", "\u00bf' OR 1=1 -- "):
                assert isinstance(await login(authenticator, name), Ignore), f"{name!r} in mode {mode!r}"
            assert isinstance(await login(authenticator, "lamp"), Allow)
    finally:
        site.server.sql("SET GLOBAL sql_mode = DEFAULT")


async def test_a_name_that_the_columns_character_set_has_not_is_nobodys(site: MysqlSite) -> None:
    table = f"{site.table[:50]}_latin"
    site.server.sql(
        f"CREATE TABLE mqtt.`{table}` "
        "(username varchar(80) CHARACTER SET latin1 COLLATE latin1_bin, password_hash text)"
    )
    for host in ("localhost", "'127.0.0.1'"):
        site.server.sql(f"GRANT SELECT ON mqtt.`{table}` TO gateway@{host}")
    query = f"SELECT password_hash FROM `{table}` WHERE username = ${{username}}"
    async with site.running(query=query) as authenticator:
        for name in ("\U0001f4a1", "\u4e2d", "\u20ac", "plug"):
            assert isinstance(await login(authenticator, name), Ignore), repr(name)
        assert not authenticator.failures


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"query": "SELECT x AS password_hash FROM nowhere WHERE u = ${username}"}, "does it exist"),
    ({"query": "SELECT nothing FROM {table} WHERE username = ${username}"}, "cannot run auth.mysql.query"),
    ({"query": "SELEC 1 WHERE 'a' = ${username}"}, "cannot run auth.mysql.query"),
    (
        {"query": "SELECT salt FROM {table} WHERE username = ${username}"},
        "without a column password_hash.*are salt",
    ),
    ({"query": "SELECT 1 FROM mysql.global_priv WHERE user = ${username}"}, "GRANT SELECT"),
    ({"database": "elsewhere"}, "check auth.mysql"),
    ({"username": "tlsonly"}, "refuses the login"),
    ({"username": "nobody"}, "refuses the login"),
], ids=["table", "column", "syntax", "no hash", "rights", "database", "no TLS", "user"])  # fmt: skip
async def test_settings_the_server_refuses_end_a_start(site: MysqlSite, changes: dict[str, Any], sentence: str) -> None:
    changes = {name: value.replace("{table}", f"`{site.table}`") for name, value in changes.items()}
    with pytest.raises(ConfigError, match=sentence) as caught:
        async with site.running(**changes):
            pass
    assert mariadb.PASSWORD not in str(caught.value)


def greeting(*, tls: bool, plugin: bytes) -> bytes:
    """A server's first packet (protocol 10)."""
    capabilities = 0x000F_A201 | (0x0800 if tls else 0)  # 4.1, connect with db, secure connection, plugin auth
    body = b"\x0a8.0.0-fake\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<H", capabilities & 0xFFFF)
    body += b"\x2d" + struct.pack("<H", 2) + struct.pack("<H", capabilities >> 16) + b"\x15" + b"\0" * 10
    return packet(0, body + b"123456789012\0" + plugin + b"\0")


def packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body))[:3] + bytes((number,)) + body


async def play_false(site: MysqlSite, first: bytes, then: bytes = b"", **changes: Any) -> tuple[bytes, str]:
    """What a fake server hears that says ``first``, and ``then`` after what it hears; and what is told of it."""
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        heard.extend(await reader.read(65_536))
        writer.write(then)
        while data := await reader.read(65_536):
            heard.extend(data)

    async with played(serve) as port, site.running(port=port, **changes) as authenticator:
        return bytes(heard), authenticator.problem


async def test_tls_that_is_asked_for_and_not_offered(site: MysqlSite) -> None:
    heard, problem = await play_false(site, greeting(tls=False, plugin=b"mysql_native_password"), **site.over_tls())
    assert "offers no TLS" in problem
    assert heard == b"", "it went on in the open"


@pytest.mark.parametrize("plugin", [b"mysql_clear_password", b"mysql_old_password"])
async def test_a_server_that_wants_the_password_readable_does_not_get_it(site: MysqlSite, plugin: bytes) -> None:
    at_once = await play_false(site, greeting(tls=False, plugin=plugin))
    switched = await play_false(
        site, greeting(tls=False, plugin=b"mysql_native_password"), packet(2, b"\xfe" + plugin + b"\0" + b"12345678\0")
    )
    for heard, problem in (at_once, switched):
        assert "readable password" in problem
        assert mariadb.PASSWORD.encode() not in heard
        assert mariadb.PASSWORD.encode("latin-1") not in heard


async def test_a_server_that_talks_nonsense_is_down(site: MysqlSite) -> None:
    for nonsense in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, b"\0\0\0\0" * 20):
        _, problem = await play_false(site, nonsense)
        assert problem


async def test_a_question_is_answered_by_the_table_as_it_is_now(site: MysqlSite) -> None:
    """A connection within a transaction would see the table as it was at its first question."""
    async with site.running(pool_size=1) as authenticator:
        assert isinstance(await login(authenticator, "lamp"), Ignore)
        await site.put_password("lamp")
        assert isinstance(await login(authenticator, "lamp"), Allow)


async def test_too_many_connections_is_said(site: MysqlSite) -> None:
    limit = "ALTER USER gateway@localhost WITH MAX_USER_CONNECTIONS %s"
    theirs = "SELECT id FROM information_schema.processlist WHERE user = 'gateway'"
    await until(lambda: not site.server.sql(theirs), "the server has noticed the ends of earlier connections")
    site.server.sql(limit, (1,))
    try:
        async with site.running(pool_size=3) as authenticator:
            outcomes = await asyncio.gather(*(login(authenticator, "x") for _ in range(3)), return_exceptions=True)
            refused = [one for one in outcomes if isinstance(one, BackendDownError)]
            assert refused
            assert {one.cause for one in refused} == {"busy"}
            assert any(isinstance(one, Ignore) for one in outcomes), "the one that there is room for"
    finally:
        site.server.sql(limit, (0,))
