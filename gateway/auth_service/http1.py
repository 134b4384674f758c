"""HTTP/1.1 requests out of the bytes of a connection. No I/O, no clock: bytes in, requests out.

httptools (llhttp, the parser of Node) reads; here is what a server has to add: a bound on the head, bodies that are not
kept, and a refusal of what is ambiguous, since the connection's next bytes could then be taken for a request that
nobody sent.
"""

from __future__ import annotations

__all__ = ["HEAD_MAX", "Head", "Refusal", "Request", "RequestParser"]

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import httptools

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_MAX: Final = 16 << 10  # EMQX's is some 300 bytes


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


class _RefusedError(Exception):
    """Ends the parsing from within; ``refusal`` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class RequestParser:
    """Holds what has come and not been taken: the requests of one read, and the one that is not complete.

    Args:
        wanted: whether the body of a request with this head is to be kept. Asked once for each, before its body is
            there.
    """

    __slots__ = (
        "_authorization",
        "_body",
        "_content_type",
        "_continue_due",
        "_ended",
        "_expects_continue",
        "_fed_bytes",
        "_fields_bytes",
        "_found",
        "_head",
        "_hosts",
        "_inside",
        "_length",
        "_parser",
        "_target",
        "_wanted",
    )

    def __init__(self, wanted: Callable[[Head], bool]) -> None:
        self._wanted = wanted
        self._found: deque[Request | Refusal] = deque()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._inside = False
        self._ended = False
        self._continue_due = False
        self._head: Head | None = None  # of the request that is inside, once it is complete
        self._target = b""
        self._length = -1
        self._hosts = 0
        self._fields_bytes = 0
        self._fed_bytes = 0  # in reads that brought nothing but a part of one head
        self._content_type = b""
        self._authorization: bytes | None = None
        self._expects_continue = False
        self._body: list[bytes] | None = None

    @property
    def inside(self) -> bool:
        """Whether a request has begun and is not complete."""
        return self._inside

    def continue_due(self) -> bool:
        """Whether the client waits for "100 Continue" before it sends the body; true once for each."""
        due, self._continue_due = self._continue_due, False
        return due

    def feed(self, data: bytes) -> None:
        """Takes bytes; then ``take`` until it returns None."""
        if self._parser is None or not data:
            return
        if not self._inside:
            self._fed_bytes = 0
        known = len(self._found)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__ or error.__cause__
            self._end(cause.refusal if isinstance(cause, _RefusedError) else Refusal(400, "the request is malformed"))
            return
        except httptools.HttpParserUpgrade:
            self._end(Refusal(400, "an upgrade is asked for"))
            return
        except httptools.HttpParserError as error:
            self._end(Refusal(400, str(error) or "the request is malformed"))
            return
        if self._inside and self._head is None:
            # What the parser holds of a field is known to it alone. A read that ended another request counts as none.
            self._fed_bytes = self._fed_bytes + len(data) if len(self._found) == known else 0
            if self._fed_bytes > HEAD_MAX:
                self._end(_LONG)

    def take(self) -> Request | Refusal | None:
        """The next request that is complete, in order; None when more bytes are needed. After a Refusal nothing
        follows."""
        return self._found.popleft() if self._found else None

    def close(self) -> None:
        """Lets go of the parser, which knows this object."""
        self._parser = None

    def _end(self, refusal: Refusal) -> None:
        self._found.append(refusal)
        self._inside = False
        self._parser = None

    # ---- what httptools calls ----

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._inside = True
        self._head = None
        self._target = b""
        self._length = -1
        self._hosts = 0
        self._fields_bytes = 0
        self._content_type, self._authorization = b"", None
        self._expects_continue = False
        self._body = None

    def on_url(self, part: bytes) -> None:
        """The target, or a part of it."""
        self._target += part
        if len(self._target) > HEAD_MAX:
            raise _RefusedError(_LONG)

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """One field."""
        value = value or b""
        self._fields_bytes += len(name) + len(value)
        match name.lower():
            case b"content-length":
                self._length = int(value)  # llhttp has seen to it that it is a number, and the only one
            case b"content-type":
                self._content_type = value.strip(b" \t")
            case b"authorization":
                if self._authorization is not None:  # the first may be empty
                    raise _RefusedError(Refusal(400, "there are two authorization fields"))
                self._authorization = value.strip(b" \t")
            case b"host":
                self._hosts += 1
            case b"transfer-encoding":
                raise _RefusedError(Refusal(411, "the length of the body is not given (transfer-encoding)"))
            case b"expect":
                if value.strip(b" \t").lower() != b"100-continue":
                    raise _RefusedError(Refusal(417, "an expectation is unknown"))
                self._expects_continue = True

    def on_headers_complete(self) -> None:
        """The end of the head: now it is decided whether the body is kept."""
        parser = self._parser
        assert parser is not None
        if self._fields_bytes + len(self._target) > HEAD_MAX:
            raise _RefusedError(_LONG)
        version = parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            raise _RefusedError(Refusal(400, "the request line is none of HTTP/1.1"))
        new = version == "1.1"
        if self._hosts != 1 and (new or self._hosts):
            raise _RefusedError(Refusal(400, "there is no host field, or there are two"))
        expects = self._expects_continue and new
        length = max(self._length, 0)
        head = Head(
            parser.get_method(),
            self._target,
            length,
            parser.should_keep_alive(),
            self._content_type,
            self._authorization or b"",
            expects,
        )
        self._head = head
        self._continue_due = expects and length > 0
        if self._wanted(head):
            self._body = []

    def on_body(self, part: bytes) -> None:
        """Some of the body."""
        self._continue_due = False
        if self._body is not None:
            self._body.append(part)

    def on_message_complete(self) -> None:
        """The request's last byte."""
        head, parts = self._head, self._body
        assert head is not None
        self._inside = False
        body = None if parts is None else parts[0] if len(parts) == 1 else b"".join(parts)
        self._found.append(Request(head, body))


_LONG: Final = Refusal(431, "the head is too long")
