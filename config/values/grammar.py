"""How a person writes a duration and a size: ``20ms``, ``1h30m``, ``32MiB``, or a plain number.

Strict on purpose: ``5`` seconds or ``5m`` minutes is easy to say, while a unit guessed wrong is a thousandfold
mistake that no bound may catch. So units are case-sensitive, every unit says whether it counts in 1000 or 1024, and
nothing is rounded.
"""

from __future__ import annotations

__all__ = [
    "BYTES_GRAMMAR",
    "DURATION_GRAMMAR",
    "ByteCount",
    "Count",
    "Duration",
    "WholeSeconds",
    "format_bytes",
    "format_duration",
    "parse_bytes",
    "parse_duration",
]

import re
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

DURATION_GRAMMAR = (
    'a duration is a number with a unit (us, ms, s, m, h, d), such as "20ms", "5s" or "1h30m", '
    "or a plain number of seconds"
)
BYTES_GRAMMAR = (
    'a size is a whole number of bytes, or a number with a unit: "256KiB", "32MiB", "1GiB" count in 1024, '
    '"64kB", "1MB", "1GB" in 1000'
)

# Largest first: the order in which format_duration writes them and parse_duration wants them.
_MICROSECONDS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_BYTES = {
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
}

_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_PARTS = re.compile(r"(?:\d+(?:\.\d+)?(?:us|ms|s|m|h|d))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s?([A-Za-z]+)", re.ASCII)
_LONGEST = Decimal(timedelta.max // timedelta(microseconds=1))


def parse_duration(value: object) -> timedelta:
    """The length of time that ``value`` says: a timedelta, a number of seconds, or text in DURATION_GRAMMAR.

    Raises ValueError with a sentence for anything else: another unit, units out of order or twice, less than a
    microsecond's resolution, more than timedelta holds. Signs are left to the setting's own bounds (``-5`` parses,
    ``"-5s"`` does not).
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            micros = Decimal(text) * 1_000_000
        elif _PARTS.fullmatch(text):
            micros = _sum_parts(text)
        else:
            raise ValueError(DURATION_GRAMMAR)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(DURATION_GRAMMAR)  # noqa: TRY004 - pydantic turns ValueError alone into a report
    else:
        try:
            micros = Decimal(repr(value)) * 1_000_000  # repr: 0.1 is a tenth, not its binary neighbour
        except InvalidOperation:  # pragma: no cover - repr of a number always parses
            raise ValueError(DURATION_GRAMMAR) from None
    if not micros.is_finite() or abs(micros) > _LONGEST:
        raise ValueError("the duration is out of any range")
    if micros != micros.to_integral_value():
        raise ValueError("a duration is exact to the microsecond, no finer")
    return timedelta(microseconds=int(micros))


def _sum_parts(text: str) -> Decimal:
    micros = Decimal(0)
    previous: int | None = None
    for number, unit in _PART.findall(text):
        size = _MICROSECONDS[unit]
        if previous is not None and size >= previous:
            raise ValueError('a duration names each unit once, the largest first, as in "1h30m"')
        previous = size
        micros += Decimal(number) * size
    return micros


def format_duration(value: timedelta) -> str:
    """``value`` as parse_duration reads it back: ``1h30m``, ``20ms``, ``0s``. Negative lengths carry a leading minus,
    for messages."""
    micros = value // timedelta(microseconds=1)
    if not micros:
        return "0s"
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    parts = []
    for unit, size in _MICROSECONDS.items():
        count, micros = divmod(micros, size)
        if count:
            parts.append(f"{count}{unit}")
    return sign + "".join(parts)


def parse_bytes(value: object) -> int:
    """The number of bytes that ``value`` says: a whole number, or text in BYTES_GRAMMAR. Raises ValueError with a
    sentence."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.isdigit():
            return int(text)
        found = _SIZE.fullmatch(text)
        if found and found[2] in _BYTES:
            size = Decimal(found[1]) * _BYTES[found[2]]
            if size != size.to_integral_value():
                raise ValueError("a size is a whole number of bytes")
            return int(size)
    raise ValueError(BYTES_GRAMMAR)


def format_bytes(value: int) -> str:
    """``value`` as parse_bytes reads it back: in the largest 1024-unit that divides it, else in bytes (``32MiB``,
    ``1000000``)."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return str(value)


def _refuse_bool(value: object) -> object:
    """Python calls True an int; a person who writes ``sessions = true`` meant something else."""
    if isinstance(value, bool):
        raise ValueError("a whole number is wanted, not true or false")  # noqa: TRY004 - pydantic turns ValueError alone into a report
    return value


def _whole_seconds(value: timedelta) -> timedelta:
    if value % timedelta(seconds=1):
        raise ValueError("MQTT carries this in whole seconds")
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""A length of time in a setting."""

WholeSeconds = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_whole_seconds)]
"""A length of time that MQTT carries in whole seconds."""

ByteCount = Annotated[int, BeforeValidator(parse_bytes)]
"""A number of bytes in a setting."""

Count = Annotated[int, BeforeValidator(_refuse_bool)]
"""A plain number of things in a setting."""
