"""Signals that wait until there is a handler for them: by default each would end the process.

``gateway run`` takes a second to start, and a reload or retirement asked for meanwhile is done when it can be. The
system keeps one of each kind.
"""

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

_LATER: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def hold_back() -> None:
    """Let these signals wait from now on, here and in the processes that this one starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _LATER)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Let them wait while the block runs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _LATER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def let_in() -> Iterator[None]:
    """Take them while the block runs, and those that came before. Needs their handlers, and the main thread."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, _LATER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_supervisor() -> None:
    """Ignore the signals of which only a supervisor knows the meaning: systemd may send one to every process."""
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
