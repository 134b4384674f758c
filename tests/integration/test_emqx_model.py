"""The model of EMQX, against an HTTP server that answers what a test tells it to: what each answer leads to."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auth.store.first_start import emqx_files
from tests.brokers.emqx_auth import Connection, EmqxModel
from tests.brokers.emqx_conf import HoconError, deployed
from tests.servers.playing import PlayedServer

JSON = "application/json; charset=utf-8"


class Scripted:
    """Answers each request with what ``answers`` says for its path: (status, content type, body)."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str | None, bytes]] = {}
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self._server = PlayedServer(self._serve)

    async def start(self) -> int:
        return await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    def says(self, path: str, body: Any = None, status: int = 200, content_type: str | None = JSON) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers[path] = (status, content_type, data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            lines = [line.partition(": ") for line in head.split("\r\n")[1:-2]]
            headers = {name: value for name, _, value in lines}
            body = await reader.readexactly(int(headers["content-length"]))
            self.seen.append((path, headers, json.loads(body)))
            status, content_type, data = self.answers[path]
            extra = "" if content_type is None else f"content-type: {content_type}\r\n"
            length = "" if status == 204 else f"content-length: {len(data)}\r\n"
            writer.write(f"HTTP/1.1 {status} X\r\n{extra}{length}\r\n".encode() + (b"" if status == 204 else data))


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    yield scripted
    await scripted.stop()


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """EMQX's files of secrets."""
    for file, text in emqx_files("of-the-test", "of-the-test", "of-the-test").items():
        (tmp_path / file).write_text(text)
    return tmp_path


@pytest.fixture
async def emqx(server: Scripted, secrets: Path) -> AsyncIterator[EmqxModel]:
    # How long an answer takes is not what this is about, and a late one would be asked for again.
    async with EmqxModel(deployed(secrets, await server.start(), request_timeout_s=60.0)) as model:
        yield model


async def test_a_login_asks_what_the_configuration_says(emqx: EmqxModel, server: Scripted) -> None:
    server.says("/authn", {"result": "allow", "client_attrs": {"tenant": "acme", "groups": "a,b", "bad name": "x"}})
    server.says("/authz", {"result": "allow"})
    made = await emqx.connect("u", "c", 'p"ä', peerhost="10.0.0.1")
    assert isinstance(made, Connection)
    [(path, headers, body)] = server.seen
    assert path == "/authn"
    assert headers["authorization"] == "Bearer of-the-test"
    assert headers["content-type"] == "application/json"
    assert body == {"username": "u", "clientid": "c", "password": 'p"ä', "peerhost": "10.0.0.1", "cert_common_name": ""}
    assert await emqx.subscribe(made, "$share/g/a/#", 1) == "allow"
    assert server.seen[1][2] == {
        "username": "u",
        "clientid": "c",
        "peerhost": "10.0.0.1",
        "cert_common_name": "",
        "topic": "a/#",
        "action": "subscribe", "qos": "1", "retain": "false", "tenant": "acme", "groups": "a,b",
    }  # fmt: skip
    assert "bad name" not in made.client.client_attrs


@pytest.mark.parametrize(("answer", "lets_in"), [
    ({"body": {"result": "allow"}}, True),
    ({"body": b"", "status": 204}, True),
    ({"body": b"result=allow", "content_type": "application/x-www-form-urlencoded"}, True),
    ({"body": {"result": "deny"}}, False),
    ({"body": {"result": "ignore"}}, False),
    ({"body": {}}, False),
    ({"body": []}, False),
    ({"body": {"result": "yes"}}, False),
    ({"body": b"{"}, False),
    ({"body": {"result": "allow"}, "content_type": "text/plain"}, False),
    ({"body": {"result": "allow"}, "content_type": None}, False),
    ({"body": {"result": "allow"}, "status": 201}, False),
    ({"body": {"result": "deny"}, "status": 403}, False),
    ({"body": {"result": "allow"}, "status": 500}, False),
    ({"body": {"result": "allow", "expire_at": 1}}, False),
    ({"body": {"result": "allow", "expire_at": int(time.time() * 1000) + 60_000}}, False),
    ({"body": {"result": "allow", "expire_at": str(int(time.time()) + 86_400)}}, False),
    ({"body": {"result": "allow", "expire_at": int(time.time()) + 86_400}}, True),
    ({"body": {"result": "allow", "acl": [{"permission": "allow"}]}}, False),
    ({"body": {"result": "allow", "acl": {"pub": ["#"]}}}, False),
    ({"body": {"result": "allow", "client_attrs": ["a"]}}, False),
])  # fmt: skip
async def test_what_an_answer_to_a_login_leads_to(
    emqx: EmqxModel, server: Scripted, answer: dict[str, Any], *, lets_in: bool
) -> None:
    server.says("/authn", **answer)
    made = await emqx.connect("u", "c", "p")
    assert isinstance(made, Connection) is lets_in, made


@pytest.mark.parametrize(("answer", "by"), [
    ({"body": {"result": "deny"}}, "http"),
    ({"body": {"result": "ignore"}}, "file"),
    ({"body": {}}, "file"),
    ({"body": b"{"}, "file"),
    ({"body": {"result": "allow"}, "status": 403}, "file"),
    ({"body": {"result": "allow"}, "status": 500}, "file"),
    ({"body": {"result": "allow"}, "content_type": "text/html"}, "file"),
])  # fmt: skip
async def test_no_answer_but_a_clear_one_lets_publish(
    emqx: EmqxModel, server: Scripted, answer: dict[str, Any], by: str
) -> None:
    server.says("/authn", {"result": "allow"})
    server.says("/authz", **answer)
    made = await emqx.connect("u", "c", "p")
    assert isinstance(made, Connection)
    assert await emqx.publish(made, "a") == "deny"
    assert made.decided_by == by
    # With EMQX's own defaults, the same answer lets it through: what no_match and acl.conf are there against.
    async with EmqxModel(replace(emqx.conf, sources=emqx.conf.sources[:1], no_match="allow")) as stock:
        assert await stock.publish(replace(made, cache=made.cache.__class__()), "a") == (
            "deny" if by == "http" else "allow"
        )


async def test_rules_of_the_login_come_first_and_superusers_are_not_judged(emqx: EmqxModel, server: Scripted) -> None:
    server.says("/authz", {"result": "allow"})
    server.says("/authn", {"result": "allow", "acl": [{"permission": "deny", "action": "all", "topic": "x/#"}]})
    made = await emqx.connect("u", "c", "p")
    assert isinstance(made, Connection)
    assert await emqx.publish(made, "x/1") == "deny"
    assert made.decided_by == "login"
    assert await emqx.publish(made, "y") == "allow"
    assert made.decided_by == "http"
    server.says("/authn", {"result": "allow", "is_superuser": True})
    root = await emqx.connect("root", "r", "p")
    assert isinstance(root, Connection)
    assert await emqx.publish(root, "x/1") == "allow"
    assert root.decided_by == "superuser"


async def test_an_answer_is_cached_for_its_connection(server: Scripted, secrets: Path) -> None:
    clock = [1000.0]
    conf = deployed(secrets, await server.start(), request_timeout_s=60.0)
    server.says("/authn", {"result": "allow"})
    server.says("/authz", {"result": "allow"})
    async with EmqxModel(conf, now=lambda: clock[0]) as emqx:
        made = await emqx.connect("u", "c", "p")
        assert isinstance(made, Connection)
        for _ in range(3):
            assert await emqx.publish(made, "a") == "allow"
        assert emqx.asked == (1, 1)
        await emqx.publish(made, "a", 1)  # another QoS is another question
        assert emqx.asked == (1, 2)
        for number in range(32):
            await emqx.publish(made, f"t/{number}")
        await emqx.publish(made, "a")  # the oldest had to go
        assert emqx.asked == (1, 35)
        clock[0] += 60
        server.says("/authz", {"result": "deny"})
        assert await emqx.publish(made, "t/31") == "deny"


def test_a_missing_secret_stops_emqx(tmp_path: Path) -> None:
    with pytest.raises(HoconError, match="is not there"):
        deployed(tmp_path, 1)
