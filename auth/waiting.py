"""Waits with a time limit."""

import asyncio
import contextlib
from collections.abc import Callable


async def until_set(event: asyncio.Event, patience_s: float) -> None:
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
