"""Waits that have an end: for what is asked for, an event, a moment, a common beat, tasks that are no longer wanted."""

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T", bound=Hashable)


class Asked(Generic[_T]):
    """What was asked for, in that order. What is asked again while it waits is done once."""

    def __init__(self) -> None:
        self._waiting: dict[_T, None] = {}
        self._arrived = asyncio.Event()

    def put(self, wanted: _T) -> None:
        self._waiting.setdefault(wanted)
        self._arrived.set()

    async def get(self) -> _T:
        """Wait for the next one, which waits no longer then. For one task."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        wanted = next(iter(self._waiting))
        del self._waiting[wanted]
        return wanted


async def end_tasks(
    *tasks: asyncio.Future[Any] | None,
    patience_s: float | None = None,
    failed: Callable[[BaseException], None] | None = None,
) -> None:
    """Cancel tasks and wait until they have ended, at most ``patience_s``. None stands for a task that never began.

    - A task that has ended already is left as it is.
    - A task's own error is not raised, whether it failed before or because of its cancellation. ``failed`` gets it, or
      the task's done callback. Without either asyncio logs it ("Task exception was never retrieved").
    - A cancellation of the caller is raised at once. The tasks end by themselves, for they are cancelled already.
    """
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=patience_s)
    if failed is not None:
        for ended in tasks:
            if ended is not None and ended.done():
                report_failure(failed)(ended)


def report_failure(failed: Callable[[BaseException], None]) -> Callable[[asyncio.Future[Any]], None]:
    """A done callback for a task that nobody awaits: ``failed`` gets its error. A cancellation is none."""

    def ended(task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            failed(error)

    return ended


async def until_set(event: asyncio.Event, patience_s: float | None) -> None:
    """Return when the event is set, or after ``patience_s``.

    Not ``wait_for``: before Python 3.12 it loses a cancellation at the moment of the event, and a stop would hang.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await event.wait()


async def until_due(due_ns: Callable[[], int], now_ns: Callable[[], int], asked: asyncio.Event) -> None:
    """Return when ``now_ns`` reaches ``due_ns``. Set ``asked`` after a change of ``due_ns``: it is then read again."""
    while (left_ns := due_ns() - now_ns()) > 0:
        asked.clear()
        await until_set(asked, left_ns / 1e9)


def until_beat_s(interval_s: float) -> float:
    """Seconds until the next multiple of an interval by the event loop's clock; a beat that is too near is left out.

    Each wake-up of an idle process costs as much as the look itself, so looks of the same interval, or of a multiple of
    it, share one."""
    left_s = interval_s - asyncio.get_running_loop().time() % interval_s
    return left_s if left_s > interval_s / 8 else left_s + interval_s
