"""Questions with a time-out, so that a library that hangs at a silent broker does not delay the report."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from config.errors import GatewayError
from gateway.base.process.daemon_thread import begun

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

TURN_S: Final = 0.1


class Leaving(ThreadPoolExecutor):
    """An executor that is not waited for at the end of the process, for example for a hanging resolver.

    As the loop's default executor it also does name resolutions."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return begun(partial(fn, *args, **kwargs), "doctor")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does not wait."""


async def call(work: Callable[[], T], timeout_s: float) -> T:
    """The result of ``work``, run in a thread of its own. After ``timeout_s`` the thread is abandoned and TimeoutError
    raised.

    The time is counted in turns of this event loop, so a lack of CPU, which also slows the thread, does not look like a
    slow server."""
    answer = asyncio.get_running_loop().run_in_executor(Leaving(), work)
    try:
        for _ in range(math.ceil(timeout_s / TURN_S)):
            await asyncio.wait({answer}, timeout=min(TURN_S, timeout_s))
            if answer.done():
                return answer.result()
    finally:
        answer.cancel()
    raise TimeoutError


async def answer(
    name: str, question: Awaitable[Any], problems: dict[str, GatewayError], default: Any = None, *, who: str = "Kafka"
) -> Any:
    """The answer to a question; without one ``default``, and the reason in ``problems``, by the question's name.

    Each question is asked by itself, because each needs other rights."""
    try:
        return await question
    except GatewayError as error:
        problems[name] = error
    except TimeoutError:
        problems[name] = GatewayError(f"{who} did not answer in time.")
    return default
