"""Names, such as those of devices, in SQL by which Delta passes files over. Pure."""

from collections.abc import Collection
from typing import Final

MOST_RANGES: Final = 64
"""Stretches, of names or of time, that a query names; more are joined to so many, with what is between."""
_NO_TEXT: Final = "\ufffd"
"""What Spark makes of bytes that are no UTF-8 when it hands them to Python."""


def text(name: str) -> str:
    """The name as SQL. ``$`` is written as its number: Spark replaces ``${…}`` by its settings, in quotes too."""
    quoted = name.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{quoted}'"


def named(column: str, names: Collection[str]) -> str:
    """SQL that is true where the column has one of the names. It may be true for names between them: Delta passes
    files over by the first and the last of a list alone, so these are ranges, few enough to be written."""
    if any(_NO_TEXT in name for name in names):
        return "true"  # what the name is nobody knows here
    ordered = sorted(set(names), key=str.encode)  # as Spark and Delta compare
    step = max(1, -(-len(ordered) // MOST_RANGES))
    parts = (ordered[at : at + step] for at in range(0, len(ordered), step))
    return " OR ".join(f"{column} BETWEEN {text(part[0])} AND {text(part[-1])}" for part in parts) or "false"


def between(column: str, first: bytes, last: bytes) -> str:
    """SQL that is true where the column has one of two names, in UTF-8, or one between them."""
    try:
        return f"{column} BETWEEN {text(first.decode())} AND {text(last.decode())}"
    except UnicodeDecodeError:
        return "true"  # such a name cannot be written
