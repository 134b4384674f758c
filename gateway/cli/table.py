"""Tables, severity words and JSON for commands: aligned text for people, one object for machines."""

import argparse
import base64
import dataclasses
import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, Literal, TextIO

from config.prose import fitted

Severity = Literal["ok", "warn", "FAIL"]

_ORDER: Final[tuple[Severity, ...]] = ("ok", "warn", "FAIL")
_COLOURS: Final[dict[Severity, str]] = {"ok": "\x1b[32m", "warn": "\x1b[33m", "FAIL": "\x1b[1;31m"}
_RESET: Final = "\x1b[0m"
_NUMBER = re.compile(r"[-+]?[0-9][0-9,.]*( ?(%|B|[KMGT]iB|s|ms|min|h|d))?|-|\?")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# The exact output of `severity`: a name from outside must not hide the text behind it.
_COLOURED = re.compile("(" + "|".join(re.escape(f"{code}{word}{_RESET}") for word, code in _COLOURS.items()) + ")")
# Characters that JSON leaves as they are, but a terminal obeys or cannot show: DEL and later control characters, marks
# of direction, lone surrogates.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_GAP: Final = "  "
_MEASURED: Final = 1000  # rows


def severity(word: Severity, stream: TextIO | None = None) -> str:
    """The word, coloured when ``stream`` (standard output if not given) is ``coloured``."""
    return f"{_COLOURS[word]}{word}{_RESET}" if coloured(stream or sys.stdout) else word


def coloured(stream: TextIO) -> bool:
    """Whether the stream is a terminal that takes colours: NO_COLOR is not set, TERM is not dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def worst(words: Iterable[Severity]) -> Severity:
    """The gravest of the words; ok for none."""
    return max(words, key=_ORDER.index, default="ok")


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> str:
    """``table_lines`` as one text; empty without rows."""
    return "".join(table_lines(headers, rows, indent=indent))


def table_lines(headers: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> Iterator[str]:
    """A line for the headers and one for each row, with line ends; none without rows. Rows are read as lines are taken,
    and the first thousand give the widths.

    None becomes "-". A column of numbers (a unit may follow each) is aligned to the right. Control characters in a cell
    become "?"; colours of ``severity`` stay.
    """
    cells = ([_cell(value) for value in row] for row in rows)
    if not (first := list(islice(cells, _MEASURED))):
        return
    widths = [max(map(_width, column)) for column in zip(headers, *first, strict=True)]
    right = [all(_NUMBER.fullmatch(_ESCAPE.sub("", text)) for text in column) for column in zip(*first, strict=True)]
    for row in chain([headers], first, cells):
        parts = []
        for text, width, to_right in zip(row, widths, right, strict=True):
            space = " " * (width - _width(text))
            parts.append(space + text if to_right else text + space)
        yield (indent + _GAP.join(parts)).rstrip() + "\n"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return harmless(str(value), keep="")


def _width(text: str) -> int:
    """Columns on a terminal: Chinese and Japanese characters take two, combining ones none."""
    plain = _ESCAPE.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in plain
    )


def harmless(text: str, *, keep: str = "\n\t") -> str:
    """``text`` with a "?" for each character that a terminal would obey, since names and sentences of brokers are in
    it. Colours of ``severity`` stay, and the characters in ``keep``."""
    if text.isprintable():
        return text
    parts = _COLOURED.split(text)  # every second one is a coloured word
    for at in range(0, len(parts), 2):
        parts[at] = "".join(letter if letter.isprintable() or letter in keep else "?" for letter in parts[at])
    return "".join(parts)


def shown(text: str) -> str:
    """A name or text from outside on one line, with escapes for unprintable characters."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def cut(line: str, width: int | None) -> str:
    """The line, cut to ``width`` characters if given, with "…" at its end."""
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def columns() -> int | None:
    """The width of the terminal on standard output, None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str = "", *, to: TextIO | None = None) -> None:
    """Write a text, made ``harmless``, with a line end if it has none."""
    print(harmless(text), end="" if text.endswith("\n") else "\n", file=to)


def tell(text: str, *, to: TextIO | None = None) -> None:
    """``say`` for sentences, which are broken into lines on a terminal."""
    say(fitted(text, sys.stdout if to is None else to), to=to)


def mention(text: str) -> None:
    """Write a sentence beside the result, on stderr."""
    tell(f"gateway: {text}", to=sys.stderr)


def answer(arguments: argparse.Namespace, data: object, sentence: str) -> int:
    """Print ``data`` with ``--json``, else the sentence. Returns 0."""
    if arguments.json:
        print_json(data)
    else:
        tell(sentence)
    return 0


def progress(text: str) -> None:
    """Show the progress of a command in one line of the terminal's stderr, which is overwritten; "" clears it."""
    if sys.stderr.isatty():
        print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)


def counted(rows: Iterable[tuple[str, int | str, str]]) -> list[str]:
    """Lines of a label, a number and a note, in columns."""
    found = [(label, f"{number:,}" if isinstance(number, int) else number, note) for label, number, note in rows]
    width, digits = max(len(label) for label, _, _ in found), max(len(number) for _, number, _ in found)
    return [f"  {label:<{width}}  {number:>{digits}}  {note}".rstrip() for label, number, note in found]


def bytes_data(value: bytes | None) -> str | dict[str, str] | None:
    """Bytes for JSON: a text if they are UTF-8, else an object with their base64."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value or b"").decode()}


def as_data(value: Any) -> Any:
    """A value of dataclasses, named tuples, mappings, sequences and bytes as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: as_data(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return {str(key): as_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_data(item) for item in value]
    return bytes_data(value) if isinstance(value, bytes) else value


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """Readable JSON without characters that a terminal obeys."""
    text = json.dumps(as_data(value), indent=indent, ensure_ascii=False)
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    print(as_json(value, indent=indent), flush=True)
