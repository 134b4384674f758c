"""A search filter (RFC 4515) with placeholders, read once. Values are put into its encoded form.

So a value is never part of the filter's text: a user name ``*)(uid=*`` is only a name, and needs no escape.
The names of entries are text, and ``escape_name`` escapes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from auth.backends.ldap_messages import OCTETS, SEQUENCE, element
from config.values.auth_placeholders import Placeholder, split_placeholders

if TYPE_CHECKING:
    Encoder = Callable[[Mapping[str, bytes]], bytes]

_DEPTH_MAX: Final = 50
_SETS: Final = {"&": 0xA0, "|": 0xA1}
_COMPARISONS: Final = {"~": 0xA8, ">": 0xA5, "<": 0xA6}
_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9.-]+(?:;[A-Za-z0-9-]+)*", re.ASCII)
_PART: Final = re.compile(r"(?:^|[,+;])\s*([A-Za-z0-9.-]+)\s*=\s*((?:[^,+;\\]|\\.)*)", re.ASCII | re.DOTALL)
_EXTENSIBLE: Final = re.compile(r"([A-Za-z0-9.;-]*)(:dn)?(?::([A-Za-z0-9.-]+))?:", re.ASCII | re.IGNORECASE)


class FilterTemplate:
    """``(&(objectClass=device)(uid=${username}))``."""

    def __init__(self, text: str) -> None:
        """Raises ValueError with a sentence for a text that is no filter."""
        _, names = split_placeholders(text)
        self.names: Final[tuple[Placeholder, ...]] = names
        reader = _Reader(text.strip())
        self._encode: Final = reader.filter(0)
        self.compared: Final = tuple(reader.compared)
        if reader.rest():
            raise ValueError(f"behind the filter's last parenthesis there is more: {reader.rest()[:40]!r}")

    def encoded(self, values: Mapping[str, bytes]) -> bytes:
        """The filter with these values, as a search request carries it."""
        return self._encode(values)


class Compared(NamedTuple):
    """An attribute that is compared with a value, whole: ``uid=${username}``."""

    attribute: str
    names: tuple[Placeholder, ...]  # in the value
    filled: Encoder


def compared_in_name(text: str) -> tuple[Compared, ...]:
    """The parts of a distinguished name (RFC 4514) that have placeholders in their values."""
    parts = (_compared(found[1], found[2], _unescaped_name) for found in _PART.finditer(text))
    return tuple(part for part in parts if part.names)


def _compared(attribute: str, value: str, unescaped: Callable[[str], bytes]) -> Compared:
    return Compared(attribute, split_placeholders(value)[1], _value(value, unescaped))


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.compared: list[Compared] = []

    def rest(self) -> str:
        return self._text[self._at :]

    def filter(self, depth: int) -> Encoder:
        """Read the filter in parentheses at this place; the result encodes it with values."""
        if depth > _DEPTH_MAX:
            raise ValueError(f"the filter is nested more than {_DEPTH_MAX} deep")
        self._expect("(")
        kind = self._text[self._at : self._at + 1]
        if kind in _SETS:
            self._at += 1
            parts = [self.filter(depth + 1)]
            while self._peek() == "(":
                parts.append(self.filter(depth + 1))
            made = _of(_SETS[kind], parts)
        elif kind == "!":
            self._at += 1
            before = len(self.compared)
            made = _of(0xA2, [self.filter(depth + 1)])
            del self.compared[before:]  # what an entry must not have
        else:
            made = self._item()
        self._expect(")")
        return made

    def _item(self) -> Encoder:
        """Read one comparison, up to its closing parenthesis."""
        end = self._text.find(")", self._at)
        item = self._text[self._at : end] if end >= 0 else self.rest()
        self._at += len(item)
        left, equals, value = item.partition("=")
        if not equals or "(" in item:
            raise ValueError(f"{item[:40]!r} is no comparison such as uid=${{username}}")
        if left.endswith(":"):
            if matched := left.partition(":")[0]:
                self._note(matched, value)
            return _extensible(left, value)
        if left[-1:] in _COMPARISONS:
            return _comparison(_COMPARISONS[left[-1]], left[:-1], value)
        if value == "*":
            attribute = _attribute(left)
            return lambda _values: element(0x87, attribute)  # present
        if "*" in value:
            return _substrings(left, value)
        self._note(left, value)
        return _comparison(0xA3, left, value)

    def _note(self, attribute: str, value: str) -> None:
        one = _compared(attribute, value, _unescaped)
        if one.names:
            self.compared.append(one)

    def _peek(self) -> str:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise ValueError(f"the filter lacks a {character!r} before {self.rest()[:40]!r}")
        self._at += 1


def _of(tag: int, parts: list[Encoder]) -> Encoder:
    return lambda values: element(tag, *(part(values) for part in parts))


def _comparison(tag: int, attribute: str, value: str) -> Encoder:
    name, filled = element(OCTETS, _attribute(attribute)), _value(value)
    return lambda values: element(tag, name, element(OCTETS, filled(values)))


def _substrings(attribute: str, value: str) -> Encoder:
    """A comparison with ``*`` in the value."""
    name = element(OCTETS, _attribute(attribute))
    first, *middle, last = value.split("*")
    parts = [(0x80, first), *((0x81, part) for part in middle), (0x82, last)]
    filled = [(tag, _value(part)) for tag, part in parts if part]
    if not filled:
        raise ValueError(f"{attribute}={value[:40]} has nothing between its stars")
    return lambda values: element(0xA4, name, element(SEQUENCE, *(element(tag, part(values)) for tag, part in filled)))


def _extensible(left: str, value: str) -> Encoder:
    """A comparison by a matching rule; ``left`` is what precedes the equals sign."""
    found = _EXTENSIBLE.fullmatch(left)
    if found is None or not (found[1] or found[3]):
        raise ValueError(f"{left[:40]!r} is no matching rule such as memberOf:1.2.840.113556.1.4.1941:")
    head = b""
    if found[3]:
        head += element(0x81, found[3].encode())
    if found[1]:
        head += element(0x82, _attribute(found[1]))
    filled = _value(value)
    tail = element(0x84, b"\xff") if found[2] else b""
    return lambda values: element(0xA9, head, element(0x83, filled(values)), tail)


def _attribute(text: str) -> bytes:
    if not _ATTRIBUTE.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no attribute's name")
    return text.encode()


def _value(text: str, unescaped: Callable[[str], bytes] | None = None) -> Encoder:
    """A value with placeholders. ``unescaped``: how its fixed parts are read, as in a filter unless given."""
    literals, names = split_placeholders(text)
    fixed = [(unescaped or _unescaped)(literal) for literal in literals]

    def filled(values: Mapping[str, bytes]) -> bytes:
        pieces = [fixed[0]]
        for name, literal in zip(names, fixed[1:], strict=True):
            pieces += (values[name], literal)
        return b"".join(pieces)

    return filled


def _unescaped(text: str) -> bytes:
    """RFC 4515 section 3: a backslash and two hexadecimal digits are a byte."""
    pieces = text.split("\\")
    done = [pieces[0].encode()]
    for piece in pieces[1:]:
        if not re.match(r"[0-9a-fA-F]{2}", piece):
            raise ValueError(f"in a filter a backslash is followed by two hexadecimal digits, not {piece[:2]!r}")
        done += (bytes.fromhex(piece[:2]), piece[2:].encode())
    return b"".join(done)


_PLAIN: Final = re.compile(r"[^\w.@-]", re.ASCII)


def escape_name(value: str) -> str:
    """A value as part of a distinguished name (RFC 4514 section 2.4): all but letters, digits and ``_.@-`` as a
    backslash and hexadecimal digits, so that none can end the part or begin another."""
    return _PLAIN.sub(lambda found: "".join(f"\\{byte:02x}" for byte in found[0].encode()), value)


def first_name_part(name: str) -> str:
    """``admins`` of ``cn=admins,ou=groups,dc=example,dc=org``; a text that is no distinguished name as it is."""
    found = re.match(r"[A-Za-z0-9.-]+=((?:[^,+\\]|\\.)*)", name, re.ASCII | re.DOTALL)
    if found is None:
        return name
    return _unescaped_name(found[1]).decode(errors="replace").strip()


def _unescaped_name(text: str) -> bytes:
    """A value without escapes: a backslash before two hexadecimal digits or one character (RFC 4514 section 3)."""
    return re.sub(
        rb"\\([0-9a-fA-F]{2}|.)",
        lambda part: bytes.fromhex(part[1].decode()) if len(part[1]) == 2 else part[1],
        text.encode(),
        flags=re.DOTALL,
    )
