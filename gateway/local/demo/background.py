"""What the demo does beside its own task: background tasks, and threads for what blocks."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from bridge.waiting import end_tasks
from gateway.base.process.daemon_thread import begun

_T = TypeVar("_T")


class Background:
    """A task beside the others, from :meth:`begin` to :meth:`end`."""

    _task: asyncio.Task[None] | None = None

    async def _run(self) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        self._task = asyncio.create_task(self._run())

    def check(self) -> None:
        """Raises what made it fail."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def end(self) -> None:
        """Safe to call at any time, and twice."""
        await end_tasks(self._task)


async def in_thread(work: Callable[[], _T]) -> _T:
    """Runs blocking work in a thread that cannot hold up the end of the process.

    ``asyncio.to_thread`` would: its threads are joined at exit, and a download or a broker's start may last a minute.
    When the caller is cancelled the work goes on until the process ends; what it started is ended by its own guard.
    """
    return await asyncio.wrap_future(begun(work, "demo"))
