"""Logins that were verified or refused a moment ago, so that asking again costs no hash and no query.

Passwords are never kept. A login is known by a keyed BLAKE2b digest of everything that its verdict can depend on; the
key is random, made at the start of the process and never leaves it, so a digest from a memory dump can be matched
with nothing outside it. Nothing is cached across a restart: it costs a fleet one round of verifications, and no file
with what amounts to password hashes.
"""

from __future__ import annotations

__all__ = ["LoginCache", "LoginDigest", "Remembered"]

import hashlib
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from auth.model import LoginRequest

_KEY_BYTES: Final = 32
_DIGEST_BYTES: Final = 16  # among 200,000 entries the chance of two alike is 1 in 2**93
_SWEPT_AT_ONCE: Final = 10_000


class LoginDigest:
    """Makes the key of a login: 16 bytes, some two microseconds. Other fields are left out on purpose: nothing in the
    chain or in a rule looks at a client's listener, zone or certificate subject."""

    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)

    def __call__(self, request: LoginRequest) -> bytes:
        username, clientid, password = request.username, request.clientid, request.password
        address, name = request.peerhost, request.cert_common_name
        # With the lengths in front, no two different logins are one text.
        text = (
            f"{len(username)} {len(clientid)} {len(password)} {len(address)} {len(name)} "
            f"{username}{clientid}{password}{address}{name}"
        )
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES, key=self._key).digest()


class Remembered(Protocol):
    """An entry: whatever the caller keeps, and when it ends."""

    expires_at_ns: int


E = TypeVar("E", bound=Remembered)


class LoginCache(Generic[E]):
    """So many entries at most, by digest; beyond it the one that was not asked for the longest makes room.

    Decides only: the caller gives the time, a monotonic clock's in ns. Whether an entry is still true is the caller's
    to judge; here it is only still young.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries: OrderedDict[bytes, E] = OrderedDict()
        self._entries_max = entries_max
        self._heavy: dict[bytes, int] = {}  # by how much some entries take the room of more than one
        self._extra = 0  # the sum of these
        self.evicted = 0  # entries that were still young and made room

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<LoginCache {len(self._entries)} of {self._entries_max}>"

    def get(self, key: bytes, now_ns: int) -> E | None:
        """The entry, unless its time is over."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires_at_ns <= now_ns:
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, entry: E, now_ns: int, weight: int = 1) -> None:
        """Remember an entry, in place of an older one. ``weight``: how many entries' room it takes, or whoever has
        large answers made would use up all memory long before there are too many entries."""
        self.drop(key)
        if entry.expires_at_ns <= now_ns or weight > self._entries_max:
            return
        self._entries[key] = entry
        if weight > 1:
            self._heavy[key] = weight - 1
            self._extra += weight - 1
        while len(self._entries) + self._extra > self._entries_max:
            oldest = next(iter(self._entries))
            self.evicted += self._entries[oldest].expires_at_ns > now_ns
            self.drop(oldest)

    def drop(self, key: bytes) -> None:
        """Forget an entry, if it is there."""
        if self._entries.pop(key, None) is not None and self._heavy:
            self._extra -= self._heavy.pop(key, 0)

    def clear(self) -> None:
        """Forget all of them."""
        self._entries.clear()
        self._heavy.clear()
        self._extra = 0

    def sweep(self, now_ns: int) -> None:
        """Let go of what has not been asked for since its time was over, a bounded number at a time. Without it a quiet
        service would keep for hours what a storm has left."""
        entries = self._entries
        for _ in range(min(_SWEPT_AT_ONCE, len(entries))):
            key = next(iter(entries))
            if entries[key].expires_at_ns > now_ns:
                return
            self.drop(key)
