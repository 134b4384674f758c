"""Edits of the built-in database, each in one transaction."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from auth.errors import StoreError
from auth.passwords import device_key_id
from auth.store import file as store_file
from auth.store.rules import RuleEdits
from auth.store.session import Session
from auth.store.tenants import BanEdits, TenantEdits
from auth.store.users import UserEdits
from auth.store.values import check_text

_WAIT_S: Final = 10.0


class Editor:
    """The edits of the database. Every method may raise StoreError, which undoes the transaction."""

    def __init__(self, session: Session) -> None:
        self.session: Final = session
        self.users: Final = UserEdits(session)
        self.rules: Final = RuleEdits(session)
        self.tenants: Final = TenantEdits(session)
        self.bans: Final = BanEdits(session)

    def add_device_key(self, key: bytes) -> None:
        """Store a key of another database, for its imported device secrets."""
        number = device_key_id(key)
        row = (number, key, 0)
        if self.session.db.execute("INSERT OR IGNORE INTO device_keys VALUES (?, ?, ?)", row).rowcount:
            self.session.touch()
            self.session.record("key add", f"device key {number}", "")

    def current_device_key(self) -> bytes:
        row = self.session.db.execute("SELECT key FROM device_keys ORDER BY own DESC, id LIMIT 1").fetchone()
        if row is None:
            raise StoreError("The database has no key for device secrets: it is damaged. Import an export of it.")
        return bytes(row[0])


@contextlib.contextmanager
def edit(path: Path, by: str, *, wait_s: float = _WAIT_S, dry_run: bool = False) -> Iterator[Editor]:
    """An Editor of the database, which is created if missing. The edits are committed when the block ends without an
    error.

    Waits at most ``wait_s`` for an edit of another process. Blocks. Raises StoreError. ``by`` is the author in the
    audit. With ``dry_run`` nothing is committed.
    """
    check_text("The name for the audit", by, limit=256)
    store_file.prepare(path)
    try:
        db = store_file.connect(path, wait_s=wait_s)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(store_file.explain(path, error)) from error
    try:
        with transaction(path, db, by, dry_run=dry_run) as editor:
            yield editor
    finally:
        db.close()


@contextlib.contextmanager
def transaction(path: Path, db: sqlite3.Connection, by: str, *, dry_run: bool = False) -> Iterator[Editor]:
    """As ``edit``, over a connection that stays open. Raises StoreError, and the block's own exceptions."""
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            session = Session(db, by)
            yield Editor(session)
            session.finish()
            db.execute("ROLLBACK" if dry_run else "COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # already rolled back, because the disk is full
                db.execute("ROLLBACK")
            raise
    except (sqlite3.Error, *store_file.UNSTORABLE) as error:
        raise StoreError(store_file.explain(path, error)) from error
