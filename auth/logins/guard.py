"""Lock-outs as logins meet them: whom a request is counted as, and what ends a lock-out early.

``auth.protection`` decides from names and times; here it meets the database, whose changes let a locked user off.
"""

from __future__ import annotations

__all__ = ["Guard"]

from collections import Counter, OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from auth.logins.protection import Protection
from auth.wording import bounded, lock_name

if TYPE_CHECKING:
    from auth.logins.chain import Chain
    from auth.logins.events import Events
    from auth.model import LoginRequest
    from auth.ports import AccessStore
    from config.auth import AuthSettings

# Lock-outs that end when the user is changed; of more than that, and of longer names, they end by themselves.
_RELEASABLE: Final = 10_000
_LONGEST: Final = 1024
_CLIENTID: Final = "${clientid}"


class _Lock(NamedTuple):
    """The request that locked a user, without its password, and what the database had to say of it then."""

    request: LoginRequest
    version: int
    stamp: tuple[int, ...]


class Guard:
    """Who is locked out, and who guesses. Belongs to the service's event loop; the caller gives the time."""

    def __init__(self, settings: AuthSettings, store: AccessStore, chain: Chain, events: Events) -> None:
        self.protection: Final = Protection(settings.protection)
        self._by_clientid = _finds_by_clientid(settings)
        self._store = store
        self._chain = chain
        self._events = events
        self._under_way: Counter[str] = Counter()  # verifications by user
        self._locks: OrderedDict[str, _Lock] = OrderedDict()

    def locked(self, request: LoginRequest, now_ns: int) -> bool:
        """Whether a lock-out holds. That of a user ends when the user is changed: whoever has given it another password
        wants it to be let in with that. Raises BackendDownError."""
        user, address, also = self._names(request)
        locked = self.protection.locked(user, address, now_ns, also)
        if locked == "user":
            if self._changed(user):
                self._let_off(user, address)
                self._let_off(also, address)  # its failures were counted with this client id as well
            elif self._changed(also):
                self._let_off(also, address)
            locked = self.protection.locked(user, address, now_ns, also)
        return locked is not None

    def _changed(self, name: str) -> bool:
        """Whether a user has been changed since it was locked out."""
        lock = self._locks.get(name)
        # Looked up by that request, not by this one: else another spelling or client id would look like a change.
        return (
            lock is not None and lock.version != self._store.version and lock.stamp != self._chain.stamp(lock.request)
        )

    def _let_off(self, name: str, address: str) -> None:
        self._locks.pop(name, None)
        self.protection.forgive(name, address)

    def guessing(self, request: LoginRequest) -> bool:
        """Whether as many logins of this user are under verification as would lock it out if they failed. Without that
        limit, whoever sends two thousand guesses at once has them all answered before the first has counted. It is no
        limit for who has been in from there; nor does it slow down a fleet that shares a user, since so many hashes
        keep all threads busy."""
        most = self.protection.failures
        user, address, also = self._names(request)
        for name in (user, also):
            if name and self.protection.trusts(name, address):
                return False
            if name and 0 < most <= self._under_way[name]:
                return True
        return False

    def begin(self, request: LoginRequest) -> None:
        """A login is verified from now on; ``end`` it once."""
        user, _, also = self._names(request)
        self._under_way[user] += 1
        if also:
            self._under_way[also] += 1

    def end(self, request: LoginRequest) -> None:
        """It has its verdict, or none."""
        user, _, also = self._names(request)
        for name in (user, also) if also else (user,):
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]

    def failed(self, request: LoginRequest, version: int, stamp: tuple[int, ...], now_ns: int) -> None:
        """A wrong password or token, or an unknown user, as verified from the database of this version."""
        user, address, also = self._names(request)
        begun = self.protection.failed(user, address, now_ns, also)
        for locked in begun:
            if locked.name != also or all(one.name != user for one in begun):  # one guesser is told of once
                self._events.locked_out(locked, request)
            names = len(request.username) + len(request.clientid) + len(request.cert_common_name)
            if locked.kind == "user" and names <= _LONGEST:
                asked = replace(request, password="")
                if locked.name != user:  # whose client id it is, not whose user name was shown with it
                    asked = replace(asked, username="")
                    stamp = self._chain.stamp(asked)
                self._locks[locked.name] = _Lock(asked, version, stamp)
                self._locks.move_to_end(locked.name)
                if len(self._locks) > _RELEASABLE:
                    self._locks.popitem(last=False)

    def succeeded(self, request: LoginRequest, found: str) -> None:
        """Somebody has shown the right password from there, of the user that was found by this."""
        user, address, also = self._names(request)
        self.protection.succeeded(user, address)
        if also and lock_name(found, "") == also:
            self.protection.succeeded(also, address)

    def _names(self, request: LoginRequest) -> tuple[str, str, str]:
        """By what failures of a user, from an address, and of a client id are counted. The last is empty where it is
        the first, or where nobody is found by it.

        A client id counts beside the user name, and always: a user that is found by it is found whatever user name
        comes with it, so a guesser would have another ten tries with each. If it counted only where the user name is
        unknown, the lock-out of a client id would tell which user names are.
        """
        user = lock_name(request.username, request.clientid)
        also = lock_name("", request.clientid) if self._by_clientid and request.username else ""
        return user, bounded(request.peerhost), "" if also == user else also


def _finds_by_clientid(settings: AuthSettings) -> bool:
    """Whether anybody in the chain looks users with passwords up by their client id."""
    asked = {
        "database": "clientid" in settings.database.identities,
        "users_file": True,  # each of its users says what it is found by
        "jwt": False,  # a signature is not found by trying
        "postgresql": _CLIENTID in settings.postgresql.query,
        "mysql": _CLIENTID in settings.mysql.query,
        "redis": _CLIENTID in settings.redis.key,
        "ldap": _CLIENTID in (settings.ldap.search_filter if settings.ldap.search_base else settings.ldap.bind_dn),
    }
    return any(asked[name] for name in settings.chain)
