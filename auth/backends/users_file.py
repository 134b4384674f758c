"""A file of users in the chain: for a few devices without a database, or as a way over from EMQX's bootstrap file.

The file is read again when it changes. One that cannot be read, or has a mistake in it, changes nothing: the users of
the last good one stay, and the log says what is wrong, once.
"""

from __future__ import annotations

__all__ = ["UsersFileAuthenticator"]

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from auth.backends.local_users import LocalJudge, asked_identities
from auth.errors import BackendDownError, ImportFormatError
from auth.model import Ignore
from auth.networks import enclosing, prefix_code
from auth.passwords import plain_text
from auth.store.user_entries import HashForm
from auth.store.user_formats import read_users
from config.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from auth.hashing import Hasher
    from auth.model import Allow, LoginRequest, Tenant, Verdict
    from auth.store.records import IdentityKind, User
    from auth.store.store import Store
    from auth.store.user_formats import UserFile
    from config.auth import AuthSettings

log = structlog.get_logger("auth")

_LOOK_S: Final = 1.0
_KINDS: Final[tuple[IdentityKind, ...]] = ("username", "clientid", "common_name", "address")


class _Users:
    """The users of one reading."""

    def __init__(self, file: UserFile, number: int, before: _Users | None) -> None:
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


class UsersFileAuthenticator:
    """Implements ``auth.ports.Authenticator`` and ``auth.ports.Stamping`` over ``auth.users_file``.

    It is down as long as no reading of the file has succeeded, since it cannot tell who is in it.
    """

    def __init__(
        self, settings: AuthSettings, store: Store, hasher: Hasher, clock: Callable[[], float] = time.time
    ) -> None:
        self.name: Final = "users_file"
        if settings.users_file is None:
            raise ConfigError(
                "auth.chain has users_file, but there is no [auth.users_file] table that says which file."
            )
        mine = settings.users_file
        self.path: Final[Path] = mine.file
        self._kind: IdentityKind = mine.identity
        self._form = HashForm(
            algorithm=mine.algorithm, salt_position=mine.salt_position, pbkdf2_iterations=mine.pbkdf2_iterations
        )
        self._store = store
        self._hasher = hasher
        self._judge = LocalJudge(self.name, hasher, clock)
        self._users: _Users | None = None
        self._problem = ""
        self._seen: tuple[int, int, int] | str = ""  # of the file when it was last read, or why it could not be
        self._readings = 0
        self._settling: tuple[int, int, int] | str = ""
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the file, and watch it from now on."""
        await self.look(settled=True)
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="users-file")

    @property
    def up(self) -> bool:
        """Whether there are users to ask."""
        return self._users is not None

    @property
    def problem(self) -> str:
        """What is wrong with the file as it is now; empty when nothing is. The users may be of an older one."""
        return self._problem

    async def close(self) -> None:
        """Stop watching."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None

    async def look(self, *, settled: bool = False) -> bool:
        """Read the file if it has changed and, unless it is ``settled``, has stayed the same since the last look: half
        of a file that somebody is writing may well be a good one. Whether there are new users now."""
        seen = self._signature()
        if seen == self._seen:
            return False
        if not settled and seen != self._settling:
            self._settling = seen
            return False
        try:
            # In a thread: 100,000 users take seconds to read, and logins go on meanwhile.
            file = await asyncio.to_thread(read_users, self.path, self._form, self._kind)
            users = await asyncio.to_thread(_Users, file, self._readings + 1, self._users)
        except ImportFormatError as error:
            self._seen = seen
            if str(error) != self._problem:
                self._problem = str(error)
                kept = 0 if self._users is None else len(self._users.users)
                log.warning("auth_users_file_unusable", error=self._problem, users_kept=kept)
            return False
        self._seen = seen
        self._problem = ""
        self._hasher.learn(file.device_keys)
        self._users = users
        self._readings += 1
        self._store.changed_elsewhere()
        log.info("auth_users_file_read", file=str(self.path), users=len(users.users))
        return True

    async def authenticate(self, request: LoginRequest) -> Verdict:
        """See ``auth.ports.Authenticator``."""
        users = self._users
        if users is None:
            raise BackendDownError(self.name, self._problem or f"{self.path} has not been read yet.")
        user = self._find(users, request)
        if user is None:
            return Ignore(self.name)
        tenant = self._tenant(users, user)
        try:
            version = self._version(users, user)
            verdict = self._judge.at_once(user, tenant, request.password, version)
            if verdict is None:
                verdict = await self._judge.judge(user, tenant, request.password, version)
        except ValueError as error:
            return self._judge.unreadable(user, error)
        return verdict

    def past_lock_out(self, request: LoginRequest) -> Allow | Ignore | None:
        """See ``auth.ports.KnowingSecrets``."""
        users = self._users
        if users is None:
            return None
        user = self._find(users, request)
        tenant = None if user is None else self._tenant(users, user)
        version = 0 if user is None else self._version(users, user)
        try:
            allow = self._judge.past_lock_out(user, tenant, request.password, version)
        except ValueError:
            return None
        return Ignore(self.name) if user is None else allow

    def stamp(self, request: LoginRequest) -> int:
        """See ``auth.ports.Stamping``."""
        users = self._users
        user = None if users is None else self._find(users, request)
        return 0 if users is None or user is None else self._version(users, user)

    def _version(self, users: _Users, user: User) -> int:
        tenant = self._tenant(users, user)
        # Who it is belongs to it: all users of a first reading are of the same one.
        since = users.stamps[user.kind, user.identity]
        return hash((user.kind, user.identity, since, 0 if tenant is None else tenant.revision))

    def _find(self, users: _Users, request: LoginRequest) -> User | None:
        for kind, identity in asked_identities(request, users.kinds):
            user = users.find(kind, identity)
            if user is not None:
                return user
        return None

    def _tenant(self, users: _Users, user: User) -> Tenant | None:
        """The tenant as the file describes it, else as the built-in database does."""
        if not user.tenant:
            return None
        return users.tenants.get(user.tenant) or self._store.tenant(user.tenant)

    def _signature(self) -> tuple[int, int, int] | str:
        try:
            found = self.path.stat()
        except OSError as error:
            return error.strerror or "?"
        return found.st_mtime_ns, found.st_size, found.st_ino

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()


def _kept(user: User, plain: str | None) -> User:
    """A readable password stays one: the file on the disk has it too, and hashing it here would take the start of the
    service hostage."""
    return user if plain is None else replace(user, password=plain_text(plain))
