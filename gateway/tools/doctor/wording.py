"""Numbers in sentences."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bridge.certificate import Validity

_SHOWN: Final = 6


def milliseconds(seconds: float) -> str:
    """``0.4 ms``, ``37 ms``, ``2.1 s``."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"


def bytes_text(value: float) -> str:
    """A size with a binary unit and at most one decimal."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def days_left(validity: Validity, now_s: float | None = None) -> float:
    """Days until a certificate expires; negative afterwards."""
    return (validity.ends_s - (time.time() if now_s is None else now_s)) / 86_400


def since_days(left: float) -> str:
    """How long ago something expired with ``left`` days (below 0) left, in minutes and hours on the first day."""
    hours = -left * 24
    if hours < 1:
        return f"{many(max(1, round(hours * 60)), 'minute')} ago"
    return f"{many(round(hours), 'hour')} ago" if hours < 48 else f"{-left:.0f} days ago"


def many(count: int, one: str) -> str:
    """``1 partition``, ``3 partitions``."""
    return f"{count} {one if count == 1 else one + 's'}"


def some(names: Iterable[object], shown: int = _SHOWN) -> str:
    """The first few names, and the number of the others."""
    texts = [str(name) for name in names]
    more = len(texts) - shown
    return ", ".join(texts[:shown]) + (f" and {more} more" if more > 0 else "")
