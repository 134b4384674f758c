"""A small HTTP proxy that does CONNECT and nothing else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import Self


class ConnectProxy:
    """Listens on 127.0.0.1 while its ``async with`` block runs. ``user``: (name, password) it asks for.

    ``targets`` is what it was asked to connect to, ``refuse`` an HTTP status it answers instead.
    """

    def __init__(self, user: tuple[str, str] | None = None, *, refuse: str | None = None) -> None:
        self.targets: list[str] = []
        self.port = 0
        self._authorization = f"basic {base64.b64encode(':'.join(user).encode()).decode()}" if user else None
        self._refuse = refuse
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ")
            headers = {}
            for line in lines[1:]:
                name, _, value = line.partition(": ")
                scheme, _, rest = value.partition(" ")
                headers[name.lower()] = f"{scheme.lower()} {rest}"
            assert method == "CONNECT"
            self.targets.append(target)
            if self._authorization is not None and headers.get("proxy-authorization") != self._authorization:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return
            if self._refuse is not None:
                writer.write(f"HTTP/1.1 {self._refuse}\r\n\r\n".encode())
                return
            host, _, port = target.rpartition(":")
            there, back = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
            finally:
                back.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            with contextlib.suppress(ConnectionError):
                writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.write_eof()
