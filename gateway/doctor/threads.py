"""Blocking calls with an end to the waiting: a library that hangs on a silent broker must not hold up the report."""

from __future__ import annotations

__all__ = ["Leaving", "call"]

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")


class Leaving(ThreadPoolExecutor):
    """An executor whose work is left behind at the end: the process does not wait for a resolver that hangs.

    As a loop's default executor it carries its name resolutions too."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # so that whoever gives up waiting cannot cancel what runs

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, daemon=True, name="doctor").start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Waits for nothing."""


async def call(work: Callable[[], T], timeout_s: float) -> T:
    """What ``work`` returns or raises, run in a thread of its own that is left to itself after ``timeout_s``, which
    raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        return await asyncio.get_running_loop().run_in_executor(Leaving(), partial(work))
