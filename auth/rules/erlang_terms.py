"""Reads the plain Erlang terms of a file such as acl.conf: tuples, lists, atoms, texts and numbers, ended by dots.

It reads no expressions and no variables, and evaluates nothing. A tuple becomes a tuple, a list a list, a string or
binary a str, an atom an ``Atom``.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from auth.errors import ImportFormatError

DEEPEST: Final = 32  # levels of nesting; a rule has four

_TOKEN: Final = re.compile(
    r"""
    (?P<space>(?:[\s\ufeff]|%[^\n]*)+)
  | (?P<text>"(?:[^"\\]|\\.)*")
  | (?P<atom>[a-z][A-Za-z0-9_@]*)
  | (?P<quoted>'(?:[^'\\]|\\.)*')
  | (?P<number>-?[0-9]+)
  | (?P<open><<|[{\[])
  | (?P<close>>>|[}\]])
  | (?P<comma>,)
  | (?P<slash>/(?:utf8|binary))
  | (?P<dot>\.(?=\s|%|\Z))
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(?:([0-7]{1,3})|x\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|\^(.)|(.))", re.DOTALL)
_NAMED: Final = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "b": "\b", "f": "\f", "e": "\x1b", "s": " ", "d": "\x7f"}
_CLOSING: Final = {"{": "}", "[": "]", "<<": ">>"}


class Atom(str):
    """An Erlang atom. Equal to the text of its name; a string of a file is never an ``Atom``."""

    __slots__ = ()


class TopTerm(NamedTuple):
    """One term of a file, and the line (from 1) that it begins at."""

    line: int
    term: object


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next: _Token | None = None

    def terms(self) -> Iterator[TopTerm]:
        """The terms, each of which ends with a dot. Raises ImportFormatError."""
        while self._peek() is not None:
            start = self._peek()
            assert start is not None
            line = self._line(start.position)
            term = self._term(0)
            end = self._take("the '.' that ends a term")
            if end.kind != "dot":
                raise self._error(end, f"{end.text!r} where the '.' that ends a term should be")
            yield TopTerm(line, term)

    def _split(self) -> Iterator[_Token]:
        """The tokens, without space and comments. Raises ImportFormatError for other text."""
        position = 0
        while position < len(self._text):
            found = _TOKEN.match(self._text, position)
            if found is None:
                rest = self._text[position : position + 20]
                raise ImportFormatError(f"line {self._line(position)}: {rest!r} is not part of an Erlang term")
            if found.lastgroup != "space":
                assert found.lastgroup is not None
                yield _Token(found.lastgroup, found[0], position)
            position = found.end()

    def _peek(self) -> _Token | None:
        if self._next is None:
            self._next = next(self._tokens, None)
        return self._next

    def _take(self, wanted: str) -> _Token:
        """The next token, taken. Raises ImportFormatError, with what is ``wanted``, at the end of the file."""
        token = self._peek()
        if token is None:
            raise ImportFormatError(f"line {self._line(len(self._text))}: the file ends where {wanted} should be")
        self._next = None
        return token

    def _term(self, depth: int) -> object:
        """The next term: a text, an Atom, a number, a list, or a tuple."""
        token = self._take("a term")
        if depth > DEEPEST:
            raise self._error(token, f"terms are nested more than {DEEPEST} levels deep")
        match token.kind:
            case "text":
                return self._joined(token)
            case "atom":
                return Atom(token.text)
            case "quoted":
                return Atom(self._unescaped(token))
            case "number" if len(token.text) < 20:
                return int(token.text)
            case "open":
                return self._group(token, depth)
        raise self._error(token, f"{token.text[:20]!r} where a term should be")

    def _joined(self, token: _Token) -> str:
        """A string. Erlang joins adjacent strings into one."""
        parts = [self._unescaped(token)]
        while (following := self._peek()) is not None and following.kind == "text":
            parts.append(self._unescaped(self._take("a text")))
        return "".join(parts)

    def _group(self, opened: _Token, depth: int) -> object:
        """The term that ``opened`` begins: a tuple, a list, or a binary as a text."""
        closing = _CLOSING[opened.text]
        items: list[object] = []
        if (first := self._peek()) is None or first.text != closing or first.kind != "close":
            while True:
                items.append(self._term(depth + 1))
                token = self._take(f"',' or {closing!r}")
                if token.kind == "slash" and opened.text == "<<":
                    token = self._take(f"',' or {closing!r}")
                if token.kind == "close" and token.text == closing:
                    break
                if token.kind != "comma":
                    raise self._error(token, f"{token.text[:20]!r} where ',' or {closing!r} should be")
        else:
            self._take(closing)
        if opened.text == "{":
            return tuple(items)
        if opened.text == "[":
            return items
        if not all(type(item) is str for item in items):
            raise self._error(opened, "a binary that is not a text")
        return "".join(str(item) for item in items)

    def _unescaped(self, token: _Token) -> str:
        """The text of a quoted token, with its escapes replaced."""

        def replace(found: re.Match[str]) -> str:
            """The character of one escape."""
            octal, long_hexadecimal, hexadecimal, control, other = found.groups()
            if octal or long_hexadecimal or hexadecimal:
                code = int(octal, 8) if octal else int(long_hexadecimal or hexadecimal, 16)
                if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                    raise self._error(token, f"{found[0]} is no character")
                return chr(code)
            return chr(ord(control) & 31) if control else _NAMED.get(other, other)

        return _ESCAPE.sub(replace, token.text[1:-1])

    def _line(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1

    def _error(self, token: _Token, sentence: str) -> ImportFormatError:
        return ImportFormatError(f"line {self._line(token.position)}: {sentence}")


def parse_terms(text: str) -> list[TopTerm]:
    """The terms of a file. Raises only ImportFormatError, with the line. Some microseconds per token."""
    return list(_Reader(text).terms())


def quoted(text: str) -> str:
    """``text`` as an Erlang string, fit for a file in UTF-8."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\x{{{ord(found[0]):x}}}", plain) + '"'
