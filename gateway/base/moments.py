"""Moments as text: written in UTC to the second, read as people write them."""

import re
import time
from datetime import UTC, datetime

from config.values.grammar import parse_duration


def moment(unix_s: float) -> str:
    """``2026-11-21T03:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def moment_ms(unix_ms: int) -> str:
    """``2026-11-21T03:00:00.123Z``; the number outside of the years 1 to 9999, such as nanoseconds in a record."""
    try:
        at = datetime.fromtimestamp(unix_ms / 1000, UTC)
    except (ValueError, OverflowError):
        return f"{unix_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_moment(text: str, now_ms: int) -> int:
    """A moment in milliseconds since 1970: a date, a date with time (UTC unless it says otherwise), or how long ago
    (``2h``, ``1d12h``). Raises ValueError with a sentence."""
    if re.fullmatch(r"(?:\d+(?:\.\d+)?(?:us|ms|s|m|h|d))+", text):
        return now_ms - round(parse_duration(text).total_seconds() * 1000)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no moment: write 2026-11-21, 2026-11-21T08:30, 2026-11-21T08:30+02:00, or how long ago: 2h"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)
