"""Times in sentences."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from config.numbers import many

if TYPE_CHECKING:
    from bridge.certificate import Validity


def milliseconds(seconds: float) -> str:
    """``0.4 ms``, ``37 ms``, ``2.1 s``."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"


def days_left(validity: Validity, now_s: float | None = None) -> float:
    """Days until a certificate expires; negative afterwards."""
    return (validity.ends_s - (time.time() if now_s is None else now_s)) / 86_400


def since_days(left: float) -> str:
    """How long ago something expired with ``left`` days (below 0) left, in minutes and hours on the first day."""
    hours = -left * 24
    if hours < 1:
        return f"{many(max(1, round(hours * 60)), 'minute')} ago"
    return f"{many(round(hours), 'hour')} ago" if hours < 48 else f"{-left:.0f} days ago"
