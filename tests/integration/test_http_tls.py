"""The HTTP port over TLS: client certificates open it, files that change are followed, commands find their way in."""

import asyncio
import datetime as dt
import shutil
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from pydantic import SecretStr

from config.errors import ConfigError
from config.settings import HttpSettings, ServerTlsSettings
from gateway.http.answers import Answer
from gateway.http.asking import ask
from gateway.http.server import HttpServer
from gateway.tools.doctor.running import RunningFacts, gather
from tests.servers.authority import Authority
from tests.servers.playing import played

TOKEN = "of-the-test-0123456789"


class Answers:
    async def answer(self, path: str, accept: str) -> Answer:
        return Answer(503 if path == "/readyz" else 200, "application/json", '{"reasons": ["of the test"]}')


def settings(authority: Authority, *, mutual: bool = False, token: bool = False, name: str = "server") -> HttpSettings:
    issued = authority.issue(name)
    ca = authority.ca_file if mutual else None
    tls = ServerTlsSettings(certificate_file=issued.certificate, key_file=issued.key, client_ca_file=ca)
    return HttpSettings(port=0, token=SecretStr(TOKEN) if token else None, tls=tls)


@asynccontextmanager
async def serving(http: HttpSettings) -> AsyncIterator[HttpServer]:
    server = HttpServer(http, Answers())
    await server.start()
    try:
        yield server
    finally:
        await server.stop(time.monotonic_ns() + 5_000_000_000)


