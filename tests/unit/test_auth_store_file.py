"""The file of the built-in database: its migrations, and what its failures are called."""

import contextlib
import errno
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from auth.errors import StoreError
from auth.store import file as store_file
from auth.store.records import User
from tests.unit.access_parts import opened_store


def failure(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("words of the library")
    error.sqlite_errorcode = code
    return error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "auth" / "auth.sqlite3"
    store_file.prepare(path)
    return path


@pytest.mark.parametrize(("error", "said"), [
    (failure(sqlite3.SQLITE_BUSY), "is locked"),
    (failure(sqlite3.SQLITE_BUSY_SNAPSHOT), "is locked"),
    (failure(sqlite3.SQLITE_LOCKED), "is locked"),
    (failure(sqlite3.SQLITE_CORRUPT), "is damaged"),
    (failure(sqlite3.SQLITE_CORRUPT_INDEX), "is damaged"),
    (failure(sqlite3.SQLITE_NOTADB), "is damaged"),
    (failure(sqlite3.SQLITE_FULL), "the disk is full"),
    (failure(sqlite3.SQLITE_READONLY), "read-only"),
    (failure(sqlite3.SQLITE_READONLY_DIRECTORY), "read-only"),
    (failure(sqlite3.SQLITE_CANTOPEN), "belongs to the user"),
    (failure(sqlite3.SQLITE_IOERR_READ), "Look at the disk"),
    (failure(sqlite3.SQLITE_MISUSE), "words of the library"),
    (PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
    (FileNotFoundError(errno.ENOENT, "No such file"), "there is no such file"),
])  # fmt: skip
def test_each_failure_is_a_sentence_with_the_file(path: Path, error: Exception, said: str) -> None:
    sentence = store_file.explain(path, error)
    assert sentence.startswith(str(path))
    assert said in sentence


def test_a_missing_file_is_called_missing_whatever_sqlite_says(tmp_path: Path) -> None:
    assert "there is no such file" in store_file.explain(tmp_path / "x", failure(sqlite3.SQLITE_CANTOPEN))


class TestMigration:
    def test_an_older_file_is_brought_up_to_date_once(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[int] = []

        def second(db: sqlite3.Connection) -> None:
            db.execute("ALTER TABLE users ADD COLUMN color TEXT")
            made.append(2)

        with opened_store(path) as store:
            with store.edit("test") as edit:
                edit.users.add(User("username", "ann"))
            monkeypatch.setattr(store_file, "_STEPS", (*store_file._STEPS, second))
            monkeypatch.setattr(store_file, "FORMAT", store_file.FORMAT + 1)
            store_file.prepare(path)
            store_file.prepare(path)
            assert made == [2]
            store.refresh()
            assert store.find_user("username", "ann") is not None

    def test_bans_of_the_first_format_hold_for_every_spelling(self, tmp_path: Path) -> None:
        path = tmp_path / "old.sqlite3"
        with contextlib.closing(sqlite3.connect(path)) as db:
            store_file._make_first(db)
            db.execute("INSERT INTO bans VALUES ('username', 'Dev1', NULL, 'stolen', NULL, 'ann', 1)")
            db.execute("INSERT INTO bans VALUES ('address', '10.0.0.0/8', 8, '', NULL, 'ann', 1)")
            db.execute("PRAGMA user_version = 1")
            db.commit()
        with opened_store(path) as store:
            found = store.find_ban("", "dev1", "", 0)
            assert (found.value, found.reason) == ("Dev1", "stolen")
            assert [ban.value for ban in store.bans(now_s=0)] == ["10.0.0.0/8", "Dev1"]

    def test_a_step_that_fails_leaves_the_file_as_it_was(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def bad(db: sqlite3.Connection) -> None:
            db.execute("ALTER TABLE users ADD COLUMN color TEXT")
            db.execute("SELECT nonsense")

        with monkeypatch.context() as patched:
            patched.setattr(store_file, "_STEPS", (*store_file._STEPS, bad))
            patched.setattr(store_file, "FORMAT", store_file.FORMAT + 1)
            with pytest.raises(StoreError):
                store_file.prepare(path)
        with opened_store(path) as store:
            columns = [row[1] for row in store._ready().execute("PRAGMA table_info(users)")]
        assert "color" not in columns

    def test_a_file_of_an_older_format_is_not_read_by_a_running_service(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_file, "FORMAT", store_file.FORMAT + 1)
        with contextlib.closing(sqlite3.connect(path)) as db, pytest.raises(StoreError, match="older format"):
            store_file.check_format(path, db)


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    """As it is after a crash between making the file and its schema."""
    path = tmp_path / "auth.sqlite3"
    path.touch()
    with opened_store(path) as store:
        assert store.count_users() == 0


def test_an_empty_file_put_in_place_of_one_in_use_is_said(path: Path) -> None:
    with opened_store(path) as store:
        for one in path.parent.iterdir():
            one.unlink()
        path.touch()
        with pytest.raises(Exception, match="empty or of an older format"):
            store.refresh()


def test_the_log_and_deletions_are_set_up_on_every_writing_connection(path: Path) -> None:
    db = store_file.connect(path, wait_s=1)
    values = {
        name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "secure_delete", "synchronous")
    }
    db.close()
    assert values == {"journal_mode": "wal", "secure_delete": 1, "synchronous": 2}


def test_a_reading_connection_cannot_write(path: Path) -> None:
    db = store_file.connect(path, wait_s=1, read_only=True)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.execute("DELETE FROM users")
    db.close()


def test_many_that_start_at_once_share_one_database(tmp_path: Path) -> None:
    """Without a lock of our own, one in ten took it for somebody else's, or found it locked."""
    for number in range(10):
        path = tmp_path / str(number) / "auth.sqlite3"
        together = threading.Barrier(6)

        def start(path: Path = path, together: threading.Barrier = together) -> None:
            together.wait(timeout=30)
            store_file.prepare(path)

        with ThreadPoolExecutor(6) as pool:
            for started in [pool.submit(start) for _ in range(6)]:
                started.result(timeout=30)
