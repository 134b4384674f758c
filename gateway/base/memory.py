"""Keeps a long-running worker small: one malloc arena, what the start left behind given back, collections seldom."""

from __future__ import annotations

__all__ = ["loading", "settle", "use_one_arena"]

import contextlib
import ctypes
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_M_ARENA_MAX = -8  # mallopt(3)


def use_one_arena() -> None:
    """Keep short-lived threads (each connect has one) from having heaps of their own: 6 MiB less. glibc only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """While its block runs nothing is collected: what is imported stays, and there is much of it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle() -> None:
    """Call when everything is loaded and running.

    What is alive now stays: the collector need not look at it again, and since the data path makes no cycles it may
    come seldom, to what has lived for a while above all (a cold topic costs a fifth less). What does make some, a
    request to the HTTP port (7 objects) or a producer that is replaced (1,400), waits until there are 5,000 objects,
    some 0.7 MiB; but what is still in use then waits for 40 such collections once it is not: so what is large, or made
    for every batch, must not hang on a cycle (``config.errors.forget_frames``). Blocks for some 20 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 40, 40)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
