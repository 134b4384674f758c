"""A server on 127.0.0.1 that a test plays itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable


async def accepted_are_known() -> None:
    """After this, connections that came before a listener was closed have met the server's callback.

    asyncio takes three turns of its loop for it: accept, make the transport, tell the protocol.
    """
    for _ in range(4):
        await asyncio.sleep(0)


class PlayedServer:
    """Plays ``play`` to each connection, and closes it when that returns. ``stop`` leaves none of them open.

    ``port``: listen there; any free one unless given. Belongs to the event loop it is started in.
    """

    def __init__(
        self, play: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], *, port: int = 0
    ) -> None:
        self.port = port
        self._play = play
        self._server: asyncio.Server | None = None
        self._parts: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self) -> int:
        """The port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def stop(self) -> None:
        """Close the port and, at once, every connection, whatever is being played."""
        if self._server is None:
            return
        self._server.close()
        await accepted_are_known()
        parts = dict(self._parts)
        for part, writer in parts.items():
            part.cancel()
            writer.transport.abort()
        await asyncio.gather(*parts, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: a connection must be known even if its task is cancelled before its first step."""
        part = asyncio.ensure_future(self._serve(reader, writer))
        self._parts[part] = writer
        part.add_done_callback(self._parts.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, EOFError):
                await self._play(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def played(play: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """The port of a server that plays this to each connection. Afterwards every connection of it is closed."""
    server = PlayedServer(play)
    port = await server.start()
    try:
        yield port
    finally:
        await server.stop()
