"""A cache of recent logins, verified or refused. A repeated login costs no hash and no query.

Passwords are never kept. The key of an entry is a keyed BLAKE2b digest of all inputs of the verdict. The digest's key
is random and only in this process, so a digest from a memory dump matches nothing outside. A restart clears the cache,
and the fleet is verified again.
"""

import hashlib
import secrets
from collections import OrderedDict
from typing import Final, Generic, Protocol, TypeVar

from auth.model import LoginRequest

_KEY_BYTES: Final = 32
_DIGEST_BYTES: Final = 16  # among 200,000 entries the chance of two alike is 1 in 2**93
_SWEPT_AT_ONCE: Final = 10_000


class LoginDigest:
    """Makes the key of a login: 16 bytes, some two microseconds."""

    __slots__ = ("_keyed",)

    def __init__(self) -> None:
        self._keyed = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=secrets.token_bytes(_KEY_BYTES))

    def __call__(self, request: LoginRequest) -> bytes:
        """The login's key: equal only for logins equal in every text."""
        username, clientid, password = request.username, request.clientid, request.password
        address, name = request.peerhost, request.cert_common_name
        # The lengths make the texts of different logins different.
        text = (
            f"{len(username)} {len(clientid)} {len(password)} {len(address)} {len(name)} "
            f"{username}{clientid}{password}{address}{name}"
        )
        made = self._keyed.copy()
        made.update(text.encode("utf-8", "surrogatepass"))
        return made.digest()


class Remembered(Protocol):
    """An entry: the caller's value, and when it expires."""

    expires_at_ns: int


E = TypeVar("E", bound=Remembered)


class LoginCache(Generic[E]):
    """A bounded number of entries by digest. A new entry replaces the least recently used one.

    No I/O; times are nanoseconds of a monotonic clock, from the caller. The caller decides whether an entry is still
    valid; the cache knows only its age.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries: OrderedDict[bytes, E] = OrderedDict()
        self._entries_max = entries_max
        self._heavy: dict[bytes, int] = {}  # weights above 1, each less 1
        self._extra = 0  # the sum of it
        self.evicted = 0  # entries replaced before their expiry

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<LoginCache {len(self._entries)} of {self._entries_max}>"

    def get(self, key: bytes, now_ns: int) -> E | None:
        """The entry, unless it has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires_at_ns <= now_ns:
            self.drop(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, entry: E, now_ns: int, weight: int = 1) -> None:
        """Store an entry in place of an older one. ``weight`` is its size in ordinary entries, so that large answers
        do not use all memory."""
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
        if self._entries.pop(key, None) is not None and self._heavy:
            self._extra -= self._heavy.pop(key, 0)

    def clear(self) -> None:
        self._entries.clear()
        self._heavy.clear()
        self._extra = 0

    def sweep(self, now_ns: int) -> None:
        """Drop expired entries, a bounded number per call. Otherwise a quiet service would keep a storm's entries."""
        entries = self._entries
        for _ in range(min(_SWEPT_AT_ONCE, len(entries))):
            key = next(iter(entries))
            if entries[key].expires_at_ns > now_ns:
                return
            self.drop(key)
