"""Sentences for people, in lines that fit the terminal they are read on. No word is broken: names, paths and options
are copied from there."""

import re
import shutil
import textwrap
from typing import Final, TextIO

_LEAST: Final = 40  # narrower text is unreadable
_ITEM: Final = re.compile(r" *[-•!~+✓✗] ")
_GAP: Final = re.compile(r"(?<=\S) {2,}(?=\S)")  # between columns
_COLUMNS: Final = 3  # a line with more is a table's row
_COMMAND: Final = re.compile(r"`[^`]{,40}`")


def width_of(stream: TextIO, otherwise: int) -> int:
    """The terminal's columns, or ``otherwise`` if ``stream`` is no terminal."""
    return max(shutil.get_terminal_size().columns, _LEAST) if stream.isatty() else otherwise


def fitted(text: str, stream: TextIO) -> str:
    """``text`` for ``stream``: as it is, or with its long lines broken where that is a terminal.

    A continued line starts below the text after a list's mark or a label. A table's rows are not broken.
    """
    if not stream.isatty():
        return text
    width = width_of(stream, 0)
    lines = []
    for line in text.split("\n"):
        gaps = list(_GAP.finditer(line))
        if len(line) <= width or len(gaps) >= _COLUMNS:
            lines.append(line)
        else:
            lines += lines_of(line, width, later=" " * _hanging(line, [gap.end() for gap in gaps], width))
    return "\n".join(lines)


def _hanging(line: str, columns: list[int], width: int) -> int:
    """The indent of a line's continuation."""
    if columns and columns[-1] <= width * 2 // 3:
        return columns[-1]
    if item := _ITEM.match(line):
        return len(item[0])
    indent = len(line) - len(line.lstrip())
    return indent + 2 if indent else 0


def lines_of(text: str, width: int, *, first: str = "", later: str = "") -> list[str]:
    """``text`` in lines of at most ``width`` where its words allow it, the first behind ``first``, the others behind
    ``later``. Not broken at hyphens, nor in a command in backticks: they are to be copied whole."""
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]
