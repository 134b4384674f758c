"""Tables, severity words and JSON for commands: aligned text for people, one object for machines."""

from __future__ import annotations

__all__ = ["Severity", "as_data", "print_json", "say", "severity", "table", "worst"]

import dataclasses
import json
import os
import re
import sys
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Severity = Literal["ok", "warn", "FAIL"]

_ORDER: Final[tuple[Severity, ...]] = ("ok", "warn", "FAIL")
_COLOURS: Final[dict[Severity, str]] = {"ok": "\x1b[32m", "warn": "\x1b[33m", "FAIL": "\x1b[1;31m"}
_RESET: Final = "\x1b[0m"
_NUMBER = re.compile(r"[-+]?[0-9][0-9,.]*( ?(%|B|[KMGT]iB|s|ms|min|h|d))?|-|\?")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_GAP: Final = "  "


def severity(word: Severity, stream: TextIO | None = None) -> str:
    """The word, coloured when ``stream`` (standard output if not given) is a terminal that may be coloured: NO_COLOR
    is not set, TERM is not dumb."""
    out = sys.stdout if stream is None else stream
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    if plain or not out.isatty():
        return word
    return f"{_COLOURS[word]}{word}{_RESET}"


def worst(words: Iterable[Severity]) -> Severity:
    """The gravest of these; ok for none."""
    return max(words, key=_ORDER.index, default="ok")


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> str:
    """Columns under their headers, a line each, with a line end after the last; without rows "" alone.

    None becomes "-". A column whose every cell is a number (a unit may follow it) is aligned to the right. Line ends
    and control characters in a cell, which a name from outside may hold, become "?"; colours of ``severity`` stay.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return ""
    widths = [max(_width(row[at]) for row in [list(headers), *cells]) for at in range(len(headers))]
    right = [all(_NUMBER.fullmatch(_ESCAPE.sub("", row[at])) for row in cells) for at in range(len(headers))]
    lines = []
    for row in [list(headers), *cells]:
        parts = []
        for at, text in enumerate(row):
            space = " " * (widths[at] - _width(text))
            parts.append(space + text if right[at] else text + space)
        lines.append((indent + _GAP.join(parts)).rstrip() + "\n")
    return "".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    if text.isprintable():
        return text
    colours = _ESCAPE.findall(text)
    if colours and _ESCAPE.sub("", text).isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _width(text: str) -> int:
    """Places on a terminal: Chinese and Japanese characters take two, combining ones none."""
    plain = _ESCAPE.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in plain
    )


def say(text: str = "", *, to: TextIO | None = None) -> None:
    """Write a text as it is, with a line end if it has none."""
    print(text, end="" if text.endswith("\n") else "\n", file=to)


def as_data(value: Any) -> Any:
    """A value of frozen dataclasses, named tuples, mappings and sequences as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: as_data(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return {str(key): as_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_data(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """Print one JSON object."""
    print(json.dumps(as_data(value), indent=2, ensure_ascii=False))
