"""The built-in database for the service: users, rules, tenants, bans.

A read takes a few microseconds, so it runs on the event loop. Users, bans and a subject's own rules are found by index.
Rules for many (everybody, a group, a tenant, a network) are cached, within a limit, until they change. Other
processes may edit the file at any time (``auth.store.edit``): ``refresh`` finds that, and reads call it every 50 ms.

The service survives a missing, replaced or damaged file: reads raise BackendDownError until the file is back.
"""

import contextlib
import heapq
import json
import os
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

from auth.errors import BackendDownError, StoreError
from auth.model import Ban, Rule, Subject, Tenant
from auth.names import ban_name
from auth.networks import enclosing
from auth.store import edit as store_edit
from auth.store import file as store_file
from auth.store.edit import Editor
from auth.store.file import BAN_COLUMNS, LOGIN_COLUMNS, TENANT_COLUMNS, USER_COLUMNS
from auth.store.records import AuditEntry, IdentityKind, StoredRule, User, ban_of, login_user_of, tenant_of, user_of
from auth.store.rules import OWN_KINDS, RULE_COLUMNS, rule_of
from auth.store.values import check_identity
from auth.store.writer import Writer
from config.settings import Settings

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
BACKEND: Final = "database"  # its name in auth.chain

_READ_WAIT_S: Final = 0.05  # the event loop's longest wait for a lock; in WAL mode readers almost never wait
_LOOK_NS: Final = 50_000_000  # between two checks of the file for changes
_REOPEN_NS: Final = 1_000_000_000
_EPOCH_BITS: Final = 40
_FOR_EVERYBODY: Final = frozenset({"all"})
_KEPT_RULES: Final = 50_000  # cached rules for many clients, some 600 bytes each
_KEPT_TENANTS: Final = 10_000
_KEPT_TEXT: Final = 512  # longest key, in characters, of cached rules and tenants

# Columns are constants and values are parameters, so no client's text becomes part of a statement.
_USER: Final = f"SELECT {USER_COLUMNS} FROM users WHERE kind = ? AND identity = ?"  # noqa: S608
_LOGIN: Final = f"SELECT {LOGIN_COLUMNS} FROM users WHERE kind = ? AND identity = ?"  # noqa: S608
_RULES: Final = f"SELECT {RULE_COLUMNS} FROM rules WHERE kind = ? AND value = ?"  # noqa: S608
_TENANT: Final = f"SELECT {TENANT_COLUMNS} FROM tenants WHERE name = ?"  # noqa: S608
_BAN: Final = f"SELECT {BAN_COLUMNS} FROM bans WHERE kind = ? AND folded = ? AND (until_s IS NULL OR until_s > ?)"  # noqa: S608
# The distinct values of an indexed column without reading all rows: each step finds the next larger value.
_DIFFERENT: Final = (
    "WITH RECURSIVE found(v) AS (SELECT min({0}) FROM {1} WHERE {0} IS NOT NULL UNION ALL "
    "SELECT (SELECT min({0}) FROM {1} WHERE {0} > found.v) FROM found WHERE found.v IS NOT NULL) "
    "SELECT v FROM found WHERE v IS NOT NULL ORDER BY v DESC"
)


def database_path(settings: Settings) -> Path:
    return settings.auth.database.file or settings.data_dir / "auth" / "auth.sqlite3"


