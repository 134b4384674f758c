"""The few LDAP messages that a login takes (RFC 4511), to bytes and back; no I/O.

Basic encoding rules with definite lengths, as RFC 4511 section 5.1 restricts them: tag, length, content.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

MESSAGE_MAX: Final = 1 << 20
"""The largest message that is read. A search asks for one attribute."""

_START_TLS: Final = b"1.3.6.1.4.1.1466.20037"  # RFC 4511 section 4.14.1

INTEGER: Final = 0x02
OCTETS: Final = 0x04
ENUMERATED: Final = 0x0A
BOOLEAN: Final = 0x01
SEQUENCE: Final = 0x30


class Operation(IntEnum):
    """The tags of what servers send (RFC 4511 section 4.2 onwards)."""

    BIND_RESPONSE = 0x61
    ENTRY = 0x64
    SEARCH_DONE = 0x65
    REFERENCE = 0x73
    EXTENDED_RESPONSE = 0x78


class MalformedError(ValueError):
    """The server sent something other than LDAP."""


@dataclass(frozen=True, slots=True)
class Result:
    """How an operation ended (RFC 4511 appendix A.1). ``said`` is the server's own text, seldom helpful."""

    code: int
    said: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One found entry: its name, and the values of the attribute that was asked for."""

    name: bytes
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """A server's message. ``what`` is a Result, an Entry, or None for one that is skipped (a search reference)."""

    number: int
    operation: Operation
    what: Result | Entry | None


def element(tag: int, *parts: bytes) -> bytes:
    """An element of LDAP's encoding (BER): tag, length, and the joined ``parts``."""
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def bind_request(number: int, name: bytes, password: bytes) -> bytes:
    """A simple bind; both empty: anonymous. Raises ValueError for a name without password: many servers answer yes to
    it, whatever the name (RFC 4513 section 5.1.2)."""
    if name and not password:
        raise ValueError("a simple bind with a name and no password proves nothing")
    return _request(number, 0x60, _integer(3), element(OCTETS, name), element(0x80, password))


def search_request(
    number: int, base: bytes, query: bytes, *, whole_tree: bool, attributes: Sequence[str], limit: int, seconds: int
) -> bytes:
    """A search for ``limit`` entries at most; ``query`` is an encoded filter."""
    scope = 2 if whole_tree else 0
    return _request(
        number,
        0x63,
        element(OCTETS, base),
        element(ENUMERATED, bytes((scope,))),
        element(ENUMERATED, b"\0"),  # aliases are not followed
        _integer(limit),
        _integer(seconds),
        element(BOOLEAN, b"\0"),  # values too
        query,
        element(SEQUENCE, *(element(OCTETS, name.encode()) for name in attributes)),
    )


def start_tls_request(number: int) -> bytes:
    return _request(number, 0x77, element(0x80, _START_TLS))


def message_size(head: bytes) -> int | None:
    """The size of the message that begins with ``head``; None while ``head`` is too short to tell. Raises
    MalformedError."""
    if len(head) >= 1 and head[0] != SEQUENCE:
        raise MalformedError("a message begins with another byte than LDAP's")
    if len(head) < 2:
        return None
    if head[1] < 0x80:
        return 2 + head[1]
    count = head[1] & 0x7F
    if not 1 <= count <= 4:
        raise MalformedError("a message has no length")
    if len(head) < 2 + count:
        return None
    size = 2 + count + int.from_bytes(head[2 : 2 + count], "big")
    if size > MESSAGE_MAX:
        raise MalformedError(f"a message has {size} bytes; {MESSAGE_MAX} is the most")
    return size


def decode_message(data: bytes) -> Message:
    """The message in ``data``, without further bytes. Raises MalformedError."""
    try:
        ((_, body),) = _elements(data)
        number, operation, *_controls = _elements(body)
        kind = Operation(operation[0])
        return Message(int.from_bytes(number[1], "big", signed=True), kind, _decode(kind, operation[1]))
    except MalformedError:
        raise
    except ValueError as error:
        raise MalformedError("a message is of no known kind, or parts of it are missing") from error


def _decode(kind: Operation, content: bytes) -> Result | Entry | None:
    """The result or entry in a message; None for a reference to another server, which is not followed."""
    if kind is Operation.REFERENCE:
        return None
    if kind is Operation.ENTRY:
        name, attributes = _elements(content)
        values: list[bytes] = []
        for _, attribute in _elements(attributes[1]):
            _type, found = _elements(attribute)
            values += (value for _, value in _elements(found[1]))
        return Entry(name[1], tuple(values))
    code, _matched, said, *_rest = _elements(content)
    if code[0] != ENUMERATED or not code[1]:
        raise MalformedError("a result has no code")  # no bytes would read as 0, success
    return Result(int.from_bytes(code[1], "big"), said[1].decode(errors="replace"))


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each element's tag and content. Raises MalformedError."""
    at, end = 0, len(data)
    while at < end:
        if at + 2 > end:
            raise MalformedError("a part of a message is cut off")
        tag, size = data[at], data[at + 1]
        at += 2
        if size >= 0x80:
            count = size & 0x7F
            if not 1 <= count <= 4 or at + count > end:
                raise MalformedError("a part of a message has no length")
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + size > end:
            raise MalformedError("a part of a message is longer than the message")
        yield tag, data[at : at + size]
        at += size


def _request(number: int, tag: int, *parts: bytes) -> bytes:
    return element(SEQUENCE, _integer(number), element(tag, *parts))


def _integer(value: int) -> bytes:
    """Not negative."""
    return element(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))
