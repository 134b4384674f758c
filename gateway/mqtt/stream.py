"""A socket for paho that has all packets except PUBLISH, PUBREL and PINGRESP, which the bulk path takes.

paho reads one packet at a time and builds objects for each: 13-60 µs a message. So paho gets this object instead of its
socket (``Client._create_socket`` is the one method overridden). A contract test runs it over every transport.

Bytes arrive through ``read``. The ingest takes the PUBLISH packets out, and ``control`` feeds the rest to paho.
Everything written goes through one buffer, so paho's packets and our acknowledgements keep their order.

During the connect a helper thread owns the object, afterwards the event loop's thread: never both.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

from bridge.certificate import Validity, shown_by
from config.errors import forget_frames

READ_BYTES = 256 * 1024
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class PacketStream:
    """Matches paho's ``SocketLike``. ``wrapped`` is the socket that paho would have used: plain or TLS, or a WebSocket.

    ``reads_in_frames``: it is TLS, whose reads give less than has arrived. ``want_write`` is called when something
    could not be written at once. Call ``flush`` when the descriptor is writable.
    """

    def __init__(self, wrapped: Any, *, reads_in_frames: bool) -> None:
        self._wrapped = wrapped
        self._reads_in_frames = reads_in_frames
        self.want_write: Callable[[], None] | None = (
            None  # called when the stream must wait until the descriptor is writable
        )
        self.control = bytearray()  # whole packets for paho
        self._out = bytearray()  # not written yet
        self._back = b""  # read, and put back
        self._is_at_end = False  # the last read met it behind its bytes
        self.closed = False
        self.failure: OSError | None = None  # why reading or writing ended, for the log

    def server_certificate(self) -> Validity | None:
        """How long the broker's certificate is valid; None without TLS, or after the end. Does not block."""
        if self.closed:
            return None
        for one in (self._wrapped, getattr(self._wrapped, "_socket", None)):  # within a WebSocket
            if isinstance(one, ssl.SSLSocket):
                return shown_by(one)
        return None

    # --- for the gateway: in the event loop's thread only
    # ------------------------------------------------------------------------------------------------

    def read(self) -> bytes | None:
        """The bytes that have arrived, about 256 KiB at most. None without any, empty at the end of the stream. Does
        not block."""
        if self._back:
            back, self._back = self._back, b""
            return back
        data = self._receive()
        if not self._reads_in_frames or not data:
            return data
        # TLS gives a record at a time, and brokers put each packet into one of its own: read paced, one a tick would be
        # a message a tick (TLS took 5 s for 2,000). ``pending`` does not help: it knows the rest of this record only.
        frames, size = [data], len(data)
        while size < READ_BYTES and (data := self._receive()):
            frames.append(data)
            size += len(data)
        self._is_at_end = data == b""  # the next read says so again
        return b"".join(frames)

    def _receive(self) -> bytes | None:
        """Read once: None without bytes, empty at the end of the stream or after a failure."""
        try:
            return self._wrapped.recv(READ_BYTES)  # type: ignore[no-any-return]
        except _WOULD_BLOCK:
            return None
        except OSError as error:
            self._fail(error)
            return b""

    def _fail(self, error: OSError) -> None:
        forget_frames(error)  # one of them refers to this stream
        self.failure = error

    def put_back(self, data: bytes) -> None:
        """Have the next ``read`` return these bytes, of the last one, again."""
        self._back = data

    def pending(self) -> int:
        """Bytes put back, those that a TLS layer holds already decrypted, and an end that was read with bytes before
        it: the descriptor will not become readable for them."""
        pending = getattr(self._wrapped, "pending", None)
        return len(self._back) + self._is_at_end + (pending() if pending is not None else 0)

    def write(self, data: bytes) -> None:
        """Queue bytes behind everything written before, and write what the socket takes now. Does not block."""
        self._out += data
        if not self.flush() and self.want_write is not None:
            self.want_write()

    def flush(self) -> bool:
        """Write what the socket takes; True when nothing is left. A broken socket takes everything: the reader sees its
        end."""
        out = self._out
        while out:
            try:
                # A partial write of a WebSocket frame answers 0 and wants the same bytes again: they are still in
                # front.
                count = self._wrapped.send(out)
            except _WOULD_BLOCK:
                return False
            except OSError as error:
                self._fail(error)
                out.clear()
                return True
            if not count:
                return False
            del out[:count]
        return True

    @property
    def unwritten(self) -> int:
        return len(self._out)

    # --- paho's ------------------------------------------------------------------------------------

    def recv(self, count: int) -> bytes:
        """paho reads its packets here, out of ``control``."""
        control = self.control
        if not control:
            raise BlockingIOError
        data = bytes(control[:count])
        del control[:count]
        return data

    def send(self, data: bytes | bytearray) -> int:
        self.write(bytes(data))
        return len(data)

    def fileno(self) -> int:
        return self._wrapped.fileno()  # type: ignore[no-any-return]

    def setblocking(self, flag: bool) -> None:
        self._wrapped.setblocking(flag)
        if not flag:
            self._tune()

    def close(self) -> None:
        """May be called twice."""
        if not self.closed:
            self.closed = True
            # A DISCONNECT, if there is one: two bytes that fit. Not while the connecting thread still writes: given up
            # on in the middle of a send, its buffer cannot be touched from here.
            if self.want_write is not None:
                self.flush()
            self._wrapped.close()

    def _tune(self) -> None:
        raw = getattr(self._wrapped, "_socket", self._wrapped)
        with contextlib.suppress(OSError, AttributeError):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def set_user_timeout(self, milliseconds: int) -> None:
        """Make the kernel drop a peer that acknowledges nothing, even while reading is paused (tcp(7):
        TCP_USER_TIMEOUT)."""
        raw = getattr(self._wrapped, "_socket", self._wrapped)
        with contextlib.suppress(OSError, AttributeError):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