class Store:
    """The database, for reading. Belongs to one thread, the event loop's; ``edit`` may be called from any.

    Implements ``auth.ports.AccessStore``. ``writer`` makes the changes of the service itself.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.writer: Final = Writer(path)
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] = (0, 0)  # device and inode of the open file
        self._data_version = -1  # SQLite's, which grows with each commit
        self._version = 0  # in the file, as the next
        self._ban_version = 0
        self._elsewhere = 0  # changes of users outside of the database
        self._tenants_elsewhere: Mapping[str, Tenant] = {}
        # Added to the versions of the present file, because another file may have any versions.
        self.epoch = 0
        # Grows with each change of users, rules and tenants that ``refresh`` finds. A ban does not change it, because
        # that would discard the cached logins of all clients.
        self.version = 0
        self.ban_version = 0  # grows with each change of bans
        self._looked_ns = 0
        self._failed_ns = 0
        self.problem = ""  # why the last read failed
        self._rules: OrderedDict[tuple[str, str], list[StoredRule]] = OrderedDict()
        self._everybody: tuple[Rule, ...] | None = None  # if all rules are for everybody
        self._kept_rules = 0  # in ``_rules``, and one more for each list
        self._tenants: OrderedDict[str, Tenant | None] = OrderedDict()
        self._rule_kinds: frozenset[str] = frozenset()
        self._ban_kinds: frozenset[str] = frozenset()  # kinds of the existing bans
        self._user_prefixes: list[int] = []  # ``prefix_code`` of the networks there are, as the next two
        self._rule_prefixes: list[int] = []
        self._ban_prefixes: list[int] = []

    def open(self) -> None:
        """Create the file if it is missing, migrate it, and open it. Blocks. Raises StoreError."""
        store_file.prepare(self.path)
        try:
            self._connect()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(store_file.explain(self.path, error)) from error

    def close(self) -> None:
        """Write the service's pending changes, for five seconds at most, and close the file. Blocks."""
        self.writer.close()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    async def ban(self, ban: Ban, *, by: str) -> None:
        """Store a ban, in the writer's thread; a longer one of the same name, made meanwhile, stays. Raises StoreError
        for a wrong ban, or if it cannot be stored now."""
        await self.writer.make(lambda edit: edit.bans.add(replace(ban, by=by), shorten=False))
        with contextlib.suppress(BackendDownError):
            self.refresh()  # the ban holds from the next login on

    def edit(self, by: str, *, wait_s: float = 10.0, dry_run: bool = False) -> AbstractContextManager[Editor]:
        """A transaction that changes it: see ``auth.store.edit.edit``."""
        return store_edit.edit(self.path, by, wait_s=wait_s, dry_run=dry_run)

    def changed_elsewhere(self, tenants: Mapping[str, Tenant]) -> None:
        """Raise ``version``, after a change of users outside of the database. ``tenants`` are those by name that the
        database may not have."""
        self._elsewhere += 1
        self._tenants_elsewhere = tenants
        self._number(self._version, self._ban_version)

    def _number(self, version: int, ban_version: int) -> None:
        self._version, self._ban_version = version, ban_version
        self.version = self.epoch + version + self._elsewhere
        self.ban_version = self.epoch + ban_version

    def refresh(self) -> bool:
        """Whether the file has changed; if so, the caches are dropped. Some 5 µs. Raises BackendDownError."""
        before = self.version, self.ban_version
        self._looked_ns = 0
        return self._ask(self._versions) != before

    def find_user(self, kind: IdentityKind, identity: str) -> User | None:
        """The user of that kind and identity, without its dates; for kind ``address`` that of the narrowest network.
        Raises BackendDownError."""
        return self._ask(self._find_user, kind, identity)

    def find_ban(self, clientid: str, username: str, address: str, now_s: float) -> Ban | None:
        """A present ban of client id, user name or address. Raises BackendDownError."""
        if not self._ban_kinds and self._db is not None and time.monotonic_ns() - self._looked_ns < _LOOK_NS:
            return None  # as in most databases
        return self._ask(self._find_ban, clientid, username, address, now_s)

    def tenant(self, name: str) -> Tenant | None:
        """The tenant of that name, also one of the users file that the database does not have. Raises
        BackendDownError."""
        return self._ask(self._tenant, name) or self._tenants_elsewhere.get(name)

    def rules_for(self, subject: Subject) -> tuple[Rule, ...]:
        """The rules for this subject, its groups, tenant, networks and attributes, and for everybody, in order.

        The caller checks further conditions. Raises BackendDownError."""
        return self._ask(self._rules_for, subject)

    def device_keys(self) -> Mapping[str, bytes]:
        """The keys of device secrets, by id. Raises BackendDownError."""
        return self._ask(self._device_keys)

    @contextlib.contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """Reads in this block see the database as it is at the first of them. For commands."""
        db = self._ready()
        db.execute("BEGIN")
        try:
            yield
        finally:
            with contextlib.suppress(sqlite3.Error):  # it was closed after a failure
                db.execute("COMMIT")

    def users(self, *, kind: str = "", tenant: str = "") -> Iterator[User]:
        """All users, or those of a kind or tenant, by kind and name. For commands. Raises StoreError."""
        sql = f"SELECT {USER_COLUMNS} FROM users WHERE (? = '' OR kind = ?) AND (? = '' OR tenant = ?)"  # noqa: S608
        return self._list(f"{sql} ORDER BY kind, identity", (kind, kind, tenant, tenant), user_of)

    def user(self, kind: str, identity: str) -> User | None:
        """The user of this name or network, compared exactly. For commands. Raises StoreError."""
        return next(self._list(_USER, (kind, check_identity(kind, identity)), user_of), None)

    def rules(self, *, kind: str = "", value: str = "") -> Iterator[StoredRule]:
        """All rules in order, or those with this condition, alone or beside others. For commands. Raises StoreError."""
        where = "? = '' OR (kind = ? AND value = ?) OR instr(who, ?)"
        sql = f"SELECT {RULE_COLUMNS} FROM rules WHERE {where} ORDER BY position"  # noqa: S608
        found = self._list(sql, (kind, kind, value, json.dumps(value, ensure_ascii=False)), rule_of)
        return (one for one in found if not kind or (kind, value) in one.rule.who)

    def tenants(self) -> Iterator[Tenant]:
        """All tenants by name. For commands. Raises StoreError."""
        return self._list(f"SELECT {TENANT_COLUMNS} FROM tenants ORDER BY name", (), tenant_of)  # noqa: S608

    def bans(self, *, now_s: float) -> Iterator[Ban]:
        """All present bans. For commands. Raises StoreError."""
        sql = f"SELECT {BAN_COLUMNS} FROM bans WHERE until_s IS NULL OR until_s > ? ORDER BY kind, value"  # noqa: S608
        return self._list(sql, (now_s,), ban_of)

    def audit(self, limit: int) -> list[AuditEntry]:
        """The latest changes, newest first. For commands. Raises StoreError."""
        sql = "SELECT id, at_s, by, action, subject, detail FROM audit ORDER BY id DESC LIMIT ?"
        return list(self._list(sql, (limit,), lambda row: AuditEntry(*row)))

    def count_users(self, tenant: str = "") -> int:
        """Number of users, of all or of a tenant. Raises StoreError."""
        where = "tenant = ? AND tenant != ''" if tenant else "? = ''"
        return next(self._list(f"SELECT count(*) FROM users WHERE {where}", (tenant,), lambda row: int(row[0])))  # noqa: S608

    def count_rules(self) -> int:
        return next(self._list("SELECT count(*) FROM rules", (), lambda row: int(row[0])))

    def _list(self, sql: str, values: tuple[Any, ...], make: Callable[[Any], T]) -> Iterator[T]:
        """Each row of a query, as ``make`` reads it. Raises StoreError."""
        try:
            for row in self._ready().execute(sql, values):
                yield make(row)
        except (sqlite3.Error, OSError, *store_file.UNSTORABLE) as error:
            raise StoreError(store_file.explain(self.path, error)) from error

    def _ask(self, read: Callable[[*Ts], T], *args: *Ts) -> T:
        """The result of a read, behind a check for changes if one is due. Raises BackendDownError; the file is opened
        again a second after a failure."""
        now_ns = time.monotonic_ns()
        if self._db is None and self.problem and now_ns - self._failed_ns < _REOPEN_NS:
            raise BackendDownError(BACKEND, self.problem)
        try:
            if self._db is None or now_ns - self._looked_ns >= _LOOK_NS:
                self._looked_ns = now_ns
                self._look()
            answer = read(*args)
        except (sqlite3.Error, OSError, StoreError, ValueError) as error:
            if not isinstance(error, sqlite3.Error) or not store_file.is_transient(error):
                self._disconnect()
            self._failed_ns = time.monotonic_ns()
            self.problem = str(error) if isinstance(error, StoreError) else store_file.explain(self.path, error)
            raise BackendDownError(BACKEND, self.problem) from error
        self.problem = ""
        return answer

    def _ready(self) -> sqlite3.Connection:
        if self._db is None:
            self._connect()
        assert self._db is not None
        return self._db

    def _connect(self) -> None:
        """Open the file, in place of one that was open before, and read its versions."""
        self._disconnect()
        found = self.path.stat()
        db = store_file.connect(self.path, wait_s=_READ_WAIT_S, read_only=True)
        try:
            store_file.check_format(self.path, db)
        except BaseException:
            db.close()
            raise
        self._db = db
        self._file = (found.st_dev, found.st_ino)
        self._data_version = -1
        self.epoch += 1 << _EPOCH_BITS
        self._number(-1, -1)
        self.problem = ""
        self._look()

    def _versions(self) -> tuple[int, int]:
        return self.version, self.ban_version

    def _look(self) -> None:
        """Check the file for changes."""
        found = os.stat(self.path)  # noqa: PTH116 - half the time, many times a second
        if self._db is None or (found.st_dev, found.st_ino) != self._file:
            self._connect()  # at first, or after the file was replaced
            return
        db = self._ready()
        # Grows with every commit of other connections; this one only reads.
        seen = db.execute("PRAGMA data_version").fetchone()[0]
        if seen == self._data_version:
            return
        versions = dict(db.execute("SELECT key, value FROM meta").fetchall())
        changed: bool = versions["version"] != self._version
        bans_changed: bool = versions["ban_version"] != self._ban_version
        if changed:
            self._refill_caches()
        if bans_changed:
            self._ban_kinds = frozenset(self._different("kind", "bans"))
            self._ban_prefixes = self._different("prefix", "bans")
        if versions["version"] < self._version or versions["ban_version"] < self._ban_version:
            self.epoch += 1 << _EPOCH_BITS  # a copy was restored in place: its next versions may have been others
        self._number(versions["version"], versions["ban_version"])
        self._data_version = seen  # last: a look that failed on the way, at a lock, is repeated

    def _refill_caches(self) -> None:
        """Forget rules and tenants, and note which kinds of conditions and networks there are."""
        self._rules.clear()
        self._everybody = None
        self._kept_rules = 0
        self._tenants.clear()
        self._rule_kinds = frozenset(self._different("kind", "rules"))
        self._user_prefixes = self._different("prefix", "users")
        self._rule_prefixes = self._different("prefix", "rules")

    def _different(self, column: str, table: str) -> list[Any]:
        return [row[0] for row in self._ready().execute(_DIFFERENT.format(column, table))]

    def _find_user(self, kind: IdentityKind, identity: str) -> User | None:
        """The user of this name, without a check for changes; None without one."""
        if kind == "address":
            for network in enclosing(identity, self._user_prefixes):
                row = self._ready().execute(_LOGIN, (kind, network)).fetchone()
                if row is not None:
                    return login_user_of(kind, network, row)
            return None
        try:
            row = self._ready().execute(_LOGIN, (kind, identity)).fetchone()
        except UnicodeEncodeError:  # text that is no UTF-8 names nobody
            return None
        return None if row is None else login_user_of(kind, identity, row)

    def _find_ban(self, clientid: str, username: str, address: str, now_s: float) -> Ban | None:
        """A ban of any of these, without a check for changes; None without one."""
        if not self._ban_kinds:
            return None
        db = self._ready()
        asked = [one for one in (("clientid", clientid), ("username", username)) if one[0] in self._ban_kinds]
        asked += [("address", network) for network in enclosing(address, self._ban_prefixes)]
        for kind, value in asked:
            try:
                row = db.execute(_BAN, (kind, ban_name(kind, value), now_s)).fetchone() if value else None
            except UnicodeEncodeError:
                continue
            if row is not None:
                return ban_of(row)
        return None

    def _tenant(self, name: str) -> Tenant | None:
        """The tenant, without a check for changes; None without one."""
        if name in self._tenants:
            self._tenants.move_to_end(name)
            return self._tenants[name]
        try:
            row = self._ready().execute(_TENANT, (name,)).fetchone()
        except UnicodeEncodeError:
            return None
        found = None if row is None else tenant_of(row)
        if len(name) > _KEPT_TEXT:
            return found
        self._tenants[name] = found
        if len(self._tenants) > _KEPT_TENANTS:
            self._tenants.popitem(last=False)
        return found

    def _device_keys(self) -> dict[str, bytes]:
        return {row[0]: bytes(row[1]) for row in self._ready().execute("SELECT id, key FROM device_keys")}

    def _rules_for(self, subject: Subject) -> tuple[Rule, ...]:
        """The rules that may concern the subject, in their order, without a check for changes."""
        kinds = self._rule_kinds
        if kinds == _FOR_EVERYBODY:
            if self._everybody is None:
                self._everybody = tuple(one.rule for one in self._kept("all", ""))
            return self._everybody
        lists: list[list[StoredRule]] = []
        own = (subject.clientid, subject.username, subject.cert_common_name)
        for kind, value in zip(OWN_KINDS, own, strict=True):
            if value and kind in kinds:
                lists.append(self._read_rules(kind, value))
        for kind, value in self._general(subject, kinds):
            lists.append(self._kept(kind, value))
        lists = [one for one in lists if one]
        if len(lists) == 1:
            return tuple(one.rule for one in lists[0])
        return tuple(one.rule for one in heapq.merge(*lists, key=_position))

    def _general(self, subject: Subject, kinds: frozenset[str]) -> Iterator[tuple[str, str]]:
        """The conditions of rules that may concern this subject and others."""
        if "all" in kinds:
            yield "all", ""
        if "tenant" in kinds and subject.tenant:
            yield "tenant", subject.tenant
        if "group" in kinds:
            for group in subject.groups:
                yield "group", group
        if "attribute" in kinds:
            for name, value in subject.attributes.items():
                yield "attribute", f"{name}={value}"
        for network in enclosing(subject.peerhost, self._rule_prefixes):
            yield "address", network

    def _kept(self, kind: str, value: str) -> list[StoredRule]:
        """Rules for many clients, from the cache if present."""
        key = (kind, value)
        found = self._rules.get(key)
        if found is not None:
            self._rules.move_to_end(key)
            return found
        found = self._read_rules(kind, value)
        if len(value) > _KEPT_TEXT:
            return found  # not cached: a client may have chosen this long value
        self._rules[key] = found
        self._kept_rules += len(found) + 1
        while self._kept_rules > _KEPT_RULES and len(self._rules) > 1:
            self._kept_rules -= len(self._rules.popitem(last=False)[1]) + 1
        return found

    def _read_rules(self, kind: str, value: str) -> list[StoredRule]:
        """The rules found by this condition, in order."""
        try:
            rows = self._ready().execute(_RULES, (kind, value)).fetchall()
        except UnicodeEncodeError:
            return []
        found = [rule_of(row) for row in rows]
        if len(found) > 1:
            found.sort(key=_position)
        return found


def _position(stored: StoredRule) -> int:
    return stored.position
