"""Lock-outs as logins meet them: whom a request is counted as, and what ends a lock-out early.

``auth.protection`` decides from names and times; here it meets the database, whose changes let a locked user off.
"""

from __future__ import annotations

__all__ = ["Guard"]

from collections import Counter, OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from auth.protection import Protection
from auth.wording import bounded, lock_name

if TYPE_CHECKING:
    from auth.chain import Chain
    from auth.events import Events
    from auth.model import LoginRequest
    from auth.ports import AccessStore
    from config.auth import AuthProtectionSettings

# Lock-outs that end when the user is changed; of more than that, and of longer names, they end by themselves.
_RELEASABLE: Final = 10_000
_LONGEST: Final = 1024


class _Lock(NamedTuple):
    """The request that locked a user, without its password, and what the database had to say of it then."""

    request: LoginRequest
    version: int
    stamp: tuple[int, ...]


class Guard:
    """Who is locked out, and who guesses. Belongs to the service's event loop; the caller gives the time."""

    def __init__(self, settings: AuthProtectionSettings, store: AccessStore, chain: Chain, events: Events) -> None:
        self.protection: Final = Protection(settings)
        self._store = store
        self._chain = chain
        self._events = events
        self._under_way: Counter[str] = Counter()  # verifications by user
        self._locks: OrderedDict[str, _Lock] = OrderedDict()

    def locked(self, request: LoginRequest, now_ns: int) -> bool:
        """Whether a lock-out holds. That of a user ends when the user is changed: whoever has given it another password
        wants it to be let in with that. Raises BackendDownError."""
        user, address = _names(request)
        locked = self.protection.locked(user, address, now_ns)
        if locked == "user":
            lock = self._locks.get(user)
            # Looked up by that request, not by this one: else another spelling or client id would look like a change.
            if (
                lock is not None
                and lock.version != self._store.version
                and lock.stamp != self._chain.stamp(lock.request)
            ):
                del self._locks[user]
                self.protection.forgive(user, address)
                locked = self.protection.locked(user, address, now_ns)
        return locked is not None

    def guessing(self, request: LoginRequest) -> bool:
        """Whether as many logins of this user are under verification as would lock it out if they failed. Without that
        limit, whoever sends two thousand guesses at once has them all answered before the first has counted. It is no
        limit for who has been in from there; nor does it slow down a fleet that shares a user, since so many hashes
        keep all threads busy."""
        most = self.protection.failures
        user, address = _names(request)
        return bool(user) and 0 < most <= self._under_way[user] and not self.protection.trusts(user, address)

    def begin(self, request: LoginRequest) -> None:
        """A login is verified from now on; ``end`` it once."""
        self._under_way[_names(request)[0]] += 1

    def end(self, request: LoginRequest) -> None:
        """It has its verdict, or none."""
        user = _names(request)[0]
        self._under_way[user] -= 1
        if not self._under_way[user]:
            del self._under_way[user]

    def failed(self, request: LoginRequest, version: int, stamp: tuple[int, ...], now_ns: int) -> None:
        """A wrong password or token, or an unknown user, as verified from the database of this version."""
        user, address = _names(request)
        for locked in self.protection.failed(user, address, now_ns):
            self._events.locked_out(locked, request)
            names = len(request.username) + len(request.clientid) + len(request.cert_common_name)
            if locked.kind == "user" and names <= _LONGEST:
                self._locks[user] = _Lock(replace(request, password=""), version, stamp)
                self._locks.move_to_end(user)
                if len(self._locks) > _RELEASABLE:
                    self._locks.popitem(last=False)

    def succeeded(self, request: LoginRequest) -> None:
        """Somebody has shown the right password from there."""
        self.protection.succeeded(*_names(request))


def _names(request: LoginRequest) -> tuple[str, str]:
    """By what failures of a user and from an address are counted."""
    return lock_name(request.username, request.clientid), bounded(request.peerhost)
