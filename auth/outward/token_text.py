"""The form of a token, and its expiry."""

import re

from auth.jwt.parsing import unverified_expiry

LONGEST = 65_535  # what an MQTT password may have; EMQX and Kafka take less by default
_PRINTABLE = re.compile(r"[!-~]+")  # RFC 6750's characters and some more; none that would end a header or a field


def problem_of_token(token: str) -> str | None:
    """Why the text is no token, without the text; None if it is one."""
    if not token:
        return "it is empty"
    if len(token) > LONGEST:
        return f"it has more than {LONGEST} characters"
    if not _PRINTABLE.fullmatch(token):
        return "it holds spaces, line ends or other characters that no token has"
    return None


def token_expiry_ns(token: str, now_ns: int, now_s: float) -> int | None:
    """A JWT's expiry by the monotonic clock, which shows ``now_ns`` at ``now_s`` of the wall clock; None without one.
    Not verified: the token is our own, and the broker judges it."""
    expires_s = unverified_expiry(token)
    return None if expires_s is None else now_ns + int((expires_s - now_s) * 1e9)
