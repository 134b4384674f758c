"""Blocking calls with an end to the waiting: a library that hangs on a silent broker must not hold up the report."""

from __future__ import annotations

__all__ = ["Leaving", "call"]

import asyncio
import math
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

TURN_S: Final = 0.1


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
    raises TimeoutError.

    The time is counted in turns of this event loop: where the loop gets too little of the CPU, so does the thread, and
    an answer that is late by that is no sign of what was asked."""
    answer = asyncio.get_running_loop().run_in_executor(Leaving(), work)
    try:
        for _ in range(math.ceil(timeout_s / TURN_S)):
            await asyncio.wait({answer}, timeout=min(TURN_S, timeout_s))
            if answer.done():
                return answer.result()
    finally:
        answer.cancel()
    raise TimeoutError
