"""SIGTERM, SIGINT and SIGHUP stop, SIGUSR1 retires: the first asks for an orderly stop, the second forces it, and the
process ends as the signal says.

A process that caught a signal and then ends with status 0 hides from its parent why it ended; so the caller re-raises
it at the end (:meth:`StopSignals.reraise`), outside the event loop.
"""

from __future__ import annotations

__all__ = ["StopSignals"]

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Final, Self

import structlog

from gateway.base.lifecycle import StopVerb

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from gateway.base.lifecycle import StopRequest

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

_SIGNALS: Final = {
    signal.SIGTERM: StopVerb.RESTART,
    signal.SIGINT: StopVerb.RESTART,
    signal.SIGHUP: StopVerb.RESTART,  # its terminal is gone; to a supervisor it means a reload instead
    signal.SIGUSR1: StopVerb.RETIRE,  # what ``gateway retire`` sends
}


class StopSignals:
    """Turns signals into a stop request while its ``with`` block runs; needs the main thread and a running loop.

    SIGTERM and SIGINT mean the same: ``restart``, as their senders (Kubernetes, systemd, Ctrl-C) do not say whether
    the worker comes back, and ending a session that does come back loses what waits in it. A signal that was ignored
    when the process began (a shell does that with SIGINT for background jobs) stays ignored.

    The handlers run in the event loop. While the loop is blocked no signal is seen; what ends such a process is
    SIGKILL.
    """

    def __init__(self, stop: StopRequest, hangup: Callable[[], None] | None = None) -> None:
        """``hangup`` is called for SIGHUP; without it that signal stops as SIGTERM does."""
        self._stop = stop
        self._hangup = hangup
        self._received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def received(self) -> signal.Signals | None:
        """The first signal that came, None if none did."""
        return self._received

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            if previous is signal.SIG_IGN:
                continue
            self._previous[number] = previous
            self._loop.add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        for number, previous in self._previous.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous.clear()

    def _on_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGHUP and self._hangup is not None:
            self._hangup()
            return
        if self._received is None:
            self._received = number
            verb = _SIGNALS[number]
            _log.info("stop_signal_received", signal=number.name, verb=verb.value)
            self._stop.request(verb)
        elif not self._stop.forced:
            _log.warning("second_signal_received", signal=number.name, consequence="stopping without draining")
            self._stop.force()

    def reraise(self) -> None:
        """Ends the process by the signal that stopped it; returns if there was none. Call it last, after the loop is
        closed.

        The signal's default action, not Python's: an unhandled KeyboardInterrupt would print a traceback for a Ctrl-C.
        """
        if self._received is None or self._received is signal.SIGUSR1:
            return  # retired: nothing is wrong with that, and nobody is to start it again
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(self._received, signal.SIG_DFL)
        signal.raise_signal(self._received)
