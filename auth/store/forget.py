"""Erases a device from the built-in database: its users, rules and bans, and its name in the audit."""

import hashlib
import json
import sqlite3
import time
from pathlib import Path
from typing import Final, NamedTuple

from auth.errors import StoreError
from auth.names import ban_name
from auth.store import file as store_file
from auth.store.edit import Editor
from auth.store.records import StoredRule, User, user_of
from auth.store.rules import RULE_COLUMNS, rule_of
from auth.store.values import check_text

_NAMES: Final = ("username", "clientid", "common_name")  # kinds of a device's name
_WIPE_S: Final = 5.0


class Forgotten(NamedTuple):
    """Removed entries. ``topics`` are other clients' rules that still have the name in their topic, ``spellings`` the
    names of bans that hold for the device too, and are written in another way."""

    users: list[User]
    rules: list[StoredRule]
    bans: int
    audit: int  # entries whose name was replaced
    topics: list[StoredRule]
    spellings: list[str]
    pseudonym: str  # replaces the name in the audit


def forget(editor: Editor, device: str) -> Forgotten:
    """Remove the users, rules and bans of this name, and replace the name in the audit by a pseudonym.

    The pseudonym is made with a key of this database, so nobody else can find the name. Raises StoreError."""
    check_text("The device's name", device)
    session, db = editor.session, editor.session.db
    pseudonym = _pseudonym(editor, device)
    users = [
        user_of(row)
        for kind in _NAMES
        for row in db.execute(
            f"DELETE FROM users WHERE kind = ? AND identity = ? RETURNING {store_file.USER_COLUMNS}",  # noqa: S608
            (kind, device),
        )
    ]
    rules = _rules(db, device)
    for stored in rules:
        db.execute("DELETE FROM rules WHERE id = ?", (stored.id,))
    bans = sum(db.execute("DELETE FROM bans WHERE kind = ? AND value = ?", (kind, device)).rowcount for kind in _NAMES)
    others = "SELECT DISTINCT value FROM bans WHERE kind IN (?, ?, ?) AND folded = ? AND value != ? ORDER BY value"
    spellings = [row[0] for row in db.execute(others, (*_NAMES, ban_name("clientid", device), device))]
    # The details of such entries may hold its attributes, so they are erased too.
    audit = sum(
        db.execute(
            "UPDATE audit SET subject = ?, detail = '' WHERE subject = ?", (pseudonym, f"{kind} {device}")
        ).rowcount
        for kind in _NAMES
    )
    if users or rules:
        session.touch()
    if bans:
        session.touch_bans()
    if users or rules or bans or audit:
        session.record("forget", pseudonym, f"{len(users)} users, {len(rules)} rules, {bans} bans")
    return Forgotten(users, rules, bans, audit, _in_topics(db, device), spellings, pseudonym)


def _pseudonym(editor: Editor, device: str) -> str:
    key = editor.current_device_key()
    return "erased " + hashlib.blake2b(device.encode(), key=key, digest_size=8, person=b"erased device").hexdigest()


def _rules(db: sqlite3.Connection, device: str) -> list[StoredRule]:
    """The rules with a condition that only this device meets. Those with one condition are found by index."""
    found = {
        row[0]: rule_of(row)
        for kind in _NAMES
        for row in db.execute(f"SELECT {RULE_COLUMNS} FROM rules WHERE kind = ? AND value = ?", (kind, device))  # noqa: S608
    }
    quoted = json.dumps(device, ensure_ascii=False)
    for row in db.execute(f"SELECT {RULE_COLUMNS} FROM rules WHERE who IS NOT NULL AND instr(who, ?)", (quoted,)):  # noqa: S608
        stored = rule_of(row)
        if any(kind in _NAMES and value == device for kind, value in stored.rule.who):
            found[stored.id] = stored
    return sorted(found.values(), key=lambda stored: stored.position)


def _in_topics(db: sqlite3.Connection, device: str) -> list[StoredRule]:
    rows = db.execute(f"SELECT {RULE_COLUMNS} FROM rules WHERE instr(topic, ?) ORDER BY position", (device,))  # noqa: S608
    return [stored for row in rows if device in (stored := rule_of(row)).rule.topic.split("/")]


def wipe(path: Path) -> bool:
    """Move the ``-wal`` file, which still has the old pages, into the database and empty it.

    Returns False if a reader's query prevents that for five seconds. Blocks. Raises StoreError."""
    until = time.monotonic() + _WIPE_S
    try:
        db = store_file.connect(path, wait_s=_WIPE_S)
        try:
            while True:
                busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                if not busy:
                    return True
                if time.monotonic() >= until:
                    return False
                time.sleep(0.05)
        finally:
            db.close()
    except (sqlite3.Error, OSError) as error:
        raise StoreError(store_file.explain(path, error)) from error
