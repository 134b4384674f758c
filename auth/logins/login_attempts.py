"""Attempts to log in: the names by which a failure counts, parallel attempts, and the early end of a lock-out.

``auth.logins.lockouts`` decides from names and times. Here a change of the user in the database ends its lock-out.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from typing import Final, NamedTuple

from auth.jwt.parsing import parse_token
from auth.logins.chain import Chain
from auth.logins.events import Events
from auth.logins.lockouts import ClientLockouts, Names
from auth.model import LoginRequest
from auth.names import bounded, lock_name
from auth.ports import AccessStore
from config.tables.auth import AuthSettings

# Lock-outs that a change of the user ends. Others, and those of longer names, end by time only.
_RELEASABLE: Final = 10_000
_LONGEST: Final = 1024
_LONGEST_KEPT: Final = 192  # characters of what is trusted
_CLIENTID: Final = "${clientid}"


class _Lock(NamedTuple):
    """The request that locked a user, without its password, and the user's stamp at that time."""

    request: LoginRequest
    version: int
    stamp: tuple[int, ...]


class LoginAttempts:
    """Locked users and guesses. Belongs to the service's event loop. Times come from the caller."""

    def __init__(self, settings: AuthSettings, store: AccessStore, chain: Chain, events: Events) -> None:
        self.lockouts: Final = ClientLockouts(settings.protection)
        self._by_clientid = finds_by_clientid(settings)
        self._tokens = "jwt" in settings.chain and settings.jwt.source == "password"
        self._store = store
        self._chain = chain
        self._events = events
        self._under_way: dict[Hashable, Counter[str]] = {}  # passwords in verification, by what may count a failure
        self._locks: OrderedDict[tuple[str, str], _Lock] = OrderedDict()  # by user, and address if only there

    def names(self, request: LoginRequest) -> Names:
        """The keys for counting this login's failures. ``client`` is the client id, if users are found by client ids
        and it differs from ``user``.

        A client id always counts beside the user name. A user found by its client id is found with any user name, so a
        guesser would have ten more tries with each. If it counted only for unknown user names, its lock-out would tell
        which user names exist."""
        username, clientid, address = request.username, request.clientid, bounded(request.peerhost)
        user = lock_name(username, clientid)
        client = ""
        if self._by_clientid and username and clientid != username:
            client = lock_name("", clientid)
            if client == user:
                client = ""
        certificate = request.cert_common_name
        if len(username) + len(clientid) + len(certificate) > _LONGEST_KEPT:
            username, clientid, certificate = bounded(username), bounded(clientid), bounded(certificate)
        user_at_address = (username, address)
        if self._tokens and _is_token(request.password):  # which is no guess at a password
            return Names(user, address, client, ("token", *user_at_address), None)
        identity = (*user_at_address, clientid if self._by_clientid else "", certificate)
        return Names(user, address, client, identity, user_at_address)

    def locked(self, names: Names, now_ns: int) -> bool:
        """Whether a lock-out holds. A change of the user ends it, so that a new password works at once. Raises
        BackendDownError."""
        user, address, client = names[:3]
        locked = self.lockouts.locked(names, now_ns)
        if locked == "user":
            changed = [where for where in ("", address) if self._changed(user, where)]
            for where in changed:
                self._forgive(user, where)
            for where in ("", address):
                if changed or self._changed(client, where):  # a user's failures were counted for this client id too
                    self._forgive(client, where)
            locked = self.lockouts.locked(names, now_ns)
        return locked is not None

    def _changed(self, name: str, where: str) -> bool:
        """Whether a user was changed after its lock-out, that at the address ``where`` if it is one."""
        lock = self._locks.get((name, where))
        # By the request of the lock-out: with this one, another spelling or client id would look like a change.
        return (
            lock is not None and lock.version != self._store.version and lock.stamp != self._chain.stamp(lock.request)
        )

    def _forgive(self, name: str, where: str) -> None:
        self._locks.pop((name, where), None)
        self.lockouts.forgive(name, where)

    def guessing(self, names: Names, password: str, now_ns: int) -> bool:
        """Whether so many other passwords of this user are being verified that their failures would lock it out, with
        those that count already. Without the limit 2,000 simultaneous guesses would be answered before the first one
        counts. It does not slow a fleet with one user, which has one password, or tokens, which nobody guesses."""
        most = self.lockouts.failures
        if not most or names.user_at_address is None:
            return False
        return any(
            password not in (tried := self._under_way.get(name, ())) and most <= failures + len(tried)
            for name, failures in self.lockouts.counts(names, now_ns)
        )

    def begin(self, names: Names, password: str, now_ns: int) -> list[Hashable]:
        """Register a verification. Returns the keys that its failure would count for: call ``end`` once with them."""
        counted = [name for name, _failures in self.lockouts.counts(names, now_ns)]
        for name in counted:
            self._under_way.setdefault(name, Counter())[password] += 1
        return counted

    def end(self, counted: list[Hashable], password: str) -> None:
        """Unregister a verification, with or without a verdict."""
        for name in counted:
            tried = self._under_way[name]
            tried[password] -= 1
            if not tried[password]:
                del tried[password]
            if not tried:
                del self._under_way[name]

    def failed(
        self, request: LoginRequest, names: Names, found: str, version: int, stamp: tuple[int, ...], now_ns: int
    ) -> None:
        """Count a wrong password or token of the user ``found``, or an unknown user, by the database of this
        version."""
        user, client = names.user, names.client
        begun = self.lockouts.failed(names, now_ns, lock_name(found, ""))
        for locked in begun:
            if locked.name != client or all(one.name != user for one in begun):  # one log line per guesser
                self._events.lock_out_begun(locked, request)
            length = len(request.username) + len(request.clientid) + len(request.cert_common_name)
            if locked.kind == "user" and length <= _LONGEST:
                asked = replace(request, password="")
                if locked.name != user:  # the lock is the client id's, not the user name's
                    asked = replace(asked, username="")
                    stamp = self._chain.stamp(asked)
                key = locked.name, locked.address
                self._locks[key] = _Lock(asked, version, stamp)
                self._locks.move_to_end(key)
                if len(self._locks) > _RELEASABLE:
                    self._locks.popitem(last=False)

    def succeeded(self, request: LoginRequest, names: Names, found: str) -> None:
        """Record a login from this address, of the user ``found``."""
        name = names.user if found == request.username else lock_name(found, "")
        self.lockouts.succeeded(names.identity, name)
        # Not if the client id is the same: perhaps it was found by that.
        if found and found == request.username != request.clientid and names.user_at_address is not None:
            self.lockouts.succeeded(names.user_at_address, name)


def _is_token(password: str) -> bool:
    """Whether the text has the form of a JWT; its signature is not looked at."""
    try:
        parse_token(password)
    except ValueError:
        return False
    return True


def finds_by_clientid(settings: AuthSettings) -> bool:
    """Whether an authenticator of the chain looks up users with passwords by their client id."""
    asked = {
        "database": "clientid" in settings.database.identities,
        "users_file": True,  # its users may be found by client id
        "jwt": False,  # nobody guesses a signature
        "postgresql": _CLIENTID in settings.postgresql.query,
        "mysql": _CLIENTID in settings.mysql.query,
        "redis": _CLIENTID in settings.redis.key,
        "ldap": _CLIENTID in (settings.ldap.search_filter if settings.ldap.search_base else settings.ldap.bind_dn),
    }
    return any(asked[name] for name in settings.chain)
