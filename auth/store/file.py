"""The file of the built-in database: opening, schema, migrations, and the meaning of SQLite's errors.

One SQLite file in WAL mode: many processes read while one writes, and readers delay nobody. It holds password hashes,
so only its user may read it (mode 0600, its directory 0700).
"""

import contextlib
import fcntl
import os
import secrets
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from auth.errors import StoreError
from auth.names import ban_name
from auth.passwords import DEVICE_KEY_BYTES, device_key_id

_APPLICATION_ID: Final = 0x4D4B4741  # "MKGA"
UNSTORABLE: Final = (UnicodeEncodeError, OverflowError)  # what sqlite3 raises for a value that no column can have
_CACHE_KIB: Final = 8192  # twice the interior index pages of a million rules

USER_COLUMNS: Final = (
    "kind, identity, password, tenant, groups, attributes, is_superuser, disabled, expires_at_s, created_s, changed_s, "
    "revision"
)
LOGIN_COLUMNS: Final = "password, tenant, groups, attributes, is_superuser, disabled, expires_at_s, revision"
TENANT_COLUMNS: Final = "name, enabled, logins_per_second, users_max, attributes, created_s, changed_s, revision"
BAN_COLUMNS: Final = "kind, value, reason, until_s, by, created_s"

# Rules are found by the narrowest of their conditions (kind, value). The other conditions are in `who`, for the
# decision. Positions have gaps, so that a rule can be inserted between two others. `prefix` is
# auth.networks.prefix_code of an address.
_FIRST: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('version', 1), ('ban_version', 1);
CREATE TABLE device_keys (id TEXT PRIMARY KEY, key BLOB NOT NULL, own INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE tenants (
    name TEXT PRIMARY KEY, enabled INTEGER NOT NULL, logins_per_second INTEGER, users_max INTEGER,
    attributes TEXT NOT NULL, created_s INTEGER NOT NULL, changed_s INTEGER NOT NULL, revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE users (
    kind TEXT NOT NULL, identity TEXT NOT NULL, prefix INTEGER, password TEXT NOT NULL, tenant TEXT NOT NULL,
    groups TEXT NOT NULL, attributes TEXT NOT NULL, is_superuser INTEGER NOT NULL, disabled INTEGER NOT NULL,
    expires_at_s INTEGER, created_s INTEGER NOT NULL, changed_s INTEGER NOT NULL, revision INTEGER NOT NULL,
    PRIMARY KEY (kind, identity)
) STRICT, WITHOUT ROWID;
CREATE INDEX users_by_tenant ON users (tenant) WHERE tenant != '';
CREATE INDEX users_by_prefix ON users (prefix) WHERE prefix IS NOT NULL;
CREATE TABLE rules (
    id INTEGER PRIMARY KEY AUTOINCREMENT, position INTEGER NOT NULL, kind TEXT NOT NULL, value TEXT NOT NULL,
    prefix INTEGER, permission INTEGER NOT NULL, topic TEXT NOT NULL, eq INTEGER NOT NULL, actions INTEGER NOT NULL,
    qos INTEGER NOT NULL, retain INTEGER, who TEXT
) STRICT;
CREATE INDEX rules_by_position ON rules (position);
CREATE INDEX rules_by_subject ON rules (kind, value);
CREATE INDEX rules_by_prefix ON rules (prefix) WHERE prefix IS NOT NULL;
CREATE TABLE bans (
    kind TEXT NOT NULL, value TEXT NOT NULL, prefix INTEGER, reason TEXT NOT NULL, until_s INTEGER, by TEXT NOT NULL,
    created_s INTEGER NOT NULL, PRIMARY KEY (kind, value)
) STRICT, WITHOUT ROWID;
CREATE INDEX bans_by_until ON bans (until_s) WHERE until_s IS NOT NULL;
CREATE INDEX bans_by_prefix ON bans (prefix) WHERE prefix IS NOT NULL;
CREATE TABLE audit (
    id INTEGER PRIMARY KEY, at_s INTEGER NOT NULL, by TEXT NOT NULL, action TEXT NOT NULL, subject TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
"""


def _make_first(db: sqlite3.Connection) -> None:
    """Make the tables of format 1, with a first key of device secrets."""
    for statement in _FIRST.split(";\n"):
        if statement.strip():
            db.execute(statement)
    key = secrets.token_bytes(DEVICE_KEY_BYTES)
    db.execute("INSERT INTO device_keys VALUES (?, ?, 1)", (device_key_id(key), key))
    db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")


def _fold_bans(db: sqlite3.Connection) -> None:
    """Add the column ``folded``: bans are found by it, because to a directory ``dev1`` and ``DEV1`` are one name."""
    db.execute("ALTER TABLE bans ADD COLUMN folded TEXT NOT NULL DEFAULT ''")
    for kind, value in db.execute("SELECT kind, value FROM bans").fetchall():
        db.execute("UPDATE bans SET folded = ? WHERE kind = ? AND value = ?", (ban_name(kind, value), kind, value))
    db.execute("CREATE INDEX bans_by_folded ON bans (kind, folded)")


# The n-th step brings format n to n + 1. A step that has been released is never changed.
_STEPS: Final[tuple[Callable[[sqlite3.Connection], None], ...]] = (_make_first, _fold_bans)
FORMAT: Final = len(_STEPS)


def prepare(path: Path) -> None:
    """Create the database if missing, and migrate an older one. Blocks. Raises StoreError."""
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        with _alone(path.parent):
            _create(path)
            db = connect(path, wait_s=10.0)
            try:
                _migrate(path, db)
            finally:
                db.close()
    except (sqlite3.Error, OSError) as error:
        raise StoreError(explain(path, error)) from error


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Lets one process at a time check and create the file.

    SQLite's locks are not enough: the change to WAL fails at once while another process writes, and telling an empty
    file from a foreign one takes several queries. The directory is locked instead of the file, because closing a second
    descriptor of a file drops the process's SQLite locks on it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create(path: Path) -> None:
    """Make an empty file for this user alone; close an existing one to users outside its group."""
    try:
        # Created here, because SQLite would make it readable for all users. Its -wal and -shm get the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        found = path.stat()
        if found.st_mode & stat.S_IRWXO and found.st_uid == os.geteuid():
            path.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IRWXO)  # a copy may be readable for others


def _migrate(path: Path, db: sqlite3.Connection) -> None:
    """Bring an older format to the present one, wholly or not at all."""
    if _format(path, db) == FORMAT:
        return
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("BEGIN IMMEDIATE")
    try:
        for step in _STEPS[_format(path, db) :]:
            step(db)
        db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _format(path: Path, db: sqlite3.Connection) -> int:
    """The format of the file, 0 for an empty one. Raises StoreError for another program's file."""
    found = int(db.execute("PRAGMA user_version").fetchone()[0])
    ours = db.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION_ID
    if not ours and db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None:
        raise StoreError(
            f"{path} is an SQLite database, but not one of this service: check auth.database.file. Nothing was changed."
        )
    if found > FORMAT:
        raise StoreError(
            f"{path} has format {found}, and this version knows {FORMAT} at most: a newer version has written it. "
            "Run that one, or import an export of it into a new file."
        )
    return found if ours else 0


def check_format(path: Path, db: sqlite3.Connection) -> None:
    """Raises StoreError if the file is not a database of this version, for instance after a replacement."""
    if _format(path, db) != FORMAT:
        raise StoreError(
            f"{path} is empty or of an older format: restart the service, or run any `gateway auth` command."
        )


def connect(path: Path, *, wait_s: float, read_only: bool = False) -> sqlite3.Connection:
    """A connection to an existing file. ``wait_s`` is the longest wait for another process's lock.

    Raises sqlite3.Error. Deleted rows are overwritten with zeros, so that a forgotten device is not in free pages.
    """
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=wait_s, isolation_level=None, check_same_thread=False
    )
    try:
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if read_only:
            db.execute("PRAGMA query_only = ON")
        else:
            db.execute("PRAGMA secure_delete = ON")
            db.execute("PRAGMA synchronous = FULL")  # a confirmed change of an administrator is on the disk
            db.execute("PRAGMA journal_size_limit = 16777216")
        db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()  # opening alone does not read the file
    except BaseException:
        db.close()
        raise
    return db


def is_transient(error: sqlite3.Error) -> bool:
    """Whether a retry may succeed soon, because another process holds the lock."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def explain(path: Path, error: Exception) -> str:
    """A sentence that explains an error of the file."""
    if isinstance(error, UNSTORABLE):
        return "A name is not UTF-8, or a number is beyond all bounds: the database has nothing of the kind."
    if isinstance(error, FileNotFoundError) or (isinstance(error, sqlite3.Error) and not path.exists()):
        return f"{path}: there is no such file. Check auth.database.file and data_dir, and whether the disk is mounted."
    if isinstance(error, OSError):
        return f"{path} cannot be opened: {error.strerror}. Check auth.database.file and the rights of its directory."
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return f"{path} is locked: another process has been changing it for too long. Is an import running?"
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}:
        return (
            f"{path} is damaged, or no SQLite database: {error}. Move it away and import the last export "
            "(gateway auth user import), or bring back a copy."
        )
    if code == sqlite3.SQLITE_FULL:
        return f"{path} cannot be written: the disk is full. Nothing was changed."
    if code == sqlite3.SQLITE_READONLY:
        return f"{path} cannot be written: the file, its directory or its disk is read-only for this user."
    if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
        return (
            f"{path} cannot be opened: {error}. It belongs to the user that made it; the service and the commands "
            "have to run as that user."
        )
    if code == sqlite3.SQLITE_IOERR:
        return f"{path} cannot be read or written: {error}. Look at the disk and at the system's log."
    return f"{path} cannot be used: {error}."
