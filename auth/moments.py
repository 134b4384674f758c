"""Moments at which a password or a ban ends, as people write them.

``2027-01-31``, ``2027-01-31T12:00:00+01:00``, ``30d`` from now, ``never``.

Moments in the past, as of ``--since``: ``gateway/base/moments.py``.
"""

from datetime import UTC, datetime
from typing import Final

from config.values.grammar import parse_duration

_GRAMMAR: Final = (
    'a moment is a date ("2027-01-31", which begins at midnight UTC), a date and time with its zone '
    '("2027-01-31T12:00:00Z"), a length of time from now ("30d", "12h"), or "never"'
)


def parse_expiry(text: str, now_s: float | None = None) -> int | None:
    """Unix seconds, None for ``never``. Without ``now_s`` a length of time is refused, because a file has no "now".
    Raises ValueError with a sentence."""
    text = text.strip()
    if text == "never":
        return None
    try:
        if now_s is not None and text[-1:] in set("smhd"):
            return int(now_s + parse_duration(text).total_seconds())
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            if len(text) > len("2027-01-31"):
                raise ValueError(_GRAMMAR)  # noqa: TRY301 - without a zone it may be wrong by hours
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp())
    except (ValueError, OverflowError):
        raise ValueError(_GRAMMAR) from None


def format_moment(moment_s: int | None) -> str:
    """The text that ``parse_expiry`` reads back; a moment after the year 9999 as a number of seconds."""
    if moment_s is None:
        return "never"
    try:
        return datetime.fromtimestamp(moment_s, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(moment_s)
