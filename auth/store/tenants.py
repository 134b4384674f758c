"""Tenants and bans in the database: edits within a transaction of ``Editor``."""

from dataclasses import replace
from typing import Any, Final, get_args

from auth.errors import NotStoredError, StoreError
from auth.model import Ban, BanKind, Tenant
from auth.names import ban_name
from auth.networks import prefix_code
from auth.store.file import BAN_COLUMNS, TENANT_COLUMNS
from auth.store.records import ban_of, tenant_of
from auth.store.session import Session
from auth.store.values import check_attributes, check_identity, check_number, check_tenant_name, check_text

_BAN_KINDS: Final[tuple[str, ...]] = get_args(BanKind)
_REASON_BYTES: Final = 1024


class TenantEdits:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._db = session.db

    def get(self, name: str) -> Tenant | None:
        row = self._db.execute(f"SELECT {TENANT_COLUMNS} FROM tenants WHERE name = ?", (name,)).fetchone()  # noqa: S608 - no value is in the text
        return None if row is None else tenant_of(row)

    def add(self, tenant: Tenant) -> None:
        """Store a new tenant. Raises StoreError if the name is in use."""
        if self.get(check_tenant_name(tenant.name)) is not None:
            raise StoreError(f"There is a tenant {tenant.name!r} already: `gateway auth tenant set` changes it.")
        self._put(tenant)
        self._session.record("tenant add", f"tenant {tenant.name}", "")

    def change(self, name: str, **fields: Any) -> Tenant:
        """Change these fields of a tenant; returns the changed tenant. Raises StoreError if there is none."""
        after = replace(self._existing(name), **fields)
        self._put(after)
        self._session.record("tenant set", f"tenant {name}", ", ".join(sorted(fields)))
        return after

    def put(self, tenant: Tenant) -> None:
        """Store a tenant, replacing one of the same name."""
        before = self._existing(tenant.name)
        self._put(replace(tenant, created_s=before.created_s))
        self._session.record("tenant set", f"tenant {tenant.name}", "all of it")

    @staticmethod
    def alike(one: Tenant, other: Tenant) -> bool:
        """Whether two tenants are equal, apart from the times of their changes."""
        return replace(one, created_s=0, changed_s=0, revision=0) == replace(
            other, created_s=0, changed_s=0, revision=0
        )

    def remove(self, name: str) -> Tenant:
        """Remove a tenant; returns it. Raises StoreError if there is none or it has users."""
        tenant = self._existing(name)
        users = self._db.execute("SELECT count(*) FROM users WHERE tenant = ? AND tenant != ''", (name,)).fetchone()[0]
        if users:
            raise StoreError(
                f"The tenant {name!r} has {users} users: remove them first, or disable it (`gateway auth tenant set "
                f"{name} --disable`), which refuses all of them."
            )
        self._db.execute("DELETE FROM tenants WHERE name = ?", (name,))
        self._session.touch()
        self._session.record("tenant remove", f"tenant {name}", "")
        return tenant

    def _existing(self, name: str) -> Tenant:
        tenant = self.get(name)
        if tenant is None:
            raise NotStoredError(f"There is no tenant {name!r}: `gateway auth tenant list` shows those that there are.")
        return tenant

    def _put(self, tenant: Tenant) -> None:
        """Write a tenant, new or changed. Raises StoreError for a value that cannot be stored."""
        now = self._session.now_s
        self._db.execute(
            f"INSERT OR REPLACE INTO tenants ({TENANT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - no value is in the text
            (
                tenant.name,
                int(tenant.enabled),
                check_number("The limit of logins", tenant.logins_per_second),
                check_number("The limit of users", tenant.users_max),
                check_attributes(tenant.attributes),
                tenant.created_s or now,
                now,
                self._session.touch(),
            ),
        )


class BanEdits:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._db = session.db

    def add(self, ban: Ban, *, shorten: bool = True) -> Ban:
        """Store a ban, replacing one of the same name, unless it would ``shorten`` that; returns the ban that holds.
        Removes expired bans."""
        if ban.kind not in _BAN_KINDS:
            raise StoreError(f"A ban is of {', '.join(_BAN_KINDS)}, not of {ban.kind!r}.")
        stored = replace(
            ban,
            value=check_identity(ban.kind, ban.value),
            until_s=check_number("The end of the ban", ban.until_s),
            reason=check_text("The reason", ban.reason, limit=_REASON_BYTES, empty=True),
            by=ban.by or self._session.by,
            created_s=self._session.now_s,
        )
        folded = ban_name(stored.kind, stored.value)
        if not shorten:
            longer = self._db.execute(
                f"SELECT {BAN_COLUMNS} FROM bans WHERE kind = ? AND folded = ? AND (until_s IS NULL OR until_s > ?)",  # noqa: S608 - no value is in the text
                (stored.kind, folded, stored.until_s),
            ).fetchone()
            if longer is not None:
                return ban_of(longer)
        self._db.execute(  # expired bans, and one of the same name
            "DELETE FROM bans WHERE until_s <= ? OR (kind = ? AND folded = ?)",
            (self._session.now_s, stored.kind, folded),
        )
        self._db.execute(
            f"INSERT INTO bans ({BAN_COLUMNS}, prefix, folded) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - no value is in the text
            (
                stored.kind,
                stored.value,
                stored.reason,
                stored.until_s,
                stored.by,
                stored.created_s,
                prefix_code(stored.value) if stored.kind == "address" else None,
                folded,
            ),
        )
        self._session.touch_bans()
        self._session.record("ban add", f"{stored.kind} {stored.value}", stored.reason)
        return stored

    def remove(self, kind: str, value: str) -> Ban:
        """Remove a ban; returns it. Raises StoreError if there is none."""
        row = self._db.execute(
            f"DELETE FROM bans WHERE kind = ? AND folded = ? RETURNING {BAN_COLUMNS}",  # noqa: S608 - no value is in the text
            (kind, ban_name(kind, check_identity(kind, value))),
        ).fetchone()
        if row is None:
            raise NotStoredError(
                f"There is no ban of {kind} {value!r}: `gateway auth ban list` shows those that there are."
            )
        self._session.touch_bans()
        self._session.record("ban remove", f"{kind} {row[1]}", "")
        return ban_of(row)
