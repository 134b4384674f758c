"""Blocking work in a thread that the end of the process does not wait for, for example a connect that hangs."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begun(work: Callable[[], T], name: str) -> Future[T]:
    """Run ``work`` in a daemon thread of this name. Cancelling the future does not end running work."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
