"""Time that moves only when nothing else can: a test of timers and deadlines takes no time and cannot be late."""

import asyncio
import functools
import inspect
import selectors
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bridge import backoff

LIMIT_S = 4 * 3600.0  # of the loop's own time: a condition that never comes true ends here, at once


class DeadlockError(AssertionError):
    """Everybody waits, and nothing is scheduled that could wake anybody."""


class _Selector(selectors.DefaultSelector):
    """Jumps to the next timer instead of sleeping until it is due."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise DeadlockError("the test waits for something that nothing will do")
            self.now_s += timeout
        return ready


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while callbacks run and jumps to the next timer when none is left."""

    def __init__(self) -> None:
        self._manual = _Selector()
        super().__init__(self._manual)
        self.complaints: list[Mapping[str, Any]] = []
        self.at_end: list[Callable[[], Awaitable[None]]] = []
        self.set_exception_handler(lambda _loop, context: self.complaints.append(context))

    def time(self) -> float:
        return self._manual.now_s

    def time_ns(self) -> int:
        """What the data path takes for its clock."""
        return round(self._manual.now_s * 1e9)


def at_end(close: Callable[[], Awaitable[None]]) -> None:
    """Call this at the end of the running test."""
    loop = asyncio.get_running_loop()
    loop.at_end.append(close)


def manual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own. It fails for what a loop only logs, and for tasks left behind."""

    async def main(*args: Any, **kwargs: Any) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LIMIT_S):
            await test(*args, **kwargs)
            for close in reversed(loop.at_end):
                await close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"left running: {left}"
        assert not loop.complaints, f"the event loop was told of: {loop.complaints}"

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        backoff._random.seed(0)  # a seeded run has the same pauses each time
        with asyncio.Runner(loop_factory=ManualLoop) as runner:
            runner.run(main(*args, **kwargs))

    return run


def in_manual_time(module: dict[str, Any]) -> None:
    """Run all async tests of a module by :func:`manual_time`. For its last line, with ``globals()``."""
    for name, test in list(module.items()):
        if name.startswith("test_") and inspect.iscoroutinefunction(test):
            module[name] = manual_time(test)
