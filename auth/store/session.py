"""A transaction of the built-in database under way: what the edits of users, rules, tenants and bans share."""

from __future__ import annotations

__all__ = ["Session"]

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3

_AUDIT_ROWS: Final = 1_000_000  # the oldest go beyond that


class Session:
    """A transaction under way, as the edits share it."""

    def __init__(self, db: sqlite3.Connection, by: str) -> None:
        self.db = db
        self.by = by
        self.now_s: Final = int(time.time())
        self._version = int(db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()[0]) + 1
        self._touched = False
        self._bans_touched = False

    def touch(self) -> int:
        """Say that users, rules or tenants change; returns the version that this makes."""
        self._touched = True
        return self._version

    def touch_bans(self) -> None:
        """Say that bans change."""
        self._bans_touched = True

    def record(self, action: str, subject: str, detail: str) -> None:
        """Write down who did it. Never give it a secret."""
        self.db.execute(
            "INSERT INTO audit (at_s, by, action, subject, detail) VALUES (?, ?, ?, ?, ?)",
            (self.now_s, self.by, action, subject, detail),
        )

    def finish(self) -> None:
        """Count the version up, once, if anything changed."""
        if self._touched:
            self.db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (self._version,))
        if self._bans_touched:
            self.db.execute("UPDATE meta SET value = value + 1 WHERE key = 'ban_version'")
        self.db.execute("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", (_AUDIT_ROWS,))
