"""Removes everything that a trial has created, however the trial ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from config.error_words import words


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that could not be removed: its name, the reason, and the ``command`` that removes it."""

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
    """Undo steps, run from the last to the first. Add a step *before* the request that it undoes, because an
    interrupted request may have reached the broker. Each step must accept that there is nothing to undo."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self.left: list[Leftover] = []

    def add(self, what: str, undo: Callable[[], Awaitable[None]], *, command: str, patience_s: float = 20.0) -> None:
        """Add a step. ``what`` is its name for people, ``command`` the remedy if ``undo`` fails."""
        self._steps.append(_Step(what, command, undo, patience_s))

    def forget_last(self) -> None:
        """Drop the last step: its request has certainly failed."""
        self._steps.pop()

    async def run(self) -> None:
        """Undo everything. Raises only if it is cancelled; then ``left`` has the remaining steps."""
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
