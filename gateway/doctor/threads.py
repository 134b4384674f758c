"""Blocking calls with an end to the waiting: a library that hangs on a silent broker must not hold up the report."""

from __future__ import annotations

__all__ = ["call"]

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")


async def call(work: Callable[[], T], timeout_s: float) -> T:
    """What ``work`` returns or raises, run in a daemon thread of its own: the process ends without waiting for it.

    Raises TimeoutError when it takes longer; the thread is then left to itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(act: Callable[[], None]) -> None:
        if not done.done():
            act()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            act = partial(done.set_exception, error)
        else:
            act = partial(done.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle, act)

    threading.Thread(target=run, daemon=True, name="doctor").start()
    async with asyncio.timeout(timeout_s):
        return await done
