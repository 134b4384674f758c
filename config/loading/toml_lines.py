"""The line of each key in a TOML file, for messages. tomllib does not report lines."""

import re
import tomllib
from collections.abc import Iterator

from config.schema import Path

_QUOTED = r'"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'"
_PART = re.compile(rf"[A-Za-z0-9_-]+|{_QUOTED}", re.ASCII)
_KEYS = re.compile(rf"(?:{_PART.pattern})(?:[ \t]*\.[ \t]*(?:{_PART.pattern}))*", re.ASCII)
_START = re.compile(r"[ \t]*(\[?\[?)[ \t]*")
_MARK = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|' + rf"'''.*?'{{3,5}}|{_QUOTED}|" + r"#[^\n]*|[\[{]|[\]}]|\n", re.DOTALL)


def line_numbers(text: str) -> dict[Path, int]:
    """Line (from 1) of every key, table and array-table item in ``text``, which tomllib must have accepted already.

    Keys inside an inline table or an array are not listed; they are on the line of the outer key.
    """
    lines: dict[Path, int] = {}
    items: dict[Path, int] = {}  # number of [[…]] of this name so far
    table: Path = ()
    for line, statement in _statements(text.replace("\r\n", "\n")):
        start = _START.match(statement)
        assert start
        found = _KEYS.match(statement, start.end())
        if found is None:  # empty, or a comment
            continue
        keys = [_key(part[0]) for part in _PART.finditer(found[0])]
        if not start[1]:
            lines[(*table, *keys)] = line
            continue
        table = _resolved(keys, items)
        if start[1] == "[[":
            items[table] = items.get(table, 0) + 1
            table = (*table, items[table] - 1)
        lines[table] = line
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Lines, those within strings and brackets with the one that they belong to, each with its number."""
    start, line, depth = 0, 1, 0
    for mark in _MARK.finditer(text):
        if mark[0] == "\n" and depth == 0:
            yield line, text[start : mark.start()]
            line += text.count("\n", start, mark.end())
            start = mark.end()
        depth += (mark[0] in "[{") - (mark[0] in "]}")
    yield line, text[start:]


def _key(part: str) -> str:
    return str(tomllib.loads(f"key = {part}")["key"]) if part[0] in "\"'" else part


def _resolved(keys: list[str], items: dict[Path, int]) -> Path:
    """The path of a header; below an array of tables it belongs to the latest item."""
    path: Path = ()
    for position, key in enumerate(keys):
        path = (*path, key)
        if position < len(keys) - 1 and path in items:
            path = (*path, items[path] - 1)
    return path
