"""One HTTP connection: requests in, answers out in the order of the requests, each wait bounded by a timeout.

EMQX sends up to a hundred requests on a connection before it has an answer (``enable_pipelining``). They are handled in
parallel. HTTP requires answers in order, so an answer that waits for a hash delays the answers behind it. Such waits
overlap and do not add up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, Protocol, cast

from gateway.http.http1 import Head, Refusal, Request, RequestParser

_LINGER_S: Final = 2.0  # for what follows a refused request
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Exchange:
    """A request without an answer so far. The first call of ``answer`` counts; later ones have no effect."""

    __slots__ = ("_connection", "data")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.data: bytes | None = None

    @property
    def answered(self) -> bool:
        """Whether it has an answer, sent or waiting for earlier ones."""
        return self.data is not None

    def answer(self, data: bytes) -> None:
        """Sends the answer after all earlier ones."""
        if self.data is None:
            self.data = data
            self._connection.flush()


class Site(Protocol):
    """The server of a connection. Its methods must neither raise nor block. With ``open_max`` open requests the
    connection is not read."""

    open_max: int
    read_timeout_s: float

    def wanted(self, head: Head) -> bool:
        """Whether to keep the body of a request."""

    def respond(self, connection: Connection, request: Request) -> bytes | Exchange:
        """A complete HTTP answer, or the exchange that will get one."""

    def refuse(self, refusal: Refusal) -> bytes:
        """The HTTP answer to an invalid request; the connection ends after it."""

    def opened(self, connection: Connection) -> None:
        """Note a new connection."""

    def lost(self, connection: Connection) -> None:
        """Note the end of a connection."""

    def timed_out(self, *, writing: bool) -> None:
        """Note a connection that is closed because the peer was too slow to send a request or to read answers."""


class Connection(asyncio.Protocol):
    """The protocol of one connection. Belongs to the event loop."""

    def __init__(self, site: Site, loop: asyncio.AbstractEventLoop) -> None:
        self._site = site
        self._open_max = site.open_max
        self._loop = loop
        self._parser = RequestParser(site.wanted)
        self._waiting: deque[Exchange] = (
            deque()
        )  # exchanges whose answers are not sent, in order; the first has no answer
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = (
            None  # limits the time for a request to arrive, or for answers to be read
        )
        self._requests = 0  # requests so far
        self._timed_request = -1  # number of the request that the timer is for
        self._buffer_is_full = False  # the peer does not read its answers, and the transport's buffer is full
        self._reading_paused = False  # reading is paused
        self._refused = False  # the peer may send more after a refused request
        self._ending = False  # no request is read any more; closes after the last answer
        self._tls = False

    def __repr__(self) -> str:
        return f"<Connection {self._requests} requests, {len(self._waiting)} waiting>"

    @property
    def idle(self) -> bool:
        """Whether no answer is due."""
        return not self._waiting

    def extra_info(self, name: str) -> Any:
        """A fact about the connection, by the names of ``asyncio.BaseTransport.get_extra_info``."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def end(self) -> None:
        """Stops reading requests, and closes after the pending answers."""
        self._ending = True
        self._pause_reading()
        self._close_if_done()

    def abort(self) -> None:
        """Closes at once; unsent answers are lost."""
        if self._transport is not None:
            self._transport.abort()

    # ---- what the event loop calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts to read."""
        self._transport = cast("asyncio.Transport", transport)
        self._tls = transport.get_extra_info("ssl_object") is not None
        self._site.opened(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - whose end it was makes no difference
        """Drops the answers. Their verifications continue, so that the cache has the results."""
        self._transport = None
        self._parser.close()
        self._waiting.clear()
        self._stop_timer()
        self._site.lost(self)

    def data_received(self, data: bytes) -> None:
        """Answers complete requests."""
        if self._ending:
            return
        self._parser.feed(data)
        self._work()

    def eof_received(self) -> bool:
        """The peer sends no more but may still read, except with TLS."""
        self._ending = True
        self._refused = False
        if not self._buffer_is_full:
            self._stop_timer()
        self._close_if_done()
        return not self._tls and bool(self._waiting)

    def pause_writing(self) -> None:
        """The peer reads answers too slowly: reading of requests pauses."""
        self._buffer_is_full = True
        self._pause_reading()
        self._start_timer()

    def resume_writing(self) -> None:
        """The peer has read its answers: reading continues."""
        self._buffer_is_full = False
        self._stop_timer()
        if self._ending:
            self._close_if_done()
        else:
            self._work()

    # ---- answers ----

    def flush(self) -> None:
        """Sends all answers before the first missing one."""
        waiting = self._waiting
        if self._transport is None or not waiting or waiting[0].data is None:
            return
        ready = []
        while waiting and (data := waiting[0].data) is not None:
            ready.append(data)
            waiting.popleft()
        self._transport.write(b"".join(ready) if len(ready) > 1 else ready[0])
        if self._ending:
            self._close_if_done()
        elif self._reading_paused and not self._buffer_is_full:
            self._work()

    def _work(self) -> None:
        """Handles received requests, unless too many answers wait."""
        ready: list[bytes] = []
        while not self._ending and not self._buffer_is_full and len(self._waiting) < self._open_max:
            found = self._parser.take()
            if found is None:
                break
            self._requests += 1
            if isinstance(found, Refusal):
                answer: bytes | Exchange = self._site.refuse(found)
                closes = self._refused = True
            else:
                answer = self._site.respond(self, found)
                closes = not found.head.keep_alive
            if isinstance(answer, bytes) and not self._waiting:
                ready.append(answer)
            else:
                self._enqueue(answer)
            self._ending = closes
        if ready and self._transport is not None:
            self._transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
        self._after_work()

    def _enqueue(self, answer: bytes | Exchange) -> None:
        if isinstance(answer, bytes):
            data, answer = answer, Exchange(self)
            answer.data = data
        self._waiting.append(answer)

    def _after_work(self) -> None:
        """Stop or resume reading, and start or stop the timer of the request that is arriving."""
        if self._ending:
            self._pause_reading()
            self._close_if_done()
        elif self._buffer_is_full or len(self._waiting) >= self._open_max:
            self._pause_reading()
        else:
            self._resume_reading()
            if self._parser.inside:
                if self._timed_request != self._requests:
                    self._start_timer()
                if self._parser.continue_due() and self._transport is not None and not self._waiting:
                    self._transport.write(_CONTINUE)
            elif self._timer is not None:
                self._stop_timer()

    def _close_if_done(self) -> None:
        """At the end, close once all answers are sent; after a refused request only when the peer had time to read
        it."""
        if self._transport is None or self._waiting:
            return
        if self._refused:
            if self._buffer_is_full:
                return  # ``resume_writing`` calls again
            # Bytes that nobody reads would reset the connection, and the peer lose its answers (RFC 9112, 9.6).
            self._refused = False
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._resume_reading()
            self._stop_timer()
            self._timer = self._loop.call_later(_LINGER_S, self._close_if_done)
            return
        self._transport.close()  # after its buffer is sent, for which the peer has the same time as for a request
        if not self._buffer_is_full:
            self._start_timer()

    # ---- reading, and its time ----

    def _pause_reading(self) -> None:
        """Stop reading; the present request may take its time meanwhile."""
        if not self._reading_paused and self._transport is not None and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()
            if not self._buffer_is_full:
                self._stop_timer()  # the delay is not the peer's

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timed_request = self._requests
        self._timer = self._loop.call_later(self._site.read_timeout_s, self._time_out)

    def _stop_timer(self) -> None:
        self._timed_request = -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        """Closes the connection: the peer sent no whole request, or did not read its answers, in time."""
        self._timer = None
        if self._transport is not None:
            self._site.timed_out(writing=self._buffer_is_full or self._ending)
            self._transport.abort()
