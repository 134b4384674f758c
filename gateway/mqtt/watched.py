"""A small connection in the event loop: its socket is read and written when it is ready, and paho keeps it alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from config.error_words import words

if TYPE_CHECKING:
    from datetime import timedelta

    from gateway.mqtt.client import PahoClient
    from gateway.mqtt.stream import PacketStream

_CHECKS_IN_KEEPALIVE: Final = 3


class WatchedStream:
    """Watches a stream from the beginning until ``stop``. Belongs to the event loop's thread.

    ``take`` gets what was read, and adds to ``stream.control`` what is paho's. ``ended`` is called with the reason when
    the connection has ended, ``written`` when all that waited has been written.
    """

    def __init__(
        self,
        client: PahoClient,
        stream: PacketStream,
        keepalive: timedelta,
        *,
        take: Callable[[bytes], None],
        ended: Callable[[str], None],
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """``take`` gets bytes, ``ended`` the reason; ``written`` is called when nothing waits to be written."""
        self._client, self._stream = client, stream
        self._keepalive_s = keepalive.total_seconds()
        self._take, self._ended, self._written = take, ended, written
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_writing = False
        self._is_stopped = False
        self._descriptor = stream.fileno()
        stream.want_write = self._want_write
        stream.set_user_timeout(int(self._keepalive_s * 3000))
        self._loop.add_reader(self._descriptor, self._read)
        if stream.pending():
            self._loop.call_soon(self._read)
        if not stream.flush():
            self._want_write()

    def keep_alive(self) -> None:
        """Ping from now on. paho pings more often than it must, if it does not see all packets, and notices a silent
        broker."""
        if not self._is_stopped:
            self._timer = self._loop.call_later(self._keepalive_s / _CHECKS_IN_KEEPALIVE, self._check)

    def stop(self) -> None:
        """Watch no longer; the stream stays open. A second call is allowed."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._loop.remove_reader(self._descriptor)
        if self._is_writing:
            self._loop.remove_writer(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()

    def _read(self) -> None:
        """Give what has arrived to ``take``, then paho its packets; call ``ended`` at the end of the stream."""
        stream, client = self._stream, self._client
        if self._is_stopped or stream.closed or (data := stream.read()) is None:
            return
        if data:
            self._take(data)
            while stream.control and not stream.closed:
                client.loop_read()
            if not stream.closed and client.want_write():
                client.loop_write()
        if not data or stream.closed:
            self._ended(words(stream.failure) if stream.failure else "the broker closed the connection")
        elif stream.pending():
            self._loop.call_soon(self._read)

    def _want_write(self) -> None:
        if not (self._is_writing or self._is_stopped):
            self._is_writing = True
            self._loop.add_writer(self._descriptor, self._write)

    def _write(self) -> None:
        if self._stream.flush():
            self._loop.remove_writer(self._descriptor)
            self._is_writing = False
            self._written()

    def _check(self) -> None:
        self._client.loop_misc()
        self.keep_alive()
