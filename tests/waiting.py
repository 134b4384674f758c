"""Waiting for a condition, with a deadline; and letting time pass."""

import asyncio
import inspect
import time
from collections.abc import Callable

DEADLINE_S = 120.0  # what is waited for takes a second of an idle machine; others may have nearly all of this one


def wait_until(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "the condition",
    deadline_s: float = DEADLINE_S,
    poll_s: float = 0.02,
) -> None:
    """Poll a condition of another process; AssertionError naming ``what`` when it does not come."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what if isinstance(what, str) else what()}"
        time.sleep(poll_s)


async def until(condition: Callable[[], object], what: str = "the condition", deadline_s: float = DEADLINE_S) -> None:
    """Poll a condition, which may be a coroutine function, while this event loop goes on."""
    end = time.monotonic() + deadline_s
    while not (await found if inspect.isawaitable(found := condition()) else found):
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        await asyncio.sleep(0.005)


def passes(seconds: float) -> None:
    """Let a failure, or a load, last."""
    time.sleep(max(seconds, 0.0))
