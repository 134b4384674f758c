"""Commands by the time at which something has to happen to them."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.commands.command import Command


class Timers:
    """A command has one time, ``due_ns``; setting it again replaces it, 0 removes it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Command]] = []
        self._numbers = itertools.count()
        self._stale = 0

    def set(self, command: Command, due_ns: int) -> None:
        """Have ``due`` return the command at that time, in place of an earlier one; 0: never."""
        if command.due_ns:
            self._stale += 1
        command.due_ns = due_ns
        if due_ns:
            heapq.heappush(self._heap, (due_ns, next(self._numbers), command))
        if self._stale > len(self._heap) // 2 + 64:
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].due_ns]
            heapq.heapify(self._heap)
            self._stale = 0

    def due(self, now_ns: int) -> list[Command]:
        """The commands whose time has come; each is without a time afterwards."""
        found: list[Command] = []
        while self._heap and self._heap[0][0] <= now_ns:
            due_ns, _, command = heapq.heappop(self._heap)
            if command.due_ns == due_ns:
                command.due_ns = 0
                found.append(command)
            else:
                self._stale = max(0, self._stale - 1)
        return found

    def next_ns(self) -> int | None:
        """The earliest time; None without one. It may be that of a command which has another one by now."""
        return self._heap[0][0] if self._heap else None
