"""Tables, severity words and JSON for commands: aligned text for people, one object for machines."""

from __future__ import annotations

__all__ = [
    "Severity",
    "as_data",
    "as_json",
    "harmless",
    "mention",
    "print_json",
    "say",
    "severity",
    "table",
    "tell",
    "worst",
]

import dataclasses
import json
import os
import re
import sys
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from config.prose import fitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Severity = Literal["ok", "warn", "FAIL"]

_ORDER: Final[tuple[Severity, ...]] = ("ok", "warn", "FAIL")
_COLOURS: Final[dict[Severity, str]] = {"ok": "\x1b[32m", "warn": "\x1b[33m", "FAIL": "\x1b[1;31m"}
_RESET: Final = "\x1b[0m"
_NUMBER = re.compile(r"[-+]?[0-9][0-9,.]*( ?(%|B|[KMGT]iB|s|ms|min|h|d))?|-|\?")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# What `severity` makes, to the letter: another's name must not be able to hide what stands behind it.
_COLOURED = re.compile("(" + "|".join(re.escape(f"{code}{word}{_RESET}") for word, code in _COLOURS.items()) + ")")
# What JSON leaves as it is and a terminal, or who reads it there, does not: DEL and the control characters behind it,
# marks that turn the direction of a line, halves of characters, which cannot be written at all.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
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
    return harmless(str(value), keep="")


def _width(text: str) -> int:
    """Places on a terminal: Chinese and Japanese characters take two, combining ones none."""
    plain = _ESCAPE.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in plain
    )


def harmless(text: str, *, keep: str = "\n\t") -> str:
    """``text`` with a "?" for each character that a terminal would obey: names and sentences of brokers and consumers
    stand in it. Colours of ``severity`` stay, and the characters in ``keep``."""
    if text.isprintable():
        return text
    parts = _COLOURED.split(text)  # every second one is a coloured word
    for at in range(0, len(parts), 2):
        parts[at] = "".join(letter if letter.isprintable() or letter in keep else "?" for letter in parts[at])
    return "".join(parts)


def say(text: str = "", *, to: TextIO | None = None) -> None:
    """Write a text, made ``harmless``, with a line end if it has none."""
    print(harmless(text), end="" if text.endswith("\n") else "\n", file=to)


def tell(text: str, *, to: TextIO | None = None) -> None:
    """As ``say``, for sentences: broken into lines where they are read on a terminal."""
    say(fitted(text, sys.stdout if to is None else to), to=to)


def mention(text: str) -> None:
    """Tell something beside the result, on stderr."""
    tell(f"gateway: {text}", to=sys.stderr)


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


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """A value as JSON that people can read too, and that no terminal obeys."""
    text = json.dumps(as_data(value), indent=indent, ensure_ascii=False)
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print one JSON object."""
    print(as_json(value, indent=indent), flush=True)
