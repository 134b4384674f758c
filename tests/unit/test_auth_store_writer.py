"""What the service itself writes into the built-in database: in a thread, in bounds, and again when the disk failed."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from auth.errors import StoreError
from auth.model import Ban
from auth.store.edit import Editor
from auth.store.records import User
from auth.store.store import Store
from auth.store.writer import Writer
from tests.kinds import there
from tests.unit.access_parts import opened_store
from tests.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr("auth.store.writer._AGAIN_S", 0.02)
    monkeypatch.setattr("auth.store.writer._WAIT_S", 0.02)
    with opened_store(tmp_path / "auth" / "auth.sqlite3") as one:
        yield one


def adds(name: str) -> Callable[[Editor], object]:
    return lambda editor: editor.users.add(User("username", name))


def names(store: Store) -> set[str]:
    return {user.identity for user in store.users()}


def test_what_is_submitted_is_written_in_a_thread(store: Store) -> None:
    threads: list[str] = []

    def change(editor: Editor) -> None:
        threads.append(threading.current_thread().name)
        editor.users.add(User("username", "a"))

    assert store.writer.submit(change)
    assert store.writer.flush(60)
    assert (names(store), threads) == ({"a"}, ["auth-writer"])
    assert store.audit(1)[0].by == "service"


def test_a_refused_change_does_not_take_others_with_it(store: Store) -> None:
    for name in ("a", "", "b"):
        store.writer.submit(adds(name))
    assert store.writer.flush(60)
    assert names(store) == {"a", "b"}
    assert (store.writer.written, store.writer.dropped) == (2, 1)


def test_a_change_that_is_refused_halfway_leaves_nothing(store: Store) -> None:
    def halfway(editor: Editor) -> None:
        editor.users.add(User("username", "half"))
        editor.users.add(User("username", ""))

    store.writer.submit(halfway)
    store.writer.submit(adds("a"))
    assert store.writer.flush(60)
    assert names(store) == {"a"}


def test_while_the_database_is_locked_changes_wait(store: Store) -> None:
    with store.edit("somebody"):
        store.writer.submit(adds("a"))
        wait_until(lambda: store.writer._working)
        wait_until(lambda: not store.writer._working)  # it has tried, and could not
        assert store.writer.waiting == 1
        store.writer.submit(adds("b"))
    assert store.writer.flush(60)
    assert names(store) == {"a", "b"}
    assert store.writer.dropped == 0


def test_what_finds_no_room_is_dropped_and_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auth.store.writer._ROOM", 3)
    with store.edit("somebody"):
        taken = [store.writer.submit(adds(f"u{number}")) for number in range(5)]
    assert taken == [True, True, True, False, False]
    assert store.writer.flush(60)
    assert names(store) == {"u0", "u1", "u2"}
    assert store.writer.dropped == 2


async def test_who_waits_is_told(store: Store) -> None:
    await store.writer.make(adds("a"))
    assert names(store) == {"a"}
    with pytest.raises(StoreError, match="already"):
        await store.writer.make(adds("a"))


async def test_who_waits_is_told_that_it_cannot_be_now(store: Store) -> None:
    with store.edit("somebody"), pytest.raises(StoreError, match="is locked"):
        await store.ban(Ban("clientid", "c"), by="x")
    assert store.find_ban("c", "", "", 0) is None
    await store.ban(Ban("clientid", "c"), by="x")
    assert store.find_ban("c", "", "", 0) is not None


async def test_who_stops_waiting_disturbs_nothing(store: Store) -> None:
    task = asyncio.create_task(store.writer.make(adds("a")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.writer.make(adds("b"))
    assert "b" in names(store)


def test_closing_writes_what_waits_and_takes_no_more(store: Store) -> None:
    for number in range(300):  # more than one transaction takes
        store.writer.submit(adds(f"u{number}"))
    store.writer.close(60)
    assert len(names(store)) == 300
    assert not store.writer.submit(adds("late"))


def test_closing_with_a_broken_database_ends(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "none" / "auth.sqlite3")
    writer.submit(adds("a"))
    writer.close(60)
    assert not there(writer._thread).is_alive()
    assert writer.waiting == 0
    assert writer.dropped == 1
