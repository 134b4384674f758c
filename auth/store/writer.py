"""Writes the service's own changes into the built-in database: renewed hashes and automatic bans.

A thread writes, so the event loop never waits for a lock or a disk. A failed change is tried again. If the queue is
full, a change is dropped and counted; the next login renews the hash.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from auth.errors import StoreError
from auth.store import file as store_file
from auth.store.edit import Editor, transaction

log = structlog.get_logger("auth")

_ROOM: Final = 1000
_TOGETHER: Final = 200  # most changes in one transaction, which share one write to the disk
_AGAIN_S: Final = 1.0
_WAIT_S: Final = 5.0  # for another process's lock


class _Change(NamedTuple):
    make: Callable[[Editor], object]
    done: Future[None] | None  # set for a waiter, which gets the failure; such a change is not repeated


class Writer:
    """Pending changes and the thread that makes them. The first change starts the thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes: deque[_Change] = deque()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._working = False  # a batch is being written
        self.dropped = 0  # for lack of room, or refused
        self.written = 0

    @property
    def waiting(self) -> int:
        """Changes that are not written yet."""
        return len(self._changes)

    def submit(self, change: Callable[[Editor], object]) -> bool:
        """Queue ``change``; False if the queue is full. Runs in the thread, again after a disk failure. Does not
        block."""
        return self._queue(_Change(change, None))

    async def make(self, change: Callable[[Editor], object]) -> None:
        """Queue ``change``, and wait until it is on disk. Raises StoreError if it is refused or cannot be stored."""
        done: Future[None] = Future()
        if not self._queue(_Change(change, done)):
            raise StoreError(f"{self._path}: {len(self._changes)} changes wait already; the disk may be slow or full.")
        await asyncio.wrap_future(done)

    def _queue(self, change: _Change) -> bool:
        """Whether there was room for the change; starts the thread with the first one."""
        with self._condition:
            if self._closing or len(self._changes) >= _ROOM:
                self.dropped += 1
                return False
            self._changes.append(change)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="auth-writer", daemon=True)
                self._thread.start()
            self._condition.notify_all()
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written; False after the time-out. Blocks."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._changes and not self._working, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write pending changes as far as the time allows, then end. Blocks."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        """The thread: write batches until the end; logs the first failure of several."""
        failing = False
        while batch := self._next():
            why = ""
            try:
                # Opened for each batch: a connection that stays open would write into a file that was replaced.
                with contextlib.closing(store_file.connect(self._path, wait_s=_WAIT_S)) as db:
                    self._write(db, batch)
            except (StoreError, sqlite3.Error, OSError) as error:
                why = str(error) if isinstance(error, StoreError) else store_file.explain(self._path, error)
            if why and not failing:
                log.warning("auth_write_failing", error=why, waiting=len(self._changes))
            elif failing and not why:
                log.info("auth_write_works_again")
            failing = bool(why)
            self._finish(batch, why)

    def _next(self) -> list[_Change]:
        """The next changes, which stay in the queue until they are written; empty at the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._changes or self._closing)
            self._working = bool(self._changes)
            return [self._changes[number] for number in range(min(len(self._changes), _TOGETHER))]

    def _finish(self, batch: list[_Change], why: str) -> None:
        """Remove a batch from the queue. After a failure, changes without a waiter stay for the next try."""
        with self._condition:
            for _ in batch:
                self._changes.popleft()
            again = [one for one in batch if one.done is None] if why and not self._closing else []
            self._changes.extendleft(reversed(again))
            if why:
                self.dropped += len(batch) - len(again)
            self._working = False
            self._condition.notify_all()
            for one in batch:
                if one.done is not None and not one.done.done():
                    _tell(one.done, why)
            if again:
                self._condition.wait_for(lambda: self._closing, _AGAIN_S)

    def _write(self, db: sqlite3.Connection, batch: list[_Change]) -> None:
        """Make all changes of a batch in one transaction; a refused one does not undo the others."""
        refused = 0
        with transaction(self._path, db, "service") as editor:
            for change in batch:
                db.execute("SAVEPOINT one")
                try:
                    change.make(editor)
                except StoreError as error:
                    db.execute("ROLLBACK TO one")
                    refused += 1
                    if change.done is None:
                        log.warning("auth_write_refused", error=str(error))
                    else:
                        _tell(change.done, str(error))
                db.execute("RELEASE one")
        self.dropped += refused
        self.written += len(batch) - refused


def _tell(done: Future[None], why: str) -> None:
    """End a waiter's wait; ``why`` is the failure, empty for success."""
    if done.set_running_or_notify_cancel():
        if why:
            done.set_exception(StoreError(why))
        else:
            done.set_result(None)
