"""Waiting for an event with an end to it."""

from __future__ import annotations

__all__ = ["until_due", "until_set"]

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


async def until_set(event: asyncio.Event, patience_s: float) -> None:
    """Return when the event is set, or after ``patience_s``.

    Not ``wait_for``: before Python 3.12 it swallows a cancellation that meets the event, and a stop would never end.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await event.wait()


async def until_due(due_ns: Callable[[], int], now_ns: Callable[[], int], asked: asyncio.Event) -> None:
    """Return when it is time, by a clock in ns. ``asked`` is set by whoever moves the time; it is looked at again
    then."""
    while (left_ns := due_ns() - now_ns()) > 0:
        asked.clear()
        await until_set(asked, left_ns / 1e9)
