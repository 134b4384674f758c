"""Users in the database: edits within a transaction of ``Editor``."""

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final, get_args

from auth import passwords
from auth.errors import NotStoredError, StoreError
from auth.networks import prefix_code
from auth.store.file import USER_COLUMNS
from auth.store.records import IdentityKind, User, user_of
from auth.store.session import Session
from auth.store.values import check_attributes, check_groups, check_identity, check_number, check_user_identity

_KINDS: Final[tuple[str, ...]] = get_args(IdentityKind)
_WITH_PASSWORDS: Final = frozenset({"username", "clientid"})
# Columns are constants and values are parameters, so no foreign text becomes part of a statement.
_PUT: Final = f"INSERT OR REPLACE INTO users ({USER_COLUMNS}, prefix) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_GET: Final = f"SELECT {USER_COLUMNS} FROM users WHERE kind = ? AND identity = ?"  # noqa: S608


class UserEdits:
    """The users. ``kind`` is username, clientid, common_name or address."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._db = session.db
        self._room_left: dict[str, int] = {}  # free places of each tenant that this transaction has looked up

    def get(self, kind: str, identity: str) -> User | None:
        row = self._db.execute(_GET, (kind, check_identity(kind, identity))).fetchone()
        return None if row is None else user_of(row)

    def add(self, user: User, *, overwrite: bool = False, audited: bool = True) -> bool:
        """Store a user; its times and revision are set here. Returns whether it was new.

        With ``overwrite`` an existing user is replaced. Raises StoreError if the user exists, or its tenant does not
        exist or is full."""
        identity = self._checked_identity(user.kind, user.identity)
        before = self.get(user.kind, identity)
        if before is not None and not overwrite:
            raise StoreError(
                f"There is a {user.kind} {identity!r} already: change its password with `gateway auth user passwd`, "
                "or remove it first; `gateway auth user import` has --existing keep and --existing overwrite."
            )
        if before is None or before.tenant != user.tenant:
            self._take_room(user.tenant)
        created = self._session.now_s if before is None else before.created_s
        self._put(replace(user, identity=identity, created_s=created))
        if audited:
            self._session.record("user add" if before is None else "user replace", f"{user.kind} {identity}", "")
        return before is None

    @staticmethod
    def alike(one: User, other: User) -> bool:
        """Whether two users are equal, apart from the times of their changes."""
        return replace(one, created_s=0, changed_s=0, revision=0) == replace(
            other, created_s=0, changed_s=0, revision=0
        )

    def change(self, kind: str, identity: str, action: str = "user change", **fields: Any) -> User:
        """Change these fields of a user (``password``, ``disabled``, …); returns the changed user. ``action`` names the
        change in the audit. Raises StoreError if there is none."""
        before = self._existing(kind, identity)
        after = replace(before, **fields)
        if after.tenant != before.tenant:
            self._take_room(after.tenant)
            self._room_left.pop(before.tenant, None)
        self._put(after)
        said = ", ".join(
            name if name == "password" else f"{name} = {_shown(getattr(after, name))}" for name in sorted(fields)
        )
        self._session.record(action, f"{kind} {before.identity}", said)
        return after

    def remove(self, kind: str, identity: str) -> User:
        """Remove a user; returns it. Rules that name it stay. Raises StoreError if there is none."""
        user = self._existing(kind, identity)
        self._db.execute("DELETE FROM users WHERE kind = ? AND identity = ?", (kind, user.identity))
        self._room_left.pop(user.tenant, None)
        self._session.touch()
        self._session.record("user remove", f"{kind} {user.identity}", "")
        return user

    def remove_others(self, kept: AbstractSet[tuple[str, str]]) -> int:
        """Remove all users whose kind and identity are not in ``kept``; returns their number."""
        rows = self._db.execute("SELECT kind, identity FROM users").fetchall()
        gone = [(kind, identity) for kind, identity in rows if (kind, identity) not in kept]
        self._db.executemany("DELETE FROM users WHERE kind = ? AND identity = ?", gone)
        if gone:
            self._room_left.clear()
            self._session.touch()
        return len(gone)

    def rehash(self, user: User, stored: str) -> bool:
        """Replace the hash of a user that has just logged in by ``stored``. Returns False if it has changed meanwhile.

        The password is the same, so cached logins stay valid."""
        done = self._db.execute(
            "UPDATE users SET password = ? WHERE kind = ? AND identity = ? AND password = ?",
            (stored, user.kind, user.identity, user.password),
        )
        return done.rowcount == 1

    def count(self, tenant: str) -> int:
        return int(
            self._db.execute("SELECT count(*) FROM users WHERE tenant = ? AND tenant != ''", (tenant,)).fetchone()[0]
        )

    def _existing(self, kind: str, identity: str) -> User:
        """The user. Raises NotStoredError if there is none."""
        user = self.get(kind, identity)
        if user is None:
            raise NotStoredError(
                f"There is no {kind} {identity!r}. Names are compared byte for byte; `gateway auth user list` shows "
                "those that there are."
            )
        return user

    def _checked_identity(self, kind: str, identity: str) -> str:
        if kind not in _KINDS:
            raise StoreError(f"A user is found by {', '.join(_KINDS)}, not by {kind[:50]!r}.")
        return check_user_identity(kind, identity)

    def _take_room(self, tenant: str) -> None:
        """Take a free place of a tenant. The users are counted once per transaction, so an import is not quadratic."""
        if not tenant:
            return
        if tenant not in self._room_left:
            found = self._db.execute("SELECT users_max FROM tenants WHERE name = ?", (tenant,)).fetchone()
            if found is None:
                raise StoreError(f"There is no tenant {tenant!r}: add it with `gateway auth tenant add`.")
            self._room_left[tenant] = (1 << 53 if found[0] is None else found[0]) - self.count(tenant)
        if self._room_left[tenant] <= 0:
            raise StoreError(f"The tenant {tenant!r} has as many users as its users_max allows.")
        self._room_left[tenant] -= 1

    def _put(self, user: User) -> None:
        """Write a user, new or changed. Raises StoreError for a value that cannot be stored."""
        if user.password:
            if user.kind not in _WITH_PASSWORDS:
                raise StoreError(f"A user found by {user.kind} has no password: its certificate or address suffices.")
            try:
                passwords.parse(user.password)
            except ValueError as error:
                raise StoreError(f"The password of {user.kind} {user.identity!r} cannot be stored: {error}.") from None
        now = self._session.now_s
        self._db.execute(
            _PUT,
            (
                user.kind,
                user.identity,
                user.password,
                user.tenant,
                check_groups(user.groups),
                check_attributes(user.attributes),
                int(user.is_superuser),
                int(user.disabled),
                check_number("The expiry", user.expires_at_s),
                user.created_s or now,
                now,
                self._session.touch(),
                prefix_code(user.identity) if user.kind == "address" else None,
            ),
        )


def _shown(value: object) -> str:
    if isinstance(value, frozenset):
        return ",".join(sorted(value)) or "none"
    return str(dict(value)) if isinstance(value, dict) else str(value)
