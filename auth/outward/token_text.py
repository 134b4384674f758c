"""What a token may look like, and what it says of its own end."""

from __future__ import annotations

__all__ = ["problem_of_token", "token_expiry_ns"]

import re

from auth.jwt.parsing import unverified_expiry

LONGEST = 65_535  # what an MQTT password may have; EMQX and Kafka take less by default
_PRINTABLE = re.compile(r"[!-~]+")  # RFC 6750's characters and some more; none that would end a header or a field


def problem_of_token(token: str) -> str | None:
    """Why this cannot be a token, in words that hold nothing of it; None when it can."""
    if not token:
        return "it is empty"
    if len(token) > LONGEST:
        return f"it has more than {LONGEST} characters"
    if not _PRINTABLE.fullmatch(token):
        return "it holds spaces, line ends or other characters that no token has"
    return None


def token_expiry_ns(token: str, now_ns: int, now_s: float) -> int | None:
    """When a JWT says that it expires, by the monotonic clock that shows ``now_ns`` when the wall's shows ``now_s``;
    None for one that does not say. Nothing is verified: it is our own, and the broker that will judge it knows how."""
    expires_s = unverified_expiry(token)
    return None if expires_s is None else now_ns + int((expires_s - now_s) * 1e9)