async def get(server: HttpServer, path: str, context: ssl.SSLContext, **options: Any) -> tuple[int, str]:
    connector = aiohttp.TCPConnector(ssl=context)
    async with (
        aiohttp.ClientSession(server.url, connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as client,
        client.get(path, **options) as response,
    ):
        return response.status, await response.text()


async def test_over_tls(authority: Authority) -> None:
    async with serving(settings(authority)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert (await get(server, "/status", authority.client_context()))[0] == 200


async def test_a_client_certificate_opens_what_nothing_else_does(authority: Authority) -> None:
    async with serving(settings(authority, mutual=True)) as server:
        bare, certified = authority.client_context(), authority.client_context("operator")
        assert (await get(server, "/healthz", bare))[0] == 200
        assert (await get(server, "/readyz", bare))[0] == 503
        status, text = await get(server, "/status", bare)
        assert status == 403
        assert "http.tls.client_ca_file" in text
        assert (await get(server, "/metrics", bare))[0] == 403
        assert (await get(server, "/status", certified))[0] == 200
        assert (await get(server, "/metrics", certified))[0] == 200


async def test_a_strangers_certificate_ends_the_handshake(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger").issue("operator")
    context = authority.client_context()
    context.load_cert_chain(stranger.certificate, stranger.key)
    async with serving(settings(authority, mutual=True)) as server:
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await get(server, "/healthz", context)


async def test_handshakes_that_do_not_end_are_bounded(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """They used up the descriptors of the gateway, at 0.25 MB each."""
    monkeypatch.setattr("gateway.http.server._HANDSHAKES", 3)
    monkeypatch.setattr("gateway.http.server._HANDSHAKE_S", 600.0)
    async with serving(settings(authority)) as server, AsyncExitStack() as open_:
        strangers = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            open_.callback(writer.close)
            strangers.append(reader)
        async with asyncio.timeout(60):
            assert await strangers[0].read() == b"", "the oldest gives way"
        assert (await get(server, "/healthz", authority.client_context()))[0] == 200
        assert not strangers[3].at_eof()
    monkeypatch.setattr("gateway.http.server._HANDSHAKE_S", 0.1)
    async with serving(settings(authority)) as server, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b"", "a handshake has a limit of time"
        writer.close()


async def serial(server: HttpServer, authority: Authority) -> str:
    """Of the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=authority.client_context())
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_new_certificate_is_shown_without_a_restart_and_half_of_one_is_not(authority: Authority) -> None:
    http = settings(authority)
    assert http.tls is not None
    assert http.tls.key_file is not None
    async with serving(http) as server:
        first = await serial(server, authority)
        renewed = authority.issue("renewed")
        with structlog.testing.capture_logs() as logs:
            shutil.copy(renewed.certificate, http.tls.certificate_file)  # its key is still to come
            assert await serial(server, authority) == first
            shutil.copy(renewed.key, http.tls.key_file)
            assert await serial(server, authority) != first
        assert [line["event"] for line in logs] == ["server_tls_not_reloaded", "server_tls_reloaded"]
        assert {line["table"] for line in logs} == {"http.tls"}


async def test_a_file_that_cannot_be_used_ends_the_start_with_its_name(authority: Authority, tmp_path: Path) -> None:
    http = settings(authority)
    assert http.tls is not None
    other = authority.issue("other")
    broken = http.model_copy(update={"tls": http.tls.model_copy(update={"key_file": other.key})})
    server = HttpServer(broken, Answers())
    with pytest.raises(ConfigError, match=r"http\.tls\.certificate_file and http\.tls\.key_file cannot be used"):
        await server.start()
    await server.stop(time.monotonic_ns())


async def test_a_connection_that_speaks_no_tls_harms_nobody(authority: Authority) -> None:
    async with serving(settings(authority)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(60):
            assert b"200" not in await reader.read()
        writer.close()
        await writer.wait_closed()
        assert (await get(server, "/healthz", authority.client_context()))[0] == 200


@pytest.mark.parametrize("mutual", [False, True])
async def test_a_command_on_this_machine_asks_with_the_settings_own_token(authority: Authority, mutual: bool) -> None:
    """The certificate is made for another name: what counts is that it is the one of the settings."""
    http = settings(authority, mutual=mutual, token=True)
    async with serving(http) as server:
        here = http.model_copy(update={"port": server.port})
        status, body = await asyncio.to_thread(ask, here, "/status", timeout_s=20)
        assert (status, body) == (200, b'{"reasons": ["of the test"]}')
        bare = here.model_copy(update={"token": None})
        assert (await asyncio.to_thread(ask, bare, "/status", timeout_s=20))[0] == 401
        other = settings(authority, token=True, name="other").model_copy(update={"port": server.port})
        with pytest.raises(OSError, match="certificate verify failed"):
            await asyncio.to_thread(ask, other, "/status", timeout_s=20)


@pytest.mark.parametrize(("said", "problem"), [
    (b"220 mail.example\r\n", "does not speak HTTP"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhalf a", "was cut off"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhalf a\r\n", "does not speak HTTP"),
])  # fmt: skip
async def test_a_command_that_meets_something_else_says_so(said: bytes, problem: str) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")  # or the close would be a reset
        writer.write(said)
        writer.close()

    async with played(babble) as port:
        with pytest.raises(OSError, match=problem):
            await asyncio.to_thread(ask, HttpSettings(port=port), "/status", timeout_s=20)


async def test_an_expired_certificate_keeps_no_command_from_looking(authority: Authority) -> None:
    """It is what the doctor is asked about then; and that it is the one of the settings is known without dates."""
    http = settings(authority, token=True, name="old")
    assert http.tls is not None
    expired = authority.issue("old", left=dt.timedelta(minutes=-1))
    http = http.model_copy(
        update={"tls": ServerTlsSettings(certificate_file=expired.certificate, key_file=expired.key)}
    )
    async with serving(http) as server:
        here = http.model_copy(update={"port": server.port})
        assert (await asyncio.to_thread(ask, here, "/status", timeout_s=20))[0] == 200


async def test_the_doctor_shows_its_token_to_the_gateway_alone(authority: Authority) -> None:
    """Another process may have taken the port: it must not be told http.token."""
    stranger = settings(authority, token=True, name="stranger")
    seen: list[str] = []
    ours = settings(authority, token=True)
    async with serving(stranger) as server:
        judge = server._guard.judge
        server._guard.judge = lambda question: (seen.append(question.authorization), judge(question))[1]  # type: ignore[method-assign]
        found = await gather(RunningFacts(workers={0: 1}), ours.model_copy(update={"port": server.port}), timeout_s=20)
        assert found.status is None
        assert "certificate" in found.problem
        known = await gather(
            RunningFacts(workers={0: 1}), stranger.model_copy(update={"port": server.port}), timeout_s=20
        )
        assert known.status == {"reasons": ["of the test"]}
    assert seen == [f"Bearer {TOKEN}"]


async def test_an_answer_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.asking._PATIENCE", 0)

    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with played(drip) as port:
        with pytest.raises(TimeoutError, match="does not come to its end"):
            await asyncio.to_thread(ask, HttpSettings(port=port), "/status", timeout_s=20)
