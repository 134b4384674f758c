"""A file of users in the chain: for a few devices without a database, or for a migration from EMQX's bootstrap file.

A changed file is read again. If it cannot be read, the users of the last good reading stay, and the fault is logged
once.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Final

import structlog

from auth.backends.local_users import Found, LocalUsers, asked_identities
from auth.errors import BackendDownError, ImportFormatError
from auth.hashing import Hasher
from auth.model import Allow, Ignore, LoginRequest, Verdict
from auth.networks import enclosing, prefix_code
from auth.passwords import plain_text
from auth.store.records import IdentityKind, User
from auth.store.store import Store
from auth.store.user_entries import HashForm
from auth.store.user_formats import UserFile, read_users
from bridge.waiting import end_tasks
from config.tables.auth import AuthSettings

log = structlog.get_logger("auth")

_LOOK_S: Final = 1.0
_KINDS: Final[tuple[IdentityKind, ...]] = ("username", "clientid", "common_name", "address")


class _Users:
    def __init__(self, file: UserFile, number: int, before: _Users | None) -> None:
        """``number`` is that of this reading of the file, ``before`` the users of the one before."""
        self.users: dict[tuple[IdentityKind, str], User] = {
            (one.user.kind, one.user.identity): _kept(one.user, one.plain) for one in file.entries
        }
        self.tenants = {tenant.name: tenant for tenant in file.tenants}
        self.kinds = tuple(kind for kind in _KINDS if any(key[0] == kind for key in self.users))
        prefixes = {prefix_code(identity) for kind, identity in self.users if kind == "address"}
        self._prefixes = sorted(prefixes, reverse=True)
        # Since which reading each user has been as it is: what was decided about one that has not changed still holds.
        same_tenants = before is not None and before.tenants == self.tenants
        old = before.users if before is not None and same_tenants else {}
        stamps = {} if before is None else before.stamps
        self.stamps: dict[tuple[IdentityKind, str], int] = {
            key: stamps[key] if old.get(key) == user else number for key, user in self.users.items()
        }

    def find(self, kind: IdentityKind, identity: str) -> User | None:
        """The user, as ``auth.store.store.Store.find_user`` finds one."""
        if kind != "address":
            return self.users.get((kind, identity))
        found = (self.users.get(("address", network)) for network in enclosing(identity, self._prefixes))
        return next((user for user in found if user is not None), None)


class UsersFileAuthenticator(LocalUsers):
    """Implements ``auth.ports.Authenticator`` over ``auth.users_file``.

    It is down as long as no reading of the file has succeeded, since it cannot tell who is in it.
    """

    def __init__(self, settings: AuthSettings, store: Store, hasher: Hasher) -> None:
        super().__init__("users_file", store, hasher)
        mine = settings.users_file
        assert mine is not None, "auth.chain has users_file"
        self.path: Final[Path] = mine.file
        self._kind: IdentityKind = mine.identity
        self._form = HashForm(
            algorithm=mine.algorithm, salt_position=mine.salt_position, pbkdf2_iterations=mine.pbkdf2_iterations
        )
        self._users: _Users | None = None
        self.problem = ""  # what is wrong with the file now; the users may be those of an older one
        self._seen: tuple[int, int, int] | str = ""  # of the file when it was last read, or why it could not be
        self._readings = 0  # successful ones
        self.reloads = {"success": 0, "failure": 0}  # since the start; looks at an unusable file are failures
        self._settling: tuple[int, int, int] | str = ""  # of a changed file, perhaps half written, at the last look
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the file, and watch it from now on."""
        await self.look(settled=True)
        self.reloads = dict.fromkeys(self.reloads, 0)
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="users-file")

    @property
    def up(self) -> bool:
        """Whether there are users to ask."""
        return self._users is not None

    async def close(self) -> None:
        await end_tasks(self._watcher)

    async def look(self, *, settled: bool = False) -> bool:
        """Read a changed file. Unless it is ``settled``, it also has to be unchanged since the last look, since it may
        be half written. Whether there are new users."""
        seen = self._signature()
        if seen == self._seen:
            self.reloads["failure"] += bool(self.problem)
            return False
        if not settled and seen != self._settling:
            self._settling = seen
            return False
        try:
            # In a thread: 100,000 users take seconds to read, and logins go on meanwhile.
            file = await asyncio.to_thread(read_users, self.path, self._form, self._kind)
            users = await asyncio.to_thread(_Users, file, self._readings + 1, self._users)
        except ImportFormatError as error:
            unreadable = isinstance(error.__context__, OSError)
            self._seen = "" if unreadable else seen  # tried again: a chmod changes nothing of `seen`
            self.reloads["failure"] += 1
            if str(error) != self.problem:
                self.problem = str(error)
                kept = 0 if self._users is None else len(self._users.users)
                log.warning("auth_users_file_unusable", error=self.problem, users_kept=kept)
            return False
        self._seen = seen
        self.problem = ""
        self._hasher.learn(file.device_keys)
        self._users = users
        self._readings += 1
        self.reloads["success"] += 1
        self._store.changed_elsewhere(users.tenants)
        log.info("auth_users_file_read", file=str(self.path), users=len(users.users))
        return True

    async def authenticate(self, request: LoginRequest) -> Verdict:
        if self._users is None:
            raise BackendDownError(self.name, self.problem or f"{self.path} has not been read yet.")
        return await super().authenticate(request)

    def past_lock_out(self, request: LoginRequest) -> Allow | Ignore | None:
        return None if self._users is None else super().past_lock_out(request)

    def _find(self, request: LoginRequest) -> Found | None:
        """The user of the first identity that has one, with its tenant and their version; None without one."""
        users = self._users
        if users is None:
            return None
        user = next(filter(None, starmap(users.find, asked_identities(request, users.kinds))), None)
        if user is None:
            return None
        # The tenant as the file describes it, else as the built-in database does.
        tenant = (users.tenants.get(user.tenant) or self._store.tenant(user.tenant)) if user.tenant else None
        revision = 0 if tenant is None or user.tenant in users.tenants else self._store.epoch + tenant.revision
        # With the identity, since all users of a first reading have the same stamp.
        since = users.stamps[user.kind, user.identity]
        version = hash((user.kind, user.identity, since, revision))
        return Found(user, tenant, version)

    def _signature(self) -> tuple[int, int, int] | str:
        """What changes with the file; a text, the reason, when it cannot be read."""
        try:
            found = self.path.stat()
        except OSError as error:
            return error.strerror or "?"
        return found.st_mtime_ns, found.st_size, found.st_ino

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.look()
            except Exception:  # a defect must not end the looks
                log.exception("auth_defect", at="users_file", repeat_key="users_file")


def _kept(user: User, plain: str | None) -> User:
    """A readable password stays readable: the file on the disk has it too. Hashing it here would delay the start of the
    service."""
    return user if plain is None else replace(user, password=plain_text(plain))
