"""Keeps a long-running worker small: one malloc arena, memory of the start released, few garbage collections."""

import contextlib
import ctypes
import gc
from collections.abc import Iterator

_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1  # mallopt(3)


def keep_heap_small() -> None:
    """Give short-lived threads (each connect has one) no heaps of their own: 6 MiB less. glibc only.

    Blocks of 1.5 MiB go back to the system when they are freed. Otherwise glibc keeps blocks up to the size of the
    largest one that was ever freed. Smaller ones stay, up to 4 MiB at the heap's end: compressing a batch takes up to
    1.3 MiB, a read 256 KiB, a span 1 MiB. As new pages each time they took 350 of 440 µs for a batch of 256 KiB, 100 of
    137 for one of 10 KiB, and 15 of 17 for a read.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 3 << 19)
        mallopt(_M_TRIM_THRESHOLD, 4 << 20)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Disables garbage collection while its block imports modules, which stay alive anyway."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_loaded_objects() -> None:
    """Call when everything is loaded, before messages arrive.

    Present objects stay, so the collector skips them. The data path makes no cycles, so collections may be rare (a cold
    topic costs a fifth less). An HTTP request makes 7 cyclic objects, a replaced producer 1,400: they wait until there
    are 5,000, about 0.7 MiB. An object still in use at that collection waits for 40 more. So large objects, and those
    of every batch, must not be part of a cycle (``config.errors.forget_frames``). Blocks for about 20 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 40, 40)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
