"""The frames of a WebSocket (RFC 6455), after paho's handshake.

paho answers a ping without a mask, for which a server must close (section 5.1), and also in the middle of another
frame. It reads each frame with three calls.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10
_FINAL: Final = 0x80
_MASKED: Final = 0x80
_MOST: Final = {_CONTINUATION: 127, _BINARY: 127, _CLOSE: 125, _PING: 125, _PONG: 125}
"""The length that a frame's second byte may say, for the mask's bit is 0. Control frames are short (section 5.5): they
are kept until they are complete."""
_LENGTHS: Final = {126: 2, 127: 8}  # bytes of the length that follows instead


class WebSocket:
    """Gives and takes the bytes of MQTT on a socket, plain or TLS, whose handshake is over."""

    def __init__(self, transport: socket.socket) -> None:
        self._socket = transport
        self._received = bytearray()  # begin of a frame's header, or of a control frame
        self._left = 0  # bytes of the present data frame that have not come
        self._closed = False  # the server's close frame came
        self._control = bytearray()  # frames to be sent between two others
        self._out = bytearray()  # rest of the frames that the socket has taken in part
        self._taken = 0  # bytes of MQTT that it began with

    def recv(self, count: int) -> bytes:
        """Bytes of MQTT, empty at the end. Raises as a socket does, and ConnectionError for a frame that is not allowed
        here. Frames without such bytes are read until others come."""
        while not self._closed:
            data = self._socket.recv(count)
            if not data:
                return b""
            self._received += data
            payload = self._decode()
            if self._control:
                self._answer()
            if payload:
                return payload
        return b""

    def _decode(self) -> bytes:
        """Take the payload of data frames out of what was received, however little of them has come."""
        data, at, payload = self._received, 0, bytearray()
        while not self._closed:
            if self._left:
                part = data[at : at + self._left]
                payload += part
                at += len(part)
                self._left -= len(part)
            if len(data) - at < 2:
                break
            code, length = data[at] & 0x7F, data[at + 1]  # with reserved bits, and with the mask's: neither is allowed
            if length > _MOST.get(code, -1):
                raise ConnectionAbortedError(f"the server sent a WebSocket frame 0x{data[at]:02X} that MQTT cannot use")
            begin = at + 2 + _LENGTHS.get(length, 0)
            if len(data) < begin:
                break
            if length in _LENGTHS:
                length = int.from_bytes(data[at + 2 : begin])
            if code in {_CONTINUATION, _BINARY}:
                at, self._left = begin, length
                continue
            if len(data) < begin + length:
                break
            at = begin + length
            if code == _PING:
                self._control += _frame(_PONG, data[begin:at])
            elif code == _CLOSE:
                self._control += _frame(_CLOSE, data[begin:at])
                self._closed = True
        del data[:at]
        return bytes(payload)

    def send(self, data: bytes | bytearray) -> int:
        """How many bytes of ``data`` the socket took; 0: call again with the same bytes in front."""
        if not self._taken:
            self._out += self._control + _frame(_BINARY, data)
            self._control.clear()
            self._taken = len(data)
        return self._write()

    def _write(self) -> int:
        del self._out[: self._socket.send(self._out)]
        if self._out:
            return 0
        taken, self._taken = self._taken, 0
        return taken

    def _answer(self) -> None:
        """Send control frames, unless one of data is under way: then in front of the next one."""
        if not self._taken:
            self._out += self._control
            self._control.clear()
            with contextlib.suppress(OSError):  # no room, or the end: the next reading or writing meets it again
                self._write()

    def pending(self) -> int:
        """Bytes that a TLS layer holds already decrypted, and the end behind a close frame."""
        pending = getattr(self._socket, "pending", None)
        return self._closed + (pending() if pending is not None else 0)

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def close(self) -> None:
        self._socket.close()


def _frame(code: int, data: bytes | bytearray) -> bytes:
    """A whole frame with a mask, as a client must send them (sections 5.2 and 5.3)."""
    size, key = len(data), os.urandom(4)
    if size < 126:
        head = bytes((_FINAL | code, _MASKED | size))
    elif size < 1 << 16:
        head = bytes((_FINAL | code, _MASKED | 126)) + size.to_bytes(2)
    else:
        head = bytes((_FINAL | code, _MASKED | 127)) + size.to_bytes(8)
    mask = (key * (size // 4 + 1))[:size]
    return head + key + (int.from_bytes(data) ^ int.from_bytes(mask)).to_bytes(size)
