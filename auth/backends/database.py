"""The built-in database in the chain."""

from __future__ import annotations

__all__ = ["DatabaseAuthenticator"]

import asyncio
import time
from typing import TYPE_CHECKING, Final

from auth import passwords
from auth.backends.local_users import LocalJudge, asked_identities
from auth.errors import BackendDownError
from auth.model import Allow, Ignore

if TYPE_CHECKING:
    from collections.abc import Callable

    from auth.hashing import Hasher
    from auth.model import LoginRequest, Tenant, Verdict
    from auth.store.records import User
    from auth.store.store import Store
    from config.auth import AuthSettings

_REHASHES: Final = 4  # at a time; a fleet that comes over from elsewhere renews its hashes over its next logins


class DatabaseAuthenticator:
    """Looks a client up by what ``auth.database.identities`` says, in that order; the first that names a user decides.

    Hashes of older kinds are renewed when their password is seen. Implements ``auth.ports.Authenticator`` and
    ``auth.ports.Stamping``.
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
        self._judge = LocalJudge(self.name, hasher, clock)
        self._rehashes: set[asyncio.Task[None]] = set()
        self._keys_of = -1  # the version of the database whose keys the hasher knows

    async def start(self) -> None:
        """Nothing to open: the store belongs to the service."""

    @property
    def up(self) -> bool:
        """Whether the last read worked."""
        return not self._store.problem

    @property
    def problem(self) -> str:
        """Why the last read failed; empty when it did not."""
        return self._store.problem

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
        tenant = self._tenant(user)
        version = self._version(user, tenant)
        try:
            if self._keys_of == self._store.version:
                try:
                    return self._judge.at_once(user, tenant, request.password, version)
                except ValueError:
                    pass  # the user, and the key of its secret, may have come with an import a moment ago
            self._hasher.learn(self._store.device_keys())
            self._keys_of = self._store.version
            return self._judge.at_once(user, tenant, request.password, version)
        except ValueError as error:
            return self._judge.unreadable(user, error)

    def past_lock_out(self, request: LoginRequest) -> Allow | Ignore | None:
        """See ``auth.ports.KnowingSecrets``."""
        user = self._find(request)
        tenant = None if user is None else self._tenant(user)
        if self._keys_of != self._store.version:
            self._hasher.learn(self._store.device_keys())
            self._keys_of = self._store.version
        version = 0 if user is None else self._version(user, tenant)
        try:
            allow = self._judge.past_lock_out(user, tenant, request.password, version)
        except ValueError:
            return None  # the key of its secret is missing: ``authenticate`` says so when nobody is locked out
        return Ignore(self.name) if user is None else allow

    async def authenticate(self, request: LoginRequest) -> Verdict:
        """See ``auth.ports.Authenticator``."""
        verdict = self.at_once(request)
        if verdict is not None:
            return verdict
        user = self._find(request)
        if user is None:
            return Ignore(self.name)
        tenant = self._tenant(user)
        try:
            verdict = await self._judge.judge(user, tenant, request.password, self._version(user, tenant))
        except ValueError as error:
            return self._judge.unreadable(user, error)
        if isinstance(verdict, Allow):
            self._renew(user, request.password)
        return verdict

    def stamp(self, request: LoginRequest) -> int:
        """What an earlier verdict on the same request has as ``Allow.version`` as long as nothing that it was made
        from has changed; 0 when no user is found. Some ten microseconds. Raises BackendDownError."""
        user = self._find(request)
        return 0 if user is None else self._version(user, self._tenant(user))

    def _find(self, request: LoginRequest) -> User | None:
        for kind, identity in asked_identities(request, self._identities):
            user = self._store.find_user(kind, identity)
            if user is not None:
                return user
        return None

    def _tenant(self, user: User) -> Tenant | None:
        return self._store.tenant(user.tenant) if user.tenant else None

    def _version(self, user: User, tenant: Tenant | None) -> int:
        # Who it is belongs to it: of users that one import has made, all have the same revision. When the one that a
        # login found by its user name is removed, the next that it finds (by its client id) must not look like it.
        revision = max(user.revision, 0 if tenant is None else tenant.revision)
        return hash((user.kind, user.identity, self._store.epoch + revision))

    def _renew(self, user: User, password: str) -> None:
        """Have the hash replaced by one of today's kind, after the answer and only if there is nothing better to do."""
        if (
            not user.password
            or len(self._rehashes) >= _REHASHES
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
