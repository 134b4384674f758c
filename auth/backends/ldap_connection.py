"""One connection to a directory, with one question at a time."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import Final

from auth.backends.ldap_messages import (
    Entry,
    MalformedError,
    Operation,
    Result,
    bind_request,
    decode_message,
    message_size,
    search_request,
    start_tls_request,
)

_ENTRIES_MAX: Final = 100  # for a server that ignores the search's limit


class EndedError(ConnectionError):
    """The server ended the connection during a question (notice of disconnection)."""

    def __init__(self, result: Result) -> None:
        super().__init__("the server ended the connection")
        self.result = result


class DirectoryConnection:
    """Made by ``connect``. After an exception its state is unknown: call ``abort``."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.Transport) -> None:
        self._reader = reader
        self._transport = transport
        self._number = 0
        self.bound_as: bytes | None = None  # None until the first bind, and after one that failed

    @classmethod
    async def connect(
        cls, host: str, port: int, context: ssl.SSLContext | None, *, start_tls: bool
    ) -> DirectoryConnection:
        """A connection, over TLS with a ``context``: from the first byte, or with ``start_tls`` after StartTLS. Raises
        OSError (TLS included), MalformedError, and EndedError when StartTLS is refused."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader), host, port, ssl=None if start_tls else context
        )
        made = cls(reader, transport)
        if context is not None and start_tls:
            try:
                await made._secure(context, host)
            except BaseException:
                made.abort()
                raise
        return made

    @property
    def closing(self) -> bool:
        return self._transport.is_closing() or self._reader.at_eof()

    def abort(self) -> None:
        """Close the connection. Never raises."""
        with contextlib.suppress(Exception):
            self._transport.abort()

    async def bind(self, name: bytes, password: bytes) -> Result:
        """The result of a bind with this name and password; both empty: anonymous."""
        self.bound_as = None
        result = await self._one(bind_request(self._next(), name, password), Operation.BIND_RESPONSE)
        if result.code == 0:
            self.bound_as = name
        return result

    async def search(
        self, base: bytes, query: bytes, *, whole_tree: bool, attributes: Sequence[str], limit: int, seconds: int
    ) -> tuple[Result, list[Entry]]:
        """The entries that the encoded filter ``query`` finds, ``limit`` at most, and how the search ended."""
        self._transport.write(
            search_request(
                self._next(), base, query, whole_tree=whole_tree, attributes=attributes, limit=limit, seconds=seconds
            )
        )
        found: list[Entry] = []
        while True:
            operation, what = await self._receive()
            if isinstance(what, Entry):
                found.append(what)
            elif isinstance(what, Result) and operation is Operation.SEARCH_DONE:
                return what, found
            elif what is not None:
                raise MalformedError("an answer is not of the kind that was asked for")
            if len(found) > _ENTRIES_MAX:
                raise MalformedError("the server sends more entries than were asked for")

    async def _secure(self, context: ssl.SSLContext, host: str) -> None:
        """StartTLS: continue the connection over TLS. Raises EndedError when it is refused."""
        result = await self._one(start_tls_request(self._next()), Operation.EXTENDED_RESPONSE)
        if result.code != 0:
            raise EndedError(result)
        # A new reader discards plain-text bytes that an attacker may have sent before TLS.
        self._reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(self._reader)
        secured = await asyncio.get_running_loop().start_tls(self._transport, protocol, context, server_hostname=host)
        if secured is None:
            raise ConnectionResetError("the connection ended during StartTLS")
        protocol.connection_made(secured)
        self._transport = secured

    async def _one(self, request: bytes, kind: Operation) -> Result:
        """The result of a request with one answer."""
        self._transport.write(request)
        operation, what = await self._receive()
        if operation is not kind or not isinstance(what, Result):
            raise MalformedError("an answer is not of the kind that was asked for")
        return what

    async def _receive(self) -> tuple[Operation, Result | Entry | None]:
        """The next message of the present request. Raises EndedError when the server ends the connection."""
        data = await self._reader.readexactly(2)
        while (size := message_size(data)) is None:
            data += await self._reader.readexactly(1)
        data += await self._reader.readexactly(size - len(data))
        message = decode_message(data)
        if message.number == 0 and isinstance(message.what, Result):  # RFC 4511 section 4.4.1
            raise EndedError(message.what)
        if message.number != self._number:
            raise MalformedError("an answer belongs to another question")
        return message.operation, message.what

    def _next(self) -> int:
        self._number = self._number % 0x7FFFFFFF + 1
        return self._number
