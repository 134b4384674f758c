"""Parses HTTP/1.1 requests. No I/O, no clock: bytes in, requests out.

httptools (llhttp, Node's parser) does the parsing. This module adds a limit for the head, drops unwanted bodies, and
refuses ambiguous requests, after which the next bytes could be mistaken for a request.

A whole server in its place costs more than twice the CPU. Measured for one answer to a login, on one core: 17 µs with
``connection.py``, 36 µs with uvicorn on httptools, 44 µs with aiohttp, 107 µs with uvicorn on h11.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import httptools

HEAD_MAX: Final = 16 << 10  # EMQX's is some 300 bytes
_KEPT: Final = frozenset({b"accept", b"host", b"sec-fetch-dest", b"sec-fetch-site"})  # the operator's port reads them


class Head(NamedTuple):
    """The head of a request. Texts are unchanged, without surrounding white space."""

    method: bytes
    target: bytes
    length: int  # of the body
    keep_alive: bool
    content_type: bytes
    authorization: bytes
    fields: dict[bytes, bytes]  # those of _KEPT; the values of one that comes twice, with a comma between


class Request(NamedTuple):
    """A whole request. ``body`` is None if it was not kept: too large, or unwanted."""

    head: Head
    body: bytes | None


class Refusal(NamedTuple):
    """An invalid or unsupported request. Nothing after it can be read."""

    status: int
    reason: str


class _RefusedError(Exception):
    """Ends the parsing from a callback; ``refusal`` has the reason."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class RequestParser:
    """Parses the requests of a connection, and keeps them until they are taken.

    Args:
        wanted: whether to keep the body of a request with this head. Called once for each, before its body arrives.
    """

    __slots__ = (
        "_authorization",
        "_body",
        "_content_type",
        "_continue_due",
        "_expects_continue",
        "_fed_bytes",
        "_fields_bytes",
        "_found",
        "_head",
        "_hosts",
        "_kept",
        "_length",
        "_parser",
        "_target",
        "_wanted",
        "inside",
    )

    def __init__(self, wanted: Callable[[Head], bool]) -> None:
        self._wanted = wanted
        self._found: deque[Request | Refusal] = deque()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.inside = False  # a request has begun and is unfinished
        self._continue_due = False
        self._head: Head | None = None  # the complete head of the unfinished request
        self._target = b""
        self._length = -1
        self._hosts = 0  # number of host fields
        self._kept: dict[bytes, bytes] = {}  # fields of _KEPT
        self._fields_bytes = 0
        self._fed_bytes = 0  # bytes of reads that contained only a part of one head
        self._content_type = b""
        self._authorization: bytes | None = None
        self._expects_continue = False
        self._body: list[bytes] | None = None  # its parts; None: not kept

    def continue_due(self) -> bool:
        """Whether the client waits for "100 Continue" before it sends the body. True once per request."""
        due, self._continue_due = self._continue_due, False
        return due

    def feed(self, data: bytes) -> None:
        """Parses bytes. Then call ``take`` until it returns None."""
        if self._parser is None or not data:
            return
        if not self.inside:
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
        if self.inside and self._head is None:
            # Only the parser knows how much of a field it holds. Reads that also ended a request are not counted.
            self._fed_bytes = self._fed_bytes + len(data) if len(self._found) == known else 0
            if self._fed_bytes > HEAD_MAX:
                self._end(_LONG)

    def take(self) -> Request | Refusal | None:
        """The next complete request in order; None if more bytes are needed. Nothing follows a Refusal."""
        return self._found.popleft() if self._found else None

    def close(self) -> None:
        """Drops the parser, which refers to this object."""
        self._parser = None

    def _end(self, refusal: Refusal) -> None:
        self._found.append(refusal)
        self.inside = False
        self._parser = None

    # ---- callbacks of httptools ----

    def on_message_begin(self) -> None:
        """httptools calls it at the first byte of a request."""
        self.inside = True
        self._head = None
        self._target = b""
        self._length = -1
        self._hosts = 0
        self._kept = {}
        self._fields_bytes = 0
        self._content_type, self._authorization = b"", None
        self._expects_continue = False
        self._body = None

    def on_url(self, part: bytes) -> None:
        """Called by the parser with the request's target, whole or in parts."""
        self._target += part
        if len(self._target) > HEAD_MAX:
            raise _RefusedError(_LONG)

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """httptools calls it for each field of a head. Raises _RefusedError."""
        value = value or b""
        self._fields_bytes += len(name) + len(value)
        name = name.lower()
        match name:
            case b"content-length":
                self._length = int(value)  # llhttp accepts only a single number
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
        if name in _KEPT:
            earlier = self._kept.get(name)
            self._kept[name] = value if earlier is None else b"%s,%s" % (earlier, value)

    def on_headers_complete(self) -> None:
        """httptools calls it at the end of a head. Decides whether to keep the body. Raises _RefusedError."""
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
            self._kept,
        )
        self._head = head
        self._continue_due = expects and length > 0
        if self._wanted(head):
            self._body = []

    def on_body(self, part: bytes) -> None:
        self._continue_due = False
        if self._body is not None:
            self._body.append(part)

    def on_message_complete(self) -> None:
        """httptools calls it at the end of a request, which ``take`` then gives."""
        head, parts = self._head, self._body
        assert head is not None
        self.inside = False
        body = None if parts is None else parts[0] if len(parts) == 1 else b"".join(parts)
        self._found.append(Request(head, body))


_LONG: Final = Refusal(431, "the head is too long")
