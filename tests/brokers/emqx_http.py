"""EMQX's HTTP client towards an authentication service: a pool of connections, as ``ehttpc`` over ``gun`` works.

Each worker has one connection and a queue. At most ``pipelining`` requests of it are on the way, in order; one that
waits in the queue past its time is dropped; one that is on the way past its time stays there, its answer unheard, until
the answer comes or the connection ends. A broken connection costs the requests on it one of three attempts each.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from tests.brokers.emqx_conf import HttpConf

_ATTEMPTS = 3
_MAX_INACTIVE_S = 10.0  # how long after the last deadline a silent connection is kept


class RequestFailed(Exception):  # noqa: N818 - what EMQX calls {error, Reason}
    """There is no answer: ``timeout``, or why the connection broke."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass
class _Request:
    data: bytes
    deadline_s: float
    done: asyncio.Future[Answer]


class HttpPool:
    """The connections to one HTTP backend; opened when first used. Use it on one event loop, and close it."""

    def __init__(self, conf: HttpConf) -> None:
        self._conf = conf
        self._workers = [_Worker(conf) for _ in range(conf.pool_size)]
        self.requests = 0

    async def post(self, body: bytes) -> Answer:
        """The answer, or RequestFailed. EMQX picks any of its connections, busy ones too."""
        conf = self._conf
        worker = random.choice(self._workers)
        head = {
            "host": f"{conf.host}:{conf.port}",
            "user-agent": "gun/2.1.0",
            "content-length": str(len(body)),
            **conf.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        data = f"POST {conf.path} HTTP/1.1\r\n{lines}\r\n".encode() + body
        for attempt in range(1, _ATTEMPTS + 1):
            self.requests += 1
            loop = asyncio.get_running_loop()
            request = _Request(data, time.monotonic() + conf.request_timeout_s, loop.create_future())
            worker.submit(request)
            try:
                async with asyncio.timeout(conf.request_timeout_s):
                    return await request.done
            except TimeoutError:
                raise RequestFailed("timeout") from None
            except RequestFailed:
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self._workers))


class _Worker:
    def __init__(self, conf: HttpConf) -> None:
        self._conf = conf
        self._pending: deque[_Request] = deque()
        self._sent: deque[_Request] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._last_deadline_s = 0.0

    def submit(self, request: _Request) -> None:
        self._pending.append(request)
        self._shoot()

    def _shoot(self) -> None:
        now_s = time.monotonic()
        while self._pending and self._pending[0].deadline_s < now_s:
            self._pending.popleft()  # whoever asked has given up
        if self._sent and self._last_deadline_s and now_s - self._last_deadline_s > _MAX_INACTIVE_S:
            self._broken("inactive")
        while self._pending and len(self._sent) < self._conf.pipelining:
            if self._writer is None:
                if self._opening is None:
                    self._opening = asyncio.create_task(self._open())
                return
            request = self._pending.popleft()
            self._sent.append(request)
            self._last_deadline_s = max(self._last_deadline_s, request.deadline_s)
            self._writer.write(request.data)

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(self._conf.connect_timeout_s):
                reader, writer = await asyncio.open_connection(self._conf.host, self._conf.port)
        except OSError as error:  # TimeoutError among them
            self._opening = None
            if self._pending:
                _fail(self._pending.popleft(), str(error) or "connect timeout")
            self._shoot()
            return
        self._opening = None
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader))
        self._shoot()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        why = "closed"
        try:
            while True:
                answer, close = await _answer(reader)
                if not self._sent:
                    break
                request = self._sent.popleft()
                if not self._sent:
                    self._last_deadline_s = 0.0
                if not request.done.done() and time.monotonic() <= request.deadline_s:
                    request.done.set_result(answer)
                if close:
                    break
                self._shoot()
        except (OSError, EOFError, ValueError) as error:
            why = repr(error)
        self._reading = None
        self._broken(why)
        self._shoot()

    def _broken(self, why: str) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._last_deadline_s = 0.0
        sent, self._sent = self._sent, deque()
        for request in sent:
            _fail(request, why)

    async def close(self) -> None:
        tasks = [task for task in (self._reading, self._opening) if task is not None]
        self._pending.clear()
        writer = self._writer
        self._broken("closed here")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if writer is not None:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _fail(request: _Request, why: str) -> None:
    if not request.done.done():
        request.done.set_exception(RequestFailed(why))


async def _answer(reader: asyncio.StreamReader) -> tuple[Answer, bool]:
    """One response, and whether the connection ends with it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, status, *_ = head[0].split(" ")
    headers = {}
    for line in head[1:-2]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    body = b""
    if status != "204" and headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _chunks(reader)
    elif status != "204":
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    connection = headers.get("connection", "close" if version == "HTTP/1.0" else "keep-alive").lower()
    return Answer(int(status), headers, body), connection == "close"


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body
