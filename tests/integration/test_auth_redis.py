"""Redis in particular: keys, rights, and servers that play false."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from auth.model import Allow, Deny, Ignore
from config.errors import ConfigError
from tests.integration.auth_sites import RedisSite, login
from tests.servers import redis
from tests.servers.playing import played
from tests.servers.redis import Redis


@pytest.fixture
def site(redis_server: Redis, unique: str) -> Iterator[RedisSite]:
    made = RedisSite(redis_server, unique)
    yield made
    made.close()


async def test_a_user_with_the_right_to_read_these_keys_alone_suffices(site: RedisSite) -> None:
    await site.put_password("lamp")
    async with site.running(username="reader") as authenticator:
        assert isinstance(await login(authenticator, "lamp"), Allow)
        assert isinstance(await login(authenticator, "plug"), Ignore)


async def test_other_keys_are_nobody(site: RedisSite) -> None:
    """With a key that is the name alone, a client can name any key there is."""
    with site.server.admin() as admin:
        admin.set(f"{site.unique}-text", "x")
        admin.lpush(f"{site.unique}-list", "x")
        admin.hset(f"{site.unique}-hash", "field", "x")
        admin.hset(f"{site.unique}-open", "is_superuser", "1")
    async with site.running(key="${username}") as authenticator:
        for kind in ("text", "list", "hash", "nothing"):
            assert isinstance(await login(authenticator, f"{site.unique}-{kind}"), Ignore), kind
        assert isinstance(await login(authenticator, f"{site.unique}-open"), Deny), "no password is set"
        assert not authenticator.failures


async def test_every_part_of_the_key_has_to_be_there(site: RedisSite) -> None:
    """And a key is of one device: of the two that could share one, the second impersonated the first."""
    for name in (":lamp", "a:lamp", "a:b:lamp"):
        await site.put_password(name)
    key = f"mqtt_user:{site.unique}:${{clientid}}:${{username}}"
    async with site.running(key=key) as authenticator:
        assert isinstance(await login(authenticator, "lamp", clientid=""), Ignore)
        assert isinstance(await login(authenticator, "lamp", clientid="a"), Allow)
        assert isinstance(await login(authenticator, "b:lamp", clientid="a"), Allow)
        assert isinstance(await login(authenticator, "lamp", clientid="a:b"), Ignore)


async def test_a_key_may_have_any_bytes(site: RedisSite) -> None:
    for name in ("\0", "a\0b", "\r\n", "ä\U0001f4a1", "x" * 256):
        await site.put_password(name)
        async with site.running() as authenticator:
            assert isinstance(await login(authenticator, name), Allow), repr(name[:10])
            assert isinstance(await login(authenticator, name + "\0"), Ignore), repr(name[:10])


@pytest.mark.parametrize("field", ["password_hash", "tenant", "groups", "attributes", "is_superuser", "salt"])
async def test_a_field_of_any_bytes_refuses_its_user_alone(site: RedisSite, field: str) -> None:
    hashed = await site.hasher.hash("correct horse")
    with site.server.admin() as admin:
        for number, value in enumerate((b"\xff\xfe", b"\0", b"[" * 100_000, b"{" * 5000, b'{"a/": 1e999}')):
            if field == "salt" and number > 1:
                continue  # any text is a salt
            fields: dict[str, Any] = {"password_hash": hashed, field: value}
            admin.hset(f"mqtt_user:{site.unique}:{number}", mapping=fields)
    async with site.running() as authenticator:
        for number in range(5):
            verdict = await login(authenticator, str(number))
            if field == "salt" and number > 1:
                assert isinstance(verdict, Ignore)
            elif field == "groups" and number > 2:
                assert isinstance(verdict, Allow | Deny)  # a brace is a letter in a group's name
            elif field == "is_superuser" and number == 1:
                assert isinstance(verdict, Allow), "a zero byte is what MySQL's BIT has for false"
            else:
                assert isinstance(verdict, Deny), f"{field} {number}: {verdict}"
        assert not authenticator.failures


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"username": "nobody"}, "refuses the login"),
    ({"username": "reader", "key": "elsewhere:${username}"}, "HMGET"),
    ({"password": None}, "refuses the login"),
    ({"database": 4000}, "check auth.redis.database"),
], ids=["user", "rights", "no password", "database"])  # fmt: skip
async def test_settings_the_server_refuses_end_a_start(site: RedisSite, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        async with site.running(**changes):
            pass
    assert redis.PASSWORD not in str(caught.value)


@pytest.mark.parametrize(("said", "cause", "words"), [
    (b"-LOADING Redis is loading the dataset in memory\r\n", "busy", "cannot take the question now"),
    (b"-ERR max number of clients reached\r\n", "busy", "cannot take the question now"),
    (b"-MASTERDOWN Link with MASTER is down\r\n", "busy", "cannot take the question now"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "other", "does not speak Redis"),
    (b"\x15\x03\x01\x00\x02\x02\x46\r\n", "other", "does not speak Redis"),
    (b"", "lost", "closed the connection"),
])  # fmt: skip
async def test_what_a_server_may_say_instead(site: RedisSite, said: bytes, cause: str, words: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(said)
        await writer.drain()

    async with played(serve) as port, site.running(port=port) as authenticator:
        assert not authenticator.up
        assert words in authenticator.problem
        assert cause in authenticator.failures, f"{dict(authenticator.failures)}: {authenticator.problem}"


async def test_part_of_a_cluster_is_told(site: RedisSite) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(b"+OK\r\n")
        await reader.read(65_536)
        writer.write(b"-MOVED 3999 127.0.0.1:6381\r\n")
        await reader.read()

    async with played(serve) as port:
        with pytest.raises(ConfigError, match="part of a cluster"):
            async with site.running(port=port):
                pass
