"""The built-in database in the chain."""

from __future__ import annotations

__all__ = ["DatabaseAuthenticator"]

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from auth import passwords
from auth.errors import BackendDownError
from auth.model import Allow, Deny, Ignore

if TYPE_CHECKING:
    from collections.abc import Callable

    from auth.hashing import Hasher
    from auth.model import LoginRequest, Tenant, Verdict
    from auth.store import Store
    from auth.store_records import User
    from config.auth import AuthSettings

log = structlog.get_logger("auth")

_WITH_PASSWORDS: Final = frozenset({"username", "clientid"})
_REHASHES: Final = 4  # at a time; a fleet that comes over from elsewhere renews its hashes over its next logins


class DatabaseAuthenticator:
    """Looks a client up by user name, client id, certificate name and address, in the configured order; the first that
    names a user decides.

    A user found by certificate name or address is let in without a password: EMQX has verified the certificate, and
    who configures an address trusts it. Hashes of older kinds are renewed when their password is seen.
    """

    def __init__(
        self,
        settings: AuthSettings,
        store: Store,
        hasher: Hasher,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name: Final = "database"
        self._identities = settings.database.identities
        self._store = store
        self._hasher = hasher
        self._clock = clock
        self._rehashes: set[asyncio.Task[None]] = set()
        self._keys_of = -1  # the version of the database whose keys the hasher knows

    async def start(self) -> None:
        """Nothing to open: the store belongs to the service."""

    @property
    def up(self) -> bool:
        """Whether the last read worked."""
        return not self._store.problem

    async def close(self) -> None:
        """Stop renewing hashes."""
        for task in tuple(self._rehashes):
            task.cancel()
        await asyncio.gather(*self._rehashes, return_exceptions=True)

    def at_once(self, request: LoginRequest) -> Verdict | None:
        """The verdict where it needs no slow hash: unknown users, disabled ones, right device secrets. None:
        ``authenticate`` has to be awaited. Raises BackendDownError."""
        user = self._find(request)
        if user is None:
            return Ignore(self.name)
        tenant = self._store.tenant(user.tenant) if user.tenant else None
        refused = self._refused(user, tenant)
        if refused:
            return Deny(self.name, refused, user.identity)
        if user.kind in _WITH_PASSWORDS:
            if not user.password:
                return Deny(self.name, "bad_password", user.identity)
            try:
                if not self._verified_at_once(user, request.password):
                    return None
            except ValueError as error:
                return self._unreadable(user, error)
        return self._allow(user, tenant)

    async def authenticate(self, request: LoginRequest) -> Verdict:
        """See ``auth.ports.Authenticator``."""
        verdict = self.at_once(request)
        if verdict is not None:
            return verdict
        user = self._find(request)
        if user is None:
            return Ignore(self.name)
        try:
            good = await self._hasher.verify(user.password, request.password)
        except ValueError as error:
            return self._unreadable(user, error)
        if not good:
            return Deny(self.name, "bad_password", user.identity, hashed=True)
        self._renew(user, request.password)
        return self._allow(user, self._store.tenant(user.tenant) if user.tenant else None)

    def stamp(self, request: LoginRequest) -> int:
        """What an earlier verdict on the same request has as ``Allow.version`` as long as nothing that it was made
        from has changed; 0 when no user is found. Some ten microseconds. Raises BackendDownError."""
        user = self._find(request)
        if user is None:
            return 0
        return self._version(user, self._store.tenant(user.tenant) if user.tenant else None)

    def _find(self, request: LoginRequest) -> User | None:
        for kind in self._identities:
            if kind == "username":
                identity = request.username
            elif kind == "clientid":
                identity = request.clientid
            elif kind == "common_name":
                identity = request.cert_common_name
            else:
                identity = request.peerhost
            if identity:
                user = self._store.find_user(kind, identity)
                if user is not None:
                    return user
        return None

    def _refused(self, user: User, tenant: Tenant | None) -> str:
        if user.disabled:
            return "disabled"
        if user.expires_at_s is not None and user.expires_at_s <= self._clock():
            return "expired"
        if tenant is not None and not tenant.enabled:
            return "tenant_disabled"
        return ""

    def _verified_at_once(self, user: User, password: str) -> bool:
        if not user.password.startswith("$device$"):
            return False
        if self._keys_of == self._store.version:
            try:
                return bool(self._hasher.verify_at_once(user.password, password))
            except ValueError:
                pass  # the user, and the key of its secret, may have come with an import a moment ago
        self._hasher.learn(self._store.device_keys())
        self._keys_of = self._store.version
        return bool(self._hasher.verify_at_once(user.password, password))

    def _allow(self, user: User, tenant: Tenant | None) -> Allow:
        attributes = user.attributes
        if tenant is not None and tenant.attributes:
            attributes = {**tenant.attributes, **attributes}
        return Allow(
            self.name,
            user.identity,
            user.tenant,
            user.groups,
            attributes,
            user.is_superuser,
            user.expires_at_s,
            version=self._version(user, tenant),
        )

    def _version(self, user: User, tenant: Tenant | None) -> int:
        return self._store.epoch + max(user.revision, 0 if tenant is None else tenant.revision)

    def _unreadable(self, user: User, error: ValueError) -> Deny:
        log.warning("auth_password_unreadable", kind=user.kind, user=user.identity, error=str(error))
        return Deny(self.name, "refused", user.identity, detail=f"The stored password cannot be used: {error}.")

    def _renew(self, user: User, password: str) -> None:
        """Have the hash replaced by one of today's kind, after the answer and only if there is nothing better to do."""
        if (
            len(self._rehashes) >= _REHASHES
            or not self._hasher.outdated(user.password)
            or not passwords.is_proof(passwords.parse(user.password), password)
        ):
            return
        task = asyncio.get_running_loop().create_task(self._rehash(user, password))
        self._rehashes.add(task)
        task.add_done_callback(self._rehashes.discard)

    async def _rehash(self, user: User, password: str) -> None:
        try:
            stored = await self._hasher.hash(password)
        except BackendDownError:
            return  # too much to do; the next login comes
        self._store.writer.submit(lambda edit: edit.users.rehash(user, stored))
