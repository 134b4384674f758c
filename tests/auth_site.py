"""The server that EMQX asks, on a free port, with decisions that a test scripts; and a client that counts bytes."""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from auth.model import AccessAnswer, AccessRequest, LoginAnswer, LoginRequest
from config.settings import AuthSettings
from gateway.auth_service.dialect import DENY
from gateway.auth_service.metrics import AuthMetrics
from gateway.auth_service.server import AuthServer
from tests.waiting import DEADLINE_S


@dataclass
class Scripted:
    """Decisions by user name: ``allow`` and ``deny`` at once; ``wait`` when its event is set; ``defect`` and
    ``late defect`` raise; any other name is told to ``asked`` and answered after ``hold`` is set."""

    hold: asyncio.Event = field(default_factory=asyncio.Event)
    logins: list[LoginRequest] = field(default_factory=list)
    accesses: list[AccessRequest] = field(default_factory=list)
    cancelled: int = 0

    def login_at_once(self, request: LoginRequest) -> LoginAnswer | None:
        self.logins.append(request)
        match request.username:
            case "allow":
                return LoginAnswer("allow", b'{"result":"allow","is_superuser":false}')
            case "deny":
                return LoginAnswer("deny", DENY)
            case "ignore":
                return LoginAnswer("ignore", b'{"result":"ignore"}')
            case "defect":
                raise ZeroDivisionError("a defect of the decisions")
            case "large":
                return LoginAnswer("allow", b'{"result":"allow","x":"' + b"x" * 100_000 + b'"}')
            case _:
                return None

    async def login(self, request: LoginRequest) -> LoginAnswer:
        if request.username == "late defect":
            await asyncio.sleep(0)
            raise ZeroDivisionError("a defect of the decisions")
        try:
            if request.username != "soon":
                await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return LoginAnswer("allow", json.dumps({"result": "allow", "user": request.username}).encode())

    def authorise(self, request: AccessRequest) -> AccessAnswer:
        self.accesses.append(request)
        if request.topic == "defect":
            raise ZeroDivisionError("a defect of the decisions")
        if request.topic.startswith("mine/"):
            return AccessAnswer("allow", b'{"result":"allow"}')
        return AccessAnswer("deny", DENY)

    def backend_down(self, reason: str) -> LoginAnswer:
        return LoginAnswer("deny", DENY, reason)


@dataclass
class Answer:
    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def result(self) -> str:
        """Of a 200: what EMQX understands."""
        assert self.status == 200, self
        assert self.fields["content-type"] == "application/json", self
        return str(json.loads(self.body)["result"])


class RawClient:
    """A connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> Answer:
        """The next answer; fails when the connection ends before it."""
        async with asyncio.timeout(DEADLINE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
            status = int(lines[0].split(" ")[1])
            length = int(fields.get("content-length", "0"))
            return Answer(status, fields, await self.reader.readexactly(length))

    async def ended(self) -> bytes:
        """What comes until the server closes; fails when it does not."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def post(body: dict[str, Any] | bytes, path: str = "/authn", *fields: str) -> bytes:
    """A request as EMQX 5 sends it."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: localhost:8085",
        "accept: application/json",
        "cache-control: no-cache",
        "connection: keep-alive",
        "keep-alive: timeout=30, max=1000",
        "content-type: application/json",
        f"content-length: {len(data)}",
        *fields,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def login(username: str, *fields: str) -> bytes:
    """A login of this user."""
    return post({"username": username, "clientid": "c", "password": "p"}, "/authn", *fields)


@dataclass
class AuthSite:
    """A running server, and what its tests look at."""

    server: AuthServer
    decisions: Scripted
    metrics: AuthMetrics
    clients: list[RawClient] = field(default_factory=list)

    async def connect(self, tls: ssl.SSLContext | None = None, **options: Any) -> RawClient:
        port = int(self.server.url.rpartition(":")[2])
        if tls is not None:
            options.setdefault("server_hostname", "localhost")
        async with asyncio.timeout(DEADLINE_S):
            client = RawClient(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, **options))
        self.clients.append(client)
        return client

    async def ask(self, *requests: bytes) -> list[Answer]:
        """The answers to requests sent at once on one new connection."""
        client = await self.connect()
        client.send(b"".join(requests))
        return [await client.answer() for _ in requests]

    def count(self, name: str, *labels: str) -> float:
        return getattr(self.metrics, name).read()[labels]


@contextlib.asynccontextmanager
async def auth_site(
    settings: AuthSettings, decisions: Any = None, context: Callable[[], ssl.SSLContext] | None = None
) -> AsyncIterator[AuthSite]:
    """A server with these settings, whose port is a free one."""
    metrics = AuthMetrics(settings)
    decisions = Scripted() if decisions is None else decisions
    server = AuthServer(settings.model_copy(update={"port": 0}), decisions, metrics, context=context)
    await server.start()
    site = AuthSite(server, decisions, metrics)
    try:
        yield site
    finally:
        for client in site.clients:
            await client.close()
        await server.stop(time.monotonic_ns())
