"""On which line of a TOML file each key stands: what tomllib does not tell, and a person who has to correct it wants
to know."""

from __future__ import annotations

__all__ = ["line_numbers"]

import re
import tomllib

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_STRINGS = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' + r"'''.*?'{3,5}|" + _BASIC.pattern + "|" + _LITERAL.pattern, re.DOTALL
)
_BLANK = re.compile(r"[ \t]*")


def line_numbers(text: str) -> dict[tuple[str | int, ...], int]:
    """Line (from 1) of every key, table and array-table item in ``text``, which tomllib must have accepted already.

    Keys inside an inline table or an array stand on the line of the key they belong to, and are not listed.
    """
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._lines: dict[tuple[str | int, ...], int] = {}
        self._items: dict[tuple[str | int, ...], int] = {}  # how many [[…]] of this name there were

    def scan(self) -> dict[tuple[str | int, ...], int]:
        table: tuple[str | int, ...] = ()
        line, counted_to = 1, 0
        while True:
            self._skip_to_statement()
            if self._at >= len(self._text):
                return self._lines
            line += self._text.count("\n", counted_to, self._at)
            counted_to = self._at
            if self._text.startswith("[[", self._at):
                self._at += 2
                table = self._next_item(self._resolve(self._keys()))
                self._lines[table] = line
                self._end_of_line()
            elif self._text[self._at] == "[":
                self._at += 1
                table = self._resolve(self._keys())
                self._lines[table] = line
                self._end_of_line()
            else:
                self._lines[(*table, *self._keys())] = line
                self._skip_value()

    def _skip_to_statement(self) -> None:
        while self._at < len(self._text):
            if self._text[self._at] in " \t\n":
                self._at += 1
            elif self._text[self._at] == "#":
                self._end_of_line()
            else:
                return

    def _end_of_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _keys(self) -> list[str]:
        """The parts of a dotted key; ends behind the last part and the blanks that follow it."""
        keys: list[str] = []
        while True:
            self._blank()
            character = self._text[self._at]
            pattern = {'"': _BASIC, "'": _LITERAL}.get(character, _BARE)
            found = pattern.match(self._text, self._at)
            assert found  # tomllib has read it
            part = found[0]
            keys.append(part if pattern is _BARE else str(tomllib.loads(f"key = {part}")["key"]))
            self._at = found.end()
            self._blank()
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _blank(self) -> None:
        found = _BLANK.match(self._text, self._at)
        assert found
        self._at = found.end()

    def _resolve(self, keys: list[str]) -> tuple[str | int, ...]:
        """Below an array of tables, a header means its latest item."""
        path: tuple[str | int, ...] = ()
        for position, key in enumerate(keys):
            path = (*path, key)
            if position < len(keys) - 1 and path in self._items:
                path = (*path, self._items[path] - 1)
        return path

    def _next_item(self, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
        number = self._items.get(path, 0)
        self._items[path] = number + 1
        return (*path, number)

    def _skip_value(self) -> None:
        """To the end of the value's last line: strings are skipped whole, brackets counted."""
        depth = 0
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in "\"'":
                found = _STRINGS.match(self._text, self._at)
                assert found
                self._at = found.end()
                continue
            if character == "#":
                self._end_of_line()
                continue
            if character == "\n" and depth == 0:
                return
            depth += (character in "[{") - (character in "]}")
            self._at += 1
