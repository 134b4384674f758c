"""The thread that waits for the spool's disk, and its jobs."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

import structlog

from bridge.errors import SpoolWriteError
from bridge.spool.record import SpoolBatch
from bridge.spool.store import Store

log = structlog.get_logger("spool")
P = ParamSpec("P")
T = TypeVar("T")

AWAIT_MORE_S: Final = 0.001
TOGETHER_BYTES: Final = 8 << 20  # waiting appends are written together, up to this size


class _Append:
    """A waiting append. ``before_done`` runs on the loop before the future is done, with None after a failure."""

    __slots__ = ("batches", "before_done", "future", "size")

    def __init__(
        self,
        batches: Sequence[SpoolBatch],
        before_done: Callable[[list[int] | None], None],  # on the loop; None: nothing was stored
        future: asyncio.Future[list[int]],
    ) -> None:
        self.batches = batches
        self.size = sum(len(batch.data) for batch in batches)
        self.before_done = before_done
        self.future = future


class _Job:
    """Any other work. ``done`` runs on the loop with the result or the error."""

    __slots__ = ("done", "work")

    def __init__(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.work = work
        self.done = done


class SpoolThread:
    """Runs jobs one after the other, in their order."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: SimpleQueue[_Append | _Job | None] = SimpleQueue()  # None: stop
        self._ahead: list[_Job] = []  # taken from the queue, not done yet; only the thread uses it
        self._appended = False  # the last job was an append, so the index is behind; only the thread uses it
        self._loop: asyncio.AbstractEventLoop | None = None  # which gets the results
        self._thread: threading.Thread | None = None
        self.stopping = False
        self.wrote: Callable[[int], None] = _unwatched  # called on the loop with the nanoseconds of each write

    @property
    def running(self) -> bool:
        """Whether the thread takes jobs."""
        return self._thread is not None and not self.stopping

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take jobs from now on. Results go to that loop."""
        self._loop = loop
        # A daemon thread, so that a process which forgot to close can end. Answered appends are durable already.
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
        self._thread.start()

    def stop(self, *, joins: bool = True) -> None:
        """Take no more jobs. ``joins``: wait for the thread's end."""
        if self._thread is not None and not self.stopping:
            self.stopping = True
            self._jobs.put(None)
            if joins:
                self._thread.join()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in the thread; returns its result or raises its error."""
        assert self._loop is not None
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(lambda: work(*args, **kwargs), done)
        return await future

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run ``work`` in the thread, then ``done`` on the loop."""
        self._jobs.put(_Job(work, done))

    async def append(self, batches: Sequence[SpoolBatch], before_done: Callable[[list[int] | None], None]) -> list[int]:
        """Append in the thread, together with other waiting appends. ``before_done`` gets the ids, None after an
        error."""
        assert self._loop is not None
        future: asyncio.Future[list[int]] = self._loop.create_future()
        self._jobs.put(_Append(batches, before_done, future))
        return await future

    def post(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the loop. For the thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)

    def _run(self) -> None:
        """The thread: does one job after another until ``stop``."""
        while True:
            job = self._next(AWAIT_MORE_S if self._appended or self.stopping else None)
            if self._appended and not isinstance(job, _Append):
                self._afterwards()  # no more appends for now
            self._appended = False
            if isinstance(job, _Append):
                self._append(job)
            elif job is not None:
                self._run_job(job)
            elif self.stopping:
                return

    def _next(self, wait_s: float | None) -> _Append | _Job | None:
        """The next job; None at the end, or after ``wait_s``. ``wait_s`` None: waits without limit."""
        if self._ahead:
            return self._ahead.pop()
        try:
            return self._jobs.get(timeout=wait_s) if wait_s != 0 else self._jobs.get_nowait()
        except Empty:
            return None

    def _run_job(self, job: _Job) -> None:
        """Do a job, have the loop call its ``done``, and tidy the disk after a success."""
        done = job.done
        try:
            result = job.work()
        except BaseException as error:  # noqa: BLE001 - the waiting task gets it
            failure = error
            self.post(lambda: done(None, failure))
        else:
            self.post(lambda: done(result, None))
            self._afterwards()

    def _append(self, first: _Append) -> None:
        """Write all waiting appends. The index, a third of the cost of small ones, follows when none wait."""
        together = [first]
        size = first.size
        while size < TOGETHER_BYTES and (job := self._next(0)) is not None:
            if not isinstance(job, _Append):
                self._ahead.append(job)
                break
            together.append(job)
            size += job.size
        try:
            ids = self._store.append([call.batches for call in together])
        except BaseException as error:  # noqa: BLE001 - the waiting tasks get it
            failure = error
            self.post(lambda: _fail(together, failure))
        else:
            took_ns = self._store.state.log.took_ns
            self.post(lambda: self._answer(together, ids, took_ns))
            self._appended = True

    def _answer(self, calls: list[_Append], ids: list[list[int]], took_ns: int) -> None:
        """On the loop: give each append its ids."""
        self.wrote(took_ns)
        for call, given in zip(calls, ids, strict=True):
            call.before_done(given)
            if not call.future.done():
                call.future.set_result(given)

    def _afterwards(self) -> None:
        """Write the index and remove segments, after the answer was posted."""
        if not self._store.is_open:
            return
        try:
            self._store.index_appended()
            self._store.tidy()
        except SpoolWriteError as error:
            log.warning("spool_behind", error=str(error))  # the next job tries again first
        except Exception as error:
            log.exception("spool_thread_failed", error=repr(error))  # the thread continues: other jobs wait


def _unwatched(_took_ns: int) -> None:
    """The default of ``wrote``."""


def _fail(calls: list[_Append], error: BaseException) -> None:
    for call in calls:
        call.before_done(None)
        if not call.future.done():
            call.future.set_exception(error)
