"""Durations and sizes as people write them: ``20ms``, ``1h30m``, ``32MiB``, or a plain number.

The grammar is strict, because a wrong unit is a thousandfold mistake that limits may not notice. Units are
case-sensitive, every unit of size counts either in 1000 or in 1024, and nothing is rounded.
"""

import re
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

DURATION_GRAMMAR = (
    'a duration is a number with a unit (us, ms, s, m, h, d), such as "20ms", "5s" or "1h30m", '
    "or a plain number of seconds"
)
BYTES_GRAMMAR = (
    'a size is a whole number of bytes, or a number with a unit: "256KiB", "32MiB", "1GiB" count in 1024, '
    '"64kB", "1MB", "1GB" in 1000'
)

# Largest first, as format_duration writes them and parse_duration requires.
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
    """The length of time of ``value``: a timedelta, a number of seconds, or text in DURATION_GRAMMAR.

    Raises ValueError with a sentence for anything else: another unit, units out of order or twice, fractions of a
    microsecond, more than timedelta's maximum. Bounds of the setting limit the sign (``-5`` parses, ``"-5s"`` does
    not).
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
    """The microseconds of a text such as ``1h30m``."""
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
    """``value`` as text that parse_duration reads: ``1h30m``, ``20ms``, ``0s``. Negative lengths, in messages, have a
    leading minus."""
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


def nanoseconds(value: timedelta) -> int:
    """The length as inside the gateway."""
    return value // timedelta(microseconds=1) * 1_000


def parse_bytes(value: object) -> int:
    """The number of bytes of a whole number or a text in BYTES_GRAMMAR. Raises ValueError with a sentence."""
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
    """``value`` as text that parse_bytes reads: in the largest binary unit that divides it, else in bytes (``32MiB``,
    ``1000000``)."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return str(value)


def _refuse_bool(value: object) -> object:
    """Refuse true and false, which are numbers in Python."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")  # noqa: TRY004 - pydantic turns ValueError alone into a report
    return value


def _whole_seconds(value: timedelta) -> timedelta:
    if value % timedelta(seconds=1):
        raise ValueError("MQTT carries this in whole seconds")
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""A length of time in a setting."""

WholeSeconds = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_whole_seconds)]
"""A length of time that MQTT transmits in whole seconds."""


def within(least: str, most: str) -> Any:
    """The bounds of a duration, both included, as people write them."""
    return Field(ge=parse_duration(least), le=parse_duration(most))


def duration(text: str) -> timedelta:
    """The default of a setting, as people write it."""
    return parse_duration(text)


ByteCount = Annotated[int, BeforeValidator(parse_bytes)]
"""A number of bytes in a setting."""

Count = Annotated[int, BeforeValidator(_refuse_bool)]
"""A plain number of things in a setting."""

Number = Annotated[float, BeforeValidator(_refuse_bool)]
"""A number in a setting, perhaps with a fraction."""

Qos = Annotated[Literal[0, 1, 2], BeforeValidator(_refuse_bool)]
"""A quality of service in a setting."""
