"""Removing batches and segments from a spool: index first, then files, so that a power cut invents no losses."""

from __future__ import annotations

__all__ = ["drop_lost", "drop_segments"]

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.spool.index import Row
    from bridge.spool.state import State


def drop_lost(state: State, rows: list[Row]) -> None:
    """Forget batches that cannot be read; their segments are to be kept when they go."""
    with state.index.transaction():
        for row in rows:
            state.index.delete(row.id, row.id)
            state.index.set_damaged(row.segment)
    state.damaged.update(row.segment for row in rows)


def drop_segments(state: State, numbers: list[int]) -> None:
    """Remove segments in which nothing is needed; damaged ones are renamed."""
    if not numbers:
        return
    with state.index.transaction():
        for number in numbers:
            state.index.forget_segment(number)
    # Else a power cut could bring back index rows of files that are gone, and they would be called lost.
    state.index.sync()
    for number in numbers:
        state.forget(number)
        name = state.log.path(number).name
        state.log.drop(number, keep_as=f"{name}.damaged" if number in state.damaged else "")
        state.damaged.discard(number)
