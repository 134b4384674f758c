"""One transaction of the built-in database, shared by its edits."""

import sqlite3
import time
from typing import Final

_AUDIT_ROWS: Final = 1_000_000  # the oldest are removed beyond that


class Session:
    """The present transaction: connection, author, time and version."""

    def __init__(self, db: sqlite3.Connection, by: str) -> None:
        self.db = db
        self.by = by  # who changes, for the audit
        self.now_s: Final = int(time.time())
        self._version = int(db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()[0]) + 1
        self._touched = False  # users, rules or tenants were changed
        self._bans_touched = False

    def touch(self) -> int:
        """Mark a change of users, rules or tenants; returns the new version."""
        self._touched = True
        return self._version

    def touch_bans(self) -> None:
        self._bans_touched = True

    def record(self, action: str, subject: str, detail: str) -> None:
        """Write a line of the audit. Never pass a secret."""
        self.db.execute(
            "INSERT INTO audit (at_s, by, action, subject, detail) VALUES (?, ?, ?, ?, ?)",
            (self.now_s, self.by, action, subject, detail),
        )

    def finish(self) -> None:
        """Raise the version once if anything changed, and shorten the audit."""
        if self._touched:
            self.db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (self._version,))
        if self._bans_touched:
            self.db.execute("UPDATE meta SET value = value + 1 WHERE key = 'ban_version'")
        self.db.execute("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", (_AUDIT_ROWS,))
