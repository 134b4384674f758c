"""Signals as stop requests: SIGTERM, SIGINT and SIGHUP stop, SIGUSR1 retires. The first requests an orderly stop, the
second an immediate one.

A process that catches a signal and ends with status 0 hides the reason from its parent. So the caller raises the signal
again at the end (:meth:`StopSignals.reraise`), outside the event loop.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, Self

import structlog

from gateway.base.lifecycle import StopRequest, StopVerb

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

_SIGNALS: Final = {
    signal.SIGTERM: StopVerb.RESTART,
    signal.SIGINT: StopVerb.RESTART,
    signal.SIGHUP: StopVerb.RESTART,  # its terminal was closed; for a supervisor it means a reload
    signal.SIGUSR1: StopVerb.RETIRE,  # what ``gateway retire`` sends
}


class StopSignals:
    """Turns signals into a stop request while its ``with`` block runs; needs the main thread and a running loop.

    SIGTERM and SIGINT both mean ``restart``: their senders (Kubernetes, systemd, Ctrl-C) do not say whether the worker
    returns, and ending the session of a returning worker would lose its queue. A signal that was ignored at the start
    (a shell does that with SIGINT for background jobs) stays ignored.

    The handlers run in the event loop. A blocked loop sees no signal: only SIGKILL ends such a process.
    """

    def __init__(
        self, stop: StopRequest, hangup: Callable[[], None] | None = None, *, forces: Callable[[], bool] = lambda: True
    ) -> None:
        """``hangup`` is called for SIGHUP; without it that signal stops as SIGTERM does. ``forces`` says whether a
        second signal ends the stop at once; otherwise it does nothing."""
        self._stop = stop
        self._hangup = hangup
        self._forces = forces
        self.received: signal.Signals | None = None  # the first signal that came
        self._previous: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            if previous is signal.SIG_IGN:  # as nohup sets it: stays ignored
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
        if self.received is None:
            self.received = number
            verb = _SIGNALS[number]
            _log.info("stop_signal_received", signal=number.name, verb=verb.value)
            self._stop.request(verb)
        elif not self._stop.forced and self._forces():
            _log.warning("second_signal_received", signal=number.name, consequence="stopping without draining")
            self._stop.force()

    def reraise(self) -> None:
        """Ends the process by the signal that stopped it; returns if there was none. Call it last, after the loop is
        closed.

        The signal's default action, not Python's: an unhandled KeyboardInterrupt would print a traceback for a Ctrl-C.
        """
        if self.received is None or self.received is signal.SIGUSR1:
            return  # a retired gateway ends with status 0, so that it is not started again
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # on a full disk: the signal still says that the stop was clean
                stream.flush()
        signal.signal(self.received, signal.SIG_DFL)
        signal.raise_signal(self.received)
