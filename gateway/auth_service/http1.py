"""HTTP/1.1 requests out of the bytes of a connection. No I/O, no clock: bytes in, requests out.

Just what EMQX's client and curl send: a head, and a body of a known length (RFC 9112). What is ambiguous is refused,
since the connection's next bytes could then be taken for a request that nobody sent.
"""

from __future__ import annotations

__all__ = ["HEAD_MAX", "Head", "Refusal", "Request", "RequestParser"]

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_MAX: Final = 16 << 10  # EMQX's is some 300 bytes

_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,8192}) HTTP/1\.([01])")
# Field names are tokens, and nothing stands between one and its colon; values hold no control characters. Possessive:
# whatever comes, it is looked at once.
_FIELDS: Final = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[\t -~\x80-\xff]*+\r\n)*+")
_KNOWN: Final = frozenset(
    (
        b"authorization",
        b"connection",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"transfer-encoding",
    )
)
_DIGITS: Final = re.compile(rb"[0-9]{1,15}")


class Head(NamedTuple):
    """What is known of a request before its body. Texts are as they came, but for white space around them."""

    method: bytes
    target: bytes
    length: int  # of the body
    keep_alive: bool
    content_type: bytes
    authorization: bytes
    expects_continue: bool


class Request(NamedTuple):
    """A whole request. ``body`` is None where it was not kept: too large, or not worth reading."""

    head: Head
    body: bytes | None


class Refusal(NamedTuple):
    """What is no request of HTTP/1.1, or none that is understood. Nothing after it can be read."""

    status: int
    reason: str


class RequestParser:
    """Holds what has come and not been taken; a head and a body at most, and what came together with them.

    Args:
        wanted: whether the body of a request with this head is to be kept. Asked once for each, before its body is
            there.
    """

    __slots__ = ("_at", "_continue_due", "_data", "_dropping", "_ended", "_head", "_part", "_there", "_wanted")

    def __init__(self, wanted: Callable[[Head], bool]) -> None:
        self._wanted = wanted
        self._data = b""
        self._at = 0  # what stands before it in _data is done with
        self._head: Head | None = None  # whose body is awaited; _data is then empty
        self._part = bytearray()  # of that body
        self._there = 0  # bytes of it that have come
        self._dropping = False  # it, instead of keeping it
        self._continue_due = False
        self._ended = False

    @property
    def inside(self) -> bool:
        """Whether a request has begun and is not complete."""
        return self._head is not None or self._at < len(self._data)

    def continue_due(self) -> bool:
        """Whether the client waits for "100 Continue" before it sends the body; true once for each."""
        due, self._continue_due = self._continue_due, False
        return due

    def feed(self, data: bytes) -> None:
        """Takes bytes; then ``take`` until it returns None."""
        if self._ended:
            return
        if self._head is not None:
            self._there += len(data)
            if not self._dropping:
                self._part += data
            if self._there < self._head.length:
                return
            if self._dropping:
                self._data, self._at = data, len(data) - (self._there - self._head.length)
            else:
                self._data, self._at = bytes(self._part), 0
                self._part = bytearray()
        elif self._at == len(self._data):
            self._data, self._at = data, 0
        else:
            self._data, self._at = self._data[self._at :] + data, 0

    def take(self) -> Request | Refusal | None:
        """The next request that is complete, in order; None when more bytes are needed. After a Refusal nothing
        follows."""
        head = self._head
        if head is not None:
            if self._there < head.length:
                return None
            self._head, self._there = None, 0
            if self._dropping:
                self._dropping = False
                return Request(head, None)
            return Request(head, self._cut(head.length))
        return self._ended_by(found) if isinstance(found := self._take_new(), Refusal) else found

    def _take_new(self) -> Request | Refusal | None:
        data = self._data
        while data.startswith(b"\r\n", self._at):  # RFC 9112, 2.2: an empty line in front is to be ignored
            self._at += 2
        at = self._at
        end = data.find(_END, at, at + HEAD_MAX)
        if end < 0:
            return Refusal(431, "the head is too long") if len(data) - at >= HEAD_MAX else None
        head = _parse_head(data[at : end + 2])
        if isinstance(head, Refusal):
            return head
        self._at = end + 4
        if not self._wanted(head):
            return self._drop(head)
        if len(data) - self._at >= head.length:
            return Request(head, self._cut(head.length))
        self._part += data[self._at :]
        self._await_body(head)
        return None

    def _drop(self, head: Head) -> Request | None:
        if len(self._data) - self._at >= head.length:
            self._at += head.length
            return Request(head, None)
        self._dropping = True
        self._await_body(head)
        return None

    def _await_body(self, head: Head) -> None:
        self._head, self._there = head, len(self._data) - self._at
        self._continue_due = head.expects_continue and not self._there
        self._data, self._at = b"", 0

    def _cut(self, length: int) -> bytes:
        start, self._at = self._at, self._at + length
        return self._data[start : self._at]

    def _ended_by(self, refusal: Refusal) -> Refusal:
        self._ended = True
        self._data, self._at = b"", 0
        return refusal


def _parse_head(lines: bytes) -> Head | Refusal:
    """``lines``: request line and fields, each with its line end."""
    first = lines.find(b"\r\n")
    line = _REQUEST_LINE.fullmatch(lines, 0, first)
    if line is None:
        return Refusal(400, "the request line is none of HTTP/1.1")
    fields = _FIELDS.fullmatch(lines, first + 2)
    if fields is None:
        return Refusal(400, "a header field is malformed")
    method, target, minor = line.groups()
    length = hosts = 0
    sized = authorised = False
    keep_alive = minor == b"1"
    content_type = authorization = b""
    expects_continue = False
    for field in lines[first + 2 : -2].split(b"\r\n"):
        name, _, value = field.partition(b":")
        name = name.lower()
        if name not in _KNOWN:
            continue
        match name:
            case b"content-length":
                value = value.strip(b" \t")
                if sized or not _DIGITS.fullmatch(value):
                    return Refusal(400, "the content-length is no number, or there are two")
                length, sized = int(value), True
            case b"content-type":
                content_type = value.strip(b" \t")
            case b"authorization":
                if authorised:
                    return Refusal(400, "there are two authorization fields")
                authorization, authorised = value.strip(b" \t"), True
            case b"connection":
                tokens = {token.strip(b" \t") for token in value.lower().split(b",")}
                keep_alive = b"close" not in tokens and (keep_alive or b"keep-alive" in tokens)
            case b"host":
                hosts += 1
            case b"transfer-encoding":
                return Refusal(411, "the length of the body is not given (transfer-encoding)")
            case b"expect":
                if value.strip(b" \t").lower() != b"100-continue":
                    return Refusal(417, "an expectation is unknown")
                expects_continue = minor == b"1"
    if hosts != 1 and (minor == b"1" or hosts):
        return Refusal(400, "there is no host field, or there are two")
    return Head(method, target, length, keep_alive, content_type, authorization, expects_continue)
