"""What a trial has made and has to take away again, whatever ends it."""

from __future__ import annotations

__all__ = ["Cleanup", "Leftover"]

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from config.error_words import words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that could not be taken away: ``what`` it is, ``why`` not, and what to do about it (``command``)."""

    what: str
    why: str
    command: str


@dataclass(slots=True)
class _Step:
    what: str
    command: str
    undo: Callable[[], Awaitable[None]]
    patience_s: float


class Cleanup:
    """Steps that undo, the last one first. Add a step *before* what it undoes is done: whether a request that was cut
    short reached the broker, nobody knows. Each step must bear that there is nothing to undo."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self.left: list[Leftover] = []

    def add(self, what: str, undo: Callable[[], Awaitable[None]], *, command: str, patience_s: float = 20.0) -> None:
        """``what`` names it for people, ``command`` is what they can do when ``undo`` fails."""
        self._steps.append(_Step(what, command, undo, patience_s))

    def forget_last(self) -> None:
        """What was added last was certainly not made."""
        self._steps.pop()

    async def run(self) -> None:
        """Undo everything. Never raises, but for its cancellation: then what is not undone yet is in ``left``."""
        while self._steps:
            step = self._steps[-1]
            try:
                async with asyncio.timeout(step.patience_s):
                    await step.undo()
            except TimeoutError:
                self._leave(step, f"it took longer than {step.patience_s:g} s")
            except asyncio.CancelledError:
                for one in reversed(self._steps):
                    self._leave(one, "the clean-up was interrupted")
                self._steps.clear()
                raise
            except Exception as error:  # noqa: BLE001 - one failure must not keep the rest from being undone
                self._leave(step, words(error))
            self._steps.pop()

    def _leave(self, step: _Step, why: str) -> None:
        self.left.append(Leftover(step.what, why, step.command))
