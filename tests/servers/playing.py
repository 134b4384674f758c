"""A server on 127.0.0.1 that a test plays itself."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@contextlib.asynccontextmanager
async def played(play: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """The port of a server that plays this to each connection. Afterwards every connection of it is closed."""
    parts: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        parts.add(task)
        try:
            with contextlib.suppress(ConnectionError):
                await play(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
        if parts:
            _, left = await asyncio.wait(parts, timeout=5)
            for part in left:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
