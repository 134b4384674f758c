"""The built-in database in the chain."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from auth import passwords
from auth.backends.local_users import Found, LocalUsers, asked_identities
from auth.errors import BackendDownError
from auth.hashing import Hasher
from auth.model import Allow, Deny, Ignore, LoginRequest, Verdict
from auth.store.records import User
from auth.store.store import Store
from bridge.waiting import end_tasks
from config.tables.auth import AuthSettings

_REHASHES: Final = 4  # at a time; an imported fleet renews its hashes over its next logins


class DatabaseAuthenticator(LocalUsers):
    """Looks a client up by the identities of ``auth.database.identities``; the first that names a user decides.

    Renews hashes of older kinds after a login. Implements ``auth.ports.Authenticator`` and ``AnsweringAtOnce``.
    """

    def __init__(
        self,
        settings: AuthSettings,
        store: Store,
        hasher: Hasher,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("database", store, hasher, clock)
        self._identities = settings.database.identities
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
        """Why the last read failed; empty after a good one."""
        return self._store.problem

    async def close(self) -> None:
        await end_tasks(*self._rehashes)

    def at_once(self, request: LoginRequest) -> Verdict | None:
        """The verdict without a slow hash: on unknown and disabled users, and right device secrets. None: await
        ``authenticate``. Raises BackendDownError."""
        found = self._find(request)
        if found is None:
            return Ignore(self.name)
        try:
            return self._judged_at_once(found, request.password)
        except ValueError as error:
            return self._unreadable(found.user, error)

    def _judged_at_once(self, found: Found, password: str) -> Verdict | None:
        """The verdict without a slow hash, or None. Reads missing keys of secrets; renews an outdated hash later."""
        try:
            verdict = super()._judged_at_once(found, password)
        except ValueError:
            self._learn_keys()  # an import may have just added the user and the key of its secret
            verdict = super()._judged_at_once(found, password)
        if isinstance(verdict, Allow) and not found.user.password.startswith("$device$"):  # the usual one costs no look
            self._renew(found.user, password)
        return verdict

    async def _judged(self, found: Found, password: str) -> Allow | Deny:
        verdict = await super()._judged(found, password)
        if isinstance(verdict, Allow):
            self._renew(found.user, password)
        return verdict

    def _find(self, request: LoginRequest) -> Found | None:
        """The user of the first identity that has one, with its tenant and their version; None without one."""
        store = self._store
        user = None
        for kind, identity in asked_identities(request, self._identities):
            user = store.find_user(kind, identity)
            if user is not None:
                break
        if self._keys_of != store.version:
            self._learn_keys()
        if user is None:
            return None
        tenant = store.tenant(user.tenant) if user.tenant else None
        # With the identity: all users of one import have the same revision. If a login's user is removed, and the
        # login then finds another user by its client id, the version must differ.
        revision = max(user.revision, 0 if tenant is None else tenant.revision)
        return Found(user, tenant, hash((user.kind, user.identity, store.epoch + revision)))

    def _learn_keys(self) -> None:
        self._hasher.learn(self._store.device_keys())
        self._keys_of = self._store.version

    def _renew(self, user: User, password: str) -> None:
        """Replace an outdated hash, after the answer and only while nothing else waits."""
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
        """Hash the password with today's settings, and store that. Without room for it nothing is done."""
        try:
            stored = await self._hasher.hash(password)
        except BackendDownError:
            return  # no room now; the next login renews it
        self._store.writer.submit(lambda edit: edit.users.rehash(user, stored))
